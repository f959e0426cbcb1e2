# The program examples/pipeline, judged from outside: cmake -DPROGRAM=<path> -P pipeline.cmake
# Ten layers on two stages. A rank sends 8 samples x 32 places x 64 numbers of 4 bytes a step, two steps long.
execute_process(COMMAND "${PROGRAM}" RESULT_VARIABLE found OUTPUT_VARIABLE text ERROR_VARIABLE errors)
foreach(line "rank 0: layers 0 to 4" "rank 1: layers 5 to 9" "rank 2: layers 0 to 4" "rank 3: layers 5 to 9")
  if(NOT found STREQUAL 0 OR NOT "${text}${errors}" MATCHES "${line}, loss 5[.]393, 131072 bytes of activations sent\n")
    message(SEND_ERROR "pipeline: expected \"${line}\" with loss and bytes, found ${found} and\n${text}${errors}")
  endif()
endforeach()
