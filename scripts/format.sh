#!/bin/sh
# Lays out all C and CUDA files by .clang-format, in place.
# scripts/format.sh [FILE...]: these alone
set -eu
cd "$(dirname "$0")/.."
. scripts/clang_format.sh
clang_format=$(find_clang_format) || {
    echo "there is no clang-format 14 (Debian, Ubuntu: apt-get install clang-format-14)"
    exit 1
}
if [ $# -gt 0 ]; then
    "$clang_format" -i --style=file "$@"
else
    c_files . | xargs -r "$clang_format" -i --style=file
fi
