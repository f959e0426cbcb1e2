// A checkpoint around a pipeline would lie across stages, too.
// expect-error: smp::Checkpointed: a Pipeline lies across stages
#include <smp/nn/linear.hpp>
#include <smp/parallel/checkpointed.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/pipeline/pipeline.hpp>

using Net = smp::Sequential<smp::nn::Linear<float>, smp::nn::Linear<float>>;
smp::Checkpointed<smp::Pipeline<smp::Schedule::Interleaved, Net>>* model = nullptr;
static_assert(sizeof(*model) > 0);
