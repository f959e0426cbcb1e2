#!/usr/bin/env bash
# documented.sh itself: a header with one undocumented name each, which it must report, and one that it must accept.
set -euo pipefail
command -v doxygen >/dev/null || { echo "no doxygen on PATH"; exit 77; }
here=$(cd "$(dirname "$0")" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/include/smp"

# header LINE...: a documented file with these lines in namespace smp
header() { printf '%s\n' '#pragma once' '/// @file' '/// A probe.' 'namespace smp {' "$@" '}  // namespace smp' >"$tree/include/smp/probe.hpp"; }
# report SENTENCE LINE...
report() {
  header "${@:2}"
  bash "$here/../support/must_fail.sh" "$1" bash "$here/documented.sh" "$tree" "$tree/reference"
}

report 'Compound smp::Stage is not documented' 'struct Stage {' '  int pp;' '};'
report 'Member run(int) (function) of namespace smp is not documented' 'void run(int);'
report 'Member limit (variable) of namespace smp is not documented' 'inline constexpr int limit = 3;'
report 'Member Index (typedef) of namespace smp is not documented' 'using Index = int;'
report 'Member Axis (enumeration) of namespace smp is not documented' 'enum class Axis { pp, tp };'
report 'this concept is not documented' '' 'template <class T>' 'concept Module = true;'
report 'Member degree (variable) of struct smp::Stage' '/// A stage.' 'struct Stage {' '  int degree;' '};'
report 'Member run() (function) of struct smp::Stage' '/// A stage.' 'struct Stage {' '  void run();' '};'
report 'Stage(int) (function) of struct smp::Stage' '/// A stage.' 'struct Stage {' '  explicit Stage(int);' '};'
report "argument 'sizes'" '/// A function.' '/// @param sizes of nothing' 'void run(int size);'
report 'Member PROBE' '#define PROBE 1'

header '/// A stage.' 'struct Stage {' '  Stage(const Stage&);' '  Stage& operator=(const Stage&) = default;' '  ~Stage();' \
  '  /// Where it is.' '  int pp = 0, tp = 0;' '  friend bool operator==(const Stage&, const Stage&) = default;' ' private:' \
  '  int hidden_;' '};' '/// A trait.' 'template <class T>' 'struct Trait;' 'template <>' 'struct Trait<int> {' \
  '  using type = int;' '};' '/// A concept.' 'template <class T>' '  requires true' 'concept Module = true;' \
  'namespace detail {' 'struct Helper {};' '}  // namespace detail'
bash "$here/documented.sh" "$tree" "$tree/reference"
