#!/usr/bin/env bash
# by_hand.sh MPIEXEC PROGRAM: instructions of a training step on two ranks, with smp and by hand, as valgrind counts them.
# Those of the program itself and of libm; inside of MPI a rank spins for as long as the other one takes. Start-up drops
# out: it is in a run of few steps as in one of many. Fails if smp needs more than 1 % more.
set -euo pipefail
mpiexec=$1
program=$(realpath "$2")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
few=4 many=12

# own FILE: what callgrind counted in the program and in libm. A line after calls= is the cost of what was called.
own() {
  awk -v program="$program" '
    /^c?ob=/ { name = $1; sub(/^c?ob=/, "", name); if (NF > 1) object[name] = $2; if (/^ob=/) id = name }
    /^calls=/ { skip = 1; next }
    /^[0-9+*-]/ { if (!skip) cost[id] += $2; skip = 0 }
    END { for (id in cost) if (object[id] == program || object[id] ~ /\/lib(m|mvec)[.-]/) sum += cost[id]; printf "%d\n", sum }' "$1"
}

# instructions SIDE STEPS: of the rank with fewer
instructions() {
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "$mpiexec" -n 2 \
    valgrind --quiet --tool=callgrind --callgrind-out-file="$folder/%p.out" "$program" "$1" "$2" >"$folder/log" 2>&1 ||
    { cat "$folder/log" >&2; return 1; }
  for out in "$folder"/*.out; do own "$out"; done | sort -n | head -1
  rm -f "$folder"/*.out
}

per_step() { echo $((($(instructions "$1" $many) - $(instructions "$1" $few)) / (many - few))); }
smp=$(per_step smp)
hand=$(per_step hand)
awk -v smp="$smp" -v hand="$hand" 'BEGIN {
  printf "instructions of a step: %d with smp, %d by hand, ratio %.4f\n", smp, hand, smp / hand
  exit smp > 1.01 * hand
}'
