// expect-error: smp::step: this loss is Replicated: its gradient would be counted once per tp rank
#include <tuple>

#include <smp/train/step.hpp>

using smp::Dist, smp::Ids, smp::Tensor;

struct Model {
  using Output = Dist<Tensor, smp::Invariant>;
};
struct Loss {
  using Input = std::tuple<Dist<Tensor, smp::Invariant>, Ids>;
  using Output = Dist<Tensor, smp::Replicated>;
};

static_assert(smp::expect_loss<Model, Loss, Ids>());
