#!/bin/sh
# Readers under libFuzzer, with the sanitizers for addresses and undefined behaviour (clang).
#
#     scripts/fuzz.sh                     the targets there are
#     scripts/fuzz.sh TARGET [SECONDS]    one of them (60)
#     scripts/fuzz.sh all [SECONDS]       all of them, one after the other, as before a release
#     scripts/fuzz.sh counts              executions of each so far, and what was found
#
# Options for libFuzzer in FUZZ_OPTIONS, as -runs=1000000. Inputs that reach something new are kept
# in build-fuzz/corpus/TARGET and are where the next call begins; what is found lies in
# build-fuzz/found. The last line of each target: executions; build-fuzz/counts has them of all
# calls (remove it to begin anew). Exit status 0: nothing was found.
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
if [ "$target" = counts ]; then
    [ -f build-fuzz/counts ] || { echo "fuzz: nothing was run yet" >&2; exit 2; }
    found=$(find build-fuzz/found -type f | wc -l)
    echo "$targets" | awk -v found="$found" '
        FILENAME != "-" { runs[$1] += $2; seconds[$1] += $3; next }
        { printf "%-14s %12d executions in %6d s\n", $1, runs[$1], seconds[$1]; sum += runs[$1]
          if (least == "" || runs[$1] < least) least = runs[$1] }
        END { printf "%d executions of %d targets, each at least %d; %d inputs found\n",
                  sum, FNR, least, found; exit found > 0 }' build-fuzz/counts -
    exit
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
    -DHT_SANITIZE=fuzzer-no-link,address,undefined -DCMAKE_C_COMPILER=clang \
    -DCMAKE_CXX_COMPILER=clang++ >/dev/null
# shellcheck disable=SC2046
cmake --build build-fuzz --target $(for name in $chosen; do echo "fuzz_$name"; done) \
    >build-fuzz/build.log || {
    cat build-fuzz/build.log >&2
    exit 2
}

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
    spent=$(sed -n 's/^Done [0-9]* runs in \([0-9]*\) second.*/\1/p' "$log" | tail -n 1)
    echo "$name ${runs:-0} ${spent:-$seconds}" >>build-fuzz/counts
    echo "$name: ${runs:-0} executions in ${spent:-$seconds} s$said"
done
exit $status
