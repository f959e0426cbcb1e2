#!/usr/bin/env bash
# nvcc.sh INCLUDE: every public header that needs no outside library goes through nvcc as CUDA C++. One translation unit
# for all, since nvcc needs three seconds for the standard library alone; that each header compiles alone is checked with
# the host compiler.
set -euo pipefail
command -v nvcc >/dev/null || { echo "no nvcc on PATH"; exit 77; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
(cd "$1" && find smp -name '*.hpp' ! -path 'smp/comm/mpi*' ! -path 'smp/comm/nccl*' ! -path 'smp/io/*') | sed 's/.*/#include <&>/' >"$folder/all.cu"
echo 'int main() {}' >>"$folder/all.cu"
nvcc -std=c++20 -x cu -c -I"$1" --Werror all-warnings "$folder/all.cu" -o "$folder/all.o"
