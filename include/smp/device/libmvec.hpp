// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The vector functions of glibc (libmvec, within 4 ulp) on blocks of 64 numbers, for each vector unit. Compilers call
/// them by themselves under -ffast-math only; here they are named. libm's linker script brings the library.

#include <smp/config.hpp>

#if SMP_HAS_LIBMVEC

#include <cstring>

namespace smp::libmvec {

using Float4 = float __attribute__((vector_size(16)));
using Float8 = float __attribute__((vector_size(32)));
using Float16 = float __attribute__((vector_size(64)));
using Double2 = double __attribute__((vector_size(16)));
using Double4 = double __attribute__((vector_size(32)));
using Double8 = double __attribute__((vector_size(64)));

// Name and number of elements; b, d and e are SSE, AVX2 and AVX-512 in the vector function ABI of x86.
Float4 exp_f4(Float4) noexcept asm("_ZGVbN4v_expf");
Float8 exp_f8(Float8) noexcept asm("_ZGVdN8v_expf");
Float16 exp_f16(Float16) noexcept asm("_ZGVeN16v_expf");
Double2 exp_d2(Double2) noexcept asm("_ZGVbN2v_exp");
Double4 exp_d4(Double4) noexcept asm("_ZGVdN4v_exp");
Double8 exp_d8(Double8) noexcept asm("_ZGVeN8v_exp");

Float4 log_f4(Float4) noexcept asm("_ZGVbN4v_logf");
Float8 log_f8(Float8) noexcept asm("_ZGVdN8v_logf");
Float16 log_f16(Float16) noexcept asm("_ZGVeN16v_logf");
Double2 log_d2(Double2) noexcept asm("_ZGVbN2v_log");
Double4 log_d4(Double4) noexcept asm("_ZGVdN4v_log");
Double8 log_d8(Double8) noexcept asm("_ZGVeN8v_log");

Float4 tanh_f4(Float4) noexcept asm("_ZGVbN4v_tanhf");
Float8 tanh_f8(Float8) noexcept asm("_ZGVdN8v_tanhf");
Float16 tanh_f16(Float16) noexcept asm("_ZGVeN16v_tanhf");
Double2 tanh_d2(Double2) noexcept asm("_ZGVbN2v_tanh");
Double4 tanh_d4(Double4) noexcept asm("_ZGVdN4v_tanh");
Double8 tanh_d8(Double8) noexcept asm("_ZGVeN8v_tanh");

Float4 erf_f4(Float4) noexcept asm("_ZGVbN4v_erff");
Float8 erf_f8(Float8) noexcept asm("_ZGVdN8v_erff");
Float16 erf_f16(Float16) noexcept asm("_ZGVeN16v_erff");
Double2 erf_d2(Double2) noexcept asm("_ZGVbN2v_erf");
Double4 erf_d4(Double4) noexcept asm("_ZGVdN4v_erf");
Double8 erf_d8(Double8) noexcept asm("_ZGVeN8v_erf");

template <auto function>
struct Argument;
template <class V, V (*function)(V) noexcept>
struct Argument<function> {
  using type = V;
};

// Replaces each element of x by the function of it. Three times the same, since the target belongs to the function.
template <auto function, class T>
void on_baseline(T (&x)[64]) noexcept {
  typename Argument<function>::type v;
  for (T* p = x; p != x + 64; p += sizeof(v) / sizeof(T)) {
    std::memcpy(&v, p, sizeof(v));
    v = function(v);
    std::memcpy(p, &v, sizeof(v));
  }
}
template <auto function, class T>
__attribute__((target("avx2,fma"))) void on_avx2(T (&x)[64]) noexcept {
  typename Argument<function>::type v;
  for (T* p = x; p != x + 64; p += sizeof(v) / sizeof(T)) {
    std::memcpy(&v, p, sizeof(v));
    v = function(v);
    std::memcpy(p, &v, sizeof(v));
  }
}
template <auto function, class T>
__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))) void on_avx512(T (&x)[64]) noexcept {
  typename Argument<function>::type v;
  for (T* p = x; p != x + 64; p += sizeof(v) / sizeof(T)) {
    std::memcpy(&v, p, sizeof(v));
    v = function(v);
    std::memcpy(p, &v, sizeof(v));
  }
}

/// The functions for a processor of which nothing is known.
struct Baseline {
  static void exp(float (&x)[64]) noexcept { on_baseline<exp_f4>(x); }
  static void exp(double (&x)[64]) noexcept { on_baseline<exp_d2>(x); }
  static void log(float (&x)[64]) noexcept { on_baseline<log_f4>(x); }
  static void log(double (&x)[64]) noexcept { on_baseline<log_d2>(x); }
  static void tanh(float (&x)[64]) noexcept { on_baseline<tanh_f4>(x); }
  static void tanh(double (&x)[64]) noexcept { on_baseline<tanh_d2>(x); }
  static void erf(float (&x)[64]) noexcept { on_baseline<erf_f4>(x); }
  static void erf(double (&x)[64]) noexcept { on_baseline<erf_d2>(x); }
};

/// The functions for AVX2 with FMA.
struct Avx2 {
  static void exp(float (&x)[64]) noexcept { on_avx2<exp_f8>(x); }
  static void exp(double (&x)[64]) noexcept { on_avx2<exp_d4>(x); }
  static void log(float (&x)[64]) noexcept { on_avx2<log_f8>(x); }
  static void log(double (&x)[64]) noexcept { on_avx2<log_d4>(x); }
  static void tanh(float (&x)[64]) noexcept { on_avx2<tanh_f8>(x); }
  static void tanh(double (&x)[64]) noexcept { on_avx2<tanh_d4>(x); }
  static void erf(float (&x)[64]) noexcept { on_avx2<erf_f8>(x); }
  static void erf(double (&x)[64]) noexcept { on_avx2<erf_d4>(x); }
};

/// The functions for AVX-512.
struct Avx512 {
  static void exp(float (&x)[64]) noexcept { on_avx512<exp_f16>(x); }
  static void exp(double (&x)[64]) noexcept { on_avx512<exp_d8>(x); }
  static void log(float (&x)[64]) noexcept { on_avx512<log_f16>(x); }
  static void log(double (&x)[64]) noexcept { on_avx512<log_d8>(x); }
  static void tanh(float (&x)[64]) noexcept { on_avx512<tanh_f16>(x); }
  static void tanh(double (&x)[64]) noexcept { on_avx512<tanh_d8>(x); }
  static void erf(float (&x)[64]) noexcept { on_avx512<erf_f16>(x); }
  static void erf(double (&x)[64]) noexcept { on_avx512<erf_d8>(x); }
};

}  // namespace smp::libmvec

#endif
