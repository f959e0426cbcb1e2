# parts: all_reduce message barrier
# A thread rank that blocks, returns, throws or exits: the job ends with a message within T + 1 s, T = 2 s. See
# absent_rank.hpp.
. "$(dirname "$0")/judge.bash"

cases=0
operation=$1
called=$operation
[[ $operation != message ]] || called='(send|recv)'
# "rank 0: smp: barrier at absent_rank.hpp:34 on WORLD group (world ranks 0,1,2), rank 0: ..."
waiting="$called .*at absent_rank.hpp:[0-9]+ on WORLD group \(world ranks 0,1,2\), rank [02]: "
for deviation in block return throw exit compute misuse; do
  case="$operation, rank 1: $deviation"
  cases=$((cases + 1))
  watch "$PROGRAMS/absent_rank_threads" "$operation" "$deviation"
  case $deviation in
    block)
      must_say "rank 0: smp: ${waiting}waited 2000 ms, but world rank 1 is in its own code" 3
      must_say "rank 2: smp: ${waiting}waited 2000 ms, but world rank 1 is in its own code" 3
      must_say "smp: .*$called.*on WORLD group .*world rank 1 is in its own code and does not react; ending the process" 3
      must_fail 3
      ;;
    return)
      must_say "rank 0: smp: ${waiting}world rank 1 has returned from its function" 1
      must_say "rank 2: smp: ${waiting}world rank 1 has returned from its function" 1
      must_fail 3
      ;;
    throw)
      must_say "rank 0: smp: ${waiting}world rank 1 has thrown: layer 3 is out of memory" 1
      must_say "rank 2: smp: ${waiting}world rank 1 has thrown: layer 3 is out of memory" 1
      must_say "launch: layer 3 is out of memory" 3
      must_fail 3
      ;;
    exit)
      must_say "smp: world rank 1 has called exit; .*ending the process" 1
      must_fail 3
      ;;
    compute | misuse)
      must_succeed
      ;;
  esac
done
finish "$cases"
