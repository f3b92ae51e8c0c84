#!/bin/sh
# Short runs that choose block, query and positions (docs/lab/lra.md): hidden pixels are guessed for
# 1,500 steps, lra/image is trained for 6,000 with other first embeddings, lra/text for 2,500 with
# other pooling and reach of heads, and what Muon makes of them (muon-...); images in squares. One
# line of JSON per run into results/sweeps.jsonl. They validate; no test set is looked at.
# scripts/lra_sweep.sh image|pathfinder|embeddings|text|muon-image|muon-pathfinder|muon-listops|
#     squares|squares-grid|pathfinder-2021|pathfinder-fine|pathfinder-black|pathfinder-left-out|
#     pathx|pathx-half...
#
# Variables, all optional: HT_DEVICE, HT, CIFAR10, IMDB (folders that data import wrote),
# PATHFINDER, PATHX, LISTOPS (those that data make wrote), RUNS, RESULTS, STEPS, COMMIT; GUESS:
# weights that muon-pathfinder-labels starts with; ARGS: more flags of train
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

# set_of FOLDER NAME END: the flags for its training and validation parts
set_of() {
    end=$3
    [ -f "$1/$2-train.$end" ] || end=$3.zst
    [ -f "$1/$2-train.$end" ] || fail "there is no $2-train.$3 in '$1'"
    echo "--data $1/$2-train.$end"
    [ ! -f "$1/$2-valid.$end" ] || echo "--valid $1/$2-valid.$end" # else a tenth is held out
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
    scripts/thin_log.sh "$RUNS/$name/log.jsonl" >"$log"
    last=$(grep '"valid_loss"' "$RUNS/$name/log.jsonl" | tail -n 1)
    {
        printf '{"run": "%s", "args": "%s", "commit": "%s", ' "$name" "$*" "$COMMIT"
        printf '"device": "%s", "last": %s, "log": "%s"}\n' "$HT_DEVICE" "$last" "$log"
    } | tee -a "$RESULTS"
}

# the model of these sweeps, whatever the presets have become
BY_LINE="--layers 4 --heads 2 --patch 1 --merge 1"

