#!/bin/sh
# scripts/reviews.sh from a set to its table, on reviews of a toy's size. reviews.sh PROGRAM ROOT
set -eu
HT=$1
cd "$2"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
RUNS=$work
export HT RUNS

# reviews FIRST LAST: half of them good
reviews() {
    awk -v i="$1" -v last="$2" 'BEGIN { for (; i <= last; i++)
        printf "%d\t%s film number %d, and the %s was %s\n", i % 2, i % 3 ? "a" : "one", i,
            i % 5 ? "plot" : "music", i % 2 ? "lovely" : (i % 7 ? "dreadful" : "lovely") }'
}
reviews 1 400 >"$work/imdb-train.tsv"
reviews 401 500 >"$work/imdb-test.tsv"
tiny="--preset small --layers 1 --width 16 --heads 2 --hidden 16 --length 32 --steps 3 --threads 1"

# shellcheck disable=SC2086 # flags are words
said=$(SIZE=150 DRAWS="1 2" scripts/reviews.sh "$work" cpu $tiny)
echo "$said"
[ "$(echo "$said" | grep -c '^draw')" = 2 ]
for draw in 1 2; do
    file=$work/reviews-150-$draw.tsv
    [ "$(wc -l <"$file")" = 150 ]
    [ "$(sort -u "$file" | wc -l)" = 150 ] # none twice
    [ "$(grep -c -x -F -f "$file" "$work/imdb-train.tsv")" = 150 ]
done
! cmp -s "$work/reviews-150-1.tsv" "$work/reviews-150-2.tsv"
# draw 1 is the same lines on every machine
[ "$(cksum <"$work/reviews-150-1.tsv")" = "2430790459 6963" ]
# what it prints is what eval says
answer=$("$HT" eval "$work/run-150-2" --data "$work/imdb-test.tsv" --device cpu --threads 1)
echo "$answer"
for name in "accuracy" "the linear model alone" "the Transformer alone"; do
    share=$(echo "$answer" | sed -n "s/.*$name \\([0-9.]*\\) .*/\\1/p" | head -n 1)
    echo "$said" | sed -n 2p | grep -q " $share %"
done
echo "$said" | tail -n 1 | grep -q "^mean of 2: linear "

# all of them are one draw
# shellcheck disable=SC2086
said=$(SIZE=400 scripts/reviews.sh "$work" cpu $tiny)
echo "$said"
echo "$said" | grep -q "^draw all:" && echo "$said" | grep -q "^mean of 1:"
cmp "$work/imdb-train.tsv" "$work/reviews-400-all.tsv"
