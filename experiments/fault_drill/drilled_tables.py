"""The tables of experiments/fault_drill/fault_drill.py."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from config import CONTINUE, RESTART
from experiments import markdown
from experiments.fault_drill.faults import FAULTS, leaves_out
from utils import EXIT_OK, EXIT_PEER_LOST


def is_in_order(row: Mapping[str, Any]) -> bool:
    """Whether a job has ended as it should: where a host is cut off to the end, without its logs."""
    return bool(row.get("exit_code") == (EXIT_PEER_LOST if row.get("hosts_lost") else EXIT_OK))


def table(rows: Sequence[Mapping[str, Any]]) -> None:
    """For each way to survive a table with a line a fault and a column a mode; and a summary of its jobs."""
    for way in dict.fromkeys(row["way"] for row in rows):
        of_way = {(row["fault"], row["mode"]): row for row in rows if row["way"] == way}
        modes = [*dict.fromkeys(mode for _, mode in of_way)]
        lines = [[way, *modes]]
        for fault in FAULTS:
            cells = [_cell(of_way[fault, mode]) if (fault, mode) in of_way else "" for mode in modes]
            if fault != "none" and any(cells):
                lines.append([fault, *cells])
        print(markdown.table(lines))
        faults = [row for (fault, _), row in of_way.items() if fault != "none"]
        ended, left = sum(map(is_in_order, faults)), sum(row["left_running"] for row in faults)
        print(f"\n{ended} of {len(faults)} jobs ended in order, {left} processes were left;")
        print(f"accuracies less those of undisturbed jobs as long: {_differences(of_way)}\n")


def summary(rows: Sequence[Mapping[str, Any]]) -> None:
    """A line a fault: seconds until all train again, of all modes together."""
    lines = [["what happens", *_KINDS]]
    for name, fault in FAULTS.items():
        found = [[row for row in rows if row["fault"] == name and of(row)] for of in _KINDS.values()]
        if fault.text and any(found):
            lines.append([fault.text, *map(_seconds, found)])
    print(markdown.table(lines))


def _seconds(rows: Sequence[Mapping[str, Any]]) -> str:
    """Those until all train again, and the number of modes."""
    found = [value for row in rows if (value := _again_s(row)) is not None]
    return f"{spread(found)} of {len(found)}" if found else ""


def spread(seconds: Sequence[float]) -> str:
    """Median, least and greatest; empty without any."""
    return f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})" if seconds else ""


def _again_s(row: Mapping[str, Any]) -> float | None:
    """Seconds until all train again; where a link is cut, the longest pause of the others, which may train at first."""
    seconds: float | None = row.get("again_s") if row.get("pause_s") is None else row["pause_s"]
    return seconds


_KINDS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "`continue` without a parameter server": (
        lambda row: row["way"] == CONTINUE and not leaves_out(row["way"], row["mode"])
    ),
    "`continue` with one": lambda row: leaves_out(row["way"], row["mode"]),
    "`restart`": lambda row: row["way"] == RESTART,
}


def _cell(row: Mapping[str, Any]) -> str:
    """Seconds until it was noticed, until all trained again, and until restarted workers did; rounds lost."""
    cells = [row.get("noticed_s"), _again_s(row), row.get("rounds_lost")]
    back = f" ({row['back_s']})" if row.get("back_s") else ""
    noticed, again, lost = ("-" if cell is None else str(cell) for cell in cells)
    return f"{noticed} / {again}{back} / {lost}"


def _differences(of_way: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    found = [
        row["accuracy"] - of_way["none", mode]["accuracy"]
        for (fault, mode), row in of_way.items()
        if fault != "none"
        and row["accuracy"]
        and ("none", mode) in of_way
        and of_way["none", mode]["seconds"] == row["seconds"]
    ]
    return f"{min(found):+.3f} to {max(found):+.3f}, median {statistics.median(found):+.3f}" if found else "none"
