// expect-error: smp::TensorParallel: there is no rule for cutting this module this way; specialise
#include <smp/nn/layer_norm.hpp>
#include <smp/parallel/tensor_parallel.hpp>

smp::TensorParallel<smp::nn::LayerNorm<>> norm(smp::nn::LayerNorm<>(8), 0, 2);
