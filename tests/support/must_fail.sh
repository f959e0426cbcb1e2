#!/usr/bin/env bash
# must_fail.sh TEXT COMMAND...: the command must exit with an error and say TEXT. For tests of tests: a check that cannot
# fail checks nothing.
set -euo pipefail
text=$1
shift
if output=$("$@" 2>&1); then
  printf '%s\nshould have failed, saying: %s\n' "$output" "$text"
  exit 1
fi
if ! grep -qF -e "$text" <<<"$output"; then
  printf '%s\nfailed, but without saying: %s\n' "$output" "$text"
  exit 1
fi
