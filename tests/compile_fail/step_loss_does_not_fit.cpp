// SPDX-License-Identifier: Apache-2.0
// A loss for tensors of tokens behind a model that returns one for images.
// expect-error: smp::step: the loss must take what the model gives and the targets: its Input is
// std::tuple<Model::Output, Targets>
#include <tuple>

#include <smp/train/step.hpp>

struct Model {
  using Output = smp::Tensor64;
};
struct Loss {
  using Input = std::tuple<smp::Tensor, smp::Ids>;
  using Output = smp::Tensor;
};
static_assert(smp::expect_loss<Model, Loss, smp::Ids>());
