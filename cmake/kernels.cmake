# Which kernel files exist and how each is compiled. Sets attention_kernels and models_kernels
# (objects), models_kernels_shared (those that the shared library has a copy of), kernel_libraries
# and HT_WITH_CUDA; adds to attention_sources and models_sources.
set(attention_kernels)
set(models_kernels)
set(models_kernels_shared)
set(kernel_libraries)
set(HT_WITH_CUDA OFF)

# one source per instruction set, chosen at run time
set_source_files_properties(src/cpu/fast/avx2.c PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma")
set_source_files_properties(src/cpu/fast/avx512.c PROPERTIES COMPILE_OPTIONS
  "-mavx512f;-mavx512dq;-mavx512bw;-mavx512vl;-mavx2;-mfma;-mprefer-vector-width=512")

# the model's ops: loops that the compiler turns into vectors. NaN and infinities keep their
# meaning; only errno and trap flags, which nobody reads, are given up, else nothing with a choice
# in it vectorises
set(loops "-fno-math-errno;-fno-trapping-math")
set_source_files_properties(src/cpu/model/f32.c src/cpu/model/f64.c PROPERTIES
  COMPILE_OPTIONS "${loops}")
set_source_files_properties(src/cpu/model/avx2.c PROPERTIES
  COMPILE_OPTIONS "${loops};-mavx2;-mfma")
set_source_files_properties(src/cpu/model/avx512.c PROPERTIES COMPILE_OPTIONS
  "${loops};-mavx512f;-mavx512dq;-mavx512bw;-mavx512vl;-mavx2;-mfma;-mprefer-vector-width=512")

if(HT_FUZZ) # fuzz targets run plain loops; with sanitizers these take a compiler minutes
  foreach(kernels fast/avx2 fast/avx512 model/avx2 model/avx512)
    set_property(SOURCE src/cpu/${kernels}.c APPEND PROPERTY COMPILE_OPTIONS
      "-O0;-fno-sanitize=all")
  endforeach()
endif()

# kernels that are compiled once for bf16 and once for f16 (src/cuda/element.h)
set(typed_kernels "/cuda/(typed|full/.*|narrow/.*|tile/.*|tower/[^/]*)[.]cu$")

if(HT_CUDA)
  # nvcc is often installed without being on the PATH
  find_program(HT_NVCC nvcc HINTS ENV CUDACXX PATHS /usr/local/cuda/bin)
  if(HT_NVCC AND NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    set(ENV{CUDACXX} ${HT_NVCC})
  endif()
  include(CheckLanguage)
  check_language(CUDA) # fails, too, where nvcc does not like the host compiler
  if(CMAKE_CUDA_COMPILER)
    set(HT_WITH_CUDA ON)
  endif()
endif()

if(HT_WITH_CUDA)
  if(NOT CMAKE_CUDA_ARCHITECTURES) # Ampere and later; Hopper by itself if nvcc knows it
    execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE nvcc_version)
    string(REGEX MATCH "release ([0-9]+)" nvcc_version "${nvcc_version}")
    set(CMAKE_CUDA_ARCHITECTURES 80)
    if(CMAKE_MATCH_1 GREATER_EQUAL 12)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 80-virtual)
    endif()
  endif()
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  # in a program linked statically there is one copy of launch.cu, of shared libraries each has one
  list(REMOVE_ITEM attention_cuda_sources ${PROJECT_SOURCE_DIR}/src/cuda/launch.cu)
  add_library(ht_cuda_launch OBJECT src/cuda/launch.cu)
  add_library(ht_cuda_attention OBJECT ${attention_cuda_sources})
  set(typed_sources ${attention_cuda_sources})
  list(FILTER typed_sources INCLUDE REGEX "${typed_kernels}")
  list(FILTER typed_sources EXCLUDE REGEX "/tower/first[.]cu$")
  add_library(ht_cuda_attention_f16 OBJECT ${typed_sources})
  target_compile_definitions(ht_cuda_attention_f16 PRIVATE HTI_F16)
  add_library(ht_cuda_models OBJECT ${models_cuda_sources})
  set(attention_kernels $<TARGET_OBJECTS:ht_cuda_attention>
    $<TARGET_OBJECTS:ht_cuda_attention_f16> $<TARGET_OBJECTS:ht_cuda_launch>)
  set(models_kernels $<TARGET_OBJECTS:ht_cuda_models>)
  set(models_kernels_shared $<TARGET_OBJECTS:ht_cuda_launch>)
  # the smallest fat binaries that this nvcc can make
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --help OUTPUT_VARIABLE nvcc_help)
  set(compress -Xfatbin=-compress-all)
  if(nvcc_help MATCHES "--compress-mode")
    set(compress --compress-mode=size)
  endif()
  # to see whether they compile, where there is no GPU to run them
  set(quick)
  if(HT_CUDA_QUICK AND nvcc_help MATCHES "--Ofast-compile")
    set(quick -Ofc=max)
  endif()
  foreach(objects ht_cuda_launch ht_cuda_attention ht_cuda_attention_f16 ht_cuda_models)
    target_include_directories(${objects} PRIVATE include src)
    # no exceptions and no C++ library: the objects are linked by the C compiler
    target_compile_options(${objects} PRIVATE -O3 ${quick} ${compress}
      -Xcompiler=-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics
      -Xcompiler=-Wall,-Wextra,-Wshadow)
    if(HT_WERROR)
      target_compile_options(${objects} PRIVATE -Werror=all-warnings -Xcompiler=-Werror)
    endif()
  endforeach()
  # models multiply with cuBLASLt, which is loaded when the first model is made; only its header is
  # needed here
  find_library(HT_CUBLASLT cublasLt HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_ROOT}/lib)
  find_path(HT_CUBLASLT_INCLUDE cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(HT_CUBLASLT AND HT_CUBLASLT_INCLUDE)
    target_compile_definitions(ht_cuda_models PRIVATE HTI_CUBLASLT="${HT_CUBLASLT}")
  else()
    message(STATUS "cuBLASLt: not found; no models on CUDA")
  endif()
  set(kernel_libraries CUDA::cudart_static)
  set(slow)
  if(quick)
    set(slow "; compiled quickly, slow to run (HT_CUDA_QUICK)")
  endif()
  message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER_VERSION}, for ${CMAKE_CUDA_ARCHITECTURES}${slow}")
else()
  list(APPEND attention_sources src/cuda/none.c) # says "this build has no CUDA"
  list(APPEND models_sources src/cuda/model/none.c)
  message(STATUS "CUDA: no compiler found or none wanted; building without the CUDA kernels")
endif()
