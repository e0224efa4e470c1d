#!/usr/bin/env bash
# The same job under all algorithms: four workers, one of them ten times slower, the same seed and seconds.
#
#   benchmarks/nine_ways.sh [SECONDS] [LOG_BASE] [FOLDER FOR TABLE AND FIGURES]
#
# Each algorithm has the better of two or three learning rates that were tried for 25 s (results/README.md); one that is new
# in algorithms.py has main.py's own until it gets a line here.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60} logs=${2:-logs/nine-ways} out=${3:-results/nine-ways}
python=${PYTHON:-.venv/bin/python}

declare -A own=(
    [sync]="-l 0.003"
    [without-slow]="-l 0.003"
    [backup]="-l 0.003"
    [async]="-l 0.0015"
    [dcasgd]="-l 0.0015"
    [ssp]="-l 0.00075 --staleness 3"
    [local-sgd]="-ll 0.003 --sync-every 8"
    [esync]="-ll 0.003"
    [esync-outer]="-ll 0.003"
    [wbsp]="-ll 0.006"
    [wbsp-pcc]="-ll 0.006"
    [sync-switch]="-l 0.006 --switch-order 10 --train-steps 30 100000"
    [alone]="-l 0.003"
)
for mode in $("$python" -c 'from report.metrics import COMPARED; print(*(each.name for each in COMPARED))'); do
    read -ra flags <<<"${own[$mode]-}"
    echo "== $mode ${flags[*]}"
    "$python" -m scripts.local_cluster -m "$mode" -n lenet --workers 0.04,0.04,0.04,0.4 --log-base "$logs" \
        -- --max-seconds "$seconds" --eval-seconds 3 --seed 0 "${flags[@]}" | grep -E "accuracy|switch:|ended|^done|^stopped"
done
"$python" summary.py -b "$logs" -n lenet
mkdir -p "$out"
"$python" draw.py -b "$logs" -n lenet -o "$out" | grep -v -e "\.p[dn][fg]$" -e "^no figure" | tee "$out/table.txt"
out=$(realpath "$out")
(cd "$logs" && cp --parents lenet/*/*.json "$out") # so draw.py -b "$out" draws it again
rm -f "$out"/*.pdf
