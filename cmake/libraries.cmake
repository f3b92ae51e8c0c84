# Libraries of other people. Sets library_definitions and library_links.
#   cJSON   configurations, checkpoints       needed
#   CBLAS   matrix products on the CPU        without it: plain loops, correct and slow
#   zstd, zlib   compressed data files        without them: such files are refused with a sentence
#   SentencePiece   sub-word tokens          without it: such models are refused with a sentence
set(library_definitions)
set(library_links)

find_path(CJSON_INCLUDE cjson/cJSON.h)
find_library(CJSON_LIBRARY cjson)
if(NOT CJSON_INCLUDE OR NOT CJSON_LIBRARY)
  message(FATAL_ERROR "cJSON is needed (Debian, Ubuntu: apt-get install libcjson-dev)")
endif()
list(APPEND library_links ${CJSON_LIBRARY})

find_path(CBLAS_INCLUDE cblas.h PATH_SUFFIXES openblas openblas-pthread openblas-openmp)
find_library(CBLAS_LIBRARY NAMES openblas cblas blas)
if(CBLAS_INCLUDE AND CBLAS_LIBRARY)
  list(APPEND library_definitions HTI_CBLAS)
  list(APPEND library_links ${CBLAS_LIBRARY})
  message(STATUS "CBLAS: ${CBLAS_LIBRARY}")
else()
  message(STATUS "CBLAS: not found; matrix products on the CPU will be slow (libopenblas-dev)")
endif()

find_path(ZSTD_INCLUDE zstd.h)
find_library(ZSTD_LIBRARY zstd)
if(ZSTD_INCLUDE AND ZSTD_LIBRARY)
  list(APPEND library_definitions HTI_ZSTD)
  list(APPEND library_links ${ZSTD_LIBRARY})
endif()
find_path(ZLIB_HEADER zlib.h)
find_library(ZLIB_LIB z)
if(ZLIB_HEADER AND ZLIB_LIB)
  list(APPEND library_definitions HTI_ZLIB)
  list(APPEND library_links ${ZLIB_LIB})
endif()

# SentencePiece is C++: one file of ours speaks to it; without it (or without a C++ compiler)
# sub-word models are refused with a sentence
find_path(SENTENCEPIECE_INCLUDE sentencepiece_processor.h)
find_library(SENTENCEPIECE_LIBRARY sentencepiece)
include(CheckLanguage)
check_language(CXX)
if(SENTENCEPIECE_INCLUDE AND SENTENCEPIECE_LIBRARY AND CMAKE_CXX_COMPILER)
  enable_language(CXX)
  list(APPEND library_definitions HTI_SENTENCEPIECE)
  list(APPEND library_links ${SENTENCEPIECE_LIBRARY} -lstdc++)
  list(APPEND library_sources ${PROJECT_SOURCE_DIR}/src/data/sentencepiece.cc)
  message(STATUS "SentencePiece: ${SENTENCEPIECE_LIBRARY}")
else()
  message(STATUS "SentencePiece: not found; tokens are bytes (libsentencepiece-dev)")
endif()
