// expect-error: smp: field<...> names a distribution that neither Input nor Output of this module has
#include <smp/layout.hpp>

using smp::Dist, smp::GradOf, smp::Tensor;

struct NormOnSlices {
  using Input = Dist<Tensor, smp::Shard<smp::Dim::sequence>>;
  using Output = Dist<Tensor, smp::Shard<smp::Dim::sequence>>;
  using Saved = Tensor;
  smp::Parameter weight{{4}};  // its gradient is a summand of each rank: not Invariant
  static constexpr auto fields() { return smp::fields(smp::field<smp::Invariant>("weight", &NormOnSlices::weight)); }
  Output forward(auto& ctx, const Input& x, Saved& saved) const;
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved);
};

void f(NormOnSlices& m) { smp::Layout layout(m); }
