#!/usr/bin/env bash
# Writes include/smp/smp.hpp: every public header that needs no outside library. With --check only says whether it is up
# to date.
set -euo pipefail
cd "$(dirname "$0")/../include"

text() {
  cat <<'HEADER'
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// All of smp that needs no outside library, without the helpers of tests. Written by scripts/umbrella.sh.

HEADER
  find smp -name '*.hpp' ! -path smp/smp.hpp ! -path 'smp/comm/mpi*' ! -path 'smp/comm/nccl*' \
    ! -path 'smp/device/cuda*' ! -path 'smp/io/*' ! -path 'smp/testing/*' |
    LC_ALL=C sort | sed 's/.*/#include <&>/'
}

if [[ ${1:-} != --check ]]; then
  text >smp/smp.hpp
elif ! text | diff smp/smp.hpp -; then
  echo "include/smp/smp.hpp does not list every header: run scripts/umbrella.sh"
  exit 1
fi
