#!/bin/sh
# Builds, then shows what it does on the CPU of this machine: trains a small model on generated
# ListOps expressions with hierarchical attention and the same one with local attention, evaluates
# both, predicts one expression, writes a report; then time against length. A few minutes on two
# cores.
set -eu
cd "$(dirname "$0")/.."
. scripts/deps.sh
scripts/build.sh

# run WORDS...: shows a command, then runs it
run() {
    printf '\n$ htransformer %s\n' "$*"
    build/htransformer "$@"
}

say "what this build and this machine can do"
run info

runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT
# threads that wait must not take the core from those that work
export OMP_WAIT_POLICY=passive

say "a small model learns nested expressions; always guessing the largest class gives about 12 %"
run train --run "$runs/hierarchical" --preset small-listops

say "the same model, attention within neighbouring blocks only"
run train --run "$runs/local" --preset small-listops --attention local

say "both on expressions that neither has seen"
run eval "$runs/hierarchical"
run eval "$runs/local"

say "a page about both, for your browser"
run report "$runs/hierarchical" "$runs/local" --out build/demo.html --evaluate \
    --text "[MAX 2 9 [MIN 4 7 ] 0 [SM 1 3 ] [MED 5 5 6 ] ]"

say "one expression: the largest of 2, 9 and the smaller of 4 and 7 (prints answer, probability)"
run predict "$runs/hierarchical" --text "[MAX 2 9 [MIN 4 7 ] 0 [SM 1 3 ] [MED 5 5 6 ] ]"

say "who meets whom: the level of every pair of rows, 0 is exact"
run map --length 24 --block 2

say "attention alone, time against length: twice the rows, twice the time"
run bench attention --kind hierarchical --length 512,1024,2048

say "full attention: twice the rows, four times the time"
run bench attention --kind full --length 512,1024,2048

say "training on your own texts: docs/training.md; what is computed and why: docs/attention.md"
