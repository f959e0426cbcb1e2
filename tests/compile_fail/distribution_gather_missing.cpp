// A value that is distributed otherwise than the function takes it.
// expect-error: this module needs the whole value but gets one tp rank's slice
#include <smp/distribution.hpp>

struct Tensor {};
void takes(smp::Dist<Tensor, smp::Invariant>);
void passes(smp::Dist<Tensor, smp::Shard<smp::Dim::sequence>> x) { takes(x); }
