#!/usr/bin/env bash
# check.sh ROOT: the include path is the architecture. Reads ROOT/include and ROOT/kernels, prints every violation:
# a lower layer that includes an upper one (layers.txt), an outside library where it does not belong, too many macros.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$1"

{
  # Every #include under include/ and kernels/, as "FILE<TAB>LINE<TAB>INCLUDED".
  find include kernels -type f \( -name '*.hpp' -o -name '*.h' -o -name '*.cuh' -o -name '*.cu' -o -name '*.cpp' \) \
    -exec grep -nHE '^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]' {} + 2>/dev/null |
    sed -E 's/^([^:]*):([0-9]+):[^<"]*[<"]([^>"]*).*/\1\t\2\t\3/' || true
} | awk -F '\t' -v table="$here/layers.txt" '
  function complain(text) { printf "%s:%s: %s\n", $1, $2, text; bad = 1 }
  function layer(path,    p, longest, found) {
    found = -1
    for (p in level) if (index(path, p) == 1 && length(p) > longest) { longest = length(p); found = level[p] }
    return found
  }
  BEGIN {
    while ((getline line < table) > 0) if (line !~ /^#/ && split(line, word, " ") == 2) level[word[1]] = word[2]
  }
  {
    self = $1; inside = sub(/^include\/smp\//, "", self)
    to = $3
    if (inside && layer(self) < 0) {
      if (!(self in unknown)) complain("no line of layers.txt says which layer this header is")
      unknown[self] = 1
      next
    }
    if (inside && to !~ /^(smp|nlohmann)\// && $0 ~ /\.hpp$/) complain("\"" to "\": write <smp/...>")
    if (inside && sub(/^smp\//, "", to)) {
      if (layer(to) < 0) complain("<smp/" to ">: no line of layers.txt says which layer it is")
      else if (layer(to) > layer(self)) complain("includes <smp/" to ">, which is of an upper layer")
    }
    to = $3
    if (to == "mpi.h" && self !~ /^comm\/mpi/) complain("<mpi.h> belongs in comm/mpi* only")
    if (to == "nccl.h" && self !~ /^comm\/nccl/) complain("<nccl.h> belongs in comm/nccl* only")
    if (to ~ /^(nlohmann|openssl)\// && self !~ /^io\//) complain("<" to "> belongs in io/ only")
    if (to ~ /^(cuda|cublas|curand|cusolver|cusparse|nvrtc|nvtx|cooperative_groups|device_launch_parameters)/ &&
        self !~ /^(device\/cuda|comm\/nccl|kernels\/)/)
      complain("<" to ">: CUDA headers belong in device/cuda*, comm/nccl* and kernels/ only")
    if (to ~ /^(thrust|cub)\// && self !~ /^kernels\/.*\.cu$/) complain("<" to ">: Thrust and CUB belong in kernels/*.cu only")
  }
  END { exit bad }' && status=0 || status=1

most=20
macros=$({ grep -rhE "^[[:space:]]*#[[:space:]]*define[[:space:]]" include || true; } | wc -l)
if ((macros > most)); then
  echo "include/: $macros #defines, at most $most: what a template or a constant can say is no macro"
  status=1
fi
exit $status
