// A value that is distributed otherwise than the function takes it.
// expect-error: this module needs one tp rank's slice but gets the whole value
#include <smp/distribution.hpp>

struct Tensor {};
void takes(smp::Dist<Tensor, smp::Varying>);
void passes(smp::Dist<Tensor, smp::Invariant> x) { takes(x); }
