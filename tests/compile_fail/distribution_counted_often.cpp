// A value that is distributed otherwise than the function takes it.
// expect-error: its gradient would be counted once per tp rank
#include <smp/distribution.hpp>

struct Tensor {};
void takes(smp::Dist<Tensor, smp::Invariant>);
void passes(smp::Dist<Tensor, smp::Replicated> x) { takes(x); }
