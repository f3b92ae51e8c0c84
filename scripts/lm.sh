#!/bin/sh
# The experiments of docs/lab/lm.md as named runs; each adds one line to results/lm.jsonl.
#
#     scripts/lm.sh list               names of all runs
#     scripts/lm.sh a-full a-fine-32   these runs; a name's beginning and '*' stand for many: 'a-*'
#
# Variables: DEVICE (cuda:0), DTYPE (bf16 on CUDA, else f32), DATA (folder with wikipedia-2015,
# genomes and music as the runs below name them, plain or zstd), WORK (build/lm: splits and run
# folders), OUT (results/lm.jsonl), MINUTES (time of a run: 10; group b: 30), STEPS (instead of
# MINUTES: a fixed number of steps for all), COMMIT (what is written where there is no git).
#
# A run's length in steps comes from a probe of 30 steps on the same device, so that all runs of a
# group train for the same time; group a, which compares at equal steps, probes its first run only.
set -eu
cd "$(dirname "$0")/.."
program=${PROGRAM:-build/htransformer}
device=${DEVICE:-cuda:0}
case $device in cuda*) dtype=${DTYPE:-bf16} ;; *) dtype=${DTYPE:-f32} ;; esac
data=${DATA:-data}
work=${WORK:-build/lm}
out=${OUT:-results/lm.jsonl}

names() {
    echo a-full
    for block in 16 32 64 128; do
        echo "a-local-$block a-first-$block a-fine-$block"
    done
    echo "a-fine-32-all a-fine-32-bias a-fine-32-both a-fine-32-none a-first-32-all"
    echo "a-first-16-all a-fine-128-both"
    for kind in full local fine; do
        echo "b-$kind-bytes b-$kind-words"
        for length in 1k 4k 16k 64k; do echo "c-$kind-$length"; done
        [ $kind != local ] || for length in 1k 4k 16k 64k; do echo "c-local-$length-16"; done
        for length in 1k 16k 64k; do echo "d-$kind-$length"; done
        [ $kind = full ] || for length in 1k 4k 16k 64k; do
            echo "c-$kind-$length-128 d-$kind-$length-128"
        done
        echo "e-$kind-jsb e-$kind-piano"
    done
    for length in 1k 4k 16k 64k; do echo "c-first-$length-16"; done
}

# ---- data: splits made once -----------------------------------------------------------------

unpacked() { # FILE: its bytes, whether it is compressed or not
    if [ -f "$1.zst" ]; then zstd -dcq "$1.zst"; else cat "$1"; fi
}

wikipedia() { # 90 / 5 / 5 MB
    [ -f "$work/wiki.test" ] && return
    unpacked "$data/wikipedia-2015/wikipedia-en-2015-100M.txt" >"$work/wiki.all"
    head -c 90000000 "$work/wiki.all" >"$work/wiki.train"
    tail -c +90000001 "$work/wiki.all" | head -c 5000000 >"$work/wiki.valid"
    tail -c +95000001 "$work/wiki.all" >"$work/wiki.test"
    rm "$work/wiki.all"
}

genome() { # chromosome 20 without its unknown ends: 50 / 3 / 3 million bases
    [ -f "$work/genome.test" ] && return
    unpacked "$data/genomes/human-grch37-chr20.seq" | tr -d 'N\n' >"$work/genome.all"
    head -c 50000000 "$work/genome.all" >"$work/genome.train"
    tail -c +50000001 "$work/genome.all" | head -c 3000000 >"$work/genome.valid"
    tail -c +53000001 "$work/genome.all" | head -c 3000000 >"$work/genome.test"
    rm "$work/genome.all"
}

music() { # SET: as it was split
    for part in train valid test; do
        unpacked "$data/music/$1.$part.txt" >"$work/$1.$part"
    done
}

words() { # a SentencePiece model of 32,999 pieces, made from the training text
    wikipedia
    [ -f "$work/words.model" ] || head -c 20000000 "$work/wiki.train" |
        spm_train --input=/dev/stdin --model_prefix="$work/words" --vocab_size=32999 \
            --model_type=bpe --byte_fallback --normalization_rule_name=identity \
            --add_dummy_prefix=false --remove_extra_whitespaces=false --bos_id=-1 --eos_id=-1
}

# ---- one run --------------------------------------------------------------------------------

train() { # FOLDER CORPUS STEPS FLAGS...
    folder=$1 corpus=$2 steps=$3
    shift 3
    rm -rf "$folder"
    "$program" train --run "$folder" --data "$work/$corpus.train" --valid "$work/$corpus.valid" \
        --device "$device" --dtype "$dtype" --steps "$steps" --quiet "$@"
}

