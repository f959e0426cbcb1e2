// expect-error: smp: this module needs the whole value but gets one tp rank's slice; put AllGather before it
#include <smp/nn/tensor_parallel.hpp>
#include <smp/parallel/sequential.hpp>

using Up = smp::TensorParallel<smp::nn::Linear<>, smp::Split::columns>;  // ends with slices of features
using Full = smp::TensorParallel<smp::nn::Mlp<>>;                        // takes the whole width
smp::Sequential<Up, Full>* model = nullptr;
static_assert(sizeof(*model) > 0);
