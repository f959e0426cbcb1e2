# The program examples/topology, judged from outside: cmake -DPROGRAM=<path> -P topology.cmake

# run(<arguments>...): sets code, out and err
macro(run)
  execute_process(COMMAND "${PROGRAM}" ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err)
endmacro()

# prints(<text> <arguments>...): exit code 0, exactly this on stdout, nothing on stderr
function(prints text)
  run(${ARGN})
  if(NOT code STREQUAL "0" OR NOT out STREQUAL text OR NOT err STREQUAL "")
    message(SEND_ERROR "topology ${ARGN}: expected\n${text}\nfound ${code}\n${out}\n${err}")
  endif()
endfunction()

# fails(<sentence> <arguments>...): exit code 2, nothing on stdout, exactly this line on stderr
function(fails sentence)
  run(${ARGN})
  if(NOT code STREQUAL "2" OR NOT out STREQUAL "" OR NOT err STREQUAL "${sentence}\n")
    message(SEND_ERROR "topology ${ARGN}: expected exit code 2 and\n${sentence}\nfound ${code}\n${out}\n${err}")
  endif()
endfunction()

# same(<arguments> <arguments>): two lists of arguments that mean the same
function(same a b)
  run(${a})
  set(expected "${out}")
  if(NOT code STREQUAL "0")
    message(SEND_ERROR "topology ${a}: exit code ${code}\n${err}")
  endif()
  prints("${expected}" ${b})
endfunction()

string(CONCAT head "rank\tpp_rank\ttp_rank\trdp_rank\tdp_rank\tmp_rank\tshard_rank\treplica_rank\n")

prints("${head}0\t0\t0\t0\t0\t0\t0\t0
group\tTP\t0
group\tPP\t0
group\tRDP\t0
group\tDP\t0
group\tMP\t0
group\tSHARD\t0
group\tREPLICA\t0
" --world 1)

prints("${head}0\t0\t0\t0\t0\t0\t0\t0
1\t0\t1\t0\t1\t1\t0\t0
2\t1\t0\t0\t0\t2\t0\t0
3\t1\t1\t0\t1\t3\t0\t0
4\t0\t0\t1\t2\t0\t1\t0
5\t0\t1\t1\t3\t1\t1\t0
6\t1\t0\t1\t2\t2\t1\t0
7\t1\t1\t1\t3\t3\t1\t0
group\tTP\t0,1 2,3 4,5 6,7
group\tPP\t0,2 1,3 4,6 5,7
group\tRDP\t0,4 1,5 2,6 3,7
group\tDP\t0,1,4,5 2,3,6,7
group\tMP\t0,1,2,3 4,5,6,7
group\tSHARD\t0,4 1,5 2,6 3,7
group\tREPLICA\t0 1 2 3 4 5 6 7
" --world 8 --pp 2 --tp 2 --sdp 2)

# The listing of the reference's documentation.
prints("${head}0\t0\t0\t0\t0\t0\t0\t0
1\t1\t0\t0\t0\t1\t0\t0
2\t0\t1\t0\t1\t2\t0\t0
3\t1\t1\t0\t1\t3\t0\t0
4\t0\t0\t1\t2\t0\t0\t1
5\t1\t0\t1\t2\t1\t0\t1
6\t0\t1\t1\t3\t2\t0\t1
7\t1\t1\t1\t3\t3\t0\t1
group\tTP\t0,2 1,3 4,6 5,7
group\tPP\t0,1 2,3 4,5 6,7
group\tRDP\t0,4 1,5 2,6 3,7
group\tDP\t0,2,4,6 1,3,5,7
group\tMP\t0,1,2,3 4,5,6,7
group\tSHARD\t0 1 2 3 4 5 6 7
group\tREPLICA\t0,4 1,5 2,6 3,7
" --world 8 --pp 2 --tp 2 --placement DTP)

# The documentation's example for sharding with tensor parallelism.
run(--world 32 --tp 4 --sdp 4)
if(NOT out MATCHES "\ngroup\tSHARD\t0,4,8,12 1,5,9,13 2,6,10,14 3,7,11,15 16,20,24,28 17,21,25,29 18,22,26,30 19,23,27,31\n")
  message(SEND_ERROR "topology --world 32 --tp 4 --sdp 4 prints other shard groups:\n${out}")
endif()

same("--world;8" "--world;8;--pp;1;--tp;1;--sdp;1;--placement;cluster")
same("--world;12;--pp;2;--tp;3;--placement;cluster" "--world;12;--pp;2;--tp;3;--placement;DPT")
same("--world;12;--pp;2;--tp;3;--placement;spread" "--world;12;--pp;2;--tp;3;--placement;TPD")
same("--world;10" "--world;010")

fails("smp: pp is 3, but must divide world = 8; legal values are 1, 2, 4, 8" --world 8 --pp 3)
fails("smp: tp is 3, but must divide world / pp = 8 / 2 = 4; legal values are 1, 2, 4" --world 8 --pp 2 --tp 3)
fails("smp: sdp is 3, but must divide the reduced data-parallel degree rdp = world / (pp * tp) = 8 / 2 = 4; legal values are 1, 2, 4"
      --world 8 --tp 2 --sdp 3)
fails("smp: sdp is 8, but must divide the reduced data-parallel degree rdp = world / (pp * tp) = 8 / 2 = 4; legal values are 1, 2, 4"
      --world 8 --tp 2 --sdp 8)
fails("smp: world is 0, but must be at least 1" --world 0)
fails("smp: world is -8, but must be at least 1" --world -8)
fails("smp: pp is 0, but must be at least 1" --world 8 --pp 0)
fails("smp: tp is -2, but must be at least 1" --world 8 --tp=-2)
fails("smp: sdp is -1, but must be at least 1" --world 8 --sdp -1)
fails("smp: placement is \"round-robin\"; legal values are cluster (= DPT), spread (= TPD), DPT, DTP, PDT, PTD, TDP and TPD"
      --world 8 --placement round-robin)
foreach(wrong IN ITEMS x 8x 8.0 1e3 0x8 +8 99999999999 "1 2")
  fails("--world: \"${wrong}\" is not a decimal 32-bit integer" --world "${wrong}")
endforeach()
fails("--world is required")
fails("--world is required" --pp 2)
fails("--world: 1 required INT missing" --world)
fails("The following argument was not expected: --dp" --world 8 --dp)
fails("The following argument was not expected: 9" --world 8 9)
