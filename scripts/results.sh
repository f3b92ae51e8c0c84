#!/bin/sh
# Repeats results by their names in docs/results.md, which is the list of them.
# scripts/results.sh             all names with their commands
# scripts/results.sh NAME...     runs the commands of these, one after the other
#
# PAGE: another list than docs/results.md. What a command needs (IMDB, CIFAR10, AAN, DATA, TEXT,
# HT_DEVICE) comes from the caller; docs/results.md and the scripts that it names say more.
set -eu
cd "$(dirname "$0")/.."
page=${PAGE:-docs/results.md}

fail() {
    echo "results.sh: $*" >&2
    exit 1
}

# name, a tab, command: of every row whose first and last cells are code
rows() { sed -n 's/^| `\([^`]*\)` |.*| `\([^`]*\)` |$/\1\t\2/p' "$page"; }
# command NAME: its command, or nothing
command_of() { rows | while IFS="$(printf '\t')" read -r name command; do
    [ "$name" != "$1" ] || printf '%s\n' "$command"
done; }

if [ $# -eq 0 ]; then
    rows
    exit 0
fi
for name in "$@"; do
    [ -n "$(command_of "$name")" ] ||
        fail "there is no result '$name' in $page; without a name they are listed"
done
export PATH="$PWD/build:$PATH"
for name in "$@"; do
    echo "== $name: $(command_of "$name")"
    sh -euc "$(command_of "$name")"
done
