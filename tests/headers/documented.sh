#!/usr/bin/env bash
# documented.sh ROOT OUTPUT: writes the reference of ROOT/include to OUTPUT/html and fails if a public name has no
# documentation, or documentation that doxygen does not understand.
set -euo pipefail
command -v doxygen >/dev/null || { echo "no doxygen on PATH"; exit 77; }
doxyfile=$(cd "$(dirname "$0")/../.." && pwd)/docs/Doxyfile
mkdir -p "$2"
output=$(cd "$2" && pwd)
cd "$1"

# No words are needed for special members, for what is defaulted or deleted, and for specialisations, whose words are those
# of the primary template; fields() means the same in every struct. The variables of one declaration share its comment,
# which doxygen gives to the first only.
warnings=$( (cat "$doxyfile"; echo "OUTPUT_DIRECTORY = $output") | doxygen - 2>&1 |
  grep -vE 'Member (~|.*=(default|delete) \(|([A-Za-z0-9]+)\((const )?\3 ?(< [^)]* > )?&&?( ?[a-z]+)?\))' |
  grep -vE 'Member fields\(\) \(function\)' |
  grep -vE '(Compound|of (struct|class)) [A-Za-z0-9_:]+<.*> is not documented' |
  while IFS= read -r line; do
    if [[ $line =~ ^([^:]+):([0-9]+):.*\(variable\) ]] &&
      awk -v at="${BASH_REMATCH[2]}" 'NR == at - 1 && /^ *\/\/\// { found = 1 }; NR == at && /\/\/\/</ { found = 1 }; END { exit !found }' \
        "${BASH_REMATCH[1]}"; then
      continue
    fi
    printf '%s\n' "$line"
  done || true)

# doxygen 1.9 says nothing of concepts: the line before a concept's template head must be documentation.
concepts=$(find include -name '*.hpp' -exec awk '
  FNR == 1 { documented = 0; helper = 0 }
  /^namespace .*detail *\{/ { helper = 1 }
  /^\} *\/\/ namespace .*detail/ { helper = 0 }
  /(^|>) *concept [A-Za-z0-9_]+ *=/ && !documented && !helper { print FILENAME ":" FNR ": this concept is not documented" }
  /^ *\/\/\// { documented = 1; next }
  !/^ *(template|requires)/ { documented = 0 }' {} +)

if [[ -n $warnings$concepts ]]; then
  printf '%s\n' "$warnings" "$concepts" | sed '/^$/d'
  exit 1
fi
