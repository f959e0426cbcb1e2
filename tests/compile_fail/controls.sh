#!/usr/bin/env bash
# controls.sh COMPILER [FLAGS...]: check.sh itself, with files that it must report and files that it must accept.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
compile=("$@")

# accept LINE...: a file of these lines passes the check
accept() {
  printf '%s\n' "$@" >"$folder/probe.cpp"
  bash "$here/check.sh" "$folder/probe.cpp" "${compile[@]}" >/dev/null
}
# report SENTENCE LINE...: a file of these lines does not, and this is said of it
report() {
  printf '%s\n' "${@:2}" >"$folder/probe.cpp"
  bash "$here/../support/must_fail.sh" "$1" bash "$here/check.sh" "$folder/probe.cpp" "${compile[@]}"
}

report 'compiles, but should not' '// expect-error: smp: nothing' 'int x = 1;'
report 'expected error: smp: what nobody wrote' \
  '// expect-error: smp: what nobody wrote' 'static_assert(sizeof(int) == 1, "smp: another sentence");'
report 'expected error: smp: the second' \
  '// expect-error: smp: the second' 'int x = "a riddle";' 'static_assert(sizeof(int) == 1, "smp: the second");'
report 'expected error: smp: written in a comment' \
  'int x = "smp"; // smp: written in a comment' '// expect-error: smp: written in a comment'
report "has no line '// expect-error: TEXT'" 'int x = "for no stated reason";'
accept '// expect-error: smp: the first' '// expect-error: smp: the second' \
  'static_assert(sizeof(int) == 1, "smp: the first");' 'static_assert(sizeof(int) == 2, "smp: the second");'
accept '// expect-text: smp: thrown' 'consteval int f(int i) { if (i == 0) throw "smp: thrown"; return i; }' 'int x = f(0);'
