// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Sends, broadcasts and gathers values of any type: configurations, names, seeds. Not for tensors, which have the
/// operations of a communicator. All of these wait until they are done.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <smp/comm/communicator.hpp>

namespace smp::comm {

/// How a `T` becomes bytes. Specialise it for a type of your own:
/// `static void pack(const T&, Bytes&)` appends, `static T unpack(ByteReader&)` reads what `pack` wrote.
template <class T>
struct ObjectTraits {
  static_assert(std::is_trivially_copyable_v<T>,
                "smp: specialise smp::comm::ObjectTraits for this type, with pack and unpack");
};

/// Where objects are packed.
using Bytes = std::vector<std::byte>;

/// Reads packed bytes from the front.
class ByteReader {
 public:
  /// Reads `bytes`, which must outlive this.
  explicit ByteReader(std::span<const std::byte> bytes) noexcept : rest_(bytes) {}

  /// The next `n` bytes.
  /// @throws CommError if there are fewer
  std::span<const std::byte> take(std::size_t n) {
    if (n > rest_.size()) {
      throw CommError("a received object is damaged: " + std::to_string(n) + " bytes expected, " +
                      std::to_string(rest_.size()) + " found");
    }
    const auto front = rest_.first(n);
    rest_ = rest_.subspan(n);
    return front;
  }

  /// Bytes that have not been read.
  [[nodiscard]] std::size_t left() const noexcept { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
};

/// Appends them as they are.
inline void append(Bytes& bytes, std::span<const std::byte> raw) {
  const std::size_t before = bytes.size();
  bytes.resize(before + raw.size());
  std::copy_n(raw.data(), raw.size(), bytes.data() + before);
}

/// Appends `object` to `bytes`.
template <class T>
void pack(const T& object, Bytes& bytes) {
  if constexpr (requires { ObjectTraits<T>::pack(object, bytes); }) {
    ObjectTraits<T>::pack(object, bytes);
  } else {
    append(bytes, std::as_bytes(std::span(&object, 1)));
    static_cast<void>(sizeof(ObjectTraits<T>));
  }
}

/// Reads a `T` that `pack` wrote.
template <class T>
[[nodiscard]] T unpack(ByteReader& reader) {
  if constexpr (requires { ObjectTraits<T>::unpack(reader); }) {
    return ObjectTraits<T>::unpack(reader);
  } else {
    static_cast<void>(sizeof(ObjectTraits<T>));
    T object;
    std::memcpy(&object, reader.take(sizeof(T)).data(), sizeof(T));
    return object;
  }
}

/// A list: its length, then its elements.
template <class T>
struct ObjectTraits<std::vector<T>> {
  static void pack(const std::vector<T>& list, Bytes& bytes) {
    comm::pack(std::uint64_t{list.size()}, bytes);
    for (const T& element : list) comm::pack(element, bytes);
  }
  static std::vector<T> unpack(ByteReader& reader) {
    const auto size = comm::unpack<std::uint64_t>(reader);
    if (size > reader.left() && !std::is_empty_v<T>) reader.take(static_cast<std::size_t>(size));  // throws
    std::vector<T> list;
    list.reserve(static_cast<std::size_t>(size));
    for (std::uint64_t i = 0; i < size; ++i) list.push_back(comm::unpack<T>(reader));
    return list;
  }
};

/// A text: its length, then its characters.
template <>
struct ObjectTraits<std::string> {
  static void pack(const std::string& text, Bytes& bytes) {
    comm::pack(std::uint64_t{text.size()}, bytes);
    append(bytes, std::as_bytes(std::span(text.data(), text.size())));
  }
  static std::string unpack(ByteReader& reader) {
    const auto raw = reader.take(static_cast<std::size_t>(comm::unpack<std::uint64_t>(reader)));
    return {reinterpret_cast<const char*>(raw.data()), raw.size()};
  }
};

/// The largest object that is received, in bytes: a size beyond it is a peer's mistake, not a request for memory.
inline constexpr std::uint64_t max_object_bytes = std::uint64_t{1} << 30;

/// Checks the size of an object that is to come before memory is made for it.
[[nodiscard]] inline std::size_t checked_object_bytes(std::uint64_t bytes) {
  if (bytes <= max_object_bytes) return static_cast<std::size_t>(bytes);
  throw CommError("an object of " + std::to_string(bytes) + " bytes was announced; at most " +
                  std::to_string(max_object_bytes) + " are accepted");
}

/// Reads a whole object; nothing may be left over.
template <class T>
[[nodiscard]] T unpack_all(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  T object = unpack<T>(reader);
  if (reader.left() != 0) {
    throw CommError("a received object is damaged or of another type: " + std::to_string(reader.left()) +
                    " bytes are left over");
  }
  return object;
}

/// Sends `object` to rank `peer`, which calls `recv_object`. Returns when it has arrived.
template <class T, HostCommunicator C>
void send_object(C& communicator, const T& object, int peer, Tag tag = Purpose::control) {
  Bytes bytes;
  pack(object, bytes);
  const std::uint64_t size = bytes.size();
  HostStream now;
  communicator.send(now, std::span(&size, 1), peer, tag);
  communicator.send(now, bytes, peer, tag);
}

/// Receives what rank `source` sends with `send_object`.
/// @throws CommError if it is larger than `max_object_bytes`, or no `T`
template <class T, HostCommunicator C>
[[nodiscard]] T recv_object(C& communicator, int source, Tag tag = Purpose::control) {
  std::uint64_t size = 0;
  HostStream now;
  communicator.recv(now, std::span(&size, 1), source, tag);
  Bytes bytes(checked_object_bytes(size));
  communicator.recv(now, bytes, source, tag);
  return unpack_all<T>(bytes);
}

/// Gives every rank the `object` that rank `root` has; what the others pass is ignored.
template <class T, HostCommunicator C>
[[nodiscard]] T broadcast_object(C& communicator, const T& object, int root, Tag tag = Purpose::control) {
  Bytes bytes;
  if (communicator.rank() == root) pack(object, bytes);
  std::uint64_t size = bytes.size();
  HostStream now;
  communicator.broadcast(now, std::span(&size, 1), root, tag);
  bytes.resize(checked_object_bytes(size));
  communicator.broadcast(now, bytes, root, tag);
  return unpack_all<T>(bytes);
}

/// The objects of all ranks, by rank, on every rank.
template <class T, HostCommunicator C>
[[nodiscard]] std::vector<T> all_gather_object(C& communicator, const T& object, Tag tag = Purpose::control) {
  Bytes own;
  pack(object, own);
  const std::uint64_t own_size = own.size();
  std::vector<std::uint64_t> sizes(static_cast<std::size_t>(communicator.size()));
  HostStream now;
  communicator.all_gather(now, std::span(&own_size, 1), sizes, tag);
  std::vector<std::size_t> counts;
  std::size_t total = 0;
  for (const std::uint64_t size : sizes) {
    counts.push_back(checked_object_bytes(size));
    total += counts.back();
  }
  Bytes all(total);
  communicator.all_gather_v(now, own, all, counts, tag);
  std::vector<T> objects;
  std::size_t offset = 0;
  for (const std::size_t count : counts) {
    objects.push_back(unpack_all<T>(std::span(all).subspan(offset, count)));
    offset += count;
  }
  return objects;
}

}  // namespace smp::comm
