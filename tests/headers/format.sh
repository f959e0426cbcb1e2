#!/usr/bin/env bash
# format.sh ROOT: every C++ and CUDA source is as clang-format-16 writes it.
set -euo pipefail
format=$(command -v clang-format-16) || { echo "no clang-format-16 on PATH"; exit 77; }
cd "$1"
find include tests examples benchmarks kernels -type f \
  \( -name '*.hpp' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | sort |
  xargs -r "$format" --dry-run -Werror