milliseconds() { # FOLDER: of a step, median
    python3 -c 'import json, statistics, sys
lines = [json.loads(line) for line in open(sys.argv[1] + "/log.jsonl")]
times = [line["ms"] for line in lines if "ms" in line]
print(statistics.median(times[min(10, len(times) // 2):]))' "$1"
}

steps_for() { # MINUTES CORPUS FLAGS...
    [ -z "${STEPS:-}" ] || { echo "$STEPS"; return; }
    minutes=$1 corpus=$2
    shift 2
    train "$work/probe" "$corpus" 30 "$@" --eval_every 0 --eval_items 1 --warmup 0 >&2
    python3 -c 'import sys; print(max(50, int(float(sys.argv[1]) * 60000 / float(sys.argv[2]))))' \
        "$minutes" "$(milliseconds "$work/probe")"
}

record() { # NAME CORPUS STEPS: what the run gave, as one line
    "$program" eval "$work/$1" --data "$work/$2.test" --device "$device" --by-position --json |
        python3 -c 'import json, os, subprocess, sys
line = json.load(sys.stdin)
name, folder, steps, ms, device = sys.argv[1:]
config = json.load(open(folder + "/config.json"))
commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
keys = ("attention", "query", "block", "rotary", "relative_bias", "length", "batch", "accumulate",
        "layers", "width", "vocab", "dtype", "across", "rate")
line.pop("model")
print(json.dumps({"run": name, "commit": commit.stdout.strip() or os.environ.get("COMMIT"),
                  "device": device,
                  "steps": int(steps), "ms_per_step": float(ms),
                  **{key: config[key] for key in keys}, **line}))' \
            "$1" "$work/$1" "$3" "$(milliseconds "$work/$1")" "$device" >>"$out"
    tail -n 1 "$out"
}

run() { # NAME CORPUS STEPS FLAGS...
    name=$1 corpus=$2 steps=$3
    shift 3
    echo "== $name: $steps steps" >&2
    train "$work/$name" "$corpus" "$steps" "$@" --eval_every $((steps / 10 + 1)) --eval_items 64
    record "$name" "$corpus" "$steps"
}

# ---- what the names mean --------------------------------------------------------------------

kind() { # KIND BLOCK: flags
    case $1 in
    full) echo "--attention full --rotary all --block $2" ;;
    local) echo "--attention local --rotary all --block $2" ;;
    *) echo "--attention hierarchical --query $1 --rotary level0 --block $2" ;;
    esac
}

positions() { # WORD: flags that overrule kind's
    case $1 in
    all) echo "--rotary all" ;;
    bias) echo "--rotary none --relative_bias 1" ;;
    both) echo "--rotary level0 --relative_bias 1" ;;
    none) echo "--rotary none" ;;
    esac
}

rows() { # WORD: 4k
    echo $((${1%k} * 1024))
}

# shellcheck disable=SC2046,SC2086 # flags are words
one() { # NAME
    IFS=- read -r group word first second <<END
$1
END
    case $group in
    a) # equal steps, as many as full can make in the time
        wikipedia
        base="--preset lm/small --across 1"
        [ -f "$work/a.steps" ] ||
            steps_for "${MINUTES:-10}" wiki $base $(kind full 16) >"$work/a.steps"
        run "$1" wiki "$(cat "$work/a.steps")" $base $(kind "$word" "${first:-16}") \
            $(positions "$second")
        ;;
    b) # the paper's schedule warms up for longer than these runs take
        words
        base="--preset lm/53m --across 1 --batch 16 $(kind "$word" 16)"
        base="$base --schedule cosine --rate 1e-3 --warmup 200 --weight_decay 0.1 --clip 1"
        [ "$first" = bytes ] && base="$base --vocab 257" ||
            base="$base --tokenizer $work/words.model"
        run "$1" wiki "$(steps_for "${MINUTES:-30}" wiki $base)" $base
        ;;
    c | d) # 64 Ki tokens per step, whatever the length; a last word is another block
        length=$(rows "$first")
        base="--preset lm/small --across 1 --length $length --batch $((65536 / length))"
        base="$base $(kind "$word" "${second:-32}")"
        [ "$word" = first ] && base="$base $(positions all)"
        corpus=wiki
        [ "$group" = c ] && wikipedia
        [ "$group" = d ] && { genome; corpus=genome; }
        run "$1" $corpus "$(steps_for "${MINUTES:-10}" $corpus $base)" $base
        ;;
    e) # a line is a piece; loss per word is per step of the music
        set_name=jsb_chorales
        [ "$first" = jsb ] || set_name=piano_midi
        music $set_name
        base="--preset lm/tiny --documents lines --length 2048 --batch 8 --dropout 0.2"
        base="$base $(kind "$word" 16)"
        run "$1" $set_name "$(steps_for "${MINUTES:-5}" $set_name $base)" $base
        ;;
    *) echo "lm: there is no run '$1'; scripts/lm.sh list" >&2 && exit 2 ;;
    esac
}

[ $# -gt 0 ] || { sed -n '2,17s/^# \{0,1\}//p' "$0"; exit 2; }
if [ "$1" = list ]; then
    for name in $(names); do echo "$name"; done
    exit
fi
mkdir -p "$work" "$(dirname "$out")"
for pattern; do
    found=0
    for name in $(names); do
        # shellcheck disable=SC2254 # it is a pattern
        case $name in
        $pattern) found=1 && one "$name" ;;
        esac
    done
    [ $found = 1 ] || { echo "lm: no run is called '$pattern'; scripts/lm.sh list" >&2; exit 2; }
done
