# shellcheck shell=sh
# Read by lint.sh and format.sh: which clang-format, which files.

# Version 14 and no other: each version lays out some lines its own way.
find_clang_format() {
    for name in clang-format-14 clang-format; do
        if "$name" --version 2>/dev/null | grep -q 'version 14\.'; then
            echo "$name"
            return 0
        fi
    done
    return 1
}

# All C and CUDA files below a root, one per line.
c_files() {
    for room in include src cli examples tests bench python; do
        [ ! -d "$1/$room" ] ||
            find "$1/$room" -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \)
    done
}
