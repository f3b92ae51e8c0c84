#!/bin/sh
# Builds everything into build/ and leaves the command line at build/htransformer.
# Installs compiler and build tools first where they are missing (Debian, Ubuntu).
# Arguments go to cmake: scripts/build.sh -DHT_CUDA=OFF
set -eu
cd "$(dirname "$0")/.."
. scripts/deps.sh

need_build
install_missing
say_cuda
say "building into $(pwd)/build"
cmake -S . -B build -G Ninja -DBUILD_TESTING=OFF -DHT_CUDA_QUICK=OFF "$@"
cmake --build build
say "done: $(pwd)/build/htransformer"
