#!/bin/sh
# Trains the small language model that comes with the program and puts it where it is found.
# scripts/box.sh TEXT [DEVICE]: TEXT is public-domain prose or verse, about a megabyte, plain or
# compressed. STEPS says how long (1600); the run stays in RUN (build/box), so that a second call
# with a larger STEPS starts anew only if RUN is removed.
set -eu
text=${1:?usage: scripts/box.sh TEXT [DEVICE]}
device=${2:-cpu}
cd "$(dirname "$0")/.."
program=build/htransformer
run=${RUN:-build/box}

if [ -f "$run/config.json" ]; then
    "$program" train --run "$run" --resume --device "$device"
else
    "$program" train --run "$run" --preset lm/tiny --data "$text" --holdout 0.05 \
        --steps "${STEPS:-1600}" --eval_every 200 --eval_items 40 --device "$device"
fi
mkdir -p models
"$program" export "$run" --to models/shakespeare.safetensors --dtype bf16
bytes=$(wc -c <models/shakespeare.safetensors)
[ "$bytes" -le 2097152 ] || { echo "box: $bytes bytes are more than 2 MiB" >&2; exit 1; }
"$program" generate --prompt "ROMEO:" --tokens 200
