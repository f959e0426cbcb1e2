// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The product of matrices by whatever CBLAS is linked, and a word of warning about an OpenBLAS that does not know its
/// processor.

#include <string_view>

#include <smp/config.hpp>
#include <smp/device/gemm_call.hpp>
#include <smp/device/vectorized.hpp>

#if SMP_HAS_CBLAS
#include <cstdio>
#include <limits>
#include <string>
#include <type_traits>

#include <cblas.h>

#include <smp/device/symbol.hpp>
#include <smp/error.hpp>
#endif

namespace smp {

/// What to set OPENBLAS_CORETYPE to where OpenBLAS runs its kernels for `core` on a processor with `unit`; empty if
/// they are as good as what it has. An OpenBLAS older than its processor takes kernels that are several times slower
/// than the right ones, and says nothing.
[[nodiscard]] constexpr std::string_view better_openblas_core(std::string_view core, VectorUnit unit) noexcept {
  constexpr std::string_view without_avx2[] = {"Katmai", "Coppermine",  "Northwood",    "Prescott",   "Banias",
                                               "Atom",   "Core2",       "Penryn",       "Dunnington", "Nehalem",
                                               "Athlon", "Opteron",     "Opteron_SSE3", "Barcelona",  "Bobcat",
                                               "Nano",   "Sandybridge", "Bulldozer",    "Piledriver", "Steamroller"};
  if (unit == VectorUnit::baseline) return {};
  if (unit == VectorUnit::avx512 && core == "Haswell") return "SkylakeX";
  for (const std::string_view old : without_avx2) {
    if (core == old) return unit == VectorUnit::avx512 ? "SkylakeX" : "Haswell";
  }
  return {};
}

#if SMP_HAS_CBLAS

/// The core type of the OpenBLAS that is loaded; empty if the CBLAS is another one.
[[nodiscard]] inline std::string_view openblas_core() noexcept {
  auto* corename = loaded_function<const char*()>("openblas_get_corename");
  return corename == nullptr ? std::string_view{} : corename();
}

/// Says once on stderr if OpenBLAS has kernels that are far better on this processor than those it has picked.
inline void warn_of_slow_openblas() noexcept {
  static const bool said = [] {
    const std::string_view better = better_openblas_core(openblas_core(), vector_unit());
    if (better.empty()) return false;
    std::fprintf(
        stderr,
        "smp: OpenBLAS runs its kernels for %s on a processor with %s, which makes it several times slower than "
        "it can be: set OPENBLAS_CORETYPE=%s in the environment\n",
        openblas_core().data(), to_string(vector_unit()), better.data());
    return true;
  }();
  static_cast<void>(said);
}

/// The type of the sizes that a CBLAS function takes.
template <class R, class Order, class A, class B, class Int, class... Rest>
Int cblas_size(R (*)(Order, A, B, Int, Rest...));

/// The product as the CBLAS computes it: T = float or double.
/// @throws ConfigError if a size or stride is more than the CBLAS can be told
template <class T>
void gemm_cblas(const Gemm<T>& g) {
  check(g);
  if (gemm_is_trivial(g)) return;
  warn_of_slow_openblas();
  using Int = decltype(cblas_size(&cblas_dgemm));
  const auto size = [](std::int64_t n) {
    if (n > std::numeric_limits<Int>::max()) {
      throw ConfigError("gemm: the CBLAS that is linked takes sizes and strides up to " +
                        std::to_string(std::numeric_limits<Int>::max()) + ", not " + std::to_string(n));
    }
    return static_cast<Int>(n);
  };
  const auto a_op = g.a_op == Transpose::no ? CblasNoTrans : CblasTrans;
  const auto b_op = g.b_op == Transpose::no ? CblasNoTrans : CblasTrans;
  const auto run = [&](auto function) {
    function(CblasRowMajor, a_op, b_op, size(g.m), size(g.n), size(g.k), g.alpha, g.a, size(g.lda), g.b, size(g.ldb),
             g.beta, g.c, size(g.ldc));
  };
  if constexpr (std::is_same_v<T, float>) {
    run(&cblas_sgemm);
  } else {
    static_assert(std::is_same_v<T, double>, "smp::gemm_cblas: a CBLAS multiplies float and double");
    run(&cblas_dgemm);
  }
}

/// "OpenBLAS (SkylakeX)", or "CBLAS" if nothing more is known of it.
[[nodiscard]] inline std::string cblas_kernel() {
  const std::string_view core = openblas_core();
  return core.empty() ? "CBLAS" : "OpenBLAS (" + std::string(core) + ")";
}

#endif

}  // namespace smp
