// SPDX-License-Identifier: Apache-2.0
// An optimizer that updates values of one type only.
// expect-error: smp: the second argument of a strategy is no optimizer; it needs 'int states() const'
#include <smp/nn/linear.hpp>
#include <smp/parallel/data_parallel.hpp>

struct OnlyFloats {
  int states() const { return 0; }
  void update(const smp::optim::Range<float>&, const smp::optim::StepNumbers&) const {}
};
template class smp::DataParallel<smp::nn::Linear<>, OnlyFloats>;
