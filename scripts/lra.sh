#!/bin/sh
# The Long Range Arena: data, training, evaluation; one line of JSON per run into results/lra.jsonl.
# scripts/lra.sh [TASK...]: of listops text retrieval image pathfinder pathx; none: all there is
# data for
#
# Variables, all optional:
#   HT_DEVICE   device; cuda:0 if it is there, else cpu
#   SET         tuned: presets lra/, the benchmark's sizes, with the flags that give the table of
#               docs/lra.md; lra: presets lra/ as published; best: presets best/. tuned and best
#               compute in bf16 on a GPU
#   KINDS       attention kinds, "hierarchical local"; also full, and opened: hierarchical with fine
#               queries and OPEN (8) clusters opened
#   SEED        1
#   SEEDS       "1 2 3": one run after the other, and at the end mean and standard error
#   STEPS, BATCH, ARGS   instead of the set's; ARGS are more flags of train: "--block 32"
#   PRETRAIN    steps of guessing hidden tokens of the training set before, PRETRAIN_ARGS: their
#               flags; 0, but best/ has 1500 for listops (next tokens), 16000 for text, 6000 for
#               retrieval, 8000 for image, 4000 for pathfinder and pathx
#   GUESS       a folder of such weights from an earlier run (RUN/guess) to start with instead
#   IMDB, CIFAR10, AAN   folders of the official files, or of those that data import writes
#   LISTOPS, PATHFINDER, PATHX   likewise; without them these sets are made
#   ITEMS       made sets: items to train on, an eighth each for validation and test
#   FRESH       20000: ListOps, Pathfinder, Path-X: items made anew for one more test; 0: none
#   TEST_ITEMS  to try things out: no more than about so many items of valid and test
#   LIMIT       seconds of training; a run that needs more is saved, and goes on in the next call
#   COMMIT      what is written as the commit where there is no git
#   DATA, RUNS, RESULTS   data/lra, runs/lra, results/lra.jsonl
#   HT          the program, build/htransformer
set -eu
cd "$(dirname "$0")/.."
HT=${HT:-build/htransformer}
SET=${SET:-tuned}
KINDS=${KINDS:-hierarchical local}
SEED=${SEED:-1}
FRESH=${FRESH:-20000}
DATA=${DATA:-data/lra}
RUNS=${RUNS:-runs/lra}
RESULTS=${RESULTS:-results/lra.jsonl}
# threads that wait must not take the core from those that work
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"

fail() {
    echo "lra.sh: $*" >&2
    exit 1
}
for seed in ${SEEDS:-$SEED}; do
    case $seed in *[!0-9]*) fail "SEEDS are whole numbers, got '$seed'" ;; esac
done
case $SET in tuned | lra | best) ;; *) fail "SET is tuned, lra or best, got '$SET'" ;; esac
[ -x "$HT" ] || fail "there is no $HT: run scripts/build.sh, or set HT"
if [ -z "${HT_DEVICE:-}" ]; then
    HT_DEVICE=cpu
    if "$HT" info --json | grep -q '"name": "cuda:0", "available": true'; then HT_DEVICE=cuda:0; fi
fi

# found FOLDER NAME: the file, compressed or not; fails if there is none
found() {
    for end in "" .zst; do
        if [ -f "$1/$2$end" ]; then
            echo "$1/$2$end"
            return 0
        fi
    done
    return 1
}

# import SET FOLDER LAST: takes an official folder unless that is done; prints where the set is.
# LAST is the file of the set that is written last
import() {
    if found "$2" "$3" >/dev/null && found "$2" "$1-test.${3##*.}" >/dev/null; then
        echo "$2"
    else
        found "$DATA/$1" "$3" >/dev/null ||
            "$HT" data import "$1" "$2" --out "$DATA/$1" >&2 || return 1
        echo "$DATA/$1"
    fi
}

# make_set SET FILE: makes it unless that is done; prints where it is
make_set() {
    folder=$DATA/$1${ITEMS:+-$ITEMS}
    if ! found "$folder" "$2" >/dev/null; then
        set -- "$1" --out "$folder"
        if [ -n "${ITEMS:-}" ]; then
            eighth=$((ITEMS / 8))
            set -- "$@" --train "$ITEMS" --valid "$eighth" --test "$eighth"
        fi
        "$HT" data make "$@" >&2 || return 1
    fi
    echo "$folder"
}

