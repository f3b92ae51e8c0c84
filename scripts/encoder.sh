#!/bin/sh
# Trains the encoder of texts that comes with the program: bytes, four to a row, of which 30 % are
# hidden, six neighbours together, and guessed from both sides (docs/encoder.md).
# scripts/encoder.sh TEXT [DEVICE]: TEXT is about 100 megabytes of articles between <doc> lines,
# plain or compressed. The run stays in RUN (build/encoder); called again, it goes on at the newest
# checkpoint, exactly.
#
# The weights go to TO (models/encoder.safetensors). MINUTES (10) is how long a call takes. Training
# may come in pieces of any length: in each the rate falls in a line to zero, as far as this call's
# minutes reach; the second piece begins where a line over both would be, at half the rate, the
# third at a third (schedule linear, --minutes). So every piece leaves a model that can be used, and
# the next one loses little by it.
set -eu
text=${1:?usage: scripts/encoder.sh TEXT [DEVICE]}
device=${2:-auto}
cd "$(dirname "$0")/.."
program=${HT:-build/htransformer}
run=${RUN:-build/encoder}
minutes=${MINUTES:-10}
to=${TO:-models/encoder.safetensors}

if ls "$run"/step-*.safetensors >/dev/null 2>&1; then
    "$program" train --run "$run" --resume --minutes "$minutes" --device "$device"
else
    rm -rf "$run"
    "$program" train --run "$run" --preset encoder --task denoise --data "$text" --format text \
        --documents articles --across 1 --holdout 0.005 --hide 0.3 --hide_run 6 --dropout 0 \
        --schedule linear --rate 2e-3 --warmup 300 --minutes "$minutes" --patience 0 \
        --batch "${BATCH:-128}" --eval_every "${EVERY:-2000}" --save_every 1000000000 --keep 1 \
        --device "$device"
fi
mkdir -p "$(dirname "$to")"
"$program" export "$run" --last --to "$to" --dtype bf16
bytes=$(wc -c <"$to")
[ "$bytes" -le 10485760 ] || { echo "encoder: $bytes bytes are more than 10 MiB" >&2; exit 1; }
