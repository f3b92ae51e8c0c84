# `cpack` in the build folder makes .deb packages, split as Debian does it, and one tarball of what
# `cmake --install` installs. The version is the project's, which is the header's.
set(CPACK_PACKAGE_NAME htransformer)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_PACKAGE_VENDOR "the htransformer authors")
set(CPACK_PACKAGE_CONTACT "the htransformer authors <htransformer@localhost>")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/strip.cmake) # archives are left out there
set(CPACK_STRIP ${CMAKE_STRIP})
set(CPACK_PACKAGE_CHECKSUM SHA256)
# an MPI is the cluster's own
set(CPACK_COMPONENTS_ALL attention attention_dev models models_dev program)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
file(WRITE ${PROJECT_BINARY_DIR}/package_options.cmake
  "set(CPACK_COMPONENTS_GROUPING IGNORE) # a package each
if(CPACK_GENERATOR STREQUAL TGZ)
  set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
endif()\n")
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_BINARY_DIR}/package_options.cmake)

# ---- .deb ---------------------------------------------------------------------------------------
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
# package(COMPONENT NAME SECTION NEEDS ABOUT): of NEEDS exactly this version
function(package component name section needs about)
  string(TOUPPER ${component} key)
  set(CPACK_DEBIAN_${key}_PACKAGE_NAME ${name} PARENT_SCOPE)
  set(CPACK_DEBIAN_${key}_PACKAGE_SECTION ${section} PARENT_SCOPE)
  list(TRANSFORM needs APPEND " (= ${PROJECT_VERSION})")
  string(JOIN ", " needs ${needs} ${package_depends_${component}})
  set(CPACK_DEBIAN_${key}_PACKAGE_DEPENDS "${needs}" PARENT_SCOPE)
  set(CPACK_COMPONENT_${key}_DESCRIPTION "${about}.\n\
Rows that are near each other are compared exactly, rows that are far as clusters that grow with\n\
the distance, forward and backward, on CPU and CUDA." PARENT_SCOPE)
endfunction()

# which other libraries they need, in which versions, is read from the files
find_program(dpkg_shlibdeps dpkg-shlibdeps)
if(dpkg_shlibdeps)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}) # where our own lie now
else()
  set(package_depends_attention libc6 libgomp1)
  set(package_depends_models libcjson1)
  message(STATUS "cpack: no dpkg-shlibdeps (dpkg-dev); the .debs will name the least they need")
endif()
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(library libhtransformer${soname})
set(models libhtransformer-models${soname})
package(attention ${library} libs "" "The library")
package(attention_dev libhtransformer-dev libdevel ${library} "To build programs with the library")
package(models ${models} libs ${library} "Models and their training: the library")
package(models_dev libhtransformer-models-dev libdevel "${models};libhtransformer-dev"
  "Models and their training: to build programs with the library")
package(program htransformer science "${models};${library}" "The command line")
include(CPack)
