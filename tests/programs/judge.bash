# For tests that judge a job from outside: what it says, when, with which exit status, and what it leaves behind.

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failures=0

# watch COMMAND...: runs it; every line it prints goes to $log, behind the time it came. Sets $status, and $end, the time
# of the end. A job that does not end is ended after a minute (status 124); what it leaves behind may hold the pipe open
# a little longer.
watch() {
  {
    local code=0 launcher
    timeout -k 5 60 "$@" 2>&1 &
    launcher=$!
    end_stuck "$launcher" &
    wait "$launcher" || code=$?
    echo "exit status $code"
  } | timeout 75 bash -c 'while IFS= read -r line; do printf "%s %s\n" "$EPOCHREALTIME" "$line"; done' >"$log" || true
  read -r end status < <(awk '$2 == "exit" && $3 == "status" { print $1, $4 }' "$log")
}

# end_stuck LAUNCHER: the launcher of Open MPI 4 can wait for ever when two ranks have failed at once while a third was
# finalising, though all three are gone. What is judged is the ranks: two seconds after the last of them the launcher is
# ended.
end_stuck() {
  local pids alive gone=0 pid
  while kill -0 "$1" 2>/dev/null; do
    sleep 0.5
    mapfile -t pids < <(awk '/ rank [0-9]+ is process / { print $NF }' "$log")
    ((${#pids[@]} > 0)) || continue
    alive=0
    for pid in "${pids[@]}"; do
      if [[ -r /proc/$pid/status ]] && ! grep -q '^State:.*Z' "/proc/$pid/status" 2>/dev/null; then alive=1; fi
    done
    gone=$((alive ? 0 : gone + 1))
    if ((gone >= 4)); then
      pkill -KILL -P "$1" || true
      return
    fi
  done
}

# wrong TEXT: the case under test has failed
wrong() {
  echo "$case: $1"
  sed 's/^/    /' "$log"
  failures=$((failures + 1))
}

# The time at which the first of ranks 0 and 2 entered the operation; of the end, if the job was over before.
entered() {
  awk -v end="$end" '/ rank [02] enters at / { if (!first || $NF < first) first = $NF } END { printf "%.3f", first ? first : end }' "$log"
}

# said PATTERN: the time at which a line first matched; nothing if none did
said() { grep -m1 -E -- "$1" "$log" | cut -d' ' -f1 || true; }

# within TIME SECONDS: whether TIME is no later than SECONDS after the ranks entered
within() { awk -v t="$1" -v from="$(entered)" -v limit="$2" 'BEGIN { exit !(t - from <= limit) }'; }

# must_say PATTERN SECONDS: a line matches, and comes in time
must_say() {
  local time
  time=$(said "$1")
  if [[ -z $time ]]; then
    wrong "nothing says: $1"
  elif ! within "$time" "$2"; then
    wrong "more than $2 s until something says: $1"
  fi
}

# must_fail SECONDS: the job has failed, and has ended in time
must_fail() {
  [[ $status != 0 && $status != 124 ]] || wrong "exit status $status"
  within "$end" "$1" || wrong "more than $1 s until the end"
}

# must_succeed: the job has succeeded, and the library has said nothing
must_succeed() {
  [[ $status == 0 ]] || wrong "exit status $status"
  [[ -z $(said ' smp: ') ]] || wrong "a false alarm"
}

# must_be_gone: no process of the job is left; a launcher may take a moment
must_be_gone() {
  local process tries
  for process in $(sed -n 's/.* is process \([0-9]*\)$/\1/p' "$log"); do
    for ((tries = 0; tries < 50; ++tries)); do
      kill -0 "$process" 2>/dev/null || continue 2
      sleep 0.1
    done
    wrong "process $process is left"
    kill -9 "$process" || true
  done
}

# finish N: the end of a test of N cases
finish() {
  echo "$1 cases, $failures failures"
  ((failures == 0))
}
