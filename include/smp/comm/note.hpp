// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The short messages in which ranks tell each other what they are about to do, and the boxes they arrive in. Posting
/// never waits, so that ranks can compare calls that do not match.

#include <algorithm>
#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <smp/comm/agreement.hpp>

namespace smp::comm {

/// One such message. Crosses processes as bytes.
struct Note {
  /// What the sender is going to do with the receiver.
  enum class Kind : unsigned char {
    collective,  ///< take part in the operation of `signature`
    send,        ///< send it a message of `signature`
    recv,        ///< receive one from it
    fault        ///< throw `text`, and say no more in this epoch
  };

  Kind kind = Kind::collective;  ///< what kind of note
  bool last = true;              ///< of a message: the operation has no further one with the receiver of this note
  std::uint64_t epoch = 0;       ///< faults that the sender has seen in this group
  std::uint64_t sequence = 0;    ///< number of this note among those of its kind from sender to receiver in this epoch
  /// Of a fault: up to which number its sender stands by notes of each other kind; fewer than it has sent if it has
  /// given up to wait.
  std::array<std::uint64_t, 3> stands_by{};
  Signature signature{};         ///< without `file`, which points into the sender's memory
  std::array<char, 64> file{};   ///< the file of `signature`, without directories
  std::array<char, 640> text{};  ///< of a fault

  /// Copies as much of `from` as fits.
  template <std::size_t N>
  static void put(std::array<char, N>& to, std::string_view from) noexcept {
    const std::size_t n = std::min(from.size(), N - 1);
    std::copy_n(from.begin(), n, to.begin());
    to[n] = '\0';
  }
  /// What `put` stored, whatever arrived.
  template <std::size_t N>
  [[nodiscard]] static std::string_view get(const std::array<char, N>& from) noexcept {
    return {from.data(), static_cast<std::size_t>(std::find(from.begin(), from.end(), '\0') - from.begin())};
  }
};

static_assert(std::is_trivially_copyable_v<Note>);

/// "all_reduce of 12 float (sum) at train.cpp:80", or "send_recv at train.cpp:81 and sends 12 float to rank 2": what
/// `note`, meant for rank `peer`, announces.
[[nodiscard]] inline std::string summary(const Note& note, int peer) {
  Signature s = note.signature;
  const std::string file(Note::get(note.file));
  s.file = file.c_str();
  if (note.kind == Note::Kind::collective) return summary(s);
  const bool sends = note.kind == Note::Kind::send;
  return std::string(name(s.operation)) + " at " + place(file, s.line) + " and " + (sends ? "sends " : "receives ") +
         amount(s) + (sends ? " to rank " : " from rank ") + std::to_string(peer);
}

/// Boxes for notes between the ranks of a group.
template <class M>
concept Mailbox = requires(M& m, const Note& note, Note& out, std::string& why) {
  m.post(0, note);                           // to a rank: never waits
  { m.poll(0, out) } -> std::same_as<bool>;  // the next of a rank, if there is one
  { m.gone(0) } -> std::same_as<bool>;       // a rank is known to post nothing more
  m.pause();                                 // between two polls: lets other ranks run
  { m.ended(why) } -> std::same_as<bool>;    // the job has ended, and why
};

/// The boxes of the ranks of one process, by sender and receiver.
class NoteBoxes {
 public:
  /// Empty boxes for `ranks` ranks.
  explicit NoteBoxes(std::size_t ranks) : ranks_(ranks), boxes_(ranks * ranks) {}

  /// Adds `note` to the box of `to`.
  void put(int from, int to, const Note& note) {
    Box& box = at(from, to);
    const std::lock_guard lock(box.mutex);
    box.notes.push_back(note);
    box.filled.store(true, std::memory_order_release);
  }

  /// Takes the oldest note of `from` to `to`, if there is one.
  [[nodiscard]] bool take(int from, int to, Note& note) {
    Box& box = at(from, to);
    if (!box.filled.load(std::memory_order_acquire)) return false;
    const std::lock_guard lock(box.mutex);
    note = box.notes[box.taken++];
    if (box.taken < box.notes.size()) return true;
    box.notes.clear();
    box.taken = 0;
    box.filled.store(false, std::memory_order_release);
    return true;
  }

 private:
  struct alignas(64) Box {
    std::atomic<bool> filled{false};
    std::mutex mutex;
    std::vector<Note> notes;
    std::size_t taken = 0;
  };
  [[nodiscard]] Box& at(int from, int to) {
    return boxes_[static_cast<std::size_t>(from) * ranks_ + static_cast<std::size_t>(to)];
  }

  std::size_t ranks_;
  std::vector<Box> boxes_;
};

}  // namespace smp::comm
