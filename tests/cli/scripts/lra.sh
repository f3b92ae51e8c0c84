#!/bin/sh
# scripts/lra.sh with few items and small models: data is made or imported once, every run leaves a
# line and its log, the table has them all; a second call does nothing again.
# lra.sh PROGRAM ROOT
set -eu
HT=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export HT DATA="$folder/data" RUNS="$folder/runs" RESULTS="$folder/results/lra.jsonl"
export HT_DEVICE=cpu STEPS=2 BATCH=2 ITEMS=80 FRESH=6 TEST_ITEMS=4
export ARGS="--layers 1 --width 16 --heads 2 --inner 16 --hidden 16 --head_hidden 8 --eval_items 4"

fail() {
    echo "lra.sh: $*"
    exit 1
}

# two reviews of each kind, as a set that was imported before
mkdir "$folder/imdb"
printf '0\tbad\n1\tgood\n0\tworse\n1\tbetter\n' >"$folder/imdb/imdb-train.tsv"
cp "$folder/imdb/imdb-train.tsv" "$folder/imdb/imdb-test.tsv"
for _ in 1 2 3 4; do cat "$folder/imdb/imdb-test.tsv" >>"$folder/imdb/imdb-train.tsv"; done
export IMDB="$folder/imdb"

"$2/scripts/lra.sh" listops pathfinder text >"$folder/out" 2>&1 || {
    cat "$folder/out"
    fail "the first call failed"
}
[ "$(wc -l <"$RESULTS")" -eq 6 ] || fail "there should be 6 lines: $(cat "$RESULTS")"
for key in task preset attention block query seed steps batch commit device seconds valid_items \
    valid_accuracy valid_error test_items test_accuracy test_error log; do
    [ "$(grep -c "\"$key\": *[^,}]" "$RESULTS")" -eq 6 ] || fail "a line has no $key"
done
[ "$(grep -c fresh_accuracy "$RESULTS")" -eq 4 ] || fail "fresh items are for what is made"
[ "$(find "$folder/results/logs" -name '*.jsonl.gz' | wc -l)" -eq 6 ] || fail "logs are missing"
grep -q "own digits" "$folder/out" || fail "there is no ladder"
grep -q "lra/text .* local" "$folder/out" || fail "the table has no local text"

before=$(ls -l "$DATA/pathfinder-80")
STEPS=2 KINDS=local "$2/scripts/lra.sh" pathfinder >"$folder/out" 2>&1 || {
    cat "$folder/out"
    fail "the second call failed"
}
[ "$(ls -l "$DATA/pathfinder-80")" = "$before" ] || fail "the set was made again"
[ "$(wc -l <"$RESULTS")" -eq 6 ] || fail "a run was made again"
# several seeds: of those that are there already none is made again
SEEDS="1 3 4" KINDS=local "$2/scripts/lra.sh" pathfinder >"$folder/out" 2>&1 || {
    cat "$folder/out"
    fail "the call with SEEDS failed"
}
[ "$(wc -l <"$RESULTS")" -eq 8 ] || fail "seeds 3 and 4 should be new: $(cat "$RESULTS")"
grep -q 'pathfinder .* local .* 2     3 .* | 1: .*, 3: .*, 4: ' "$folder/out" ||
    fail "there are no three seeds: $(cat "$folder/out")"
if SEEDS="1 x" "$2/scripts/lra.sh" pathfinder >"$folder/out" 2>&1; then fail "x is no seed"; fi
grep -q "SEEDS are whole numbers, got 'x'" "$folder/out" || fail "it does not name the seed"
# a run that takes too long is saved and goes on
STEPS=3000 LIMIT=1 KINDS=local "$2/scripts/lra.sh" pathfinder >"$folder/out" 2>&1 || {
    cat "$folder/out"
    fail "the call with a limit failed"
}
grep -q "was stopped at step" "$folder/out" || fail "it was not stopped: $(tail -n 3 "$folder/out")"
[ "$(wc -l <"$RESULTS")" -eq 8 ] || fail "a run that was stopped is no result"
STEPS=3000 KINDS=local "$2/scripts/lra.sh" pathfinder >"$folder/out" 2>&1 || {
    cat "$folder/out"
    fail "the run did not go on"
}
[ "$(wc -l <"$RESULTS")" -eq 9 ] || fail "the run that went on left no line"
# its log is thinned: every evaluation, the last step, 150 lines
log=$(tail -n 1 "$RESULTS" | sed 's/.*"log": "\([^"]*\)".*/\1/')
run=$(basename "$log" .jsonl.gz)
zcat "$log" >"$folder/thin"
[ "$(wc -l <"$folder/thin")" -eq 150 ] || fail "$log has $(wc -l <"$folder/thin") lines, not 150"
grep valid_loss "$RUNS/$run/log.jsonl" >"$folder/all"
grep valid_loss "$folder/thin" | cmp - "$folder/all" || fail "$log lost an evaluation"
grep -q '^{"step":3000,"loss"' "$folder/thin" || fail "$log lost the last step"
# hidden tokens first
PRETRAIN=2 KINDS=local "$2/scripts/lra.sh" text >"$folder/out" 2>&1 || {
    cat "$folder/out"
    fail "the call with PRETRAIN failed"
}
grep -q '"pretrain": 2,' "$RESULTS" || fail "the line does not tell of PRETRAIN"
grep -q "tensors from $RUNS" "$folder/out" || fail "the weights were not taken over"
# the flags of the table, unless the presets as published are asked for
KINDS=local SET=lra "$2/scripts/lra.sh" text >"$folder/out" 2>&1 || {
    cat "$folder/out"
    fail "the call with SET=lra failed"
}
tail -n 1 "$RESULTS" | grep -q "\"args\": \"$ARGS\"" || fail "SET=lra has flags of its own"
tuned='"args": "--attention_dropout 0 .*--pool max .*--head_hidden 8 '
[ "$(grep -c -- "$tuned" "$RESULTS")" -eq 8 ] ||
    fail "text and pathfinder should have flags of their own, then the caller's"
# clusters opened, in every seed
SEEDS="1 2" KINDS=opened OPEN=2 "$2/scripts/lra.sh" text >"$folder/out" 2>&1 || {
    cat "$folder/out"
    fail "the call with KINDS=opened failed"
}
opened='"attention": "hierarchical", .* "query": "fine", .*--query fine --open 2 '
[ "$(tail -n 2 "$RESULTS" | grep -c -- "$opened")" -eq 2 ] || fail "$(tail -n 2 "$RESULTS")"
grep -q '"open": *2' "$RUNS"/tuned-text-opened2-2-2*/config.json || fail "nothing was opened"
if SET=worst "$2/scripts/lra.sh" text >"$folder/out" 2>&1; then fail "there is no set worst"; fi
grep -q "SET is tuned, lra or best, got 'worst'" "$folder/out" || fail "it does not name the set"
if "$2/scripts/lra.sh" chess >"$folder/out" 2>&1; then fail "chess is no task"; fi
grep -q "there is no task 'chess'" "$folder/out" || fail "it does not say which task there is not"
echo passed
