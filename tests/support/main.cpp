// SPDX-License-Identifier: Apache-2.0
// The main of every doctest executable that needs no MPI.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  context.setOption("no-colors", true);
  return context.run();
}
