// expect-error: smp::Residual: adds a Partial (a sum over tp still pending) to a finished value
#include <smp/parallel/residual.hpp>

using smp::Dist, smp::GradOf, smp::Tensor;

struct Branch {
  using Input = Dist<Tensor, smp::Invariant>;
  using Output = Dist<Tensor, smp::Partial>;
  using Saved = Tensor;
  Output forward(auto& ctx, const Input& x, Saved& saved) const;
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved);
};

smp::Residual<Branch> model;
