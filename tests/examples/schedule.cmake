# The program examples/schedule, judged from outside: cmake -DPROGRAM=<path> -P schedule.cmake

# expect(<exit code> <regex that stdout and stderr together match> <arguments>...)
function(expect code pattern)
  execute_process(COMMAND "${PROGRAM}" ${ARGN} RESULT_VARIABLE found OUTPUT_VARIABLE text ERROR_VARIABLE errors)
  if(NOT found STREQUAL "${code}" OR NOT "${text}${errors}" MATCHES "${pattern}")
    message(SEND_ERROR "schedule ${ARGN}: expected exit code ${code} and\n${pattern}\nfound ${found} and\n${text}${errors}")
  endif()
endfunction()

set(safe "deadlock_free\tyes\nfifo_safe\tyes\n$")
expect(0 "^0\tF0 F1 F2 F3 -- -- B0 B1 B2 B3 U\n1\t-- F0 F1 F2 F3 B0 B1 B2 B3 -- U\nbubble\t0.2\nmakespan\t10\npeak_in_flight\t4,4\n${safe}"
       --schedule simple --stages 2 --microbatches 4)
expect(0 "^0\tF0 F1 -- B0 F2 B1 F3 B2 -- B3 U\n1\t-- F0 B0 F1 B1 F2 B2 F3 B3 -- U\nbubble\t0.2\nmakespan\t10\npeak_in_flight\t2,1\n${safe}"
       --schedule interleaved --stages 2 --microbatches 4)
expect(0 "^0\tF0 F1 B0 F2 B1 F3 B2 B3 U\n1\tF0 B0 F1 B1 F2 B2 F3 B3 U\nbubble\t0.2\nmakespan\t15\n"
       --schedule interleaved --stages 2 --microbatches 4 --times 1,1,1,0)
expect(0 "^0\tF0 F1 -- -- B0 B1 F2 F3 -- -- B2 B3 U\n" --schedule simple --stages 2 --microbatches 4 --active 2)
expect(0 "^0\tF0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 .*bubble\t0.1111111111\nmakespan\t18\npeak_in_flight\t5,3\n${safe}"
       --schedule looped --stages 2 --microbatches 4 --chunks 2)
expect(0 "^0\tF0.0 F1.0 F2.0 F0.1 .*makespan\t17.5\npeak_in_flight\t6,6\n${safe}"
       --schedule looped_breadth --stages 2 --microbatches 3 --chunks 2 --times 0.5,1,1,0)
expect(0 "^0\tF0 F1 -- I0 W0 F2 I1 W1 F3 I2 W2 I3 W3 U\n1\t-- F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3 U\n.*makespan\t13\n"
       --schedule zero_bubble --stages 2 --microbatches 4)
expect(0 "\nmakespan\t51.9\npeak_in_flight\t8,8,8,8\n${safe}"
       --schedule zero_bubble_v --stages 4 --microbatches 8 --times 1,1.3,0.7,0)
expect(0 "\nmakespan\t26\npeak_in_flight\t5,5\n${safe}" --schedule dual_pipe_v --stages 2 --microbatches 4 --times 1,1,1,0)
expect(0 "^0\tF0 F1 F2 --\n1\t-- F0 F1 F2\nbubble\t0.25\nmakespan\t4\npeak_in_flight\t1,1\n${safe}"
       --schedule forward_only --stages 2 --microbatches 3)

expect(2 "^smp: looped on 4 ranks needs a multiple of 4 micro-batches; found 6, the nearest legal numbers are 4 and 8\n$"
       --schedule looped --stages 4 --microbatches 6)
expect(2 "^smp: zero_bubble_v on 4 ranks needs at least 7 micro-batches; found 6, the nearest legal number is 7\n$"
       --schedule zero_bubble_v --stages 4 --microbatches 6)
expect(2 "^smp: dual_pipe_v on 4 ranks needs at least 8 micro-batches; found 7, the nearest legal number is 8\n$"
       --schedule dual_pipe_v --stages 4 --microbatches 7)
expect(2 "^smp: no schedule is called 'gpipe'; there are simple, " --schedule gpipe --stages 2 --microbatches 4)
expect(2 "^smp: zero_bubble_v holds 2 chunks a rank; found 3" --schedule zero_bubble_v --stages 2 --microbatches 4 --chunks 3)
expect(2 "^smp: the number of pipeline ranks must be at least 1; found 0\n$" --schedule simple --stages 0 --microbatches 4)
expect(2 "^smp: a schedule of 2000000 ranks, 1 chunks each and 5 micro-batches is too large"
       --schedule simple --stages 2000000 --microbatches 5)
expect(2 "at least 1; found -4\n$" --schedule simple --stages 2 --microbatches -4)
expect(2 "--microbatches.*4x.*not a decimal" --schedule simple --stages 2 --microbatches 4x)
expect(2 "--times" --schedule simple --stages 2 --microbatches 4 --times 1,2)
expect(2 "^smp: --times: expected numbers" --schedule simple --stages 2 --microbatches 4 --times nan,1,1,0)
expect(0 "\nbubble\t0\nmakespan\t0\n" --schedule simple --stages 2 --microbatches 4 --times 0,0,0,0)
expect(2 "^--stages is required\n$" --schedule simple --microbatches 4)
expect(2 "^smp: cannot write '/nowhere/timeline.svg'\n$" --schedule simple --stages 2 --microbatches 4 --svg /nowhere/timeline.svg)

set(picture "${CMAKE_CURRENT_BINARY_DIR}/schedule_test.svg")
expect(0 "${safe}" --schedule dual_pipe_v --stages 3 --microbatches 6 --svg "${picture}")
file(READ "${picture}" text)
file(REMOVE "${picture}")
foreach(part IN ITEMS "<svg xmlns" "dual_pipe_v, 3 ranks, 6 micro-batches" "<title>F5.1</title>" "overlapped" "</svg>\n$")
  if(NOT text MATCHES "${part}")
    message(SEND_ERROR "the picture lacks ${part}")
  endif()
endforeach()
