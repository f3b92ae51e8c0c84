# What `cmake --install` puts where. Components, each a package of its own (package.cmake):
#   attention, models           the shared libraries
#   attention_dev, models_dev   headers, static libraries, pkg-config files, CMake package, pages
#   program                     the command line
#   mpi                         the plug-in, in no package: it fits the MPI that it was built with
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/htransformer)

# ---- the libraries -----------------------------------------------------------------------------
# install_library(ROOMS NAME HEADER SHARED STATIC): the last two name targets of the package,
# htransformer::SHARED and htransformer::STATIC
function(install_library rooms name header shared static)
  install(FILES ${PROJECT_SOURCE_DIR}/include/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    COMPONENT ${rooms}_dev)
  install(TARGETS ${name}_shared EXPORT ${rooms}_shared LIBRARY
    DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${rooms} NAMELINK_COMPONENT ${rooms}_dev)
  install(TARGETS ${name}_static EXPORT ${rooms}_static ARCHIVE
    DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${rooms}_dev)
  set(targets ${shared} ${static})
  foreach(type shared static)
    list(POP_FRONT targets target)
    set_target_properties(${name}_${type} PROPERTIES EXPORT_NAME ${target})
    add_library(htransformer::${target} ALIAS ${name}_${type})
    install(EXPORT ${rooms}_${type} NAMESPACE htransformer::
      FILE htransformer-${rooms}-${type}.cmake DESTINATION ${package_dir}
      COMPONENT ${rooms}_dev)
  endforeach()
endfunction()
install_library(attention htransformer htransformer.h htransformer static)
install_library(models htransformer_models htransformer_models.h models models_static)

configure_package_config_file(cmake/config.cmake.in htransformer-config.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(htransformer-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/htransformer-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/htransformer-config-version.cmake
  DESTINATION ${package_dir} COMPONENT attention_dev)

# pkg-config [--static]; paths relative to the file, so that a prefix can be moved
file(RELATIVE_PATH pc_prefix /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
set(pc_private "-fopenmp -lm")
if(HT_WITH_CUDA)
  string(APPEND pc_private
    " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt -lpthread")
endif()
string(JOIN " " pc_models_private ${htransformer_models_flags})
configure_file(cmake/htransformer.pc.in htransformer.pc @ONLY)
configure_file(cmake/htransformer-models.pc.in htransformer-models.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/htransformer.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT attention_dev)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/htransformer-models.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT models_dev)

install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR}
  COMPONENT attention_dev)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT attention_dev
  FILES_MATCHING PATTERN *.md PATTERN *.svg)

# ---- the program -------------------------------------------------------------------------------
install(TARGETS htransformer RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
if(TARGET htransformer_mpi)
  install(TARGETS htransformer_mpi LIBRARY DESTINATION ${plugin_dir} COMPONENT mpi)
endif()
# the small language model that generate uses without a run, the encoder that train begins with
install(FILES models/shakespeare.safetensors models/encoder.safetensors
  DESTINATION ${CMAKE_INSTALL_DATADIR}/htransformer COMPONENT program OPTIONAL)
if(TARGET htransformer_pages)
  install(FILES ${PROJECT_BINARY_DIR}/cli/htransformer.1
    DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT program)
  install(FILES ${PROJECT_BINARY_DIR}/cli/completion.bash RENAME htransformer
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT program)
endif()
