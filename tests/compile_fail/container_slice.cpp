// expect-error: smp: this module would see one tp rank's slice (Shard); gather before it, or declare
#include <smp/parallel/sequential.hpp>

using smp::Dist, smp::GradOf, smp::Tensor;

struct ColumnCut {
  using Input = Dist<Tensor, smp::Replicated>;
  using Output = Dist<Tensor, smp::Shard<smp::Dim::features>>;
  using Saved = Tensor;
  Output forward(auto& ctx, const Input& x, Saved& saved) const;
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved);
};
struct Norm {
  using Input = Tensor;
  using Output = Tensor;
  using Saved = Tensor;
  Output forward(auto& ctx, const Input& x, Saved& saved) const;
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved);
};

smp::Sequential<ColumnCut, Norm> model;
