"""Draws clusters for a fair test of scripts/advise.sh, by a seed that was committed before the test."""

import random
from pathlib import Path

SEED = 20261203
NUMBER = 8  # of clusters: the first six for each small job, all for others
FEWEST, MOST = 3, 12  # machines
MEDIAN_S, LOG_SPREAD = 0.08, 0.8  # of the lognormal step times
SLOWEST_MBIT_S, FASTEST_MBIT_S = 20.0, 1000.0  # of links, log-uniform; half of the clusters have none


def text(number: int) -> str:
    """The cluster file with this number."""
    draw = random.Random(f"{SEED}-{number}")
    count, has_links = draw.randint(FEWEST, MOST), draw.random() < 0.5
    lines = ["step_time_s,bandwidth_mbit_s" if has_links else "step_time_s"]
    for _ in range(count):
        step_s = MEDIAN_S * draw.lognormvariate(0, LOG_SPREAD)
        link = SLOWEST_MBIT_S * (FASTEST_MBIT_S / SLOWEST_MBIT_S) ** draw.random()
        lines.append(f"{step_s:.4f},{link:.0f}" if has_links else f"{step_s:.4f}")
    return "\n".join(lines) + "\n"


def write(folder: Path) -> list[Path]:
    """Writes all; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"drawn-{number}.csv" for number in range(NUMBER)]
    for number, path in enumerate(paths):
        path.write_text(text(number))
    return paths
