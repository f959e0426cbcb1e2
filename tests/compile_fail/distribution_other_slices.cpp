// A value that is distributed otherwise than the function takes it.
// expect-error: this module needs slices of another dimension
#include <smp/distribution.hpp>

struct Tensor {};
void takes(smp::Dist<Tensor, smp::Shard<smp::Dim::features>>);
void passes(smp::Dist<Tensor, smp::Shard<smp::Dim::batch>> x) { takes(x); }
