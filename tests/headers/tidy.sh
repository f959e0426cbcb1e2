#!/usr/bin/env bash
# tidy.sh INCLUDE [FLAGS...]: clang-tidy over all public headers in one translation unit (with MPI's if the flags say where
# mpi.h is). Templates are looked at as written, so no test needs to use them.
set -euo pipefail
tidy=$(command -v clang-tidy-16) || { echo "no clang-tidy-16 on PATH"; exit 77; }
include=$1
shift

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mpi=(! -path 'smp/comm/mpi*')
(($# == 0)) || mpi=()
(cd "$include" && find smp -name '*.hpp' "${mpi[@]}" ! -path 'smp/comm/nccl*' ! -path 'smp/device/cuda*') |
  sed 's|^smp/io/.*|#if __has_include(<nlohmann/json.hpp>)\n#include <&>\n#endif|; t; s/.*/#include <&>/' >"$folder/all.cpp"
"$tidy" --quiet --config-file="$include/../.clang-tidy" "$folder/all.cpp" -- -std=c++20 "-I$include" "$@"