# blocks NAME PRESET DECAY: hidden pixels, with other blocks, queries and positions
blocks() {
    # shellcheck disable=SC2086 # flags are words
    set -- "$1" --preset "$2" --dtype bf16 --task denoise --embed_waves 2 --dropout 0 \
        --rate 1e-3 --warmup 200 --hide 0.5 --steps 1500 --eval_every 750 --eval_items 1000 \
        --optimizer adamw --relative_slope 0 --weight_decay "$3" $BY_LINE
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

texts() {
    set -- --preset lra/text --dtype bf16 --attention_dropout 0 --sinusoidal 0 --schedule cosine \
        --clip 1 --decay matrices --warmup 300 --weight_decay 0.05 --eval_every 500 --steps 2500 \
        --relative_bias 1 --rotary all --rate 5e-4 --dropout 0.2
    try text-mean-slope-1 "$@" --pool mean --relative_slope 1
    try text-mean-slope-0.25 "$@" --pool mean --relative_slope 0.25
    try text-mean-slope-1-no-rotary "$@" --pool mean --relative_slope 1 --rotary none \
        --embed_std 0.1
    try text-mean-slope-1-fine-32 "$@" --pool mean --relative_slope 1 --query fine --block 32
    try text-max "$@" --pool max
    try text-max-slope-1 "$@" --pool max --relative_slope 1
    try text-max-slope-2-small "$@" --pool max --relative_slope 2 --embed_std 0.1
    try text-max-slope-1-linear "$@" --pool max --relative_slope 1 --rate 1e-3 --dropout 0.1 \
        --head_hidden 0
}

# guesses NAME DECAY: the hidden pixels of `blocks` again
guesses() {
    # shellcheck disable=SC2086 # flags are words
    set -- "$1" --preset "best/$1" --dtype bf16 --task denoise --embed_waves 2 --dropout 0 \
        --rate 2e-3 --warmup 200 --hide 0.5 --steps 1500 --eval_every 750 --eval_items 1000 \
        --optimizer muon --weight_decay "$2" --relative_slope 0 $BY_LINE
    short=$1
    shift
    try "muon-$short" "$@"
    [ "$short" = image ] || try "muon-$short-slope" "$@" --relative_slope 0.5
}

muon_image() {
    guesses image 0.1
    set -- --preset lra/image --dtype bf16 --attention_dropout 0 --learned 0 --rotary all \
        --pool mean --embed_std 0.1 --embed_waves 1 --hidden 640 --warmup 300 --decay matrices \
        --clip 1 --eval_every 1000 --optimizer muon --rate 2e-3 --steps 6000
    try muon-lra-image "$@" --dropout 0.2 --weight_decay 0.05
    set -- "$@" --heads 4 --relative_bias 1 --relative_slope 1 --query fine --block 64 --batch 128
    try muon-lra-image-fine "$@" --dropout 0.2 --weight_decay 0.05
    try muon-lra-image-fine-dropout "$@" --dropout 0.3 --weight_decay 0.2
    try muon-lra-image-fine-gentle "$@" --rate 1e-3 --dropout 0.1 --weight_decay 0.1 --steps 4000
}

muon_pathfinder() {
    guesses pathfinder 0.05
    # shellcheck disable=SC2086 # flags are words
    try muon-pathfinder-labels --preset best/pathfinder $BY_LINE --dtype bf16 \
        --optimizer muon --rate 3e-4 --relative_slope 0.5 --warmup 500 --weight_decay 0.1 \
        --steps 3500 --eval_every 1000 --eval_items 2000 ${GUESS:+--init "$GUESS"}
    set -- --preset lra/pathfinder --dtype bf16 --optimizer muon --attention_dropout 0 --dropout 0 \
        --pool max --head_hidden 0 --rate 4e-3 --warmup 500 --decay matrices --clip 1 --block 32 \
        --embed_waves 2 --embed_std 0.3 --batch 256 --eval_every 1000 --eval_items 2000
    try muon-lra-pathfinder "$@" --steps 10000
    try muon-lra-pathfinder-one-head "$@" --query fine --heads 1 --sinusoidal 0 --rotary all \
        --relative_bias 1 --relative_slope 0.5 --steps 9000
}

# labels after guessing hidden pixels, and after more of guessing hidden squares
squares() {
    set -- --preset best/pathfinder --dtype bf16 --steps 8000 --eval_every 1000
    guess="--task denoise --rate 2e-3 --warmup 300 --weight_decay 0.05 --eval_every 2000"
    # shellcheck disable=SC2086 # flags are words
    try squares-points-guess "$@" $guess --hide 0.5 --steps 4000
    try squares-points "$@" --init "$RUNS/squares-points-guess"
    # shellcheck disable=SC2086 # flags are words
    try squares-6000-guess "$@" $guess --hide 0.6 --hide_run 8 --steps 6000
    try squares-6000 "$@" --init "$RUNS/squares-6000-guess" --steps 18000 --eval_every 2000
    # shellcheck disable=SC2086 # flags are words
    try squares-decay-1-guess "$@" $guess --hide 0.6 --hide_run 8 --steps 4000
    try squares-decay-1 "$@" --init "$RUNS/squares-decay-1-guess" --weight_decay 1 --steps 12000 \
        --eval_every 1500
}

# what made best/pathx learn, on Pathfinder: rotary positions in a grid, and a gentle start
grid_squares() {
    set -- --preset best/pathfinder --dtype bf16 --steps 12000 --eval_every 500 --rotary_grid 16 \
        --rotary_theta 100
    try squares-grid-guess "$@" --task denoise --rate 2e-3 --warmup 300 --weight_decay 0.05 \
        --hide 0.6 --hide_run 8 --output_scale 1 --steps 4000 --eval_every 2000
    try squares-grid "$@" --init "$RUNS/squares-grid-guess"
    try squares-grid-gentle "$@" --init "$RUNS/squares-grid-guess" --momentum 0.98 --rate 2e-4 \
        --output_scale 0 --weight_decay 0.1
}

# the run of docs/lab/lra.md with more decay, and with queries that see the pixel above
fine_pathfinder() {
    set -- --preset lra/pathfinder --dtype bf16 --optimizer muon --attention_dropout 0 --dropout 0 \
        --pool max --head_hidden 0 --rate 4e-3 --warmup 500 --decay matrices --clip 1 --batch 256 \
        --embed_waves 2 --embed_std 0.3 --eval_every 2000 --eval_items 4000 --steps 20000
    try pathfinder-decay-0.5 "$@" --block 32 --weight_decay 0.5
    set -- "$@" --query fine --block 64 --relative_bias 1 --relative_slope 0.5
    try pathfinder-fine-4-heads "$@" --weight_decay 0.1
    try pathfinder-fine-1-head "$@" --weight_decay 0.05 --heads 1 --steps 12000
}

# the run of docs/lab/lra.md, in which black pixels are padding, with one thing or another changed
black_pathfinder() {
    set -- --preset lra/pathfinder --dtype bf16 --optimizer muon --attention_dropout 0 --dropout 0 \
        --pool max --head_hidden 0 --rate 4e-3 --warmup 500 --decay matrices --clip 1 --batch 256 \
        --embed_waves 2 --embed_std 0.3 --block 32 --eval_every 3000 --eval_items 4000 \
        --mask_zero 1 --steps 15000
    gentle="--rate 1.5e-3 --momentum 0.98 --output_scale 0"
    try pathfinder-black-dropout "$@" --dropout 0.1
    try pathfinder-black-decay "$@" --weight_decay 0.1
    try pathfinder-black-block-16 "$@" --block 16 --steps 30000
    try pathfinder-black-block-128 "$@" --block 128
    # shellcheck disable=SC2086 # flags are words
    try pathfinder-black-block-128-gentle "$@" --block 128 $gentle
    # shellcheck disable=SC2086 # flags are words
    try pathfinder-black-fine-1-head "$@" --block 64 --heads 1 --query fine --sinusoidal 0 \
        --rotary all --relative_bias 1 --relative_slope 0.5 $gentle --steps 12000
}

# what led to the run of the table: wavelengths of a line, black pixels left out, late dropout
left_out_pathfinder() {
    set -- --preset lra/pathfinder --dtype bf16 --optimizer muon --attention_dropout 0 --dropout 0 \
        --pool max --head_hidden 0 --rate 4e-3 --warmup 500 --decay matrices --clip 1 --batch 256 \
        --embed_waves 2 --embed_std 0.3 --block 32 --eval_every 1500 --eval_items 4000 --steps 15000
    try pathfinder-sines-none "$@" --mask_zero 1 --dropout 0.1 --dropout_after 7000
    try pathfinder-left-out-rotary "$@" --mask_zero 2 --sinusoidal 0 --rotary all --rotary_theta 26
    set -- "$@" --sinusoidal_theta 672
    try pathfinder-sines "$@" --mask_zero 1
    try pathfinder-sines-seed-2 "$@" --mask_zero 1 --seed 2
    set -- "$@" --mask_zero 2
    try pathfinder-left-out-block-16 "$@" --block 16
    try pathfinder-left-out-block-32 "$@"
    try pathfinder-left-out-block-64 "$@" --block 64
    try pathfinder-left-out-full "$@" --attention full
    try pathfinder-left-out-gentle "$@" --rate 1.5e-3 --momentum 0.98 --output_scale 0
    try pathfinder-left-out-late-dropout "$@" --dropout 0.1 --dropout_after 6000
    set -- "$@" --block 64 --steps 60000 --eval_every 3000
    try pathfinder-left-out-fast "$@" --rate 8e-3 --dropout 0.1 --dropout_after 4500
    try pathfinder-left-out-dropout-0.2 "$@" --dropout 0.2 --dropout_after 6000
    try pathfinder-left-out-seed-2 "$@" --dropout 0.05 --dropout_after 4500 --seed 2
}

# the benchmark's sizes of spring 2021
one_layer() {
    set -- --preset lra/pathfinder --dtype bf16 --optimizer muon --attention_dropout 0 --pool max \
        --head_hidden 0 --warmup 500 --decay matrices --clip 1 --batch 256 --embed_waves 2 \
        --embed_std 0.3 --eval_every 1500 --eval_items 4000 --layers 1 --width 128 --inner 64 \
        --hidden 128 --heads 4 --rate 2e-3 --block 32 --steps 12000
    try pathfinder-2021 "$@" --dropout 0 --weight_decay 0.1
    try pathfinder-2021-dropout "$@" --dropout 0.1 --weight_decay 0.01
}

# every pixel, the model that did not learn it
pathx() {
    set -- --preset best/pathx --dtype bf16 --length 16384 --shrink 1 --layers 6 --rotary_grid 0 \
        --rotary_theta 10000 --batch 32 --rate 3e-4 --warmup 1000 --weight_decay 0.5 \
        --momentum 0.95 --eval_items 2000
    try pathx-squares-guess "$@" --task denoise --rate 2e-3 --warmup 300 --weight_decay 0.05 \
        --hide 0.6 --hide_run 32 --output_scale 1 --steps 3000 --eval_every 1500 --eval_items 300
    try pathx-squares "$@" --init "$RUNS/pathx-squares-guess"
    try pathx-squares-2 "$@" --init "$RUNS/pathx-squares-guess" --output_scale 1 --warmup 500 \
        --weight_decay 0.1 --seed 2
    set -- "$@" --layers 8 --output_scale 1
    guess="--task denoise --rate 2e-3 --warmup 300 --weight_decay 0.05 --hide 0.6"
    # shellcheck disable=SC2086 # flags are words
    try pathx-squares-4-guess "$@" $guess --hide_run 32 --steps 6000 --eval_every 3000
    try pathx-squares-4 "$@" --init "$RUNS/pathx-squares-4-guess" --rate 5e-4 --warmup 500 \
        --steps 24000 --eval_every 2000
    # shellcheck disable=SC2086 # flags are words
    try pathx-squares-4-block-128-guess "$@" $guess --hide_run 32 --block 128 --learned 1 \
        --steps 3000 --eval_every 1500
    try pathx-squares-4-block-128 "$@" --init "$RUNS/pathx-squares-4-block-128-guess" --block 128 \
        --learned 1 --rate 5e-4 --weight_decay 0.2 --steps 16000 --eval_every 2000
    set -- "$@" --patch 8 --merge 64 --width 256 --hidden 1024 --batch 128 --warmup 500 --steps 8000
    # shellcheck disable=SC2086 # flags are words
    try pathx-squares-8-run-128-guess "$@" $guess --hide_run 128 --steps 4000 --eval_every 2000
    try pathx-squares-8-run-128 "$@" --init "$RUNS/pathx-squares-8-run-128-guess" --rate 5e-4
    try pathx-squares-8-run-128-gentle "$@" --init "$RUNS/pathx-squares-8-run-128-guess" \
        --weight_decay 0.1 --rate 3e-4
}

# smaller images: what best/pathx is when it has less, or starts less gently
half_pathx() {
    set -- --preset best/pathx --dtype bf16 --rate 5e-4 --weight_decay 0.5 --momentum 0.95 \
        --output_scale 1 --eval_every 500
    guess="--task denoise --rate 2e-3 --warmup 300 --weight_decay 0.05 --hide 0.6 --steps 4000"
    guess="$guess --eval_every 2000"
    # shellcheck disable=SC2086 # flags are words
    try pathx-half-guess "$@" $guess --hide_run 32
    try pathx-half-fast "$@" --init "$RUNS/pathx-half-guess" --momentum 0.98
    try pathx-half-black "$@" --init "$RUNS/pathx-half-guess" --mask_zero 1
    set -- "$@" --rotary_grid 0 --rotary_theta 10000
    # shellcheck disable=SC2086 # flags are words
    try pathx-half-line-guess "$@" $guess --hide_run 32
    try pathx-half-line "$@" --init "$RUNS/pathx-half-line-guess"
    set -- "$@" --length 1024 --shrink 4 --patch 2 --merge 4
    # shellcheck disable=SC2086 # flags are words
    try pathx-quarter-guess "$@" $guess --hide_run 8
    try pathx-quarter "$@" --init "$RUNS/pathx-quarter-guess"
}

muon_listops() {
    set -- --preset best/listops --dtype bf16 --optimizer muon --dropout 0
    try muon-listops-next "$@" --task denoise --hide 0 --rate 2e-3 --warmup 200 \
        --weight_decay 0.01 --steps 1500 --eval_every 500 --eval_items 500
    try muon-listops "$@" --init "$RUNS/muon-listops-next" --rate 1e-3 --steps 5000 --warmup 300 \
        --weight_decay 0.1 --eval_every 1000
}

[ $# -gt 0 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2; }
for what in "$@"; do
    case $what in
    image | embeddings | muon-image) data=$(set_of "${CIFAR10:-data/lra/cifar10}" cifar10 images) ;;
    pathfinder | muon-pathfinder | squares | squares-grid | pathfinder-2021 | pathfinder-fine | \
        pathfinder-black | pathfinder-left-out)
        data=$(set_of "${PATHFINDER:-data/lra/pathfinder}" pathfinder images) ;;
    pathx | pathx-half) data=$(set_of "${PATHX:-data/lra/pathx}" pathx images) ;;
    muon-listops) data=$(set_of "${LISTOPS:-data/lra/listops}" listops tsv) ;;
    text) data=$(set_of "${IMDB:-data/lra/imdb}" imdb tsv) ;;
    *)
        fail "there is no sweep '$what', but image pathfinder embeddings text muon-image" \
            "muon-pathfinder muon-listops squares squares-grid pathfinder-2021 pathfinder-fine" \
            "pathfinder-black pathfinder-left-out pathx pathx-half" ;;
    esac
    case $what in
    embeddings) embeddings ;;
    text) texts ;;
    muon-image) muon_image ;;
    muon-pathfinder) muon_pathfinder ;;
    muon-listops) muon_listops ;;
    squares) squares ;;
    pathfinder-2021) one_layer ;;
    pathfinder-fine) fine_pathfinder ;;
    pathfinder-black) black_pathfinder ;;
    pathfinder-left-out) left_out_pathfinder ;;
    squares-grid) grid_squares ;;
    pathx) pathx ;;
    pathx-half) half_pathx ;;
    image) blocks image best/image 0.1 ;;
    *) blocks pathfinder best/pathfinder 0.05 ;;
    esac
done
