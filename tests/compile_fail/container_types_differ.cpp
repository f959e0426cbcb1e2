// expect-error: smp: the Output of a module is not the Input of the module after it
#include <smp/parallel/sequential.hpp>

using smp::GradOf, smp::Tensor, smp::Tensor64;

struct Single {
  using Input = Tensor;
  using Output = Tensor;
  using Saved = Tensor;
  Output forward(auto& ctx, const Input& x, Saved& saved) const;
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved);
};
struct Double {
  using Input = Tensor64;
  using Output = Tensor64;
  using Saved = Tensor64;
  Output forward(auto& ctx, const Input& x, Saved& saved) const;
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved);
};

smp::Sequential<Single, Double> model;
