#!/usr/bin/env bash
# Sync-Switch against BSP alone with one worker five times slower, and its straggler policies under a transient straggler.
#
#   benchmarks/sync_switch.sh [LOG_BASE] [SEEDS]
set -euo pipefail
cd "$(dirname "$0")/.."
logs=${1:-logs/sync-switch} seeds=${2:-"0 1"}
python=${PYTHON:-.venv/bin/python}
common=(--eval-seconds 5 -l 0.003)

job() { # folder, options of the cluster, --, flags
    local folder=$1
    shift
    echo "== $folder: $*"
    "$python" -m scripts.local_cluster -m sync-switch -n lenet --log-base "$logs/$folder" "$@" |
        grep -E "accuracy|switch:|greedy:|elastic:|ended" | tail -8
    "$python" summary.py -b "$logs/$folder" -n lenet
    "$python" draw.py -b "$logs/$folder" -n lenet | sed -n 2,3p
}

mkdir -p "$logs"
printf 'start_s,duration_s,extra_s\n5,25,0.4\n' >"$logs/straggler.csv"
printf 'step_time_s,straggler_trace\n0.04,\n0.04,\n0.04,\n0.04,straggler.csv\n' >"$logs/cluster.csv"
for seed in $seeds; do
    slow=(--workers "0.04,0.04,0.04,0.2" --)
    job "bsp-$seed" "${slow[@]}" "${common[@]}" --seed "$seed" --switch-order 1 --train-steps 1000
    job "bsp-then-asp-$seed" "${slow[@]}" "${common[@]}" --seed "$seed" --switch-order 10 --train-steps 80 920
    for policy in none greedy elastic; do
        job "$policy-$seed" --cluster "$logs/cluster.csv" -- "${common[@]}" --seed "$seed" \
            --switch-order 10 --train-steps 300 700 --straggler-policy "$policy"
    done
done
