#!/bin/sh
# Short runs that choose block, query and positions of the image tasks (docs/lra.md): hidden pixels
# are guessed for 1,500 steps, or lra/image is trained for 6,000 with other first embeddings. One
# line of JSON per run into results/sweeps.jsonl. They validate; no test set is looked at.
# scripts/lra_sweep.sh image|pathfinder|embeddings...
#
# Variables, all optional: HT_DEVICE, HT, CIFAR10 (a folder that data import wrote), PATHFINDER (one
# that data make wrote), RUNS, RESULTS, STEPS, COMMIT; ARGS: more flags of train
set -eu
cd "$(dirname "$0")/.."
HT=${HT:-build/htransformer}
HT_DEVICE=${HT_DEVICE:-cuda:0}
RUNS=${RUNS:-runs/sweep}
RESULTS=${RESULTS:-results/sweeps.jsonl}
COMMIT=${COMMIT:-$(git rev-parse --short=10 HEAD 2>/dev/null || echo unknown)}
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"

fail() {
    echo "lra_sweep.sh: $*" >&2
    exit 1
}
[ -x "$HT" ] || fail "there is no $HT: run scripts/build.sh, or set HT"

# set_of FOLDER NAME: the flags for its training and validation parts
set_of() {
    end=images
    [ -f "$1/$2-train.$end" ] || end=images.zst
    [ -f "$1/$2-train.$end" ] || fail "there is no $2-train.images in '$1'"
    echo "--data $1/$2-train.$end --valid $1/$2-valid.$end"
}

# try NAME FLAGS...
try() {
    name=$1
    shift
    rm -rf "${RUNS:?}/$name"
    mkdir -p "$RUNS" "$(dirname "$RESULTS")/logs"
    # shellcheck disable=SC2086 # flags are words
    "$HT" train --run "$RUNS/$name" --device "$HT_DEVICE" $data "$@" ${STEPS:+--steps "$STEPS"} \
        ${ARGS:-}
    log=$(dirname "$RESULTS")/logs/sweep-$name.jsonl.gz
    gzip -9 -n -c "$RUNS/$name/log.jsonl" >"$log"
    last=$(grep '"valid_loss"' "$RUNS/$name/log.jsonl" | tail -n 1)
    {
        printf '{"run": "%s", "args": "%s", "commit": "%s", ' "$name" "$*" "$COMMIT"
        printf '"device": "%s", "last": %s, "log": "%s"}\n' "$HT_DEVICE" "$last" "$log"
    } | tee -a "$RESULTS"
}

# blocks NAME PRESET: hidden pixels, with other blocks, queries and positions
blocks() {
    set -- "$1" --preset "$2" --dtype bf16 --task denoise --embed_waves 2 --dropout 0 \
        --rate 1e-3 --warmup 200 --hide 0.5 --steps 1500 --eval_every 750 --eval_items 1000
    short=$1
    shift
    try "$short-mean-16" "$@" --block 16 --query mean --relative_bias 0
    try "$short-mean-32" "$@" --block 32 --query mean --relative_bias 0
    try "$short-fine-64" "$@" --block 64 --query fine --relative_bias 0
    try "$short-fine-64-bias" "$@" --block 64 --query fine --relative_bias 1
    try "$short-fine-64-learned" "$@" --block 64 --query fine --relative_bias 0 --learned 1
    try "$short-fine-128" "$@" --block 128 --query fine --relative_bias 0
}

embeddings() {
    set -- --preset lra/image --dtype bf16 --attention_dropout 0 --learned 0 --rotary all \
        --pool mean --embed_std 0.1 --hidden 640 --rate 2e-3 --warmup 300 --dropout 0.2 \
        --decay matrices --clip 1 --eval_every 1000 --steps 6000
    try waves-1 "$@" --embed_waves 1 --weight_decay 0.05
    try waves-1-decay "$@" --embed_waves 1 --weight_decay 0.3
    try waves-0.5-decay "$@" --embed_waves 0.5 --weight_decay 0.3
    try waves-2-decay "$@" --embed_waves 2 --weight_decay 0.3
}

[ $# -gt 0 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
for what in "$@"; do
    case $what in
    image | embeddings) data=$(set_of "${CIFAR10:-data/lra/cifar10}" cifar10) ;;
    pathfinder) data=$(set_of "${PATHFINDER:-data/lra/pathfinder}" pathfinder) ;;
    *) fail "there is no sweep '$what', but image pathfinder embeddings" ;;
    esac
    if [ "$what" = embeddings ]; then embeddings; else blocks "$what" "best/$what"; fi
done
