#!/bin/sh
# What must not happen, tried: every allocation, every write and every read of whole commands fails
# once; a run is killed at random moments.
#
#     scripts/torture.sh               all commands, everything that can fail (an hour or two)
#     scripts/torture.sh --most 50     of each command and kind at most 50
#     scripts/torture.sh --only eval   commands whose name has this in it
#     scripts/torture.sh kill [N]      N kills (1000), two writers, a reader beside a writer
#
# Exit status 0: nothing was found. scripts/test.sh runs a small sample of it.
set -eu
cd "$(dirname "$0")/.."
. scripts/deps.sh

need_build
need python3 command -v python3
install_missing
cmake -S . -B build -G Ninja -DBUILD_TESTING=ON >/dev/null
cmake --build build --target htransformer torture_shim >/dev/null
if [ "${1:-}" = kill ]; then
    exec python3 tests/torture/kill.py --program build/htransformer --kills "${2:-1000}"
fi
exec python3 tests/torture/torture.py --program build/htransformer \
    --shim build/tests/torture/libtorture_shim.so "$@"
