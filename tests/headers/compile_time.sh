#!/usr/bin/env bash
# compile_time.sh LIMIT HEADER COMPILER [FLAGS...]: a translation unit that includes only HEADER takes the compiler's front
# end at most LIMIT seconds of user CPU time (best of three).
set -euo pipefail
limit=$1 header=$2
shift 2

best=
for _ in 1 2 3; do
  TIMEFORMAT=%U
  used=$({ time "$@" -fsyntax-only -x c++ - <<<"#include <$header>"; } 2>&1)
  [[ $used =~ ^[0-9.]+$ ]] || { echo "$used"; exit 1; }
  if [[ -z $best ]] || awk "BEGIN { exit !($used < $best) }"; then best=$used; fi
done
echo "<$header>: $best s of user CPU time, limit $limit s"
awk "BEGIN { exit !($best <= $limit) }"
