# Libraries of other people, for the models alone. Sets models_definitions, models_includes and
# models_links; adds to models_sources.
#   cJSON   configurations, checkpoints       needed
#   BLAS    matrix products on the CPU        without it: plain loops, correct and slow
#           (OpenBLAS, BLIS or MKL)
#   zstd, zlib   compressed data files        without them: such files are refused with a sentence
#   libpng  Pathfinder as it was released     without it: cannot be imported
#   PCRE2   splits texts for tokenizer.json   without it: such files are refused with a sentence
#   MPI     runs of several processes      without it: they need NCCL, on GPUs
#   SentencePiece   sub-word tokens          without it: such models are refused with a sentence
set(models_definitions HTI_PLUGIN_FOLDER="${CMAKE_INSTALL_PREFIX}/${plugin_dir}")
set(models_includes)
set(models_links ${CMAKE_DL_LIBS})

find_path(CJSON_INCLUDE cjson/cJSON.h)
find_library(CJSON_LIBRARY cjson)
if(NOT CJSON_INCLUDE OR NOT CJSON_LIBRARY)
  message(FATAL_ERROR "cJSON is needed (Debian, Ubuntu: apt-get install libcjson-dev)")
endif()
list(APPEND models_links ${CJSON_LIBRARY})

# By name: Debian's libblas.so and libcblas.so are the reference implementation, or whatever else
# was chosen on this machine when it runs. CBLAS_HEADER and CBLAS_NAME go into the sources.
option(HT_REFERENCE_BLAS "take the reference BLAS where there is no other: 20 times slower" OFF)
find_library(CBLAS_LIBRARY NAMES openblas blis mkl_rt PATH_SUFFIXES openblas blis mkl)
find_library(REFERENCE_BLAS_LIBRARY NAMES cblas blas)
if(CBLAS_LIBRARY)
  set(CBLAS_TAKEN ${CBLAS_LIBRARY})
elseif(REFERENCE_BLAS_LIBRARY AND HT_REFERENCE_BLAS)
  set(CBLAS_TAKEN ${REFERENCE_BLAS_LIBRARY})
elseif(REFERENCE_BLAS_LIBRARY)
  message(FATAL_ERROR "The only BLAS here is the reference one (${REFERENCE_BLAS_LIBRARY}): "
    "training would be 20 times slower. Install another (Debian, Ubuntu: apt-get install "
    "libopenblas-dev; BLIS and MKL work, too), or take it with -DHT_REFERENCE_BLAS=ON.")
endif()
get_filename_component(CBLAS_NAME "${CBLAS_TAKEN}" NAME)
string(REGEX REPLACE "^lib|_rt|[.].*$" "" CBLAS_KIND "${CBLAS_NAME}") # openblas, blis, mkl
find_path(CBLAS_INCLUDE NAMES cblas.h mkl_cblas.h
  PATH_SUFFIXES ${CBLAS_KIND} ${CBLAS_KIND}-pthread ${CBLAS_KIND}-openmp)
if(CBLAS_INCLUDE AND CBLAS_TAKEN)
  set(CBLAS_HEADER cblas.h)
  if(NOT EXISTS ${CBLAS_INCLUDE}/cblas.h)
    set(CBLAS_HEADER mkl_cblas.h)
  endif()
  list(APPEND models_definitions HTI_CBLAS=<${CBLAS_HEADER}>)
  list(APPEND models_includes ${CBLAS_INCLUDE})
  list(APPEND models_links ${CBLAS_TAKEN})
  message(STATUS "BLAS: ${CBLAS_TAKEN}")
else()
  set(CBLAS_TAKEN "")
  message(WARNING "No BLAS found: training on the CPU will be 20 times slower (libopenblas-dev)")
endif()

find_path(ZSTD_INCLUDE zstd.h)
find_library(ZSTD_LIBRARY zstd)
if(ZSTD_INCLUDE AND ZSTD_LIBRARY)
  list(APPEND models_definitions HTI_ZSTD)
  list(APPEND models_links ${ZSTD_LIBRARY})
endif()
find_path(ZLIB_HEADER zlib.h)
find_library(ZLIB_LIB z)
if(ZLIB_HEADER AND ZLIB_LIB)
  list(APPEND models_definitions HTI_ZLIB)
  list(APPEND models_links ${ZLIB_LIB})
endif()
find_path(PNG_HEADER png.h)
find_library(PNG_LIB png)
if(PNG_HEADER AND PNG_LIB)
  list(APPEND models_definitions HTI_PNG)
  list(APPEND models_links ${PNG_LIB})
endif()

# SentencePiece is C++: one file of ours speaks to it; without it (or without a C++ compiler)
# sub-word models are refused with a sentence
find_path(SENTENCEPIECE_INCLUDE sentencepiece_processor.h)
find_library(SENTENCEPIECE_LIBRARY sentencepiece)
include(CheckLanguage)
check_language(CXX)
if(SENTENCEPIECE_INCLUDE AND SENTENCEPIECE_LIBRARY AND CMAKE_CXX_COMPILER)
  enable_language(CXX)
  list(APPEND models_definitions HTI_SENTENCEPIECE)
  list(APPEND models_links ${SENTENCEPIECE_LIBRARY} -lstdc++)
  list(APPEND models_sources ${PROJECT_SOURCE_DIR}/src/data/sentencepiece.cc)
  message(STATUS "SentencePiece: ${SENTENCEPIECE_LIBRARY}")
else()
  message(STATUS "SentencePiece: not found; tokens are bytes (libsentencepiece-dev)")
endif()

find_path(PCRE2_INCLUDE pcre2.h)
find_library(PCRE2_LIBRARY pcre2-8)
if(PCRE2_INCLUDE AND PCRE2_LIBRARY)
  list(APPEND models_definitions HTI_PCRE2)
  list(APPEND models_links ${PCRE2_LIBRARY})
  message(STATUS "PCRE2: ${PCRE2_LIBRARY}")
else()
  message(STATUS "PCRE2: not found; a tokenizer.json cannot be read (libpcre2-dev)")
endif()

# MPI is a plug-in, opened when several processes were started: programs built with one MPI do not
# run with another, and whoever has none needs none
find_package(MPI COMPONENTS C)
if(MPI_C_FOUND)
  add_library(htransformer_mpi MODULE ${PROJECT_SOURCE_DIR}/src/dist/plugin/mpi.c)
  target_include_directories(htransformer_mpi PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(htransformer_mpi PRIVATE MPI::MPI_C)
  set_target_properties(htransformer_mpi PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  message(STATUS "MPI: ${MPI_C_LIBRARIES}")
else()
  message(STATUS "MPI: not found; runs of several processes need NCCL (libopenmpi-dev)")
endif()
