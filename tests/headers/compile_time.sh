#!/usr/bin/env bash
# compile_time.sh LIMIT HEADER COMPILER [FLAGS...]: a translation unit that includes only HEADER takes the compiler's front
# end at most LIMIT seconds (best of three; compiler_time.bash says of which processor).
set -euo pipefail
. "$(dirname "$0")/compiler_time.bash"
limit=$1 header=$2
shift 2
file=$(mktemp --suffix=.cpp)
trap 'rm -f "$file"' EXIT
echo "#include <$header>" >"$file"

best=
for _ in 1 2 3; do best=$(least "$best" "$(user_seconds "$@" -fsyntax-only "$file")"); done
seconds=$(at_half_a_second "$best" "$@")
echo "<$header>: $best s of user CPU time, that is $seconds s, limit $limit s"
awk "BEGIN { exit !($seconds <= $limit) }"
