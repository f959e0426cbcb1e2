#!/usr/bin/env bash
# format.sh ROOT: every C++ and CUDA source is as clang-format-16 writes it.
set -euo pipefail
format=$(command -v clang-format-16) || { echo "no clang-format-16 on PATH"; exit 77; }
cd "$1"
folders=(include tests examples benchmarks)
[[ ! -d kernels ]] || folders+=(kernels)
mapfile -t files < <(find "${folders[@]}" -type f \( -name '*.hpp' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) | sort)
((${#files[@]} > 0))
if ! "$format" --dry-run -Werror "${files[@]}" 2>/dev/null; then
  wrong=()
  for file in "${files[@]}"; do
    "$format" --dry-run -Werror "$file" 2>/dev/null || wrong+=("$file")
  done
  echo "to be formatted: clang-format-16 -i ${wrong[*]}"
  exit 1
fi
