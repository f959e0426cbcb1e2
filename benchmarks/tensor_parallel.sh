#!/usr/bin/env bash
# tensor_parallel.sh PROGRAM: instructions of one transformer layer on one of two tensor-parallel ranks, with smp and by
# hand, as valgrind counts them. Start-up drops out: it is in a run of few steps as in one of many. Fails if smp needs
# more than 1 % more.
set -euo pipefail
program=$(realpath "$1")
few=2 many=6

# instructions SIDE STEPS
instructions() {
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" 2>&1 >/dev/null |
    sed -n 's/.*Collected : *\([0-9]*\).*/\1/p'
}
per_step() { echo $((($(instructions "$1" $many) - $(instructions "$1" $few)) / (many - few))); }
smp=$(per_step smp)
hand=$(per_step hand)
awk -v smp="$smp" -v hand="$hand" 'BEGIN {
  printf "instructions of a layer: %d with smp, %d by hand, ratio %.4f\n", smp, hand, smp / hand
  exit smp > 1.01 * hand
}'
