// expect-error: smp::TensorParallel: a parameter that is whole in each part would be added once per tp rank
#include <smp/nn/linear.hpp>
#include <smp/parallel/tensor_parallel.hpp>

struct Down : smp::nn::Linear<> {
  using Linear::Linear;
};
template <>
struct smp::TensorParallelTraits<Down, smp::Split::usual> {
  using input = Shard<Dim::features>;
  using output = Partial;
  static constexpr auto cuts() { return smp::cuts(cut(1, &nn::Linear<>::weight)); }  // and the bias?
};

smp::TensorParallel<Down> down(Down(8, 8), 0, 2);
