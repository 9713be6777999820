# cmake --install: the rooms with their public headers, and a package, so that an outside project needs no more than
#   find_package(Bellows REQUIRED)
#   target_link_libraries(mine PRIVATE bellows::bellows)
# Programs and plugins are installed where they are defined.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(rooms GLOBAL PROPERTY BELLOWS_ROOMS)
target_compile_features(bellows INTERFACE cxx_std_20)
install(TARGETS ${rooms} bellows EXPORT BellowsTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(room ${rooms})
  string(REPLACE "bellows_" "" folder ${room})
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/${folder}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
          FILES_MATCHING PATTERN "*.h")
endforeach()

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Bellows)
install(EXPORT BellowsTargets NAMESPACE bellows:: DESTINATION ${package})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/BellowsConfig.cmake.in ${CMAKE_BINARY_DIR}/package/BellowsConfig.cmake
                              INSTALL_DESTINATION ${package} NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may change the headers.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/BellowsConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/package/BellowsConfig.cmake ${CMAKE_BINARY_DIR}/package/BellowsConfigVersion.cmake
        DESTINATION ${package})
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
