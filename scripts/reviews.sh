#!/bin/sh
# How good `train --data reviews.tsv` is as it stands: trained on reviews of IMDB, tested on all
# 25,000 test reviews. One line per draw: the linear model alone (the baseline), the Transformer
# alone, the answer that validation chose between them, and the seconds that training took.
#
#     scripts/reviews.sh IMDB [DEVICE] [OPTION OF TRAIN...]
#
# IMDB is the official folder aclImdb (ai.stanford.edu/~amaas/data/sentiment), or that of
# imdb-train.tsv and imdb-test.tsv, compressed or not. Variables, all optional:
#   SIZE    3000 reviews of the training set; 25000: all of them, once
#   DRAWS   which draws: "1 2 3 4 5". Draw N is the same reviews everywhere
#   RUNS    build/reviews, where data and runs are left
#   HT      the program, build/htransformer
set -eu
imdb=${1:?usage: scripts/reviews.sh IMDB [DEVICE] [OPTION OF TRAIN...]}
device=${2:-auto}
[ $# -lt 2 ] || shift
shift
here=$(cd "$(dirname "$0")/.." && pwd)
HT=${HT:-$here/build/htransformer}
RUNS=${RUNS:-$here/build/reviews}
SIZE=${SIZE:-3000}
DRAWS=${DRAWS:-1 2 3 4 5}
mkdir -p "$RUNS"
train=$RUNS/imdb-train.tsv test=$RUNS/imdb-test.tsv
[ -f "$test" ] || "$HT" data import imdb "$imdb" --plain --out "$RUNS"
ALL=$(wc -l <"$train")
[ "$SIZE" -lt "$ALL" ] || DRAWS=all

# draw NUMBER: SIZE lines in their order, each line as likely as any other; the generator's numbers
# are whole ones below 2^53, so that any awk has the same
draw() {
    awk -v number="$1" -v left="$SIZE" -v lines="$ALL" '
        BEGIN { x = number; for (i = 0; i < 9; i++) x = next_of(x) }
        function next_of(x) { return (x * 69069 + 1) % 4294967296 }
        { x = next_of(x); if (x / 4294967296 * lines < left) { print; left-- } lines-- }' "$train"
}

# accuracy NAME: that of the linear model, or of the Transformer, in the JSON object on stdin
accuracy() { sed -n "s/.*\"$1\": {[^}]*\"accuracy\": \\([0-9.e-]*\\).*/\\1/p" | head -n 1; }

export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
table=$RUNS/table-$SIZE.tsv
: >"$table"
for number in $DRAWS; do
    data=$RUNS/reviews-$SIZE-$number.tsv run=$RUNS/run-$SIZE-$number
    if [ "$number" = all ]; then cp "$train" "$data"; else draw "$number" >"$data"; fi
    rm -rf "$run"
    begin=$(date +%s)
    "$HT" train --run "$run" --data "$data" --device "$device" "$@" >"$run.log" 2>&1 || {
        tail -n 5 "$run.log" >&2
        exit 1
    }
    seconds=$(($(date +%s) - begin))
    found=$("$HT" eval "$run" --data "$test" --device "$device" --json 2>/dev/null)
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$number" "$(echo "$found" | accuracy linear)" \
        "$(echo "$found" | accuracy transformer)" \
        "$(echo "$found" | sed -n 's/.*"accuracy": \([0-9.e-]*\), "accuracy_error.*/\1/p')" \
        "$seconds" "$(sed -n 's/^chosen: \(.*\): loss.*/\1/p' "$run.log")" >>"$table"
    awk -F '\t' 'END {
        printf "draw %s: linear %.2f %%, Transformer %.2f %%, ", $1, 100 * $2, 100 * $3
        printf "answer %.2f %% (%s), %d s\n", 100 * $4, $6, $5 }' "$table"
done
awk -F '\t' '
    { n++; for (i = 2; i <= 5; i++) sum[i] += $i; if ($4 - $2 < least || n == 1) least = $4 - $2 }
    END {
        printf "mean of %d: linear %.2f %%, ", n, 100 * sum[2] / n
        printf "Transformer %.2f %%, answer %.2f %%, ", 100 * sum[3] / n, 100 * sum[4] / n
        printf "%d s; the answer is at least %.2f points above the linear model\n",
            sum[5] / n, 100 * least
    }' "$table"
