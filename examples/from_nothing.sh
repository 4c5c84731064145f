#!/usr/bin/env bash
# The whole loop without any download: problems are generated, a tokenizer and a model are made and fine-tuned, trained by
# reinforcement learning through the queue, and let loose on a problem whose operators it has never seen together.
# On two cores it takes some minutes. Usage: from_nothing.sh [DIR], where DIR gets a number if it is there already; DRKQ
# names the command.
set -euo pipefail

drkq=${DRKQ:-drkq}
out=${1:-demo}
for ((number = 2; ; number++)); do
    [[ -e $out ]] || break
    out=${1:-demo}-$number
done
rl=$out/rl-$$ # the name of a run is that of its folder, and unique in the store
problems=${PROBLEMS:-1500}
steps=${STEPS:-6}

run() {
    echo
    echo "\$ drkq $*"
    $drkq "$@"
}

run problem generate --level 1 --problems "$problems" -o "$out/generated" --messages "$out/conversations.jsonl"
run model new "$out/new" --size 0.9m --pieces lines --texts "$out/conversations.jsonl"
run sft --preset tiny --model "$out/new" --data "$out/conversations.jsonl" --out "$out/sft" --set epochs=8
run train --preset demo --model "$out/sft/model" --problems "$out/generated/problems/train" --out "$rl" --steps "$steps"
heldout=$(find "$out/generated/problems/heldout" -name '*.py' | sort | head -1)
# The model was taught single turns, so every prompt asks from nothing (--window 0).
run stts "$heldout" --model "$rl/model" --templates compact --turns 8 --window 0 --max-new-tokens 192 -o "$out/best.py" || true
run run list
run report "$rl" -o "$out/report.html"
