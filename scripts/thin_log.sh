#!/bin/sh
# A run's log.jsonl, compressed, with at most 150 lines: its evaluations, and steps evenly spread
# over the rest. More evaluations than that are spread, too; the last line of either kind stays.
#
#     scripts/thin_log.sh LOG >LOG.gz
set -eu
# shellcheck disable=SC2016 # awk's dollars
awk -v most="${MOST:-150}" '
    function kind() { return /"valid_loss"/ }
    NR == FNR { count[kind()]++; next }
    FNR == 1 { # of each kind so many
        room[1] = count[1] < most ? count[1] : most
        room[0] = count[0] < most - room[1] ? count[0] : most - room[1]
    }
    {
        k = kind()
        # the n-th of `count` lines is kept where n * room / count passes a whole number
        n[k]++
        if (int(n[k] * room[k] / count[k]) > int((n[k] - 1) * room[k] / count[k])) print
    }' "$1" "$1" | gzip -9 -n
