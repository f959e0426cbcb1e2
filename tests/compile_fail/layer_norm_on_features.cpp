// expect-error: smp: this module would see one tp rank's slice (Shard); gather before it, or declare
#include <smp/nn/layer_norm.hpp>
#include <smp/nn/tensor_parallel.hpp>
#include <smp/parallel/sequential.hpp>

// The statistics would be those of one rank's slice of each row; DistributedLayerNorm sums them.
smp::Sequential<smp::TensorParallel<smp::nn::Linear<>, smp::Split::columns>, smp::nn::LayerNorm<>>* model = nullptr;
static_assert(sizeof(*model) > 0);
