// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A communicator that performs nothing and writes down what it was asked for: to look at the plan of any rank of a
/// world of any size, in one process.

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <smp/comm/communicator.hpp>

namespace smp::comm {

/// One call that was asked for, and on which group. Buffers are not kept alive.
struct Recorded {
  std::string group;  ///< name of the group
  Call call;          ///< what was asked for
};

/// The place of one rank in a group that nobody else is in. Buffers stay as they are.
class Recording : public Operations<Recording> {
 public:
  /// What was asked for, in order.
  using Log = std::vector<Recorded>;

  /// Rank `rank` of a world of `size`, which writes to `log`.
  Recording(int rank, int size, std::shared_ptr<Log> log = std::make_shared<Log>())
      : Recording({"WORLD", std::vector<int>(static_cast<std::size_t>(size)), rank}, std::move(log)) {
    std::iota(group_.world_ranks.begin(), group_.world_ranks.end(), 0);
  }

  /// The group, and this rank's place in it.
  [[nodiscard]] const Membership& group() const noexcept { return group_; }
  /// What was asked for, here and in all parts.
  [[nodiscard]] const Log& log() const noexcept { return *log_; }

  /// A part with the given members, which are ranks of this group.
  /// @throws ConfigError if this rank is not one of them
  [[nodiscard]] Recording part(const std::vector<int>& ranks, std::string name) const {
    Membership group{std::move(name), {}, -1};
    for (const int r : ranks) {
      if (r == group_.rank) group.rank = group.size();
      group.world_ranks.push_back(group_.world_ranks.at(static_cast<std::size_t>(r)));
    }
    if (group.rank < 0) throw ConfigError("rank " + std::to_string(group_.rank) + " is no member of " + group.name);
    return Recording(std::move(group), log_);
  }

  /// A part of which only this rank is known: what the others would have asked for, nobody can say. Use `part`.
  [[nodiscard]] Recording split(int /*colour*/, int /*key*/, std::string name) const {
    return part({group_.rank}, std::move(name));
  }

  /// Writes `call` down; the order is that of the calls to `enqueue`.
  void enqueue(HostStream& /*stream*/, const Call& call) { execute(call); }
  /// Writes `call` down.
  void execute(const Call& call) { log_->push_back({group_.name, call}); }

 private:
  Recording(Membership group, std::shared_ptr<Log> log) : group_(std::move(group)), log_(std::move(log)) {}

  Membership group_;
  std::shared_ptr<Log> log_;
};

static_assert(HostCommunicator<Recording>);

}  // namespace smp::comm
