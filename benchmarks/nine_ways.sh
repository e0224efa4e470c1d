#!/usr/bin/env bash
# The same job under all algorithms: four workers, one of them ten times slower, the same seed and seconds.
#
#   benchmarks/nine_ways.sh [SECONDS] [LOG_BASE] [FOLDER FOR TABLE AND FIGURES]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60} logs=${2:-logs/nine-ways} out=${3:-results/nine-ways}
python=${PYTHON:-.venv/bin/python}

common=(--max-seconds "$seconds" --eval-seconds 3 --seed 0 -l 0.003 -ll 0.003)
declare -A own=(
    [ssp]="--staleness 3"
    [local-sgd]="--sync-every 8"
    [sync-switch]="--switch-order 10 --train-steps 30 100000"
)
for mode in sync async dcasgd ssp local-sgd esync wbsp wbsp-pcc sync-switch; do
    echo "== $mode"
    read -ra flags <<<"${own[$mode]:-}"
    "$python" -m scripts.local_cluster -m "$mode" -n lenet --workers 0.04,0.04,0.04,0.4 --log-base "$logs" \
        -- "${common[@]}" "${flags[@]}" | grep -E "accuracy|switch:|ended|^done|^stopped"
done
"$python" summary.py -b "$logs" -n lenet
mkdir -p "$out"
"$python" draw.py -b "$logs" -n lenet -o "$out" | tee "$out/table.txt"
