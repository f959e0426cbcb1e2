# The targets that users link: smp::smp, and one for each outside library that some headers need. A header belongs to
# exactly one of them, decided by its name, so that verifying or installing smp::smp never needs what it does not use.
# Headers are found by pattern: a header under include/ is public, there is nothing else to say about it.

# smp_headers(<out> <include-dir-relative globs>...): the headers that match
function(smp_headers out)
  list(TRANSFORM ARGN PREPEND "${PROJECT_SOURCE_DIR}/include/smp/")
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${ARGN})
  set(${out} ${headers} PARENT_SCOPE)
endfunction()

# smp_component(<name> <headers>...): target smp_<name>, alias smp::<name>; every one but smp itself builds on smp::smp
function(smp_component name)
  set(target smp_${name})
  if(name STREQUAL smp)
    set(target smp)
  endif()
  add_library(${target} INTERFACE)
  add_library(smp::${name} ALIAS ${target})
  target_sources(${target} INTERFACE FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/include" FILES ${ARGN})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} VERIFY_INTERFACE_HEADER_SETS ON)
  if(NOT name STREQUAL smp)
    target_link_libraries(${target} INTERFACE smp::smp)
  endif()
endfunction()

smp_headers(smp_all_headers "*.hpp")
smp_headers(smp_mpi_headers "comm/mpi*.hpp")
smp_headers(smp_io_headers "io/*.hpp")
smp_headers(smp_device_headers "comm/nccl*.hpp" "device/cuda*.hpp")
set(smp_core_headers ${smp_all_headers})
list(REMOVE_ITEM smp_core_headers ${smp_mpi_headers} ${smp_io_headers} ${smp_device_headers})

# Threads are part of the platform: ranks as threads are what a program without MPI has.
find_package(Threads REQUIRED)
smp_component(smp ${smp_core_headers})
target_compile_features(smp INTERFACE cxx_std_20)
target_link_libraries(smp INTERFACE Threads::Threads)

# The libraries that gemm() calls; without smp::blas it multiplies matrices itself. No headers: they are part of smp::smp.
include(SmpBlas)
add_library(smp_blas INTERFACE)
add_library(smp::blas ALIAS smp_blas)
target_link_libraries(smp_blas INTERFACE smp::smp)
smp_find_blas(smp_blas)

set(SMP_HAVE_MPI OFF)
if(SMP_ENABLE_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)
  if(SMP_ENABLE_MPI STREQUAL "AUTO")
    find_package(MPI 3.0 QUIET COMPONENTS CXX)
  else()
    find_package(MPI 3.0 REQUIRED COMPONENTS CXX)
  endif()
  if(MPI_CXX_FOUND)
    set(SMP_HAVE_MPI ON)
    smp_component(mpi ${smp_mpi_headers})
    target_link_libraries(smp_mpi INTERFACE MPI::MPI_CXX)
    # mpi.h of Open MPI 4 otherwise pulls in the C++ bindings that MPI 3 removed, with warnings.
    target_compile_definitions(smp_mpi INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  endif()
endif()

# Files: JSON through nlohmann's library, digests through OpenSSL's.
set(SMP_HAVE_IO OFF)
if(SMP_ENABLE_IO)
  set(required QUIET)
  if(NOT SMP_ENABLE_IO STREQUAL "AUTO")
    set(required REQUIRED)
  endif()
  find_package(nlohmann_json 3.11 ${required})
  find_package(OpenSSL ${required} COMPONENTS Crypto)
  if(nlohmann_json_FOUND AND OPENSSL_FOUND)
    set(SMP_HAVE_IO ON)
    smp_component(io ${smp_io_headers})
    target_link_libraries(smp_io INTERFACE nlohmann_json::nlohmann_json OpenSSL::Crypto)
  endif()
endif()
message(STATUS "smp ${PROJECT_VERSION}: files ${SMP_HAVE_IO}")
message(STATUS "smp ${PROJECT_VERSION}: MPI ${SMP_HAVE_MPI} ${MPI_CXX_COMPILER}")
