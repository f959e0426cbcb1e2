#!/usr/bin/env bash
# Writes include/smp/smp.hpp: every public header that a training program may need and that needs no outside library, but
# for those that tests, planners, traces and MPI include by name. With --check only says whether it is up to date.
set -euo pipefail
cd "$(dirname "$0")/../include"

text() {
  cat <<'HEADER'
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// All of smp that a training program may need and that needs no outside library; tests, plans, traces and the run-time
/// choice of a strategy have headers of their own. Written by scripts/umbrella.sh.

HEADER
  find smp -name '*.hpp' ! -path smp/smp.hpp ! -path 'smp/comm/mpi*' ! -path 'smp/comm/nccl*' \
    ! -path 'smp/device/cuda*' ! -path 'smp/io/*' ! -path 'smp/testing/*' ! -path 'smp/plan/*' ! -path 'smp/trace/*' \
    ! -name '*plan_of.hpp' ! -name 'any_strategy.hpp' ! -name 'timeline*' ! -name 'partition_*.hpp' \
    ! -name 'recording.hpp' ! -name 'delayed.hpp' ! -name 'traced.hpp' ! -name 'simulate.hpp' ! -name 'node_reports.hpp' |
    LC_ALL=C sort | sed 's/.*/#include <&>/'
}

if [[ ${1:-} != --check ]]; then
  text >smp/smp.hpp
elif ! text | diff smp/smp.hpp -; then
  echo "include/smp/smp.hpp does not list every header: run scripts/umbrella.sh"
  exit 1
fi
