# SPDX-License-Identifier: Apache-2.0
# One of four thread ranks throws between collective operations: the job ends at once with its exception, every other
# rank is told which rank it was and where itself stood. If all throw alike they can catch it and go on.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
user_text='forward of micro-batch 2: token 50300 is not in a vocabulary of 50257'

for case in rank_1 rank_1_streams; do
  echo "== $case"
  start=$(date +%s%3N)
  status=0
  timeout 30 "$PROGRAMS/throws_threads" "$case" 2>"$work/err" || status=$?
  elapsed=$(($(date +%s%3N) - start))
  cat "$work/err"
  ((status == 1)) || { echo "exit code $status, expected 1"; exit 1; }
  ((elapsed < 3000)) || { echo "took $elapsed ms, limit 3000"; exit 1; }
  grep -qxF "job: $user_text" "$work/err"
  grep -qxF "rank 1: $user_text" "$work/err"
  for rank in 0 2 3; do
    grep -qE "^rank $rank: smp: .* at throws.hpp:[0-9]+ on .*world rank 1 has thrown: $user_text" "$work/err"
  done
done

echo "== all"
timeout 30 "$PROGRAMS/throws_threads" all
