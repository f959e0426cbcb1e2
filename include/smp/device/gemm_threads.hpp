// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How many threads a product of matrices uses.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include <smp/config.hpp>

#if SMP_HAS_CBLAS || SMP_HAS_DNNL
#include <mutex>

#include <smp/device/symbol.hpp>
#endif

namespace smp {

/// Cores of this node, whether or not this process may use them; the hardware threads of a core count as one.
[[nodiscard]] inline int node_cores() {
  const int processors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  int cores = 0;
  for (int i = 0;; ++i) {
    const std::string path = "/sys/devices/system/cpu/cpu" + std::to_string(i) + "/topology/thread_siblings_list";
    std::FILE* const siblings = std::fopen(path.c_str(), "r");  // <fstream> takes compilers longer
    if (siblings == nullptr && i >= processors) break;
    if (siblings == nullptr) continue;
    char first[16] = "";
    if (std::fgets(first, sizeof first, siblings) != nullptr && std::atoi(first) == i) ++cores;
    std::fclose(siblings);
  }
  return cores > 0 ? cores : processors;
}

/// Threads for each of `ranks` ranks on a node of `cores` cores: all cores have one if there are enough. Pass the cores
/// of the node, not those in the affinity mask of the rank: an mpirun that binds each of two ranks to one core would
/// otherwise leave the others idle.
[[nodiscard]] constexpr int gemm_threads(int cores, int ranks) noexcept {
  return std::max(1, cores / std::max(1, ranks));
}

/// Threads for each of `ranks` ranks on this node: what OMP_NUM_THREADS says, or else `gemm_threads` of its cores.
[[nodiscard]] inline int default_gemm_threads(int ranks) {
  const char* set = std::getenv("OMP_NUM_THREADS");
  const int asked = set == nullptr ? 0 : std::atoi(set);
  return asked > 0 ? asked : gemm_threads(node_cores(), ranks);
}

/// Lets gemm() use `threads` threads when it is called by the calling thread. Call it on each rank, before training.
///
/// oneDNN works with OpenMP, whose number of threads belongs to the thread that calls: ranks as threads can differ, but
/// other OpenMP code that the rank runs is set along with it. OpenBLAS has one number for the process: the last caller
/// decides. gemm_portable() runs on the calling thread. Nothing happens where neither is there.
inline void set_gemm_threads(int threads) noexcept {
#if SMP_HAS_CBLAS || SMP_HAS_DNNL
  threads = std::max(1, threads);
  // By name: the OpenMP runtime is the one that oneDNN has brought, whichever the compiler of this file would link.
  if (auto* openmp = loaded_function<void(int)>("omp_set_num_threads")) openmp(threads);
  auto* get = loaded_function<int()>("openblas_get_num_threads");
  auto* set = loaded_function<void(int)>("openblas_set_num_threads");
  if (get == nullptr || set == nullptr) return;
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  if (get() != threads) set(threads);
#else
  static_cast<void>(threads);
#endif
}

}  // namespace smp
