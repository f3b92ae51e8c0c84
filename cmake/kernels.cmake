# Which kernel files exist and how each is compiled. Sets kernel_objects and kernel_libraries.
set(kernel_objects)
set(kernel_libraries)

# one source per instruction set, chosen at run time
set_source_files_properties(src/cpu/avx2.c PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma")
set_source_files_properties(src/cpu/avx512.c PROPERTIES
  COMPILE_OPTIONS "-mavx512f;-mavx512dq;-mavx512bw;-mavx512vl;-mavx2;-mfma;-mprefer-vector-width=512")

set(cuda_compiler NOTFOUND)
if(HT_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  set(cuda_compiler ${CMAKE_CUDA_COMPILER})
endif()
file(GLOB cuda_sources CONFIGURE_DEPENDS src/cuda/*.cu)
if(cuda_compiler AND cuda_sources)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 80-virtual)
  endif()
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  add_library(ht_cuda OBJECT ${cuda_sources})
  target_include_directories(ht_cuda PRIVATE include src)
  # no exceptions and no C++ library: the objects are linked by the C compiler
  target_compile_options(ht_cuda PRIVATE -O3 -lineinfo
    -Xcompiler=-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics
    -Xcompiler=-Wall,-Wextra,-Wshadow)
  if(HT_WERROR)
    target_compile_options(ht_cuda PRIVATE -Werror=all-warnings -Xcompiler=-Werror)
  endif()
  set(kernel_objects $<TARGET_OBJECTS:ht_cuda>)
  set(kernel_libraries CUDA::cudart_static)
  find_package(CUDAToolkit REQUIRED)
  message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER_VERSION}, for ${CMAKE_CUDA_ARCHITECTURES}")
else()
  list(APPEND library_sources src/cuda/none.c) # says "this build has no CUDA"
  message(STATUS "CUDA: no compiler found or none wanted; building without the CUDA kernels")
endif()
