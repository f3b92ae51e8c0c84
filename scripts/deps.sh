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

# the packages as apt-get is to get them: those ended by "?" only where they exist by that name
packages() {
    for package in $missing; do
        case $package in
        *\?) ! apt-cache show "${package%\?}" >/dev/null 2>&1 || printf ' %s' "${package%\?}" ;;
        *) printf ' %s' "$package" ;;
        esac
    done
}

install_missing() {
    [ -n "$missing" ] || return 0
    as_root=""
    if [ "$(id -u)" != 0 ]; then
        as_root="sudo"
        [ -t 0 ] || as_root="sudo -n" # nobody there to type a password
    fi
    if ! command -v apt-get >/dev/null || ! $as_root true 2>/dev/null; then
        echo "Some packages are missing. Please run this, then start again"
        echo "(on other systems than Debian and Ubuntu: the packages of like names):"
        echo "    sudo apt-get install -y$(packages)"
        exit 1
    fi
    as_root="$as_root env DEBIAN_FRONTEND=noninteractive"
    $as_root apt-get update -q </dev/null ||
        say "apt-get update failed; trying with the package lists that are here"
    say "installing what is missing:$(packages)"
    # shellcheck disable=SC2046 # words, not one word
    $as_root apt-get install -y --no-install-recommends $(packages) </dev/null || exit 1
    missing=""
}

# what the build needs
need_build() {
    need gcc command -v cc
    need libc6-dev has_header stdio.h
    need cmake command -v cmake
    need ninja-build command -v ninja
    need libopenblas-dev has_header cblas.h # what bench compares with; the build can do without
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
