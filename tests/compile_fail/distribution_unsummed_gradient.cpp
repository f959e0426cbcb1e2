// A value that is distributed otherwise than the function takes it.
// expect-error: its gradient would be a Partial nobody sums
#include <smp/distribution.hpp>

struct Tensor {};
void takes(smp::Dist<Tensor, smp::Replicated>);
void passes(smp::Dist<Tensor, smp::Invariant> x) { takes(x); }
