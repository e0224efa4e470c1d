"""Clusters as files: a CSV with a row for each worker, and perhaps a line for the parameter server before them.

    server_bandwidth_mbit_s,1000
    step_time_s,bandwidth_mbit_s,latency_s,straggler_trace
    0.1,,,
    0.6,10,0.025,traces/network-at-20s-for-60s-30ms.csv

The header names the columns (COLUMNS), in any order; all but step_time_s may be missing, and cells may be empty. The
path of a trace is relative to the cluster file. Files of published experiments are in scripts/clusters/, where a bare
name is looked up. simulate.py emulates all columns; real processes emulate step times and traces, and `left_out` names
the rest.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flag_values import above_zero, at_least
from trainer import spreadsheet, straggler_trace  # they import no MXNet, nor does the package
from utils import SetupError

READY_MADE = Path(__file__).resolve().parents[2] / "scripts" / "clusters"
SERVER = "server_bandwidth_mbit_s"  # begins the parameter server's line

_seconds = at_least(0, float)


def _column(default: Any, words: str, parse: Any = _seconds, is_emulated: bool = False) -> Any:
    return field(default=default, metadata={"words": words, "parse": parse, "is_emulated": is_emulated})


@dataclass(frozen=True)
class Worker:
    """A row: one worker of a cluster. Defaults are an ideal machine and network."""

    step_time_s: float = _column(
        dataclasses.MISSING, "the shortest time of a step in seconds, 0 or more", is_emulated=True
    )
    # An absolute path, of a file that trainer/straggler_trace.py reads.
    straggler_trace: Path | None = field(
        default=None,
        metadata={"words": "nothing or the path of a straggler trace", "parse": Path, "is_emulated": True},
    )
    sample_time_s: float = _column(
        0.0, "seconds that each sample of its batch adds to a step, 0 or more", is_emulated=True
    )
    step_spread: float = _column(0.0, "the standard deviation of the logarithm of its step times, 0 or more")
    overhead_s: float = _column(0.0, "seconds of a step beyond its step time, 0 or more")
    bandwidth_mbit_s: float = _column(math.inf, "Mbit/s each way to the parameter server, above 0", above_zero)
    latency_s: float = _column(0.0, "seconds that a transfer takes beside those of its bytes, 0 or more")
    state_server_round_trip_s: float = _column(0.0, "seconds of a question to the state server, 0 or more")

    def shortest_step_s(self, samples: int) -> float:
        return self.step_time_s + samples * self.sample_time_s


@dataclass(frozen=True)
class ClusterProfile:
    """The workers by rank, and the parameter server that they share."""

    workers: tuple[Worker, ...]
    server_bandwidth_mbit_s: float = math.inf  # each way

    def of(self, rows: Sequence[int]) -> ClusterProfile:
        """The cluster with the workers of these rows alone, in that order."""
        return dataclasses.replace(self, workers=tuple(self.workers[row] for row in rows))


_FIELDS = {each.name: each for each in dataclasses.fields(Worker)}
COLUMNS = tuple(_FIELDS)


def find(name: str) -> Path:
    """The path of a cluster file, given by its path or by the bare name of a ready-made one. Raises SetupError if there
    is neither. The message names the ready-made ones."""
    given, ready = Path(name), READY_MADE / f"{name.removesuffix('.csv')}.csv"
    if given.exists():
        return given
    if given.name == name and ready.is_file():
        return ready
    names = ", ".join(sorted(path.stem for path in READY_MADE.glob("*.csv")))
    raise SetupError(f"cluster file {name} does not exist: give the path of one, or a ready-made one: {names}")


def read(path: Path) -> ClusterProfile:
    """Reads a cluster file and checks the traces that it names. Raises SetupError if the file or a trace is missing or
    malformed. The message names file and line."""
    rows = spreadsheet.rows(path, "cluster file")
    server_mbit_s = math.inf
    if rows and rows[0].columns()[0] == SERVER:
        server_mbit_s = _server(rows.pop(0))
    header = rows.pop(0) if rows else spreadsheet.Row(f"cluster file {path}", 1, "", [])
    columns = header.columns()
    _check_header(header, list(filter(None, columns)))
    if not rows:
        raise SetupError(f"{header.file}, line {header.number + 1}: no worker; give one line for each, such as 0.1,")
    return ClusterProfile(tuple(_worker(path, columns, row) for row in rows), server_mbit_s)


def _server(row: spreadsheet.Row) -> float:
    try:
        (text,) = row.cells[1:]
        return float(above_zero(text))
    except (ValueError, argparse.ArgumentTypeError):
        raise SetupError(
            f"{row.where}: {row.text!r}; give {SERVER}, a comma, and the Mbit/s each way of the parameter server, "
            "above 0"
        ) from None


def _check_header(header: spreadsheet.Row, columns: list[str]) -> None:
    if "step_time_s" not in columns or len(set(columns)) < len(columns) or not set(columns) <= set(COLUMNS):
        raise SetupError(
            f"{header.where}: {header.text!r}; the first line (the second, after {SERVER}) must name columns, "
            f"step_time_s and any of {', '.join(COLUMNS[1:])}"
        )


def _worker(path: Path, columns: Sequence[str], row: spreadsheet.Row) -> Worker:
    values: dict[str, Any] = {}
    for name, text in row.values(columns).items():
        about = _FIELDS[name].metadata
        try:
            if text or name == "step_time_s":
                values[name] = about["parse"](text)
        except (ValueError, argparse.ArgumentTypeError):
            raise SetupError(f"{row.where}: {row.text!r}; give for {name} {about['words']}") from None
    if trace := values.get("straggler_trace"):
        values["straggler_trace"] = straggler_trace.beside(path.parent, trace, row.where)
    return Worker(**values)


def text(cluster: ClusterProfile) -> str:
    """The content of a cluster file, as `read` takes it. It has the columns that a worker needs."""
    rows = [dataclasses.asdict(worker) for worker in cluster.workers]
    names = [name for name, about in _FIELDS.items() if any(row[name] != about.default for row in rows)]
    cells = [[f"{row[name]:.6g}" if row[name] != _FIELDS[name].default else "" for name in names] for row in rows]
    server = [[SERVER, f"{cluster.server_bandwidth_mbit_s:.6g}"]] * (cluster.server_bandwidth_mbit_s < math.inf)
    return "".join(f"{','.join(line)}\n" for line in (*server, names, *cells))


def left_out(cluster: ClusterProfile) -> str:
    """The columns that real processes do not emulate, as a message; empty where there are none."""
    names = [
        name
        for name, about in _FIELDS.items()
        if not about.metadata["is_emulated"]
        and any(getattr(worker, name) != about.default for worker in cluster.workers)
    ]
    names += [SERVER] * (cluster.server_bandwidth_mbit_s < math.inf)
    if not names:
        return ""
    return f"{', '.join(names)} of the cluster file count in simulate.py only; here there are step times and traces"
