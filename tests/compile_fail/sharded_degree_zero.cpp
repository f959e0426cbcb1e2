// SPDX-License-Identifier: Apache-2.0
// Nobody would hold the model.
// expect-error: smp::Sharded: the degree is the number of ranks that hold one copy of the model's state together
#include <smp/nn/linear.hpp>
#include <smp/parallel/sharded.hpp>

template class smp::Sharded<smp::nn::Linear<>, 0>;
