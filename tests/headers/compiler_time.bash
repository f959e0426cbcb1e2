# Compile times in seconds that do not depend on the processor at hand, nor on what else it does: as many as a processor
# would need that reads the headers below, which any program like ours includes, in half a second.

# user_seconds COMMAND...: the user CPU time of a command, or its output if it fails
user_seconds() {
  local TIMEFORMAT=%U used
  used=$({ time "$@" >/dev/null; } 2>&1)
  [[ $used =~ ^[0-9.]+$ ]] || { echo "$used" >&2; return 1; }
  echo "$used"
}

# least A B: the smaller number; A may be empty
least() { awk -v a="${1:-$2}" -v b="$2" 'BEGIN { print a < b ? a : b }'; }

standard_headers() {
  printf '#include <%s>\n' algorithm atomic chrono condition_variable deque map memory mutex sstream string thread variant vector
}

# at_half_a_second USED COMPILER [FLAGS...]: USED seconds, as that processor would need
at_half_a_second() {
  local used=$1 file best=
  shift
  file=$(mktemp --suffix=.cpp)
  standard_headers >"$file"
  for _ in 1 2 3; do best=$(least "$best" "$(user_seconds "$@" -fsyntax-only "$file")"); done
  rm -f "$file"
  awk -v used="$used" -v best="$best" 'BEGIN { printf "%.2f", used * 0.5 / best }'
}
