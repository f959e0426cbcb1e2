#!/usr/bin/env bash
# check.sh itself: a tree with one fault each, which it must refuse with the sentence, and a tree that it must accept.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

# plant FILE LINE...: a tree of this one file
plant() {
  rm -rf "$tree"
  mkdir -p "$tree/include/smp" "$tree/kernels" "$tree/$(dirname "$1")"
  printf '%s\n' "${@:2}" >"$tree/$1"
}
# refuse SENTENCE FILE LINE...
refuse() {
  plant "${@:2}"
  bash "$here/../support/must_fail.sh" "$1" bash "$here/check.sh" "$tree"
}

refuse 'include/smp/device/stream.hpp:2: includes <smp/comm/communicator.hpp>, which is of an upper layer' \
  include/smp/device/stream.hpp '#include <vector>' '#include <smp/comm/communicator.hpp>'
refuse 'includes <smp/smp.hpp>, which is of an upper layer' include/smp/comm/self.hpp '#include <smp/smp.hpp>'
refuse 'includes <smp/pipeline/pipeline.hpp>, which is of an upper layer' \
  include/smp/pipeline/schedule.hpp '#include <smp/pipeline/pipeline.hpp>'
refuse '<mpi.h> belongs in comm/mpi* only' include/smp/comm/threads.hpp '#  include <mpi.h>'
refuse '<nccl.h> belongs in comm/nccl* only' include/smp/comm/mpi.hpp '#include <nccl.h>'
refuse '<cuda_runtime_api.h>: CUDA headers belong in' include/smp/device/stream.hpp '#include <cuda_runtime_api.h>'
refuse '<cub/cub.cuh>: Thrust and CUB belong in kernels/*.cu only' include/smp/device/cuda_math.hpp '#include <cub/cub.cuh>'
refuse '<thrust/sort.h>: Thrust and CUB belong in kernels/*.cu only' kernels/sort.cuh '#include <thrust/sort.h>'
refuse 'no line of layers.txt says which layer this header is' include/smp/utils.hpp '#include <vector>'
refuse '"error.hpp": write <smp/...>' include/smp/topology.hpp '#include "error.hpp"'
mapfile -t macros < <(seq -f '#define SMP_%g 1' 21)
refuse '21 #defines, at most 20' include/smp/config.hpp "${macros[@]}"

plant include/smp/comm/mpi.hpp '#include <mpi.h>' '#include <smp/device/stream.hpp>' '#include <smp/comm/reduce.hpp>'
bash "$here/check.sh" "$tree"
plant kernels/sort.cu '#include <cub/cub.cuh>' '#include "sort.cuh"'
bash "$here/check.sh" "$tree"
