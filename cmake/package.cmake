# `cpack` in the build folder makes a .deb and a tarball of what `cmake --install` installs. The
# version is the project's, which is the header's.
set(CPACK_PACKAGE_NAME htransformer)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_PACKAGE_VENDOR "the htransformer authors")
set(CPACK_PACKAGE_CONTACT "the htransformer authors <htransformer@localhost>")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_CHECKSUM SHA256)
# all components in one package
set(CPACK_COMPONENTS_ALL runtime development) # an MPI is the cluster's own
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL OFF)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
string(CONCAT CPACK_DEBIAN_PACKAGE_DESCRIPTION
  "A C library, a Transformer trainer and a command line. Rows that are near each\n"
  "other are compared exactly, rows that are far as clusters that grow with the\n"
  "distance, forward and backward, on CPU and CUDA.")
# which libraries it needs, in which versions, is read from the files
find_program(dpkg_shlibdeps dpkg-shlibdeps)
if(dpkg_shlibdeps)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
else()
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6, libgomp1, libcjson1")
  message(STATUS "cpack: no dpkg-shlibdeps (dpkg-dev); the .deb will name the least it needs")
endif()
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
include(CPack)
