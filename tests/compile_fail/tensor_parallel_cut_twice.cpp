// expect-error: smp::TensorParallel: a module in this one is cut already, and only the outermost is
#include <smp/nn/tensor_parallel.hpp>

struct Outer {
  using Input = smp::Tensor;
  using Output = smp::Tensor;
  struct Saved {};
  smp::TensorParallel<smp::nn::Mlp<>> inner;
  smp::nn::Linear<> layer;
  static constexpr auto fields() {
    return smp::fields(smp::field("inner", &Outer::inner), smp::field("layer", &Outer::layer));
  }
};
template <>
struct smp::TensorParallelTraits<Outer, smp::Split::usual> {
  using input = Replicated;
  using output = Shard<Dim::features>;
  static constexpr auto cuts() { return smp::cuts(cut(0, &Outer::layer, &nn::Linear<>::weight)); }
};

smp::TensorParallel<Outer>* outer = nullptr;
static_assert(sizeof(*outer) > 0);
