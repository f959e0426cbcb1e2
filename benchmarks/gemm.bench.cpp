// SPDX-License-Identifier: Apache-2.0
// needs: blas
// GFLOP/s, on one thread, of each back end of gemm() that this build has, for the products of a training step of a GPT
// of width 384 on 512 tokens: forward (y = x W^T), gradient of the input (dx = dy W), gradient of the weight (dW +=
// dy^T x), and the scores of one head. "tile" is the innermost loop of our own product on data in the L1 cache: what is
// left of the peak of the processor once numbers have to be loaded.
#include <cstdint>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <smp/device/gemm.hpp>
#include <smp/device/gemm_threads.hpp>

namespace {

using smp::Gemm;
using smp::Transpose;

struct Form {
  std::string name;
  Transpose a_op, b_op;
  std::int64_t m, n, k;
  int beta;
};

/// The three products of a linear layer.
void add_linear(std::vector<Form>& forms, std::int64_t tokens, std::int64_t in, std::int64_t out) {
  const std::string name = std::to_string(in) + "->" + std::to_string(out);
  forms.push_back({name + "/forward", Transpose::no, Transpose::yes, tokens, out, in, 0});
  forms.push_back({name + "/d_input", Transpose::no, Transpose::no, tokens, in, out, 0});
  forms.push_back({name + "/d_weight", Transpose::yes, Transpose::no, out, in, tokens, 1});
}

template <class T>
void run(benchmark::State& state, const Form& f, void (*gemm)(const Gemm<T>&)) {
  std::vector<T> a(static_cast<std::size_t>(f.m * f.k), T(0.5)), b(static_cast<std::size_t>(f.k * f.n), T(0.25)),
      c(static_cast<std::size_t>(f.m * f.n));
  const Gemm<T> g{.a_op = f.a_op,
                  .b_op = f.b_op,
                  .m = f.m,
                  .n = f.n,
                  .k = f.k,
                  .a = a.data(),
                  .lda = f.a_op == Transpose::no ? f.k : f.m,
                  .b = b.data(),
                  .ldb = f.b_op == Transpose::no ? f.n : f.k,
                  .c = c.data(),
                  .ldc = f.n,
                  .beta = static_cast<T>(f.beta)};
  for (auto _ : state) {
    gemm(g);
    benchmark::ClobberMemory();
  }
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * static_cast<double>(f.m * f.n * f.k), benchmark::Counter::kIsIterationInvariantRate);
}

template <class T>
void add(const std::string& back_end, const std::vector<Form>& forms, void (*gemm)(const Gemm<T>&)) {
  for (const Form& form : forms) {
    benchmark::RegisterBenchmark(((sizeof(T) == 4 ? "f32/" : "f64/") + form.name + "/" + back_end).c_str(), run<T>,
                                 form, gemm)
        ->MinTime(0.1);
  }
}

template <class T>
void tile(benchmark::State& state) {
  constexpr std::int64_t depth = 128;
  alignas(64) static T a[depth * 14], b[depth * 32], c[14 * 32];
  double flops = 0;
  for (auto _ : state) {
    for (T* p : {a, b, c}) benchmark::DoNotOptimize(p);
    benchmark::ClobberMemory();
    smp::vectorized([&](auto on) {
      using Blocks = smp::GemmBlocks<decltype(on), T>;
      for (int i = 0; i < 100; ++i) {
        smp::gemm_tile<decltype(on)>(depth, a, b, T(0), c, Blocks::columns,
                                     std::make_integer_sequence<int, Blocks::rows>{});
        benchmark::ClobberMemory();
      }
      flops += 200.0 * depth * Blocks::rows * Blocks::columns;
    });
    benchmark::ClobberMemory();
  }
  state.counters["GFLOP/s"] = benchmark::Counter(1e-9 * flops, benchmark::Counter::kIsRate);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  smp::set_gemm_threads(1);
  std::cout << "gemm<float>: " << smp::gemm_kernel<float>() << ", gemm<double>: " << smp::gemm_kernel<double>() << '\n';

  std::vector<Form> forms;
  add_linear(forms, 512, 384, 1152);
  add_linear(forms, 512, 384, 384);
  add_linear(forms, 512, 384, 1536);
  add_linear(forms, 512, 1536, 384);
  add_linear(forms, 512, 384, 8192);
  forms.push_back({"head/scores", Transpose::no, Transpose::yes, 128, 128, 64, 0});
  forms.push_back({"head/values", Transpose::no, Transpose::no, 128, 64, 128, 0});

  benchmark::RegisterBenchmark("f32/tile", tile<float>)->MinTime(0.1);
  benchmark::RegisterBenchmark("f64/tile", tile<double>)->MinTime(0.1);
  const auto portable = []<class T>(const Gemm<T>& g) { smp::gemm_portable(g); };
  add<float>("portable", forms, portable);
#if SMP_HAS_CBLAS
  add<float>("CBLAS", forms, smp::gemm_cblas<float>);
#endif
#if SMP_HAS_DNNL
  add<float>("oneDNN", forms, smp::gemm_dnnl);
#endif
  add<double>("portable", forms, portable);
#if SMP_HAS_CBLAS
  add<double>("CBLAS", forms, smp::gemm_cblas<double>);
#endif
  benchmark::RunSpecifiedBenchmarks();
}
