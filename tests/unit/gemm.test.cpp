// SPDX-License-Identifier: Apache-2.0
// needs: blas
// Each back end of gemm() that this build has, against a plain loop in double; and what only ours promises.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <smp/device/gemm.hpp>
#include <smp/device/gemm_threads.hpp>
#include <smp/error.hpp>

#include "support/allocations.hpp"

namespace {

using smp::Gemm;
using smp::Transpose;
using smp::VectorUnit;

template <class T>
struct BackEnd {
  std::string name;
  void (*run)(const Gemm<T>&);
};

template <class T>
std::vector<BackEnd<T>> back_ends() {
  std::vector<BackEnd<T>> all{{"gemm", smp::gemm<T>},
                              {"baseline", [](const Gemm<T>& g) { smp::gemm_portable(g, VectorUnit::baseline); }},
                              {"AVX2", [](const Gemm<T>& g) { smp::gemm_portable(g, VectorUnit::avx2); }},
                              {"portable", [](const Gemm<T>& g) { smp::gemm_portable(g); }}};
#if SMP_HAS_CBLAS
  all.push_back({"CBLAS", smp::gemm_cblas<T>});
#endif
#if SMP_HAS_DNNL
  if constexpr (std::is_same_v<T, float>) all.push_back({"oneDNN", smp::gemm_dnnl});
#endif
  return all;
}

/// Numbers without a pattern, in (-1, 1).
template <class T>
std::vector<T> numbers(std::int64_t n, std::uint32_t seed) {
  std::vector<T> v(static_cast<std::size_t>(n));
  for (T& x : v) {
    seed = seed * 1664525u + 1013904223u;
    x = static_cast<T>(static_cast<double>(seed >> 8) / 8388608.0 - 1);
  }
  return v;
}

/// Matrices with room to the right of each row.
template <class T>
struct Problem {
  Problem(std::int64_t m, std::int64_t n, std::int64_t k, bool a_transposed, bool b_transposed, int gap)
      : a(numbers<T>((a_transposed ? k : m) * ((a_transposed ? m : k) + gap), 1)),
        b(numbers<T>((b_transposed ? n : k) * ((b_transposed ? k : n) + gap), 2)),
        c(numbers<T>(m * (n + gap), 3)),
        call{.a_op = a_transposed ? Transpose::yes : Transpose::no,
             .b_op = b_transposed ? Transpose::yes : Transpose::no,
             .m = m,
             .n = n,
             .k = k,
             .a = a.data(),
             .lda = (a_transposed ? m : k) + gap,
             .b = b.data(),
             .ldb = (b_transposed ? k : n) + gap,
             .c = c.data(),
             .ldc = n + gap} {}

  [[nodiscard]] double exact(std::int64_t i, std::int64_t j, double old) const {
    double sum = 0;
    for (std::int64_t p = 0; p < call.k; ++p) {
      sum += static_cast<double>(call.a_op == Transpose::yes ? call.a[p * call.lda + i] : call.a[i * call.lda + p]) *
             static_cast<double>(call.b_op == Transpose::yes ? call.b[j * call.ldb + p] : call.b[p * call.ldb + j]);
    }
    return static_cast<double>(call.alpha) * sum + (call.beta == T(0) ? 0 : static_cast<double>(call.beta) * old);
  }

  std::vector<T> a, b, c;
  Gemm<T> call;
};

/// The largest error of the back end in units of (terms + 1) epsilon; -1 if it wrote outside of C.
template <class T>
double error(const BackEnd<T>& back_end, Problem<T>& p) {
  const std::vector<T> before = p.c;
  back_end.run(p.call);
  double worst = 0;
  for (std::int64_t i = 0; i < p.call.m; ++i) {
    for (std::int64_t j = 0; j < p.call.ldc; ++j) {
      const auto at = static_cast<std::size_t>(i * p.call.ldc + j);
      if (j >= p.call.n) {
        if (std::memcmp(&p.c[at], &before[at], sizeof(T)) != 0) return -1;
        continue;
      }
      const double distance = std::abs(static_cast<double>(p.c[at]) - p.exact(i, j, static_cast<double>(before[at])));
      if (!(distance <= worst)) worst = distance;
    }
  }
  return worst / (static_cast<double>(p.call.k + 1) * static_cast<double>(std::numeric_limits<T>::epsilon()));
}

template <class T>
void set_factors(Problem<T>& p, T alpha, T beta) {
  p.call.alpha = alpha;
  p.call.beta = beta;
}

}  // namespace

