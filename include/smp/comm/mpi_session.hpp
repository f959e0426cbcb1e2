// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// MPI for a program that leaves it to smp: begins it if nobody has, and ends it if it has begun it.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include <smp/comm/mpi.hpp>

namespace smp::comm {

/// From which threads MPI will be called.
enum class MpiThreads : int {
  main_only = MPI_THREAD_FUNNELED,  ///< streams that run at once; the fastest
  any = MPI_THREAD_MULTIPLE         ///< also streams with workers
};

/// Notices that a rank calls `std::exit` while its session lasts, which one MPI reports as the end of a job that has
/// succeeded. (`std::exit` ends sessions of static storage only, and those before this.)
struct MpiExitGuard {
  const Mpi* world = nullptr;  ///< of the session, while it lasts

  MpiExitGuard() = default;
  MpiExitGuard(const MpiExitGuard&) = delete;
  MpiExitGuard& operator=(const MpiExitGuard&) = delete;
  ~MpiExitGuard() {
    // From within an operation it is MPI that exits, because another rank has ended the job.
    if (world == nullptr || !mpi_is_running() || world->is_operating()) return;
    const std::string last = world->last_operation();
    std::fprintf(stderr, "smp: world rank %d has called exit; its last operation was %s; ending the job\n",
                 world->rank(), last.empty() ? "none" : last.c_str());
    std::fflush(stderr);
    std::_Exit(EXIT_FAILURE);  // not MPI_Abort: this may be any thread
  }

  /// That of the process: there is one, as there is one MPI.
  static MpiExitGuard& instance() {
    static MpiExitGuard guard;
    return guard;
  }
};

/// Ends the job on all ranks, saying that this one has failed (`what` it did), and where it was.
[[noreturn]] inline void end_mpi_job(const Mpi& world, const std::string& what) {
  const std::string last = world.last_operation();
  std::fprintf(stderr, "smp: world rank %d %s; its last operation was %s; ending the job\n", world.rank(), what.c_str(),
               last.empty() ? "none" : last.c_str());
  std::fflush(stderr);
  MpiExitGuard::instance().world = nullptr;
  MPI_Abort(world.handle(), EXIT_FAILURE);
  std::abort();
}

/// Calls `function()`. If an exception leaves it, prints the exception and ends the job on all ranks: the others may
/// wait for this rank in an operation that it will never come to.
template <class F>
void abort_on_exception(const Mpi& world, F&& function) {
  try {
    std::forward<F>(function)();
  } catch (const std::exception& e) {
    end_mpi_job(world, std::string("has thrown: ") + e.what());
  } catch (...) {
    end_mpi_job(world, "has thrown something that is no std::exception");
  }
}

/// MPI, from construction to destruction. In a program that has called `MPI_Init` itself it does neither begin nor end.
class MpiSession {
 public:
  /// @throws CommError if MPI has ended already, or does not allow the calls that `threads` asks for
  MpiSession(int& argc, char**& argv, MpiOptions options = {}, MpiThreads threads = MpiThreads::main_only) {
    int begun = 0;
    check(MPI_Initialized(&begun), "MPI_Initialized");
    if (begun == 0) {
      int provided = MPI_THREAD_SINGLE;
      check(MPI_Init_thread(&argc, &argv, static_cast<int>(threads), &provided), "MPI_Init_thread");
      owner_ = true;
      if (provided < static_cast<int>(threads)) {
        MPI_Finalize();
        throw CommError("this MPI cannot be called from the threads that MpiThreads::any asks for");
      }
    }
    world_.emplace(MPI_COMM_WORLD, options);
    if (owner_) MpiExitGuard::instance().world = &*world_;
  }

  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  /// Ends MPI if this session began it. While an exception unwinds the stack it ends the job instead: the other ranks
  /// may wait for this one, and would wait in `MPI_Finalize` as well.
  ~MpiSession() {
    if (!owner_ || !mpi_is_running()) return;
    MpiExitGuard::instance().world = nullptr;
    if (std::uncaught_exceptions() > unwinding_) end_mpi_job(*world_, "leaves its MPI session by an exception");
    world_.reset();
    MPI_Finalize();
  }

  /// All ranks.
  [[nodiscard]] Mpi& world() noexcept { return *world_; }

  /// Calls `function(Mpi& world)`; an exception that leaves it ends the job on all ranks, with its text.
  template <class F>
  void run(F&& function) {
    abort_on_exception(*world_, [&] { std::forward<F>(function)(*world_); });
  }

 private:
  bool owner_ = false;
  int unwinding_ = std::uncaught_exceptions();
  std::optional<Mpi> world_;
};

}  // namespace smp::comm
