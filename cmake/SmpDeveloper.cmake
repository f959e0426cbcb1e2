# What tests, examples and benchmarks of this repository share. Nothing here reaches users of smp::smp.

if(PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(SMP_CCACHE ccache)
  mark_as_advanced(SMP_CCACHE)
  if(SMP_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${SMP_CCACHE})
  endif()
endif()

set(CMAKE_CXX_EXTENSIONS OFF)

# Warnings for our own code only. The presets turn them into errors (CMAKE_COMPILE_WARNING_AS_ERROR).
add_library(smp_warnings INTERFACE)
target_compile_options(smp_warnings INTERFACE
  $<$<CXX_COMPILER_ID:GNU,Clang,AppleClang>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion>
  # GCC 12 sees overlapping copies in "literal" + std::string (GCC bug 105651).
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)

# Half a gigabyte before GCC looks for garbage for the first time: 2 to 7 % of the time to compile a test.
target_compile_options(smp_warnings INTERFACE $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=524288>)

# smp_sources(<out> <globs>...): the matching files of this directory. Patterns instead of lists, checked again at every
# build, because whoever adds a test, an example or a benchmark should write one file and nothing else.
function(smp_sources out)
  list(TRANSFORM ARGN PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  file(GLOB files CONFIGURE_DEPENDS ${ARGN})
  set(${out} ${files} PARENT_SCOPE)
endfunction()

# smp_read(<out> <file> <key>): the words after "// key:" or "# key:" in a source file; one list for all such lines
function(smp_read out file key)
  file(STRINGS "${file}" lines REGEX "^(//|#) ${key}:")
  list(TRANSFORM lines REPLACE "^(//|#) ${key}: *" "")
  list(JOIN lines " " words)
  separate_arguments(words)
  set(${out} ${words} PARENT_SCOPE)
  # A changed line changes what is built.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
endfunction()

# What a "// needs:" line can name: NEED_<name> is the target that is linked for it, if that is here.
set(NEED_mpi smp::mpi)
set(NEED_io smp::io)
set(NEED_blas smp::blas)
set(NEED_eigen Eigen3::Eigen)
set(NEED_zlib ZLIB::ZLIB)
set(known_needs mpi io blas eigen zlib)
find_package(Eigen3 3.3 QUIET NO_MODULE)
find_package(ZLIB QUIET)

# smp_can_build(<out> <file>): whether everything named in the file's "// needs:" lines is here
function(smp_can_build out file)
  smp_read(needs "${file}" needs)
  set(${out} ON PARENT_SCOPE)
  foreach(need IN LISTS needs)
    if(NOT need IN_LIST known_needs)
      message(FATAL_ERROR "${file}: '// needs: ${need}' is unknown; known: ${known_needs}")
    endif()
    if(NOT TARGET ${NEED_${need}})
      set(${out} OFF PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# smp_executable(<name> <sources>...): an executable of this repository: warnings on, and what the "// needs:" line of the
# first source names is linked; so is what its "// uses:" line names, if it is here, which USE_<NAME> tells the program
function(smp_executable name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE smp::smp smp_warnings)
  list(GET ARGN 0 first)
  smp_read(needs "${first}" needs)
  foreach(need IN LISTS needs)
    target_link_libraries(${name} PRIVATE ${NEED_${need}})
  endforeach()
  smp_read(uses "${first}" uses)
  foreach(use IN LISTS uses)
    string(TOUPPER "USE_${use}" macro)
    if(TARGET ${NEED_${use}})
      target_link_libraries(${name} PRIVATE ${NEED_${use}})
      target_compile_definitions(${name} PRIVATE ${macro}=1)
    else()
      target_compile_definitions(${name} PRIVATE ${macro}=0)
    endif()
  endforeach()
endfunction()