TEST_CASE_TEMPLATE("every back end agrees with a plain loop", T, float, double) {
  struct Sizes {
    std::int64_t m, n, k;
  };
  for (const BackEnd<T>& back_end : back_ends<T>()) {
    CAPTURE(back_end.name);
    for (const Sizes s : {Sizes{1, 1, 1}, Sizes{3, 5, 7}, Sizes{14, 32, 16}, Sizes{15, 33, 300}, Sizes{17, 1, 65},
                          Sizes{1, 70, 13}, Sizes{230, 40, 30}}) {
      for (int ops = 0; ops < 4; ++ops) {
        Problem<T> p(s.m, s.n, s.k, (ops & 1) != 0, (ops & 2) != 0, 3 * (ops % 2));
        CAPTURE(s.m);
        CAPTURE(s.n);
        CAPTURE(s.k);
        CAPTURE(ops);
        const double plain = error(back_end, p);
        CHECK(plain >= 0);
        CHECK(plain <= 2);
        set_factors(p, T(-0.5), T(2));
        const double scaled = error(back_end, p);
        CHECK(scaled >= 0);
        CHECK(scaled <= 4);
      }
    }
  }
}

TEST_CASE_TEMPLATE("sizes of more than one block", T, float, double) {
  Problem<T> p(3, 4200, 520, false, true, 1);
  set_factors(p, T(1), T(1));
  const double distance = error<T>({"portable", [](const Gemm<T>& g) { smp::gemm_portable(g); }}, p);
  CHECK(distance >= 0);
  CHECK(distance <= 1);
}

TEST_CASE_TEMPLATE("what is not asked for is not read", T, float, double) {
  const T nan = std::numeric_limits<T>::quiet_NaN();
  for (const BackEnd<T>& back_end : back_ends<T>()) {
    CAPTURE(back_end.name);
    Problem<T> p(5, 6, 7, false, false, 0);
    p.c.assign(p.c.size(), nan);
    back_end.run(p.call);  // beta = 0
    for (const T x : p.c) CHECK(std::isfinite(x));

    const std::vector<T> before = p.c;
    set_factors(p, T(0), T(3));
    p.a.assign(p.a.size(), nan);
    back_end.run(p.call);
    for (std::size_t i = 0; i < before.size(); ++i) CHECK(p.c[i] == 3 * before[i]);

    // Numbers that are infinite or no numbers are passed on.
    set_factors(p, T(1), T(0));
    back_end.run(p.call);
    for (const T x : p.c) CHECK(std::isnan(x));
  }
}

TEST_CASE_TEMPLATE("sizes of zero", T, float, double) {
  for (const BackEnd<T>& back_end : back_ends<T>()) {
    CAPTURE(back_end.name);
    std::vector<T> c{1, 2, 3, 4};
    Gemm<T> g{.m = 2, .n = 2, .k = 0, .ldb = 2, .c = c.data(), .ldc = 2, .beta = T(0.5)};
    back_end.run(g);
    CHECK(c == std::vector<T>{T(0.5), 1, T(1.5), 2});
    g.beta = 0;
    back_end.run(g);
    CHECK(c == std::vector<T>{0, 0, 0, 0});
    back_end.run(Gemm<T>{.m = 0, .n = 2, .k = 2, .lda = 2, .ldb = 2, .ldc = 2});
    back_end.run(Gemm<T>{.m = 2, .n = 0, .k = 2, .lda = 2});
  }
}

