// A value that is distributed otherwise than the function takes it.
// expect-error: a sum over tp is still pending here (Partial)
#include <smp/distribution.hpp>

struct Tensor {};
void takes(smp::Dist<Tensor, smp::Invariant>);
void passes(smp::Dist<Tensor, smp::Partial> x) { takes(x); }
