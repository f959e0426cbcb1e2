// expect-error: smp: this parameter is cut over the tp ranks, but its module sees one rank's samples only
#include <smp/nn/linear.hpp>
#include <smp/parallel/tensor_parallel.hpp>

struct Up : smp::nn::Linear<> {
  using Linear::Linear;
};
template <>
struct smp::TensorParallelTraits<Up, smp::Split::usual> {
  using input = Varying;  // the parts of the weight never meet the other ranks' samples
  using output = Shard<Dim::features>;
  static constexpr auto cuts() { return smp::cuts(cut(0, &nn::Linear<>::weight), cut(0, &nn::Linear<>::bias)); }
};

smp::TensorParallel<Up> up(Up(8, 8), 0, 2);
