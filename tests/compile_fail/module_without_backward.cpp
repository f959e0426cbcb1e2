// expect-error: smp: a module must be callable as 'GradOf<Input> backward(ctx, const GradOf<Output>&, Saved&)'
#include <smp/context.hpp>
#include <smp/device/host_stream.hpp>
#include <smp/parallel/repeat.hpp>

using smp::Tensor;

struct OneWay {
  using Input = Tensor;
  using Output = Tensor;
  using Saved = Tensor;
  Output forward(auto& ctx, const Input& x, Saved& saved) const;
};

struct Groups {};
void run(smp::Repeat<OneWay>& model, smp::Context<smp::HostStream, Groups>& ctx, Tensor x,
         smp::Repeat<OneWay>::Saved& saved) {
  (void)model.forward(ctx, x, saved);
}
