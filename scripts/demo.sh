#!/bin/sh
# Builds, then shows what the attention does: what this machine offers, time against length for
# hierarchical and full attention, and the size of the decode state. Under two minutes on two cores.
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

say "time against length: twice the rows, twice the time"
run bench attention --kind hierarchical --length 512,1024,2048,4096

say "full attention: twice the rows, four times the time"
run bench attention --kind full --length 512,1024,2048,4096

say "decoding row by row: the state grows by one level when the context doubles"
run bench decode --length 1024,4096,16384

say "and of full attention, which keeps every row"
run bench decode --kind full --length 1024,4096

say "what is computed and why: docs/attention.md; in your own program: examples/attend.c"
