// expect-error: smp: a sum over tp is still pending here (Partial); put AllReduce or ReduceScatter before this module
#include <smp/parallel/sequential.hpp>

using smp::Dist, smp::GradOf, smp::Tensor;

struct RowCut {
  using Input = Dist<Tensor, smp::Replicated>;
  using Output = Dist<Tensor, smp::Partial>;
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

smp::Sequential<RowCut, Norm> model;