# data_of TASK: sets train, valid, test, papers
data_of() {
    papers=
    case $1 in
    listops)
        if [ -n "${LISTOPS:-}" ]; then at=$(import listops "$LISTOPS" listops-test.tsv)
        else at=$(make_set listops listops-test.tsv); fi
        train=$(found "$at" listops-train.tsv) valid=$(found "$at" listops-valid.tsv)
        test=$(found "$at" listops-test.tsv) ;;
    text)
        at=$(import imdb "${IMDB:?the folder aclImdb, or of imdb-train.tsv}" imdb-test.tsv)
        # a tenth of the training reviews is held out for validation
        train=$(found "$at" imdb-train.tsv) valid='' test=$(found "$at" imdb-test.tsv) ;;
    retrieval)
        at=$(import aan "${AAN:?the folder of new_aan_pairs.train.tsv, or of papers and pairs}" \
            aan-papers.tsv)
        train=$(found "$at" aan-train.tsv) valid=$(found "$at" aan-valid.tsv)
        test=$(found "$at" aan-test.tsv) papers=$(found "$at" aan-papers.tsv) ;;
    image)
        at=$(import cifar10 "${CIFAR10:?the folder of data_batch_1.bin, or of grey records}" \
            cifar10-test.images)
        train=$(found "$at" cifar10-train.images) valid=$(found "$at" cifar10-valid.images)
        test=$(found "$at" cifar10-test.images) ;;
    pathfinder | pathx)
        if [ "$1" = pathx ]; then official=${PATHX:-}; else official=${PATHFINDER:-}; fi
        if [ -n "$official" ]; then at=$(import "$1" "$official" "$1-test.images")
        else at=$(make_set "$1" "$1-test.images"); fi
        train=$(found "$at" "$1-train.images") valid=$(found "$at" "$1-valid.images")
        test=$(found "$at" "$1-test.images") ;;
    *) fail "there is no task '$1', but listops text retrieval image pathfinder pathx" ;;
    esac
}

# number KEY: of the JSON object on stdin
number() { sed -n "s/.*\"$1\": *\\([-+0-9.eE]*\\).*/\\1/p" | head -n 1; }
# word KEY: likewise a string
word() { sed -n "s/.*\"$1\": *\"\\([^\"]*\\)\".*/\\1/p" | head -n 1; }

# evaluate RUN WORDS...: one JSON object
evaluate() {
    run=$1
    shift
    "$HT" eval "$run" --json --device "$HT_DEVICE" ${papers:+--papers "$papers"} \
        --items "${TEST_ITEMS:-0}" "$@"
}

# tuned TASK: sets steps, batch and args as they are for the table's column lra/
tuned() {
    tidy="--attention_dropout 0 --decay matrices --clip 1"
    near="--rotary all --relative_bias 1 --relative_slope 1"
    case $1 in
    listops)
        steps=11000 args="$tidy $near --optimizer muon --causal 1 --pool last --head_hidden 0"
        args="$args --sinusoidal 0 --query fine --block 64 --embed_std 0.3 --schedule cosine"
        args="$args --rate 1e-3 --warmup 500 --dropout 0 --weight_decay 0.5 --eval_every 2200" ;;
    text)
        steps=10000 args="$tidy $near --pool max --head_hidden 0 --sinusoidal 0 --schedule cosine"
        args="$args --rate 7e-4 --warmup 1000 --dropout 0.1 --weight_decay 0.05 --eval_every 1000"
        ;;
    retrieval)
        steps=2200 args="$tidy $near --pool mean --pair_features 4 --head_hidden 0 --sinusoidal 0"
        args="$args --schedule cosine --rate 1e-3 --warmup 300 --dropout 0 --weight_decay 0.01"
        args="$args --eval_every 550 --eval_items 2000" ;;
    image)
        steps=8000 batch=128 args="$tidy $near --optimizer muon --learned 0 --pool mean --heads 4"
        args="$args --hidden 640 --embed_std 0.1 --embed_waves 1 --query fine --block 64"
        args="$args --rate 1.5e-3 --warmup 300 --dropout 0.15 --weight_decay 0.1 --eval_every 800"
        ;;
    pathfinder)
        steps=60000 batch=256 args="$tidy --optimizer muon --pool max --head_hidden 0 --block 64"
        args="$args --embed_std 0.3 --embed_waves 2 --sinusoidal_theta 672 --mask_zero 2"
        args="$args --rate 4e-3 --warmup 500 --dropout 0.1 --dropout_after 4500"
        args="$args --eval_every 3000 --eval_items 4000" ;;
    esac
}

