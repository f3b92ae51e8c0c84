# shellcheck shell=sh
# Read by the other scripts (`. scripts/deps.sh`), not run: says what is missing and gets it.
#
#     need PACKAGE COMMAND...   COMMAND fails: PACKAGE (its Debian and Ubuntu name) is missing
#     install_missing           installs all of it with apt-get if it may; else says how and stops

missing=""

say() { printf '== %s\n' "$*"; }

need() {
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}

# a header is there if the compiler finds it; without a compiler everything is missing anyway
has_header() {
    printf '#include <%s>\n' stdarg.h stddef.h stdint.h setjmp.h "$1" | cc -E -
}

# clang with its sanitizers and LLVM's OpenMP, tried out
has_clang_openmp() {
    out=$(mktemp)
    printf '#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n' |
        clang -fopenmp -fsanitize=thread -x c -o "$out" -
    status=$?
    rm -f "$out"
    return $status
}

install_missing() {
    [ -n "$missing" ] || return 0
    as_root=""
    if [ "$(id -u)" != 0 ]; then
        as_root="sudo"
        [ -t 0 ] || as_root="sudo -n" # nobody there to type a password
    fi
    command="apt-get install -y --no-install-recommends$missing"
    if ! command -v apt-get >/dev/null || ! $as_root true 2>/dev/null; then
        say "missing:$missing"
        echo "Please run this, then start again (on other systems: the packages of like names):"
        echo "    sudo $command"
        exit 1
    fi
    say "installing what is missing:$missing"
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q </dev/null ||
        say "apt-get update failed; trying with the package lists that are here"
    # shellcheck disable=SC2086 # words, not one word
    $as_root env DEBIAN_FRONTEND=noninteractive $command </dev/null || exit 1
    missing=""
}

# what the build itself cannot do without
need_build() {
    need gcc command -v cc
    need libc6-dev has_header stdio.h
    need cmake command -v cmake
    need ninja-build command -v ninja
}

# says which CUDA compiler the build will find
say_cuda() {
    PATH=$PATH:/usr/local/cuda/bin
    if command -v nvcc >/dev/null; then
        say "CUDA: $(command -v nvcc)"
    else
        say "CUDA: no nvcc here, the build goes on without the CUDA kernels"
    fi
}
