// SPDX-License-Identifier: Apache-2.0
// The main of every doctest executable that runs under mpiexec: a failure on any rank fails the test.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cstdio>
#include <ostream>
#include <streambuf>
#include <string>

#include <doctest/doctest.h>
#include <mpi.h>

#include <smp/comm/mpi.hpp>
#include <smp/comm/mpi_session.hpp>

#include "ranks.hpp"

namespace {

smp::testing::World* the_world = nullptr;

/// Prints what doctest says on a rank other than 0, one failure at a time (they end with an empty line) with the rank
/// in front of each line. At once and not at the end: the usual end of a failure on one rank is that the others wait
/// for it until the test is killed.
class Prefixed : public std::streambuf {
 public:
  explicit Prefixed(int rank) : prefix_("[rank " + std::to_string(rank) + "] ") {}
  Prefixed(const Prefixed&) = delete;
  Prefixed& operator=(const Prefixed&) = delete;
  ~Prefixed() override { print(); }

 protected:
  int_type overflow(int_type c) override {
    if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
    text_.push_back(traits_type::to_char_type(c));
    if (text_.ends_with("\n\n")) print();
    return c;
  }

 private:
  void print() {
    std::string block;
    for (std::size_t begin = 0; begin < text_.size();) {
      const std::size_t end = std::min(text_.find('\n', begin), text_.size());
      block.append(prefix_).append(text_, begin, end - begin).push_back('\n');
      begin = end + 1;
    }
    std::fwrite(block.data(), 1, block.size(), stdout);
    std::fflush(stdout);
    text_.clear();
  }

  std::string prefix_;
  std::string text_;
};

}  // namespace

smp::testing::World& smp::testing::mpi_world() { return *the_world; }

int main(int argc, char** argv) {
  smp::comm::MpiSession session(argc, argv);
  smp::testing::World world = session.world();
  the_world = &world;

  doctest::Context context(argc, argv);
  context.setOption("no-colors", true);
  Prefixed prefixed(world.rank());
  std::ostream out(&prefixed);
  if (world.rank() != 0) {
    context.setCout(&out);
    context.setOption("minimal", true);  // nothing unless something fails
  }
  const int result = context.run();

  // Not through the communicator under test.
  int worst = result;
  MPI_Allreduce(&result, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  return worst;
}
