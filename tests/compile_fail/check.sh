#!/usr/bin/env bash
# check.sh FILE COMPILER [FLAGS...]: FILE must fail to compile, for the reason it states. The lines of FILE that count:
#   // expect-error: TEXT   the first error the compiler prints holds TEXT (a further such line: a later error does)
#   // expect-text: TEXT    TEXT is anywhere in what the compiler prints
# Nothing is written, so this can run while the tree is being built.
set -euo pipefail
export LC_ALL=C

file=$1
shift
complain() {
  printf '%s: %s\n' "$file" "$*"
  exit 1
}

mapfile -t errors < <(sed -n 's,^// expect-error: *,,p' "$file")
mapfile -t texts < <(sed -n 's,^// expect-text: *,,p' "$file")
((${#errors[@]} + ${#texts[@]} > 0)) || complain "has no line '// expect-error: TEXT'"

# Without caches: ccache would only be in the way of a compilation that fails.
if output=$(CCACHE_DISABLE=1 "$@" -fsyntax-only -fdiagnostics-color=never "$file" 2>&1); then
  complain "compiles, but should not"
fi
printf '%s\n\n' "$output"

# The source lines that compilers quote below a message do not count as error lines.
error_lines=$(grep -E '^[^ ].*: (fatal )?error: ' <<<"$output") || complain "failed without a line 'error:'"
first_error=$(head -n 1 <<<"$error_lines")
for i in "${!errors[@]}"; do
  lines=$error_lines
  ((i > 0)) || lines=$first_error
  grep -qF -e "${errors[$i]}" <<<"$lines" || complain "expected error: ${errors[$i]}"
done
for text in "${texts[@]}"; do
  grep -qF -e "$text" <<<"$output" || complain "expected text: $text"
done
