// SPDX-License-Identifier: Apache-2.0
// The functions of blocks against the standard library's in long double, and code compiled for each vector unit.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include <smp/device/vectorized.hpp>

namespace {

using smp::VectorUnit;

constexpr VectorUnit units[] = {VectorUnit::baseline, VectorUnit::avx2, VectorUnit::avx512};

enum class Function { exp, log, tanh, erf };

template <class T>
void apply(VectorUnit unit, Function f, T (&x)[64]) {
  smp::vectorized_on(unit, [&](auto on) {
    switch (f) {
      case Function::exp:
        return on.exp(x);
      case Function::log:
        return on.log(x);
      case Function::tanh:
        return on.tanh(x);
      case Function::erf:
        return on.erf(x);
    }
  });
}

long double exact(Function f, long double x) {
  switch (f) {
    case Function::exp:
      return std::exp(x);
    case Function::log:
      return std::log(x);
    case Function::tanh:
      return std::tanh(x);
    case Function::erf:
      return std::erf(x);
  }
  return 0;
}

/// Distance of two numbers in units in the last place of the second.
template <class T>
long double ulps(T got, long double wanted) {
  const auto nearest = static_cast<T>(wanted);
  if (std::isnan(nearest)) return std::isnan(got) ? 0 : 1e30L;
  if (std::isinf(nearest) || got == nearest) return got == nearest ? 0 : 1e30L;
  const T ulp = std::nextafter(std::abs(nearest), std::numeric_limits<T>::infinity()) - std::abs(nearest);
  return std::abs(static_cast<long double>(got) - wanted) / static_cast<long double>(ulp);
}

/// The worst of `blocks` blocks of numbers between two.
template <class T>
long double worst(VectorUnit unit, Function f, double from, double to, int blocks) {
  long double most = 0;
  for (int b = 0; b < blocks; ++b) {
    T x[64], y[64];
    for (int i = 0; i < 64; ++i) x[i] = y[i] = static_cast<T>(from + (to - from) * (64 * b + i) / (64.0 * blocks - 1));
    apply(unit, f, y);
    for (int i = 0; i < 64; ++i) {
      const long double distance = ulps(y[i], exact(f, static_cast<long double>(x[i])));
      if (distance > most) most = distance;
    }
  }
  return most;
}

template <class T>
void bits_equal(T a, T b) {
  CHECK(std::memcmp(&a, &b, sizeof(T)) == 0);
}

}  // namespace

TEST_CASE_TEMPLATE("functions of blocks are within 4 ulp on each unit", T, float, double) {
  const bool single = sizeof(T) == 4;
  for (const VectorUnit unit : units) {
    CAPTURE(smp::to_string(unit));
    CHECK(worst<T>(unit, Function::exp, single ? -87 : -708, single ? 88 : 709, 300) <= 4);
    CHECK(worst<T>(unit, Function::exp, -1, 1, 100) <= 4);
    CHECK(worst<T>(unit, Function::log, 1e-30, 1e30, 300) <= 4);
    CHECK(worst<T>(unit, Function::log, 1e-3, 3, 300) <= 4);
    CHECK(worst<T>(unit, Function::tanh, -20, 20, 300) <= 4);
    CHECK(worst<T>(unit, Function::tanh, -1e-3, 1e-3, 100) <= 4);
    CHECK(worst<T>(unit, Function::erf, -6, 6, 300) <= 4);
    CHECK(worst<T>(unit, Function::erf, -1e-3, 1e-3, 100) <= 4);
  }
}

