# Which libraries gemm() calls. Used by smp's own build and by its package, since what counts is what the machine has that
# compiles the user's program.
#   SMP_BLAS   AUTO: oneDNN for float and a CBLAS for double, as far as they are found; DNNL, CBLAS: that one, required;
#              PORTABLE: neither
set(SMP_BLAS AUTO CACHE STRING "What smp::blas links: AUTO, DNNL, CBLAS or PORTABLE (smp's own matrix product)")
set_property(CACHE SMP_BLAS PROPERTY STRINGS AUTO DNNL CBLAS PORTABLE)

# smp_find_blas(<target>): gives the interface library <target> what SMP_BLAS asks for
function(smp_find_blas target)
  set(known AUTO DNNL CBLAS PORTABLE)
  if(NOT SMP_BLAS IN_LIST known)
    message(FATAL_ERROR "smp: SMP_BLAS is '${SMP_BLAS}'; it can be AUTO, DNNL, CBLAS or PORTABLE")
  endif()
  set(float "its own, slower one (neither oneDNN nor a CBLAS)")
  set(double "its own, slower one (no CBLAS)")

  set(has_cblas 0)
  if(SMP_BLAS MATCHES "AUTO|CBLAS")
    find_path(SMP_CBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas)
    find_package(BLAS QUIET)
    mark_as_advanced(SMP_CBLAS_INCLUDE_DIR)
    if(SMP_CBLAS_INCLUDE_DIR AND BLAS_FOUND)
      # Not every BLAS comes with the C interface.
      include(CheckCXXSourceCompiles)
      set(CMAKE_REQUIRED_QUIET ON)
      set(CMAKE_REQUIRED_INCLUDES ${SMP_CBLAS_INCLUDE_DIR})
      set(CMAKE_REQUIRED_LIBRARIES BLAS::BLAS)
      check_cxx_source_compiles("#include <cblas.h>
        int main() { cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 0, 0, 0, 1, 0, 1, 0, 1, 1, 0, 1); }"
        SMP_CBLAS_LINKS)
      if(SMP_CBLAS_LINKS)
        set(has_cblas 1)
        target_include_directories(${target} SYSTEM INTERFACE ${SMP_CBLAS_INCLUDE_DIR})
        target_link_libraries(${target} INTERFACE BLAS::BLAS ${CMAKE_DL_LIBS})
        list(GET BLAS_LIBRARIES 0 double)
        set(float ${double})
      endif()
    endif()
  endif()

  set(has_dnnl 0)
  if(SMP_BLAS MATCHES "AUTO|DNNL")
    # Not find_package(dnnl): Debian's package configuration ends with an error where OpenCL's headers are missing.
    find_path(SMP_DNNL_INCLUDE_DIR dnnl.h)
    find_library(SMP_DNNL_LIBRARY dnnl)
    mark_as_advanced(SMP_DNNL_INCLUDE_DIR SMP_DNNL_LIBRARY)
    if(SMP_DNNL_INCLUDE_DIR AND SMP_DNNL_LIBRARY)
      set(has_dnnl 1)
      target_include_directories(${target} SYSTEM INTERFACE ${SMP_DNNL_INCLUDE_DIR})
      target_link_libraries(${target} INTERFACE ${SMP_DNNL_LIBRARY} ${CMAKE_DL_LIBS})
      set(float ${SMP_DNNL_LIBRARY})
    endif()
  endif()

  if(SMP_BLAS STREQUAL "DNNL" AND NOT has_dnnl)
    message(FATAL_ERROR "smp: SMP_BLAS is DNNL, but dnnl.h or libdnnl was not found")
  elseif(SMP_BLAS STREQUAL "CBLAS" AND NOT has_cblas)
    message(FATAL_ERROR "smp: SMP_BLAS is CBLAS, but no cblas.h with a BLAS that has its functions was found")
  endif()
  target_compile_definitions(${target} INTERFACE SMP_HAS_CBLAS=${has_cblas} SMP_HAS_DNNL=${has_dnnl})
  message(STATUS "smp: float matrices are multiplied by ${float}, double by ${double}")
endfunction()
