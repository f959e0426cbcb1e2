// expect-error: smp::step: the loss is still a sum over tp (Partial); end the model with AllReduce
#include <tuple>

#include <smp/train/step.hpp>

using smp::Dist, smp::Ids, smp::Tensor;

struct Model {
  using Output = Dist<Tensor, smp::Invariant>;
};
struct Loss {
  using Input = std::tuple<Dist<Tensor, smp::Invariant>, Ids>;
  using Output = Dist<Tensor, smp::Partial>;
};

static_assert(smp::expect_loss<Model, Loss, Ids>());
