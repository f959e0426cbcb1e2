# How a test is declared. Every test file is found by its folder (see tests/CMakeLists.txt).

set(SMP_TEST_TIMEOUT 300 CACHE STRING "Seconds after which a test has failed")
set(SMP_TEST_RANKS 1 2 3 4 8 CACHE STRING "Numbers of ranks that bodies of tests run on under MPI")
set(SMP_TEST_WITHOUT_CASES "" CACHE STRING "Cases on ranks that are left out, as doctest patterns: sweeps of code that others run")
set(SMP_TEST_MAX_RANKS 8 CACHE STRING "Tests under MPI that need more ranks are left out")
# A second MPI runs the code that a first one has run: it need not be optimised twice.
option(SMP_TEST_THREADS_ONLY "Leave out unit tests that start no thread: ThreadSanitizer has nothing to say of them")
set(SMP_TEST_MPI_WITHOUT "" CACHE STRING "Tests on ranks, by name, that are run on threads only: what they add is not about MPI")
set(SMP_RANK_TEST_OPTIONS "" CACHE STRING "Compiler options of the tests that run on several ranks, after all others")

# Open MPI refuses root and more ranks than cores unless told, and binds each of two ranks, helper threads included, to
# one core. MPICH ignores these.
set(smp_mpi_environment OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
                        OMPI_MCA_hwloc_base_binding_policy=none)
if(CMAKE_CXX_FLAGS_DEBUG MATCHES "fsanitize=address")
  # Both MPIs leave a little memory behind in plugins that are unloaded when the leak check runs.
  list(APPEND smp_mpi_environment ASAN_OPTIONS=detect_leaks=0)
endif()

if(CMAKE_CXX_FLAGS_DEBUG MATCHES "fsanitize=thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # As an archive, clang's library defines `operator new`, which tests that count allocations replace.
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-runtime-dir OUTPUT_VARIABLE runtime
                  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  add_link_options(-shared-libsan "-Wl,-rpath,${runtime}")
endif()

# Arguments of executables of cases on ranks.
set(smp_left_out "")
if(SMP_TEST_WITHOUT_CASES)
  set(smp_left_out "--test-case-exclude=${SMP_TEST_WITHOUT_CASES}")
endif()

# For tests that call a compiler themselves.
if(SMP_HAVE_MPI)
  list(TRANSFORM MPI_CXX_INCLUDE_DIRS PREPEND "-isystem" OUTPUT_VARIABLE smp_mpi_compile_flags)
  list(APPEND smp_mpi_compile_flags -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX)
endif()

# smp_test_executable(<name> MAIN <target> SOURCES <files>...): doctest cases with one of the two mains
function(smp_test_executable name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "MAIN" "SOURCES")
  smp_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_MAIN} doctest::doctest)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
endfunction()

# smp_test(<name> LABEL <label> [PROCESSORS <n>] COMMAND <command>...)
function(smp_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LABEL;PROCESSORS" "COMMAND")
  if(NOT arg_PROCESSORS)
    set(arg_PROCESSORS 1)
    if(arg_LABEL STREQUAL "threads")
      # Thread ranks bind themselves to cores; ctest should not run two such tests on the same ones.
      set(arg_PROCESSORS 2)
    endif()
  endif()
  add_test(NAME ${name} COMMAND ${arg_COMMAND} COMMAND_EXPAND_LISTS)
  # Tests run side by side, and the threads of a BLAS spin while they wait for one that has no core.
  set_tests_properties(${name} PROPERTIES LABELS ${arg_LABEL} PROCESSORS ${arg_PROCESSORS} TIMEOUT ${SMP_TEST_TIMEOUT}
                                          SKIP_RETURN_CODE 77
                                          ENVIRONMENT_MODIFICATION "OMP_NUM_THREADS=set:1;OPENBLAS_NUM_THREADS=set:1")
endfunction()

# smp_must_fail_test(<name> LABEL <label> SAYING <text> COMMAND <command>...): a control for a check of our own
function(smp_must_fail_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LABEL;SAYING" "COMMAND")
  smp_test(${name} LABEL ${arg_LABEL}
           COMMAND bash "${PROJECT_SOURCE_DIR}/tests/support/must_fail.sh" "${arg_SAYING}" ${arg_COMMAND})
endfunction()

# smp_mpi_tests(<target> <ranks>...): one test for each number of ranks, all with the same executable
function(smp_mpi_tests target)
  foreach(n IN LISTS ARGN)
    if(n GREATER SMP_TEST_MAX_RANKS)
      continue()
    endif()
    smp_test(${target}.${n} LABEL mpi PROCESSORS ${n}
             COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${n} ${MPIEXEC_PREFLAGS} $<TARGET_FILE:${target}>
                     ${MPIEXEC_POSTFLAGS} ${smp_left_out})
    set_tests_properties(${target}.${n} PROPERTIES ENVIRONMENT "${smp_mpi_environment}")
  endforeach()
endfunction()
