# What the Python packages carry (scripts/wheel.sh), in build/python:
#   libhtransformer.so.1, libhtransformer_models.so.1   the libraries again, from the same objects,
#       but without a word on which OpenMP runtime they want: python/htransformer/_openmp.py finds
#       the one of the process
#   libhtransformer_jax.so      XLA's way to the first (python/native/jax.c)
#   libhtransformer_serial.so   a runtime of one thread, for where there is none
set(HT_PYTHON_PREBUILT "" CACHE PATH "pack the libraries that lie here; nothing is built")
set(python_folder ${PROJECT_BINARY_DIR}/python)
if(HT_PYTHON_PREBUILT)
  set(python_folder ${HT_PYTHON_PREBUILT})
endif()

install(FILES ${python_folder}/libhtransformer.so.1 ${python_folder}/libhtransformer_jax.so
              ${python_folder}/libhtransformer_serial.so
  DESTINATION . COMPONENT python_attention EXCLUDE_FROM_ALL)
install(FILES ${python_folder}/libhtransformer_models.so.1
              ${PROJECT_SOURCE_DIR}/models/shakespeare.safetensors
  DESTINATION . COMPONENT python_models EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_SOURCE_DIR}/models/encoder.safetensors
  DESTINATION . COMPONENT python_models EXCLUDE_FROM_ALL OPTIONAL)
add_custom_target(python_attention)
if(HT_PYTHON_PREBUILT)
  add_custom_target(python_models)
endif()
if(HT_PYTHON_PREBUILT OR HT_SANITIZE)
  return()
endif()

# such as "python3;-m;ziglang;cc;-target;x86_64-linux-gnu.2.28", which binds to an older libc
set(HT_PYTHON_LINKER ${CMAKE_C_COMPILER} CACHE STRING "links the attention's part")
file(MAKE_DIRECTORY ${python_folder})

# python_library(TARGET FILE LINKER SONAME MAP OBJECTS WORD...)
function(python_library target file linker soname map objects)
  set(script)
  if(map)
    set(script -Wl,--version-script=${PROJECT_BINARY_DIR}/${map}.map)
  endif()
  add_custom_command(OUTPUT ${python_folder}/${file}
    COMMAND ${linker} -shared -s -o ${python_folder}/${file} -Wl,-soname,${soname} ${script}
            -Wl,--as-needed ${objects} ${ARGN}
    DEPENDS ${objects} COMMAND_EXPAND_LISTS VERBATIM COMMENT "Linking for Python: ${file}")
  add_custom_target(${target} ALL DEPENDS ${python_folder}/${file})
endfunction()

# another linker may not have what the compiler takes for granted: which instructions there are
execute_process(COMMAND ${CMAKE_C_COMPILER} -print-libgcc-file-name
  OUTPUT_VARIABLE compiler_words OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT EXISTS "${compiler_words}")
  set(compiler_words)
endif()

set(cuda_words)
if(HT_WITH_CUDA)
  set(cuda_words $<TARGET_FILE:CUDA::cudart_static> -ldl -lrt -lpthread)
endif()
python_library(python_library_attention libhtransformer.so.1 "${HT_PYTHON_LINKER}"
  libhtransformer.so.1 htransformer
  "$<TARGET_OBJECTS:ht_attention>;${attention_kernels};${attention_kernels_shared}" ${cuda_words}
  ${compiler_words} -lm)

foreach(name jax serial)
  add_library(ht_python_${name} OBJECT python/native/${name}.c)
  target_include_directories(ht_python_${name} PRIVATE include)
  target_compile_definitions(ht_python_${name} PRIVATE _POSIX_C_SOURCE=200809L)
endforeach()
python_library(python_library_serial libhtransformer_serial.so "${HT_PYTHON_LINKER}"
  libhtransformer_serial.so "" "$<TARGET_OBJECTS:ht_python_serial>")
python_library(python_library_jax libhtransformer_jax.so "${HT_PYTHON_LINKER}"
  libhtransformer_jax.so "" "$<TARGET_OBJECTS:ht_python_jax>" -Wl,-rpath,$ORIGIN
  ${python_folder}/libhtransformer.so.1 -lpthread)
add_dependencies(python_library_jax python_library_attention)
add_dependencies(python_attention python_library_attention python_library_serial
  python_library_jax)

if(HT_MODELS)
  set(models_words ${models_links})
  list(TRANSFORM models_words PREPEND -l REGEX "^[^-/]") # a name alone: dl
  python_library(python_models libhtransformer_models.so.1 "${CMAKE_C_COMPILER}"
    libhtransformer_models.so.1 htransformer_models
    "$<TARGET_OBJECTS:ht_models>;${models_kernels};${models_kernels_shared}"
    ${python_folder}/libhtransformer.so.1 ${models_words} ${cuda_words} -lm)
  add_dependencies(python_models python_library_attention)
endif()
