# The program examples/sharded, judged from outside: cmake -DPROGRAM=<path> -P sharded.cmake
# 333,440 parameters, of which those with fewer than 1000 elements are whole on each rank, the others by halves.
execute_process(COMMAND "${PROGRAM}" RESULT_VARIABLE found OUTPUT_VARIABLE text ERROR_VARIABLE errors)
if(NOT found STREQUAL 0 OR NOT "${text}${errors}" MATCHES
   "^parameters 679936, gradients 679936, optimizer 1359872, buffers [0-9]+ bytes; a step gathers 29 times\n$")
  message(SEND_ERROR "sharded: expected the bytes of a shard, found ${found} and\n${text}${errors}")
endif()
