#!/bin/sh
# The lint's own test: a clean tree passes, and each fault put into it is caught by its name.
set -eu
lint=$(cd "$(dirname "$0")" && pwd)/lint.py
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failed=0

fresh() {
    rm -rf "${tree:?}"/*
    mkdir -p "$tree/include" "$tree/src/core" "$tree/src/cpu/model" "$tree/src/attention" \
        "$tree/cli" "$tree/tests"
    for header in include/htransformer.h src/op.h src/model_op.h src/core/a.h src/cpu/k.h \
        src/cpu/model/m.h src/attention/p.h; do
        echo '/* a header */' >"$tree/$header"
    done
    printf '%s\n' '/* a file */' '#include "core/a.h"' '#include "op.h"' '#include "p.h"' \
        'int f(void) {' '    return 0; /* printf("x") */' '}' >"$tree/src/attention/p.c"
    printf '%s\n' '/* a test */' '#include "core/a.h"' '#include "htransformer.h"' \
        >"$tree/tests/test_a.c"
}

# caught NAME WORDS FILE LINE...: with the lines added to FILE, lint fails and says WORDS
caught() {
    name=$1 words=$2 file=$3
    shift 3
    fresh
    case $file in
    *.c) [ -e "$tree/$file" ] || echo '/* a file */' >"$tree/$file" ;;
    esac
    printf '%s\n' "$@" >>"$tree/$file"
    if python3 "$lint" "$tree" >"$tree/out" || ! grep -q "^$file:[0-9]*: .*$words" "$tree/out"; then
        echo "not caught: $name"
        cat "$tree/out"
        failed=1
    else
        echo "caught: $name"
    fi
}

# twenty files of one folder pass, one more does not
caught_crowd() {
    fresh
    for n in $(seq 19); do
        echo '/* a file */' >"$tree/src/core/f$n.c"
    done
    python3 "$lint" "$tree" >"$tree/out" || { echo "20 files do not pass"; failed=1; }
    echo '/* a file */' >"$tree/src/core/f20.c"
    if python3 "$lint" "$tree" >"$tree/out" || ! grep -q "^src/core:1: 21 files" "$tree/out"; then
        echo "not caught: a crowded folder"
        failed=1
    fi
}

fresh
for made in build python/build python/x.egg-info data runs; do
    mkdir -p "$tree/$made"
    printf 'no newline' >"$tree/$made/made.txt"
done
python3 "$lint" "$tree" || { echo "a clean tree does not pass"; failed=1; }

long=$(printf '%098d' 0)
many=$(printf '    x++;\n%.0s' $(seq 80))
caught "core includes op.h" "points upward" src/core/a.h '#include "op.h"'
caught "op.h includes attention" "points upward" src/op.h '#include "attention/p.h"'
caught "attention includes a kernel" "reaches into cpu" src/attention/p.c '#include "cpu/k.h"'
caught "a way around by .." "no room" src/attention/p.c '#include "../cpu/k.h"'
caught "the command line includes src" "no public header" cli/main.c '#include "core/a.h"'
caught "a way around by <>" "no public header" cli/main.c '#include <core/a.h>'
caught "the attention sees models" "belongs to the models" src/attention/p.c \
    '#include "htransformer_models.h"'
caught "the attention sees the models' table" "belongs to the models" src/attention/p.c \
    '#include "model_op.h"'
caught "the attention's kernels see the models'" "belongs to the models" src/cpu/k.h \
    '#include "cpu/model/m.h"'
caught "a test includes a kernel" "test see cpu" tests/test_a.c '#include "cpu/k.h"'
caught "a CUDA header outside" "CUDA headers" src/core/a.h '#include <cuda_runtime.h>'
caught "a printf in the library" "printf" src/core/a.h 'int g(void) { return printf("x"); }'
caught "an exit in the library" "exit" src/core/a.h 'void g(void) { exit(1); }'
caught "an assert in the library" "assert" src/core/a.h 'void g(void) { assert(1); }'
caught "a long format" "13 conversions" src/core/a.c \
    'const char *f = "%s %s %s %s %5.2f %-*d %% %s" "%s %s" /* a word */ "%s %s %s %s";'
caught "a long line" "101 columns" src/op.h "// $long"
caught "a tab" "a tab" cli/main.c "$(printf '\tint x;')"
caught "a long function" "function of 82 lines" src/core/a.c "int h(int x) {" "$many" "}"
caught "a long file" "more than 900 lines" src/core/a.c "$(printf 'int x;\n%.0s' $(seq 901))"
caught_crowd
caught "something left open" "left open" src/op.h "/* TO""DO */"
caught "a file that says nothing" "comment of its purpose" src/core/b.h "int x;"
exit $failed
