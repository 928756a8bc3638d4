#!/usr/bin/env bash
# Makes the runs of docs/results/real-models.md on one GPU, eight at once:
# bash lab/real_model/on_a_gpu.sh FOLDER appends their lines to FOLDER/real-model.jsonl.
# It ends at the first failure. Started again, it goes on with the runs that have no line.
set -euo pipefail
mkdir -p "$1"
OUT_FOLDER=$(realpath "$1")
export OUT_FOLDER
cd "$(dirname "$0")/../.."
engine=(actor.engine.gpu_memory_utilization=0.06
    'actor.engine.compilation_config={mode: 0, cudagraph_mode: FULL_DECODE_ONLY}')
measure() { printf '%q ' "$@" --out "$OUT_FOLDER" --lines "$OUT_FOLDER/real-model.jsonl" "${engine[@]}"; echo; }
train() { measure train --learner 1gpu --dose "$1" --variant "$2" --seed "$3"; }
run() {
    python3 -m lab.real_model "$@" >>"$OUT_FOLDER/commands.log" 2>&1 && return
    echo "failed: $*; see $OUT_FOLDER/commands.log and the run's own log in $OUT_FOLDER/runs" >&2
    return 255 # xargs ends
}
export -f run

{
    for seed in 1 2 3; do
        for variant in r3l grpo no_reflect; do
            measure workshop --learner 1gpu --variant $variant --seed $seed
        done
    done
} >"$OUT_FOLDER/workshop.txt"
{
    for dose in 1000 200 0; do measure probe --dose $dose; done
    for seed in 1 2 3; do
        for variant in r3l no_reflect grpo; do train 1000 $variant $seed; done
        for variant in r3l no_reflect capped gated outcome_first; do train 200 $variant $seed; done
        for variant in r3l no_reflect grpo; do train 0 $variant $seed; done
    done
} >"$OUT_FOLDER/sums.txt"

each() { xargs -d '\n' -P "$1" -I{} bash -c 'eval "run {}"' <"$OUT_FOLDER/$2"; }
run warm --out "$OUT_FOLDER" --dose 0 # reads the model's file; the others then find it
run warm --out "$OUT_FOLDER" --dose 1000 &
head -1 "$OUT_FOLDER/workshop.txt" | { read -r line && eval "run $line"; } # makes the warm-up
each 7 workshop.txt
wait $!
each 8 sums.txt
