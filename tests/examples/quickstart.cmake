# The program examples/quickstart, judged from outside: cmake -DPROGRAM=<path> -P quickstart.cmake

# expect(<exit code> <regex that stdout and stderr together match> <arguments>...)
function(expect code pattern)
  execute_process(COMMAND "${PROGRAM}" ${ARGN} RESULT_VARIABLE found OUTPUT_VARIABLE text ERROR_VARIABLE errors)
  if(NOT found STREQUAL "${code}" OR NOT "${text}${errors}" MATCHES "${pattern}")
    message(SEND_ERROR "quickstart ${ARGN}: expected exit code ${code} and\n${pattern}\nfound ${found} and\n${text}${errors}")
  endif()
endfunction()

# The first loss is that of guessing: ln 256 = 5.545. Ten steps are few, but without optimisation they take their time.
expect(0 "^step   1  loss 5\\.[56][0-9]*\n$" "${CMAKE_CURRENT_LIST_DIR}/../../README.md" 1)
expect(0 "^step  10  loss [34]\\.[0-9]*\n$" "${CMAKE_CURRENT_LIST_DIR}/../../README.md" 10)
expect(2 "^quickstart \\[FILE \\[STEPS\\]\\]: a text of more than 64 bytes\n$" /nowhere)
