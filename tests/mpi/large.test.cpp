// SPDX-License-Identifier: Apache-2.0
// Messages and reductions of more bytes than an int can count, over MPI: under --full only, as threads/large.
// ranks: 2
#include "../threads/large.test.cpp"