# settings TASK KIND: sets preset, steps, batch, args; what the caller says comes last and counts
settings() {
    preset=$SET/$1 steps='' batch='' args=''
    if [ "$SET" = tuned ]; then
        preset=lra/$1
        tuned "$1"
    fi
    case $SET$HT_DEVICE in tunedcuda* | bestcuda*) args="--dtype bf16${args:+ $args}" ;; esac
    if [ "$2" = opened ]; then args="${args:+$args }--query fine --open ${OPEN:-8}"; fi
    steps=${STEPS:-$steps} batch=${BATCH:-$batch} args="$args${ARGS:+${args:+ }$ARGS}"
}

# recipe TASK: what comes before, unless the caller says so: sets guess, flags
recipe() {
    guess=${PRETRAIN:-0} flags=${PRETRAIN_ARGS:-}
    if [ -n "${GUESS:-}" ]; then
        [ -f "$GUESS/config.json" ] || fail "GUESS: there is no run in '$GUESS'"
        guess=$(number steps <"$GUESS/config.json") flags=
    elif [ -z "${PRETRAIN:-}" ]; then
        of_squares="--rate 2e-3 --warmup 300 --weight_decay 0.05 --hide 0.6 --output_scale 1"
        case $SET/$1 in
        best/listops) guess=1500 flags="--hide 0 --rate 2e-3 --warmup 200 --weight_decay 0.01" ;;
        best/text) guess=16000 flags="--rate 1e-3 --warmup 500 --dropout 0" ;;
        best/retrieval) guess=6000 flags="--rate 2e-3 --warmup 300 --dropout 0" ;;
        best/image)
            guess=8000
            flags="--rate 2e-3 --warmup 300 --dropout 0 --weight_decay 0.05 --hide 0.5" ;;
        best/pathfinder) guess=4000 flags="$of_squares --hide_run 8 --eval_every 2000" ;;
        best/pathx)
            guess=4000 flags="$of_squares --momentum 0.95 --hide_run 32 --eval_every 2000" ;;
        *) flags='' ;;
        esac
    fi
}

# pretrain RUN TASK KIND: the weights in RUN/guess; the labels are not looked at
pretrain() {
    if [ -f "$1/guess/done" ]; then return; fi
    mkdir -p "$1"
    # shellcheck disable=SC2086 # flags are words
    if [ -f "$1/guess/config.json" ]; then
        "$HT" train --run "$1/guess" --device "$HT_DEVICE" --resume
    else
        if [ -n "$papers" ]; then texts="--data $papers" # of pairs: the papers, some held out
        else texts="--data $train ${valid:+--valid $valid}"; fi
        "$HT" train --run "$1/guess" --device "$HT_DEVICE" --preset "$preset" --attention "$3" \
            --seed "$SEED" $texts ${batch:+--batch "$batch"} $args --task denoise \
            --steps "$guess" $flags
    fi
    touch "$1/guess/done"
}

