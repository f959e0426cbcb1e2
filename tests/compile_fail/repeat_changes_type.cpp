// expect-error: smp::Repeat: the block must end as it begins: the same type, distributed in the same way
#include <smp/parallel/repeat.hpp>

using smp::Dist, smp::GradOf, smp::Tensor;

struct Block {
  using Input = Dist<Tensor, smp::Replicated>;
  using Output = Dist<Tensor, smp::Partial>;
  using Saved = Tensor;
  Output forward(auto& ctx, const Input& x, Saved& saved) const;
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved);
};

smp::Repeat<Block> model;
