// expect-error: smp: this parameter would be added once per tp rank and then summed; cut it, or apply it after the
#include <smp/layout.hpp>

using smp::Dist, smp::GradOf, smp::Tensor;

struct RowCutWithBias {
  using Input = Dist<Tensor, smp::Shard<smp::Dim::features>>;
  using Output = Dist<Tensor, smp::Partial>;
  using Saved = Tensor;
  smp::Parameter weight{{4, 4}, {}, {1, 0, 2}};
  smp::Parameter bias{{4}};  // every rank would add it
  static constexpr auto fields() {
    return smp::fields(smp::field<smp::CutOverTp>("weight", &RowCutWithBias::weight),
                       smp::field("bias", &RowCutWithBias::bias));
  }
  Output forward(auto& ctx, const Input& x, Saved& saved) const;
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved);
};

void f(RowCutWithBias& m) { smp::Layout layout(m); }
