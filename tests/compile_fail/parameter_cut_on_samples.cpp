// expect-error: smp: this parameter is cut over the tp ranks, but its module sees one rank's samples only
#include <smp/layout.hpp>

using smp::Dist, smp::GradOf, smp::Tensor;

struct ColumnCut {
  using Input = Dist<Tensor, smp::Varying>;
  using Output = Dist<Tensor, smp::Varying>;
  using Saved = Tensor;
  smp::Parameter weight{{4, 4}, {}, {0, 0, 2}};
  static constexpr auto fields() { return smp::fields(smp::field<smp::CutOverTp>("weight", &ColumnCut::weight)); }
  Output forward(auto& ctx, const Input& x, Saved& saved) const;
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved);
};

void f(ColumnCut& m) { smp::Layout layout(m); }
