// expect-error: smp: this parameter belongs to a module whose Input and Output are distributed differently; say which
#include <smp/layout.hpp>

using smp::Dist, smp::GradOf, smp::Tensor;

struct ScaleAndSlice {
  using Input = Dist<Tensor, smp::Invariant>;
  using Output = Dist<Tensor, smp::Shard<smp::Dim::sequence>>;
  using Saved = Tensor;
  smp::Parameter scale{{4}};
  static constexpr auto fields() { return smp::fields(smp::field("scale", &ScaleAndSlice::scale)); }
  Output forward(auto& ctx, const Input& x, Saved& saved) const;
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved);
};

void f(ScaleAndSlice& m) { smp::Layout layout(m); }
