#!/usr/bin/env bash
# composition.sh LIMIT SOURCE COMPILER [FLAGS...]: SOURCE, a typical program, compiles (without optimisation) in at most LIMIT
# seconds of user CPU time (best of two) and in 1 GB of memory; and 96 layers are as much code as one.
set -euo pipefail
limit=$1 source=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export CCACHE_DISABLE=1

best=
for layers in 1 96; do
  sed "s/layers = [0-9]*/layers = $layers/" "$source" >"$folder/$layers.cpp"
  if cmp -s "$folder/$layers.cpp" "$source"; then
    echo "$source does not say 'layers = N'"
    exit 1
  fi
  TIMEFORMAT=%U
  used=$({ time (ulimit -v 1048576 && "$@" -O0 -c "$folder/$layers.cpp" -o "$folder/$layers.o"); } 2>&1)
  [[ $used =~ ^[0-9.]+$ ]] || { echo "$used"; exit 1; }
  if [[ -z $best ]] || awk "BEGIN { exit !($used < $best) }"; then best=$used; fi
done
one=$(size "$folder/1.o" | awk 'END { print $1 }') many=$(size "$folder/96.o" | awk 'END { print $1 }')
echo "$source: $best s of user CPU time, limit $limit s; $one bytes of code with 1 layer, $many with 96"
awk "BEGIN { exit !($best <= $limit && $many <= $one * 1.01) }"
