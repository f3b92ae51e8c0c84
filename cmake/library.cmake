# How a library is put together from its rooms.

# A binary interface's number, one for both libraries: it goes up when a program that was linked
# before no longer runs (docs/packages.md). Version 0.1.0 has the first one.
set(soname 1)

# ht_library(NAME ROOMS): NAME_shared and NAME_static from ROOMS_sources and ROOMS_kernels
function(ht_library name rooms)
  add_library(ht_${rooms} OBJECT ${${rooms}_sources})
  target_include_directories(ht_${rooms} PUBLIC include PRIVATE src ${${rooms}_includes})
  target_compile_definitions(ht_${rooms} PRIVATE _POSIX_C_SOURCE=200809L ${${rooms}_definitions})
  target_link_libraries(ht_${rooms} PUBLIC OpenMP::OpenMP_C m)

  add_library(${name}_shared SHARED $<TARGET_OBJECTS:ht_${rooms}> ${${rooms}_kernels}
    ${${rooms}_kernels_shared})
  add_library(${name}_static STATIC $<TARGET_OBJECTS:ht_${rooms}> ${${rooms}_kernels})
  foreach(library ${name}_shared ${name}_static)
    target_include_directories(${library} PUBLIC
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
    target_link_libraries(${library} PRIVATE
      $<BUILD_INTERFACE:OpenMP::OpenMP_C> m ${kernel_libraries})
    set_target_properties(${library} PROPERTIES OUTPUT_NAME ${name} LINKER_LANGUAGE C)
  endforeach()
  # an outside program names the OpenMP runtime by its own compiler's flag
  target_link_libraries(${name}_static INTERFACE $<INSTALL_INTERFACE:-fopenmp>)

  # only what the list names leaves the shared library, whatever was linked into it
  set(map ${PROJECT_BINARY_DIR}/${name}.map)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${name}.map.in ${map} @ONLY)
  set_target_properties(${name}_shared PROPERTIES VERSION ${soname}.${PROJECT_VERSION}
    SOVERSION ${soname} LINK_DEPENDS ${map})
  target_link_options(${name}_shared PRIVATE -Wl,--version-script=${map} -Wl,--as-needed)
  if(NOT HT_SANITIZE) # the sanitizers' own functions come with the program
    target_link_options(${name}_shared PRIVATE -Wl,--no-undefined)
  endif()
endfunction()

# ht_link_others(NAME LIBRARIES): here by their paths; an outside program that takes NAME_static
# finds them by the flags that are left in NAME_flags, wherever they lie there
function(ht_link_others name libraries)
  set(flags)
  foreach(library ${libraries})
    get_filename_component(folder "${library}" DIRECTORY)
    get_filename_component(flag "${library}" NAME)
    string(REGEX REPLACE "^(lib|-l)|[.](so|a|dylib)$" "" flag "${flag}")
    if(folder AND NOT folder IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
      list(APPEND flags -L${folder})
    endif()
    list(APPEND flags -l${flag})
    foreach(type shared static)
      target_link_libraries(${name}_${type} PRIVATE $<BUILD_INTERFACE:${library}>)
    endforeach()
  endforeach()
  foreach(flag ${flags})
    target_link_libraries(${name}_static INTERFACE $<INSTALL_INTERFACE:${flag}>)
  endforeach()
  set(${name}_flags ${flags} PARENT_SCOPE)
endfunction()
