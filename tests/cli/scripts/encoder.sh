#!/bin/sh
# scripts/encoder.sh in two short pieces, and a run that begins with what it left; the sizes are the
# real ones. encoder.sh PROGRAM ROOT
set -eu
cd "$2"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/models"
cp "$1" "$work/bin/htransformer" # a program whose box is the test's own
HT=$work/bin/htransformer RUN=$work/encoder TO=$work/models/encoder.safetensors
export HT RUN TO MINUTES=0.01 BATCH=1 OMP_NUM_THREADS=1

awk 'BEGIN { for (i = 0; i < 80; i++) {
    printf "<doc id=\"%d\" title=\"Thing %d\">\nThing %d\n\n", i, i, i
    for (k = 0; k < 9; k++) printf "The thing number %d stands beside %d others. ", i, (i * k) % 7
    print "\n</doc>" } }' >"$work/text.txt"

steps() { ls "$RUN" | sed -n 's/^step-0*\([0-9]*\).safetensors$/\1/p'; }
scripts/encoder.sh "$work/text.txt" cpu
first=$(steps)
cp "$TO" "$work/first"
scripts/encoder.sh "$work/text.txt" cpu # goes on
[ "$(steps)" -gt "$first" ]
! cmp -s "$TO" "$work/first"
[ "$(wc -c <"$TO")" -le 10485760 ]

awk 'BEGIN { for (i = 0; i < 40; i++)
    printf "%s\tThe quick brown fox jumps over the lazy dog %d\n", i % 2 ? "good" : "bad", i }' \
    >"$work/mail.tsv"
said=$("$HT" train --run "$work/mail" --data "$work/mail.tsv" --steps 1 --batch 2 --device cpu)
echo "$said" | grep "47 of 49 tensors from .*models/encoder.safetensors"
"$HT" predict "$work/mail" --text "lazy dog" --device cpu
