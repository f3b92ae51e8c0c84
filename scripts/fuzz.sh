#!/bin/sh
# Readers under libFuzzer, with the sanitizers for addresses and undefined behaviour (clang).
#
#     scripts/fuzz.sh                     the targets there are
#     scripts/fuzz.sh TARGET [SECONDS]    one of them (60)
#     scripts/fuzz.sh all [SECONDS]       all of them, one after the other, as before a release
#
# Options for libFuzzer in FUZZ_OPTIONS, as -runs=1000000. Inputs that reach something new are kept
# in build-fuzz/corpus/TARGET and are where the next call begins; what is found lies in
# build-fuzz/found. The last line of each target: executions. Exit status 0: nothing was found.
#
# An input again: build-fuzz/tests/fuzz/fuzz_TARGET FILE. scripts/test.sh runs every target over its
# seeds (tests/fuzz/seeds) and mutations of them, without libFuzzer.
set -eu
cd "$(dirname "$0")/.."
. scripts/deps.sh

targets=$(ls tests/fuzz/seeds)
target=${1:-} seconds=${2:-60}
if [ -z "$target" ]; then
    echo "$targets"
    exit 0
fi
need_build
need clang command -v clang
need "libclang-rt-dev? libomp-dev" has_clang_openmp
install_missing
if [ "$target" = all ]; then
    chosen=$targets
else
    chosen=$(echo "$targets" | grep -Fx "$target") || {
        echo "fuzz: there is no target $target" >&2
        exit 2
    }
fi

cmake -S . -B build-fuzz -G Ninja -DBUILD_TESTING=ON -DHT_CUDA=OFF -DHT_FUZZ=ON \
    -DHT_SANITIZE=fuzzer-no-link,address,undefined -DCMAKE_C_COMPILER=clang >/dev/null
# shellcheck disable=SC2046
cmake --build build-fuzz --target $(for name in $chosen; do echo "fuzz_$name"; done) >/dev/null

found=build-fuzz/found/
mkdir -p "$found"
export ASAN_OPTIONS="allocator_may_return_null=1:${ASAN_OPTIONS:-}"
status=0
for name in $chosen; do
    corpus=build-fuzz/corpus/$name
    folder=$(dirname tests/fuzz/*/"$name".c)
    dictionary=$folder/any.dict
    [ ! -f "$folder/$name.dict" ] || dictionary=$folder/$name.dict
    mkdir -p "$corpus"
    log=build-fuzz/fuzz-$name.log
    # shellcheck disable=SC2086 # FUZZ_OPTIONS are words
    if build-fuzz/tests/fuzz/fuzz_"$name" -max_total_time="$seconds" \
        -artifact_prefix="$found$name-" -print_final_stats=1 -timeout=20 -rss_limit_mb=1024 \
        -dict="$dictionary" ${FUZZ_OPTIONS:-} "$corpus" "tests/fuzz/seeds/$name" >"$log" 2>&1; then
        said=""
    else
        said=", FOUND: see $log" status=1
    fi
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)
    echo "$name: ${runs:-0} executions in $seconds s$said"
done
exit $status
