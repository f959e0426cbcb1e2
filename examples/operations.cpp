// SPDX-License-Identifier: Apache-2.0
// The operations that shard a parameter: gather it for use, reduce its gradient to the owner of each piece.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <vector>

#include <smp/smp.hpp>

namespace {

void step(smp::comm::Threads& world) {
  const std::size_t piece = 1000;
  const std::size_t whole = piece * static_cast<std::size_t>(world.size());
  std::vector<float> my_piece(piece, 1.0F);
  std::vector<float> weights(whole);
  std::vector<float> gradient(whole, static_cast<float>(world.rank()));
  std::vector<float> norm(1);

  // [readme-begin]
  smp::HostStream stream;
  world.all_gather(stream, my_piece, weights, smp::Purpose::parameter);
  world.reduce_scatter(stream, gradient, my_piece, smp::average, smp::Purpose::gradient);
  norm[0] = *std::max_element(my_piece.begin(), my_piece.end());
  world.all_reduce(stream, norm, norm, smp::maximum, smp::Purpose::norm);  // in place: the buffer twice
  // [readme-end]
  stream.synchronize();
  if (world.rank() == 0) std::printf("largest mean gradient: %.2f\n", static_cast<double>(norm[0]));
}

}  // namespace

int main() { smp::comm::launch(4, step); }
