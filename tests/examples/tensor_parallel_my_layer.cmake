# The program examples/tensor_parallel_my_layer, judged from outside: cmake -DPROGRAM=<path> -P ...
execute_process(COMMAND "${PROGRAM}" RESULT_VARIABLE found OUTPUT_VARIABLE text ERROR_VARIABLE errors)
set(loss "step 20: loss 0\\.345423[0-9]*\n. ranks, step 40: loss 0\\.00895953[0-9]*\n")
if(NOT found STREQUAL "0" OR NOT text MATCHES "^1 ranks, ${loss}2 ranks, ${loss}4 ranks, ${loss}the parts sum to the whole: yes\n$")
  message(FATAL_ERROR "tensor_parallel_my_layer: found ${found} and\n${text}${errors}")
endif()
