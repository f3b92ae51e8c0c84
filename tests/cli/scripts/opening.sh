#!/bin/sh
# scripts/opening.py with few steps and short items: a line per run with what its name says, none is
# made again, one that was stopped goes on, the table has them all.
# opening.sh PROGRAM ROOT
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export PROGRAM="$1" WORK="$folder/work" OUT="$folder/results/opening.jsonl" DEVICE=cpu THREADS=1
export STEPS=4 POINTS=2 BATCH=2 FRESH=8 OPENS="0 2 all" JOBS=2

fail() {
    echo "opening.sh: $*"
    exit 1
}

script="$2/scripts/opening.py"
run() {
    python3 "$script" run "$@" >"$folder/out" 2>&1 || {
        cat "$folder/out"
        fail "run $* failed"
    }
}

run copy-64-full copy-64-k2-peek1-leaf2-b2-s3-turn recall-64-k2-warm50 copy-64-local
[ "$(wc -l <"$OUT")" -eq 4 ] || fail "there should be 4 lines: $(cat "$OUT")"
for key in run task length way open peek leaf seed device machine steps ms_per_step accuracy \
    bits_per_token by_distance curve; do
    [ "$(grep -c "\"$key\": *[^,}]" "$OUT")" -eq 4 ] || fail "a line has no $key"
done
line=$(grep k2-peek1 "$OUT")
for part in '"open": 2' '"peek": 1' '"leaf": 2' '"block": 2' '"seed": 3' '"rotary": "all"' \
    '"opens": {"0": ' '"steps": 4'; do
    case $line in *"$part"*) ;; *) fail "no $part in $line" ;; esac
done
grep -q '"open_leaf": *2' "$WORK/copy-64-k2-peek1-leaf2-b2-s3-turn/config.json" ||
    fail "the run was not made with that leaf"
case $(grep copy-64-full "$OUT") in *opens*) fail "full attention opens nothing" ;; esac

run copy-64-full 'copy-64-local'
[ "$(wc -l <"$OUT")" -eq 4 ] || fail "a run was made again"

# one that takes too long is saved and goes on
STEPS=4000 LIMIT=2 run copy-64-k2
[ "$(wc -l <"$OUT")" -eq 4 ] || fail "a run that was stopped has a line"
STEPS=1 run copy-64-k2
[ "$(wc -l <"$OUT")" -eq 5 ] || fail "a run that was stopped did not go on"
grep '"copy-64-k2"' "$OUT" | grep -q '"steps": 1,' && fail "it began anew"

python3 "$script" tables --markdown >"$folder/out"
[ "$(grep -c '^| copy-64-' "$folder/out")" -ge 4 ] || fail "the table lacks runs"
grep -q '^| recall-64-k2-warm50 | 1 | 4 |' "$folder/out" || fail "the table lacks recall"
python3 "$script" run nothing >"$folder/out" 2>&1 && fail "an unknown name was taken"
grep -q "no run is called 'nothing'" "$folder/out" || fail "$(cat "$folder/out")"
