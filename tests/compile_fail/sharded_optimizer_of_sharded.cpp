// SPDX-License-Identifier: Apache-2.0
// An optimizer whose state is cut over the ranks, around a model that cuts it already.
// expect-error: smp::ShardedOptimizer: Sharded cuts the optimizer state already
#include <smp/nn/linear.hpp>
#include <smp/parallel/sharded.hpp>
#include <smp/parallel/sharded_optimizer.hpp>

template class smp::ShardedOptimizer<smp::Sharded<smp::nn::Linear<>, 2>>;
