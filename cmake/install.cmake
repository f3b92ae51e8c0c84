# What `cmake --install` puts where: header, both libraries, pkg-config file, CMake package, the
# command line. Components: runtime (shared library, command), mpi (the plug-in, which is in no
# package: it fits the MPI that it was built with) and development (all else).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/htransformer)

install(FILES include/htransformer.h include/htransformer_models.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
install(TARGETS htransformer_shared EXPORT shared
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development)
install(TARGETS htransformer_static EXPORT static
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
if(TARGET htransformer)
  install(TARGETS htransformer RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
endif()
if(TARGET htransformer_mpi)
  install(TARGETS htransformer_mpi LIBRARY DESTINATION ${plugin_dir} COMPONENT mpi)
endif()
# the small language model that generate uses without a run
install(FILES models/shakespeare.safetensors DESTINATION ${CMAKE_INSTALL_DATADIR}/htransformer
  COMPONENT runtime OPTIONAL)
if(TARGET htransformer_pages)
  install(FILES ${PROJECT_BINARY_DIR}/cli/htransformer.1
    DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT runtime)
  install(FILES ${PROJECT_BINARY_DIR}/cli/completion.bash RENAME htransformer
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT runtime)
endif()
file(GLOB pages CONFIGURE_DEPENDS docs/*.md docs/*.svg)
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR}
  COMPONENT development)
install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs COMPONENT development)

# find_package(htransformer): targets htransformer::htransformer and htransformer::static
foreach(type shared static)
  install(EXPORT ${type} NAMESPACE htransformer:: FILE htransformer-${type}.cmake
    DESTINATION ${package_dir} COMPONENT development)
endforeach()
configure_package_config_file(cmake/config.cmake.in htransformer-config.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(htransformer-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/htransformer-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/htransformer-config-version.cmake
  DESTINATION ${package_dir} COMPONENT development)

# pkg-config [--static] htransformer; paths relative to the file, so that a prefix can be moved
file(RELATIVE_PATH pc_prefix /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
set(pc_private "-fopenmp -lm")
foreach(library ${library_links})
  string(APPEND pc_private " ${library}")
endforeach()
if(HT_WITH_CUDA)
  string(APPEND pc_private
    " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt -lpthread")
endif()
configure_file(cmake/htransformer.pc.in htransformer.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/htransformer.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
