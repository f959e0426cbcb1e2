# needs: mpi
# parts: all_reduce message barrier
# An MPI rank that is stopped, blocks, returns, throws or exits: a message within T + 1 s, T = 2 s, and a job that has
# failed and is gone as soon as its launcher has done its part. See absent_rank.hpp.
. "$(dirname "$0")/judge.bash"

launcher=5  # seconds that a launcher may take to end the other processes
cases=0
operation=$1
called=$operation
[[ $operation != message ]] || called='(send|recv)'
waiting="smp: $called at absent_rank.hpp:[0-9]+ on WORLD group \(world ranks 0,1,2\), rank [02]: waited 2000 ms; missing: "
for deviation in stop block return throw exit compute misuse; do
  case="$operation, rank 1: $deviation"
  cases=$((cases + 1))
  watch $MPIEXEC 3 "$PROGRAMS/absent_rank_mpi" "$operation" "$deviation"
  case $deviation in
    stop) must_say "${waiting}world rank 1 gave no sign of life for [0-9]+ ms \(stopped or dead\); ending the job" 3 ;;
    block) must_say "${waiting}world rank 1 is in its own code; ending the job" 3 ;;
    return) must_say "${waiting}world rank 1 has ended its session; ending the job" 3 ;;
    throw) must_say "smp: world rank 1 has thrown: layer 3 is out of memory; its last operation was $called at absent_rank.hpp:[0-9]+ on WORLD group \(world ranks 0,1,2\), rank 1" 3 ;;
    exit) must_say "smp: world rank 1 has called exit; its last operation was $called at absent_rank.hpp:[0-9]+ on WORLD group \(world ranks 0,1,2\), rank 1" 3 ;;
  esac
  case $deviation in
    compute | misuse) must_succeed ;;
    *) must_fail $((3 + launcher)) ;;
  esac
  must_be_gone
done
finish "$cases"
