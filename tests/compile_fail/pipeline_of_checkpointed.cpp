// A checkpoint around the whole model would lie across stages.
// expect-error: smp::Pipeline: the model is no Sequential, nor derived from one
#include <smp/nn/linear.hpp>
#include <smp/parallel/checkpointed.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/pipeline/pipeline.hpp>

using Net = smp::Sequential<smp::nn::Linear<float>, smp::nn::Linear<float>>;
smp::Pipeline<smp::Schedule::Interleaved, smp::Checkpointed<Net>>* model = nullptr;
static_assert(sizeof(*model) > 0);
