# What `cmake --install` writes: headers, a CMake package with one targets file for each component (so that loading
# smp::smp never looks for MPI), and smp.pc for build systems that know nothing but pkg-config.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/smp")
install(TARGETS smp EXPORT smp-smp FILE_SET HEADERS)
install(EXPORT smp-smp NAMESPACE smp:: FILE smp-smp-targets.cmake DESTINATION ${package_dir})
if(SMP_HAVE_MPI)
  install(TARGETS smp_mpi EXPORT smp-mpi FILE_SET HEADERS)
  install(EXPORT smp-mpi NAMESPACE smp:: FILE smp-mpi-targets.cmake DESTINATION ${package_dir})
elseif(SMP_ENABLE_MPI)
  # No MPI on the machine that installs says nothing about the one that compiles.
  install(FILES ${smp_mpi_headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/smp/comm)
endif()
if(SMP_HAVE_IO)
  install(TARGETS smp_io EXPORT smp-io FILE_SET HEADERS)
  install(EXPORT smp-io NAMESPACE smp:: FILE smp-io-targets.cmake DESTINATION ${package_dir})
elseif(SMP_ENABLE_IO)
  install(FILES ${smp_io_headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/smp/io)
endif()

configure_package_config_file(cmake/smpConfig.cmake.in smpConfig.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may break.
write_basic_package_version_file(smpConfigVersion.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/smpConfig.cmake" "${CMAKE_CURRENT_BINARY_DIR}/smpConfigVersion.cmake"
              cmake/SmpBlas.cmake
        DESTINATION ${package_dir})

# Relative to smp.pc, so that an installed tree can be moved; LIBDIR may have more than one part (lib/x86_64-linux-gnu).
file(RELATIVE_PATH pc_to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file(cmake/smp.pc.in smp.pc @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/smp.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
