// expect-error: smp: this module would see one tp rank's slice (Shard); gather before it, or declare
#include <smp/nn/attention.hpp>
#include <smp/nn/tensor_parallel.hpp>
#include <smp/parallel/sequential.hpp>

using Rows = smp::Shard<smp::Dim::sequence>;
// A whole attention behind a cut MLP whose values are slices of the sequence.
smp::Sequential<smp::TensorParallel<smp::nn::Mlp<>, smp::Split::usual, Rows>, smp::nn::Attention<>>* model = nullptr;
static_assert(sizeof(*model) > 0);