TEST_CASE_TEMPLATE("sizes and strides that cannot be", T, float, double) {
  const auto says = [](const BackEnd<T>& back_end, const Gemm<T>& g, const char* text) {
    CAPTURE(back_end.name);
    CHECK_THROWS_WITH_AS(back_end.run(g), text, smp::ConfigError);
  };
  for (const BackEnd<T>& back_end : back_ends<T>()) {
    says(back_end, {.m = 1, .n = -2, .k = 3}, "smp: gemm: sizes must not be negative, but m = 1, n = -2, k = 3");
    says(back_end, {.m = 2, .n = 3, .k = 4, .lda = 3, .ldb = 3, .ldc = 3},
         "smp: gemm: a row of A has 4 elements, but the next one begins after 3");
    says(back_end, {.b_op = Transpose::yes, .m = 2, .n = 3, .k = 4, .lda = 4, .ldb = 3, .ldc = 3},
         "smp: gemm: a row of B has 4 elements, but the next one begins after 3");
    says(back_end, {.m = 2, .n = 3, .k = 4, .lda = 4, .ldb = 3, .ldc = 2},
         "smp: gemm: a row of C has 3 elements, but the next one begins after 2");
  }
#if SMP_HAS_CBLAS
  if (sizeof(decltype(smp::cblas_size(&cblas_dgemm))) == 4) {
    T one = 1;
    says({"CBLAS", smp::gemm_cblas<T>},
         {.m = 1, .n = 1, .k = 1, .a = &one, .lda = 3'000'000'000, .b = &one, .ldb = 1, .c = &one, .ldc = 1},
         "smp: gemm: the CBLAS that is linked takes sizes and strides up to 2147483647, not 3000000000");
  }
#endif
}

TEST_CASE_TEMPLATE("ours: the bits of an element depend on its row and its column only", T, float, double) {
  constexpr std::int64_t m = 31, n = 70, k = 530;
  for (const VectorUnit unit : {VectorUnit::baseline, VectorUnit::avx2, VectorUnit::avx512}) {
    CAPTURE(smp::to_string(unit));
    for (int ops = 0; ops < 4; ++ops) {
      Problem<T> whole(m, n, k, (ops & 1) != 0, (ops & 2) != 0, 0);
      set_factors(whole, T(0.3), T(0.7));
      const std::vector<T> before = whole.c;
      smp::gemm_portable(whole.call, unit);
      int different = 0;
      for (const std::int64_t rows : {1, 4, 15}) {
        for (const std::int64_t columns : {1, 16, 33}) {
          for (const std::int64_t row : {0, 2, 16}) {
            for (const std::int64_t column : {0, 5, 32}) {
              std::vector<T> c = before;
              Gemm<T> part = whole.call;
              part.m = rows;
              part.n = columns;
              part.a += (ops & 1) != 0 ? row : row * part.lda;
              part.b += (ops & 2) != 0 ? column * part.ldb : column;
              part.c = c.data() + row * n + column;
              smp::gemm_portable(part, unit);
              for (std::int64_t i = 0; i < rows; ++i) {
                different += std::memcmp(part.c + i * n, &whole.c[static_cast<std::size_t>((row + i) * n + column)],
                                         sizeof(T) * static_cast<std::size_t>(columns)) != 0;
              }
            }
          }
        }
      }
      CHECK(different == 0);
    }
  }
}

TEST_CASE_TEMPLATE("nothing is allocated once a thread has multiplied", T, float, double) {
  Problem<T> small(40, 50, 60, false, true, 0), large(130, 1100, 520, true, false, 1);
  for (const BackEnd<T>& back_end : back_ends<T>()) {
    if (SMP_HAS_DNNL == 1 && sizeof(T) == 4 && (back_end.name == "gemm" || back_end.name == "oneDNN")) continue;
    CAPTURE(back_end.name);
    back_end.run(small.call);
    const long before = smp::testing::allocations;
    back_end.run(large.call);
    back_end.run(small.call);
    CHECK(smp::testing::allocations == before);
  }
}

TEST_CASE_TEMPLATE("threads that multiply at the same time get the same bits", T, float, double) {
  smp::set_gemm_threads(1);
  for (const BackEnd<T>& back_end : back_ends<T>()) {
    CAPTURE(back_end.name);
    std::vector<Problem<T>> problems;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) problems.emplace_back(40, 50, 60, false, true, 0);
    for (Problem<T>& p : problems) {
      threads.emplace_back([&back_end, &p] {
        smp::set_gemm_threads(1);
        for (int i = 0; i < 5; ++i) back_end.run(p.call);
      });
    }
    for (std::thread& t : threads) t.join();
    for (const Problem<T>& p : problems) CHECK(p.c == problems[0].c);
  }
}

TEST_CASE("which kernels run") {
  MESSAGE("float: ", smp::gemm_kernel<float>(), ", double: ", smp::gemm_kernel<double>());
  CHECK(smp::gemm_kernel<float>().find("oneDNN") == (SMP_HAS_DNNL == 1 ? 0 : std::string::npos));
  CHECK((smp::gemm_kernel<double>().find("portable") == 0) == (SMP_HAS_CBLAS == 0));
}

TEST_CASE("an OpenBLAS that does not know its processor") {
  using smp::better_openblas_core;
  CHECK(better_openblas_core("Prescott", VectorUnit::avx512) == "SkylakeX");
  CHECK(better_openblas_core("Haswell", VectorUnit::avx512) == "SkylakeX");
  CHECK(better_openblas_core("Nehalem", VectorUnit::avx2) == "Haswell");
  CHECK(better_openblas_core("Haswell", VectorUnit::avx2).empty());
  CHECK(better_openblas_core("SkylakeX", VectorUnit::avx512).empty());
  CHECK(better_openblas_core("Cooperlake", VectorUnit::avx512).empty());
  CHECK(better_openblas_core("Zen", VectorUnit::avx512).empty());
  CHECK(better_openblas_core("Prescott", VectorUnit::baseline).empty());
  CHECK(better_openblas_core("", VectorUnit::avx512).empty());
}

TEST_CASE("threads of a rank") {
  static_assert(smp::gemm_threads(8, 1) == 8);
  static_assert(smp::gemm_threads(8, 3) == 2);
  static_assert(smp::gemm_threads(2, 4) == 1);
  static_assert(smp::gemm_threads(4, 0) == 4);
  CHECK(smp::node_cores() >= 1);
  smp::set_gemm_threads(2);
#if SMP_HAS_DNNL
  CHECK(smp::loaded_function<int()>("omp_get_max_threads")() == 2);
#endif
  for (const auto& back_end : back_ends<float>()) {
    Problem<float> p(64, 64, 64, false, true, 0);
    CHECK(error(back_end, p) <= 2);
  }
  smp::set_gemm_threads(1);
}
