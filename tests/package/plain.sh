#!/usr/bin/env bash
# plain.sh PREFIX VERSION COMPILER: no build system: the compiler and an include path, written by hand or by pkg-config.
set -euo pipefail
prefix=$1 version=$2 compiler=$3
cd "$(dirname "$0")"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$compiler" -std=c++20 -I"$prefix/include" main.cpp other.cpp -o "$folder/user" -pthread
"$folder/user"

command -v pkg-config >/dev/null || { echo "no pkg-config: smp.pc is not checked"; exit 0; }
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name smp.pc)")
[[ $(pkg-config --modversion smp) == "$version" ]]
"$compiler" -std=c++20 $(pkg-config --cflags smp) -fsyntax-only other.cpp
