// expect-error: smp::step: the loss must take what the model gives and the targets
#include <tuple>

#include <smp/train/step.hpp>

using smp::Dist, smp::Ids, smp::Tensor;

struct Model {
  using Output = Dist<Tensor, smp::Shard<smp::Dim::features>>;  // a part of the logits
};
struct Loss {
  using Input = std::tuple<Dist<Tensor, smp::Invariant>, Ids>;  // all of them
  using Output = Dist<Tensor, smp::Invariant>;
};

static_assert(smp::expect_loss<Model, Loss, Ids>());
