// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Files in the safetensors format (https://huggingface.co/docs/safetensors): the length of the header in 8 bytes,
/// little end first; a JSON header with type, shape and place of each tensor; the elements of all tensors, one after
/// the other.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include <smp/error.hpp>
#include <smp/float16.hpp>
#include <smp/tensor.hpp>

namespace smp::io {

/// The name of an element type in a safetensors file.
template <class T>
[[nodiscard]] constexpr const char* dtype() noexcept {
  if constexpr (std::is_same_v<T, double>) {
    return "F64";
  } else if constexpr (std::is_same_v<T, float>) {
    return "F32";
  } else if constexpr (std::is_same_v<T, Float16>) {
    return "F16";
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return "BF16";
  } else {
    static_assert(std::is_same_v<T, std::int32_t>, "smp::io: there is no safetensors type for this element type");
    return "I32";
  }
}

/// What a file says of one tensor.
struct TensorHeader {
  std::string name;         ///< path of the parameter
  std::string dtype;        ///< as `io::dtype` names it
  Shape shape;              ///< the sizes
  std::uint64_t bytes = 0;  ///< of its elements
};

/// The header of a tensor of `T`s.
template <class T>
[[nodiscard]] TensorHeader tensor_header(std::string name, const Shape& shape) {
  return {std::move(name), dtype<T>(), shape, std::uint64_t{shape.elements()} * sizeof(T)};
}

/// Writes a file piece by piece, so that no more than one piece is in memory. It has a temporary name until `commit`:
/// a run that ends early leaves an older file as it was.
class SafetensorsWriter {
 public:
  /// Begins `file` with the header of `tensors`, whose elements follow in this order. Made early, it shows that the
  /// file can be written before hours of training.
  /// @throws ConfigError if two tensors have one name, or the file cannot be written
  SafetensorsWriter(std::filesystem::path file, const std::vector<TensorHeader>& tensors,
                    const std::map<std::string, std::string>& metadata = {})
      : file_(std::move(file)), temporary_(file_.string() + ".tmp"), out_(temporary_, std::ios::binary) {
    static_assert(std::endian::native == std::endian::little, "smp::io: the format is little-endian");
    std::string header = header_text(tensors, metadata);
    header.resize((header.size() + 7) / 8 * 8, ' ');  // the elements begin at a multiple of 8 bytes
    const std::uint64_t length = header.size();
    write(std::as_bytes(std::span(&length, 1)));
    write(std::as_bytes(std::span(header)));
    left_ = total_;
  }
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter() {
    if (committed_) return;
    out_.close();
    std::error_code ignored;
    std::filesystem::remove(temporary_, ignored);
  }

  /// Appends elements: all of a tensor or a part.
  /// @throws ConfigError if they are more than the header announced, or cannot be written
  void append(std::span<const std::byte> bytes) {
    if (bytes.size() > left_) throw ConfigError(complaint("more elements than its header announces"));
    left_ -= bytes.size();
    write(bytes);
  }

  /// Ends the file and gives it its name.
  /// @throws ConfigError if elements are missing, or the file cannot be written
  void commit() {
    if (left_ != 0) throw ConfigError(complaint(std::to_string(left_) + " bytes fewer than its header announces"));
    out_.close();
    std::error_code error;
    if (out_) std::filesystem::rename(temporary_, file_, error);
    if (!out_ || error) throw ConfigError("cannot write '" + file_.string() + "'");
    committed_ = true;
  }

 private:
  std::string header_text(const std::vector<TensorHeader>& tensors,
                          const std::map<std::string, std::string>& metadata) {
    nlohmann::ordered_json header = nlohmann::ordered_json::object();
    if (!metadata.empty()) header["__metadata__"] = metadata;
    std::set<std::string> names{"__metadata__"};
    for (const TensorHeader& t : tensors) {
      if (!names.insert(t.name).second) throw ConfigError(complaint("two tensors called '" + t.name + "'"));
      std::vector<std::int64_t> shape;
      for (std::size_t d = 0; d < t.shape.rank(); ++d) shape.push_back(t.shape[static_cast<int>(d)]);
      header[t.name] = {{"dtype", t.dtype}, {"shape", shape}, {"data_offsets", {total_, total_ + t.bytes}}};
      total_ += t.bytes;
    }
    return header.dump();
  }

  void write(std::span<const std::byte> bytes) {
    out_.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!out_) throw ConfigError("cannot write '" + file_.string() + "'");
  }
  [[nodiscard]] std::string complaint(const std::string& what) const {
    return "the file '" + file_.string() + "' would have " + what;
  }

  std::filesystem::path file_, temporary_;
  std::ofstream out_;
  std::uint64_t total_ = 0, left_ = 0;
  bool committed_ = false;
};

}  // namespace smp::io
