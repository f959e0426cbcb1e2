// SPDX-License-Identifier: Apache-2.0
// The splits of six ranks, of which no other test under MPI has as many.
// ranks: 6
#include "comm/split.test.cpp"
