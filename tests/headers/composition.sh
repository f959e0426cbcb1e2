#!/usr/bin/env bash
# composition.sh LIMIT SOURCE COMPILER [FLAGS...]: SOURCE, a typical program, compiles (without optimisation) in at most LIMIT
# seconds (compiler_time.bash says of which processor) and in 1 GB of memory; and 96 layers are as much code as one.
set -euo pipefail
. "$(dirname "$0")/compiler_time.bash"
limit=$1 source=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export CCACHE_DISABLE=1
ulimit -v 1048576

best=
for layers in 1 96; do
  sed "s/layers = [0-9]*/layers = $layers/" "$source" >"$folder/$layers.cpp"
  if cmp -s "$folder/$layers.cpp" "$source"; then
    echo "$source does not say 'layers = N'"
    exit 1
  fi
  best=$(least "$best" "$(user_seconds "$@" -O0 -c "$folder/$layers.cpp" -o "$folder/$layers.o")")
done
seconds=$(at_half_a_second "$best" "$@")
one=$(size "$folder/1.o" | awk 'END { print $1 }') many=$(size "$folder/96.o" | awk 'END { print $1 }')
echo "$source: $best s of user CPU time, that is $seconds s, limit $limit s; $one bytes of code with 1 layer, $many with 96"
awk "BEGIN { exit !($seconds <= $limit && $many <= $one * 1.01) }"