# one TASK KIND: trains, evaluates, writes the line
one() {
    attention=$2 name=$SET-$1-$2
    if [ "$2" = opened ]; then attention=hierarchical name=$name${OPEN:-}; fi
    name=$name-$SEED${STEPS:+-$STEPS}$(printf %s "${ARGS:-}" | tr -cs '[:alnum:].' _)
    settings "$1" "$2"
    recipe "$1"
    if [ "$guess" -gt 0 ]; then name=$name-guess$guess; fi
    if [ -n "${GUESS:-}" ]; then name=$name-$(echo "$GUESS" | cksum | cut -d ' ' -f 1); fi
    if [ ${#name} -gt 200 ]; then # names of files end at 255 bytes
        name=$(printf %.180s "$name")-$(printf %s "$name" | cksum | cut -d ' ' -f 1)
    fi
    run=$RUNS/$name
    if [ -f "$run/done" ]; then
        echo "== $run is done; remove the folder to run it again"
        return
    fi
    mkdir -p "$RUNS" "$(dirname "$RESULTS")/logs"
    begin=$(date +%s)
    if [ "$guess" -gt 0 ] && [ -z "${GUESS:-}" ]; then pretrain "$run" "$1" "$attention"; fi
    weights=${GUESS:-$run/guess}
    set -- "$1" "$2" --run "$run" --device "$HT_DEVICE"
    task=$1
    shift 2
    # a run that was stopped goes on
    if [ -f "$run/config.json" ]; then set -- "$@" --resume
    else
        set -- "$@" --preset "$preset" --attention "$attention" --seed "$SEED" --data "$train" \
            ${valid:+--valid "$valid"} ${papers:+--papers "$papers"}
        if [ -n "$steps" ]; then set -- "$@" --steps "$steps"; fi
        if [ -n "$batch" ]; then set -- "$@" --batch "$batch"; fi
        # shellcheck disable=SC2086 # flags are words
        set -- "$@" $args
        if [ "$guess" -gt 0 ]; then set -- "$@" --init "$weights"; fi
    fi
    echo "== $preset, $kind attention, seed $SEED, on $HT_DEVICE"
    if [ -n "${LIMIT:-}" ]; then
        timeout -s TERM "$LIMIT" "$HT" train "$@" || [ $? -eq 124 ] # train saves and leaves
    else
        "$HT" train "$@"
    fi
    seconds=$(($(date +%s) - begin + $(cat "$run/seconds" 2>/dev/null || echo 0)))
    echo "$seconds" >"$run/seconds" # of a run that goes on later, too
    # nothing is there yet if it was stopped early
    last=$(sed -n 's/^{"step": *\([0-9]*\).*/\1/p' "$run/log.jsonl" 2>/dev/null | tail -n 1)
    if ! [ -f "$run/config.json" ] ||
        [ "${last:-0}" -lt "$(number steps <"$run/config.json")" ]; then
        echo "== $run was stopped at step ${last:-0}; the same command goes on with it"
        return
    fi

    # weights with the best validation; the test set is looked at once
    if [ -n "$valid" ]; then on_valid=$(evaluate "$run" --data "$valid")
    else on_valid=$(evaluate "$run" --data "$train" --holdout 0.1 --part valid); fi
    on_test=$(evaluate "$run" --data "$test")
    fresh=
    case $task in listops | pathfinder | pathx)
        if [ "$FRESH" -gt 0 ]; then
            on_fresh=$(evaluate "$run" --fresh "$FRESH")
            fresh=$(printf ', "fresh_items": %s, "fresh_accuracy": %s, "fresh_error": %s' \
                "$(echo "$on_fresh" | number targets)" "$(echo "$on_fresh" | number accuracy)" \
                "$(echo "$on_fresh" | number accuracy_error)")
        fi ;;
    esac
    commit=$(git rev-parse --short=10 HEAD 2>/dev/null || echo "${COMMIT:-unknown}")
    if git rev-parse HEAD >/dev/null 2>&1; then git diff --quiet HEAD || commit=$commit+; fi
    log=$(dirname "$RESULTS")/logs/$(basename "$run").jsonl.gz
    scripts/thin_log.sh "$run/log.jsonl" >"$log"
    if [ "$guess" -gt 0 ]; then
        scripts/thin_log.sh "$weights/log.jsonl" >"${log%.jsonl.gz}-guess.jsonl.gz"
    fi
    {
        printf '{"task": "%s", "preset": "%s", "attention": "%s", ' "$task" "$preset" "$attention"
        printf '"block": %s, "query": "%s", ' "$(number block <"$run/config.json")" \
            "$(word query <"$run/config.json")"
        printf '"seed": %s, "steps": %s, "batch": %s, "args": "%s", ' "$SEED" \
            "$(number steps <"$run/config.json")" "$(number batch <"$run/config.json")" "$args"
        if [ "$guess" -gt 0 ]; then
            printf '"pretrain": %s, "pretrain_args": "%s", ' "$guess" \
                "${GUESS:+of an earlier run}$flags"
        fi
        printf '"commit": "%s", "device": "%s", "date": "%s", "seconds": %s, "weights": "best", ' \
            "$commit" "$HT_DEVICE" "$(date -u +%Y-%m-%d)" "$seconds"
        printf '"valid_items": %s, "valid_accuracy": %s, "valid_error": %s, ' \
            "$(echo "$on_valid" | number targets)" "$(echo "$on_valid" | number accuracy)" \
            "$(echo "$on_valid" | number accuracy_error)"
        printf '"test_items": %s, "test_accuracy": %s, "test_error": %s%s, "log": "%s"}\n' \
            "$(echo "$on_test" | number targets)" "$(echo "$on_test" | number accuracy)" \
            "$(echo "$on_test" | number accuracy_error)" "$fresh" "$log"
    } >>"$RESULTS"
    tail -n 1 "$RESULTS"
    touch "$run/done"
}

mkdir -p "$DATA"
if [ $# -eq 0 ]; then # all that there is data for
    set -- listops ${IMDB:+text} ${AAN:+retrieval} ${CIFAR10:+image} pathfinder pathx
fi
for task in "$@"; do
    data_of "$task"
    [ "$task" != listops ] || "$HT" data ladder ${ITEMS:+--items "$ITEMS"}
    for kind in $KINDS; do
        for seed in ${SEEDS:-$SEED}; do
            SEED=$seed
            one "$task" "$kind"
        done
    done
done
[ ! -f "$RESULTS" ] || "$HT" results "$RESULTS" ${SEEDS:+--seeds}
