# shellcheck shell=sh
# Read by the other scripts (`. scripts/deps.sh`), not run: says what is missing and gets it.
#
#     need PACKAGE COMMAND...   COMMAND fails: PACKAGE (its Debian and Ubuntu name) is missing
#     want PACKAGE COMMAND...   the same, but things go on without it
#     install_missing           installs all of it with apt-get if it may; else says how and stops

missing="" wanted=""

say() { printf '== %s\n' "$*"; }

need() {
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}

want() {
    package=$1
    shift
    "$@" >/dev/null 2>&1 || wanted="$wanted $package"
}

# a header is there if the compiler finds it; without a compiler everything is missing anyway
has_header() {
    printf '#include <%s>\n' stdarg.h stddef.h stdint.h setjmp.h "$1" | cc -E -
}

# the same by the C++ compiler
has_cxx_header() {
    printf '#include <%s>\n' "$1" | c++ -x c++ -E -
}

# its header asks which width of characters is meant
has_pcre2() {
    printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <pcre2.h>\n' | cc -E -
}

# a BLAS worth having, by name: any libblas.so would do to link with, but Debian's libblas-dev is
# the reference implementation, with which training is 20 times slower
has_blas() {
    for library in openblas blis mkl_rt; do
        out=$(mktemp)
        printf 'void cblas_sgemm(void);\nint main(void) { cblas_sgemm(); return 0; }\n' |
            cc -x c -o "$out" - "-l$library"
        status=$?
        rm -f "$out"
        [ $status != 0 ] || return 0
    done
    return 1
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

# a Chromium without a window, for the test that looks at a report (about 220 MB on the disk)
has_browser() {
    command -v chromium-headless-shell || command -v chromium || command -v google-chrome
}

# the packages as apt-get is to get them: those ended by "?" only where they exist by that name
packages() {
    for package in "$@"; do
        case $package in
        *\?) ! apt-cache show "${package%\?}" >/dev/null 2>&1 || printf ' %s' "${package%\?}" ;;
        *) printf ' %s' "$package" ;;
        esac
    done
}

# shellcheck disable=SC2046,SC2086 # lists of words, all of them
install_missing() {
    [ -n "$missing$wanted" ] || return 0
    as_root=""
    if [ "$(id -u)" != 0 ]; then
        as_root="sudo"
        [ -t 0 ] && [ -n "$missing" ] || as_root="sudo -n" # do not ask for a password
    fi
    if ! command -v apt-get >/dev/null || ! $as_root true 2>/dev/null; then
        [ -z "$wanted" ] || say "going on without:$(packages $wanted)"
        [ -n "$missing" ] || return 0
        echo "Some packages are missing. Please run this, then start again"
        echo "(on other systems than Debian and Ubuntu: the packages of like names):"
        echo "    sudo apt-get install -y$(packages $missing $wanted)"
        exit 1
    fi
    as_root="$as_root env DEBIAN_FRONTEND=noninteractive"
    $as_root apt-get update -q </dev/null ||
        say "apt-get update failed; trying with the package lists that are here"
    say "installing what is missing:$(packages $missing $wanted)"
    $as_root apt-get install -y --no-install-recommends $(packages $missing $wanted) </dev/null ||
        exit 1
    missing="" wanted=""
}

# what the build needs
need_build() {
    need gcc command -v cc
    need libc6-dev has_header stdio.h
    need cmake command -v cmake
    need ninja-build command -v ninja
    need libcjson-dev has_header cjson/cJSON.h
    want libopenblas-dev has_blas      # matrix products on the CPU
    want libzstd-dev has_header zstd.h # compressed data
    want zlib1g-dev has_header zlib.h
    want libpng-dev has_header png.h # pictures, Pathfinder as it was released
    want g++ command -v c++          # speaks to SentencePiece
    want libsentencepiece-dev has_cxx_header sentencepiece_processor.h # sub-word tokens
    want libpcre2-dev has_pcre2 # those of a tokenizer.json
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
