# SPDX-License-Identifier: Apache-2.0
# needs: mpi
# One of four MPI ranks throws between collective operations, with communicators and streams on its stack: however the
# program deals with it, the whole job ends with an error in time, and the message says which rank, why and where. If all
# throw alike they can catch it and go on. T is 2 s; a second more, and three for mpiexec to start and to end.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
user_text='forward of micro-batch 2: token 50300 is not in a vocabulary of 50257'

# ends CASE TEXT: the job ends with an error, in time, and says TEXT
ends() {
  echo "== $1"
  local start status=0 elapsed
  start=$(date +%s%3N)
  timeout 30 $MPIEXEC 4 "$PROGRAMS/throws_mpi" "$1" >"$work/out" 2>&1 || status=$?
  elapsed=$(($(date +%s%3N) - start))
  cat "$work/out"
  ((status != 0 && status != 124)) || { echo "exit code $status"; exit 1; }
  ((elapsed < 6000)) || { echo "took $elapsed ms, limit 6000"; exit 1; }
  grep -qE -e "$2" "$work/out" || { echo "expected: $2"; exit 1; }
  if grep -F 'wrong:' "$work/out"; then exit 1; fi
}

last='its last operation was broadcast at throws.hpp:[0-9]+; ending the job'
ends run "smp: world rank 1 has thrown: $user_text; $last"
ends host "smp: world rank 1 has thrown: $user_text; $last"
ends passes_session "smp: world rank 1 leaves its MPI session by an exception; $last"
ends uncaught "$user_text"
ends caught_by_one 'waited 2000 ms; missing: .*world rank 1 is in another operation \(barrier\)'

echo "== all"
timeout 60 $MPIEXEC 4 "$PROGRAMS/throws_mpi" all 2>"$work/err" || { cat "$work/err"; exit 1; }
cat "$work/err"
if grep -F 'wrong:' "$work/err"; then exit 1; fi
