#!/usr/bin/env bash
# Copies into README.md the code that it shows: what stands between [readme-begin] and [readme-end] of the file that the
# comment before a code block names.   scripts/readme.sh [--check]: with --check only says whether README.md is up to date
set -euo pipefail
cd "$(dirname "$0")/.."
filled=$(awk '
  /^<!-- [^ ]+ -->$/ { file = $2 }
  /^```cpp$/ && file != "" {
    print
    while ((getline line < file) > 0) {
      if (line ~ /\[readme-end\]/) shown = 0
      if (shown) print substr(line, indent + 1)
      if (line ~ /\[readme-begin\]/) { shown = 1; found = 1; indent = match(line, /[^ ]/) - 1 }
    }
    close(file)
    if (!found) { print "README.md: nothing to show in " file > "/dev/stderr"; exit 1 }
    file = ""; found = 0; skipping = 1
    next
  }
  /^```$/ { skipping = 0 }
  !skipping { print }' README.md)
if [[ ${1:-} == --check ]]; then
  diff <(printf '%s\n' "$filled") README.md || { echo "README.md shows old code: run scripts/readme.sh"; exit 1; }
else
  printf '%s\n' "$filled" >README.md
fi