TEST_CASE_TEMPLATE("special values are what the standard library makes of them", T, float, double) {
  using Limits = std::numeric_limits<T>;
  const T special[] = {T(0),
                       -T(0),
                       Limits::infinity(),
                       -Limits::infinity(),
                       Limits::quiet_NaN(),
                       Limits::max(),
                       -Limits::max(),
                       Limits::min(),
                       -Limits::min(),
                       Limits::denorm_min(),
                       Limits::min() / 4,
                       -Limits::min() / 4,
                       T(1),
                       T(-1),
                       T(-104),
                       T(-750)};
  for (const VectorUnit unit : units) {
    for (const Function f : {Function::exp, Function::log, Function::tanh, Function::erf}) {
      T x[64];
      for (int i = 0; i < 64; ++i) x[i] = special[i % 16];
      apply(unit, f, x);
      for (int i = 0; i < 64; ++i) {
        CAPTURE(smp::to_string(unit));
        CAPTURE(static_cast<int>(f));
        CAPTURE(special[i % 16]);
        CHECK(ulps(x[i], exact(f, static_cast<long double>(special[i % 16]))) <= 4);
      }
    }
  }
}

TEST_CASE_TEMPLATE("a value does not depend on its place, nor on its neighbours", T, float, double) {
  for (const VectorUnit unit : units) {
    for (const Function f : {Function::exp, Function::log, Function::tanh, Function::erf}) {
      for (const T value : {T(0.7), T(2.5), T(1e-40), std::numeric_limits<T>::infinity()}) {
        T first = 0;
        for (int place = 0; place < 64; ++place) {
          T x[64];
          for (int i = 0; i < 64; ++i) x[i] = place % 2 == 0 ? T(i) : std::numeric_limits<T>::quiet_NaN();
          x[place] = value;
          apply(unit, f, x);
          if (place == 0) first = x[0];
          bits_equal(x[place], first);
        }
      }
    }
  }
}

TEST_CASE("map_blocks: any length, any offset, in place, several inputs") {
  const auto sigmoid_times = [](auto unit, auto& y, auto&& x, const auto& scale) {
    for (int i = 0; i < 64; ++i) y[i] = -x[i];
    unit.exp(y);
    for (int i = 0; i < 64; ++i) y[i] = scale[i] * 0.3f + x[i] / (1 + y[i]);
  };
  std::vector<float> x(300), scale(300), whole(300);
  for (std::size_t i = 0; i < 300; ++i) {
    x[i] = 0.03f * static_cast<float>(i) - 4;
    scale[i] = 1.0f / static_cast<float>(i + 1);
  }
  for (const VectorUnit unit : units) {
    smp::vectorized_on(unit,
                       [&](auto on) { smp::map_blocks(on, 300, whole.data(), sigmoid_times, x.data(), scale.data()); });
    for (std::size_t i = 0; i < 300; ++i) {
      CHECK(whole[i] == doctest::Approx(scale[i] * 0.3f + x[i] / (1 + std::exp(-x[i]))).epsilon(1e-6));
    }
    for (const std::size_t begin : {0u, 1u, 37u, 64u}) {
      for (const std::size_t n : {0u, 1u, 63u, 64u, 65u, 127u, 130u}) {
        std::vector<float> part(x.begin() + static_cast<std::ptrdiff_t>(begin), x.end());
        smp::vectorized_on(unit, [&](auto on) {
          smp::map_blocks(on, static_cast<std::int64_t>(n), part.data(), sigmoid_times, part.data(), &scale[begin]);
        });
        for (std::size_t i = 0; i < part.size(); ++i) bits_equal(part[i], i < n ? whole[begin + i] : x[begin + i]);
      }
    }
  }
}

TEST_CASE("vectorized returns what its lambda returns, and says which unit runs") {
  CHECK(smp::vectorized([](auto on) { return on.unit; }) == smp::vector_unit());
  CHECK(smp::vectorized_on(VectorUnit::baseline, [](auto on) { return on.unit; }) == VectorUnit::baseline);
  CHECK(smp::vectorized([](auto on) { return on.vector_bytes * on.registers; }) >= 256);
  int calls = 0;
  smp::vectorized([&](auto) { ++calls; });
  CHECK(calls == 1);
}
