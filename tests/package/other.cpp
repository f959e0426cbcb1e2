// SPDX-License-Identifier: Apache-2.0
// A second translation unit that includes everything: a function that is not inline would be defined twice.
#include "other.hpp"

#include <smp/smp.hpp>

#if USE_MPI
#include <smp/comm/mpi.hpp>
#include <smp/comm/mpi_session.hpp>
#endif

int version_seen_elsewhere() { return smp::version; }
