// SPDX-License-Identifier: Apache-2.0
// The other way round.
// expect-error: smp::Sharded: it cuts the optimizer state itself
#include <smp/nn/linear.hpp>
#include <smp/parallel/sharded.hpp>
#include <smp/parallel/sharded_optimizer.hpp>

template class smp::Sharded<smp::ShardedOptimizer<smp::nn::Linear<>>, 2>;
