# The program examples/eigen, judged from outside: cmake -DPROGRAM=<path> -P eigen.cmake
execute_process(COMMAND "${PROGRAM}" RESULT_VARIABLE found OUTPUT_VARIABLE text ERROR_VARIABLE errors)
set(pattern "^step 100  loss 0\\.[0-9]+\n.*\nstep 500  loss 0\\.0[0-9]+\n(9[5-9]|100)\\.[0-9] % of the points are on the right spiral\n$")
if(NOT found STREQUAL "0" OR NOT text MATCHES "${pattern}")
  message(FATAL_ERROR "eigen: expected\n${pattern}\nfound ${found} and\n${text}${errors}")
endif()
