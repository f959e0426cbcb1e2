// expect-error: smp::step: this loss is the mean over one tp rank's slice; a mean of means is not the mean
#include <tuple>

#include <smp/train/step.hpp>

using smp::Dist, smp::Ids, smp::Tensor;

struct Model {
  using Output = Dist<Tensor, smp::Invariant>;
};
struct Loss {
  using Input = std::tuple<Dist<Tensor, smp::Invariant>, Ids>;
  using Output = Dist<Tensor, smp::Shard<smp::Dim::sequence>>;
};

static_assert(smp::expect_loss<Model, Loss, Ids>());
