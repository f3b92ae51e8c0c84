#!/bin/sh
# Checks the mechanical part of CONTRIBUTING.md: scripts/lint.py, and the formatting where
# clang-format 14 is at hand (other versions lay out some lines differently).
# scripts/lint.sh [ROOT]: of another tree than this one
set -u
cd "$(dirname "$0")/.." || exit 1
root=${1:-.}
. scripts/clang_format.sh

python3 scripts/lint.py "$root"
status=$?
if clang_format=$(find_clang_format); then
    unformatted=$(c_files "$root" |
        xargs -n 32 -P "$(nproc 2>/dev/null || echo 2)" \
            "$clang_format" --dry-run -Werror --style=file 2>&1 |
        sed -n 's/^\([^ :]*\):[0-9]*:[0-9]*: error: .*/\1/p' | sort -u)
    if [ -n "$unformatted" ]; then
        printf '%s\n' "$unformatted" "lint: formatting differs here; scripts/format.sh mends it"
        status=1
    fi
else
    echo "lint: formatting not checked, there is no clang-format 14"
fi
exit $status
