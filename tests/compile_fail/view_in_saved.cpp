// expect-error: a View has neither, for its storage moves: ask for value() again in backward
#include <smp/context.hpp>
#include <smp/device/host_stream.hpp>

using smp::GradOf, smp::Tensor;

struct Keeps {
  using Input = Tensor;
  using Output = Tensor;
  struct Saved {
    smp::View<const float> weight;  // would outlive the storage
  };
  Output forward(auto& ctx, const Input& x, Saved& saved) const;
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved);
};

struct Groups {};
static_assert(smp::expect_module<Keeps, smp::Context<smp::HostStream, Groups>>());
