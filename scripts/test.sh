#!/bin/sh
# Everything that must hold before a change is good: lint, then the tests in three builds.
#
#     build/        as users build it, with CUDA if nvcc is there          all tests
#     build-asan/   gcc, address and undefined-behaviour sanitizers        all tests, of cases
#                   that take long every fifth (HT_TEST_THIN), but for the reference kernels at
#                   great lengths, where their job is to be compared with
#     build-tsan/   clang, thread sanitizer, LLVM's OpenMP                 those with many threads,
#                   every fifth case likewise
#
# Installs what is missing first (Debian, Ubuntu). The last line counts the tests of all builds:
# `N passed, N failed, N skipped`; the exit status is 0 only if some passed and none failed.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/deps.sh

need_build
need g++ command -v c++
need python3 command -v python3
need pkg-config command -v pkg-config
need libcmocka-dev has_header cmocka.h
need clang command -v clang
want libopenmpi-dev command -v mpicc # runs of several processes
want openmpi-bin command -v mpiexec
want clang-format command -v clang-format
want "chromium-headless-shell?" has_browser
need "libclang-rt-dev? libomp-dev" has_clang_openmp
want python3-venv python3 -c "import ensurepip"
install_missing
scripts/python.sh

log=$(mktemp)
trap 'rm -f "$log" "$log.counted" "$log.race"' EXIT
jobs=$(nproc 2>/dev/null || echo 2)
passed=0 failed=0 skipped=0

fail() {
    failed=$((failed + 1))
    say "FAILED: $1"
}

# build_in DIRECTORY OPTION...: configures and builds $targets; the whole log only if something is
# wrong
build_in() {
    directory=$1
    shift
    say "building $directory"
    cmake -S . -B "$directory" -G Ninja -DBUILD_TESTING=ON -DHT_WERROR=ON "$@" >"$log" 2>&1 &&
        {
            grep 'CUDA:' "$log"
            # shellcheck disable=SC2086 # targets are words
            cmake --build "$directory" --target $targets >"$log" 2>&1
        } && return 0
    cat "$log"
    fail "$directory does not build"
    return 1
}

# test_in DIRECTORY CTEST-OPTION...: runs the tests and adds up what they say
test_in() {
    directory=$1
    shift
    say "testing $directory"
    # shellcheck disable=SC2086 # run_under is words or nothing
    $run_under ctest --test-dir "$directory" -V -j "$jobs" --no-tests=error "$@" >"$log" 2>&1
    status=$?
    awk -f scripts/count_tests.awk "$log" >"$log.counted"
    sed '$d' "$log.counted"
    read -r new_passed new_failed new_skipped <<END
$(tail -n 1 "$log.counted")
END
    passed=$((passed + new_passed))
    failed=$((failed + new_failed))
    skipped=$((skipped + new_skipped))
    say "$directory: $new_passed passed, $new_failed failed, $new_skipped skipped"
    [ $status = 0 ] || [ "$new_failed" != 0 ] || fail "ctest in $directory ended with $status"
}

say "lint"
scripts/lint.sh || fail "lint"

# threads that wait must not take the core from those that work
export OMP_WAIT_POLICY=passive
run_under=""
targets=all
say_cuda
# without a GPU nothing runs the kernels: that they compile is all there is to see
quick=ON
! nvidia-smi -L >/dev/null 2>&1 || quick=OFF
build_in build -DHT_CUDA_QUICK=$quick && test_in build
export HT_TEST_THIN=5
build_in build-asan -DCMAKE_C_COMPILER=gcc -DHT_CUDA=OFF -DHT_SANITIZE=address,undefined &&
    test_in build-asan -E '^long/cpu:ref$'

# libgomp is not instrumented and would give false alarms; LLVM's runtime tells the sanitizer what
# its threads do, through archer. Old sanitizers cannot live with much address randomisation, and
# some releases ship an archer that does not work: a small program with and without a race tells.
archer=$(dirname "$(readlink -f "$(command -v clang)")")/../lib/libarcher.so
export OMP_TOOL_LIBRARIES="$archer" TSAN_OPTIONS="ignore_noninstrumented_modules=1"
! setarch "$(uname -m)" -R true 2>/dev/null || run_under="setarch $(uname -m) -R"
sees_races() {
    clang -fopenmp -fsanitize=thread tests/install/race.c -o "$log.race" &&
        $run_under "$log.race" && ! $run_under "$log.race" racy
}
# what has threads, on kernels that are plain enough to be followed; nothing else is built
races='^((properties|cache)/cpu:(ref|avx2)|ops$|train$|families$|example)'
targets="test_properties test_cache test_ops test_train test_families attend gradients"
if sees_races >"$log" 2>&1; then
    build_in build-tsan -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DHT_CUDA=OFF \
        -DHT_SANITIZE=thread &&
        test_in build-tsan -R "$races"
else
    say "skipping the thread sanitizer: with this clang and OpenMP it sees races where none are"
    skipped=$((skipped + 1))
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
