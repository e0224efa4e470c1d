"""What a job that goes on without the lost does when a worker's link is cut: each worker has a host of its own.

The hosts are network namespaces, which take root.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from config import CONTINUE
from scripts.drilled_job import ROOT, WORKERS, flags_of
from scripts.drilled_logs import END_S, LONGEST_S, Logs, notices, wait_for
from scripts.faults import AMONG_WORKERS, NAMES

*OTHERS, SLOWEST = NAMES


def missing() -> str:
    """Why no link can be cut here; empty where one can."""
    if not (ROOT / "tests").is_dir():  # a container's image has none
        return "tests/namespaces.py, which makes the hosts, is not here"
    from benchmarks import namespace_job

    return namespace_job.missing()


def drill(mode: str, cut_s: float, seconds: float, folder: Path) -> dict[str, Any]:
    """One job in which the cable of the slowest worker is taken out while all train.

    Args:
        cut_s: until it is put back; infinite: until the others are done.
        seconds: of the job, beside those of a cut that ends.
        folder: for its logs; whatever is there is removed.

    Returns:
        A row of the drill; tell() has what it says of a cut.
    """
    from benchmarks.namespace_job import network, started  # here: it needs tests/, which not all have

    shutil.rmtree(folder, ignore_errors=True)
    own, logs = folder / "namespaces", Logs(folder, folder)
    own.mkdir(parents=True)
    trains_s = seconds + (0.0 if math.isinf(cut_s) else cut_s)
    flags = ["-m", mode, *flags_of(CONTINUE, mode, trains_s), "--min-step-time"]
    each = [[*flags, step_s] for step_s in WORKERS.split(",")]
    with tempfile.TemporaryDirectory() as name, network(Path(name) / "hosts", 1 + len(NAMES)) as net:
        servers, *hosts = net.hosts
        with started(servers, hosts, trains_s, each, own, collective=AMONG_WORKERS[mode]) as workers:

            def others_are_done() -> bool:
                return all(worker.poll() is not None for worker in workers[: len(OTHERS)])

            row: dict[str, Any] = {}
            has_begun = wait_for(logs.have_begun, LONGEST_S, others_are_done)
            if has_begun:
                before, began = logs.all_rounds(), time.time()
                hosts[-1].unplug()
                row["noticed_s"] = _noticed_s(own, began, min(cut_s, LONGEST_S))
                wait_for(others_are_done, min(cut_s, trains_s + END_S) - (time.time() - began))
                back = time.time()
                hosts[-1].plug_in()
            codes = [_exit_code(worker, trains_s + END_S) for worker in workers]
            row |= tell(logs, before, began, back) if has_begun else {}
            row["exit_code"] = next((code for code in codes if code != 0), 0)
            return row | logs.left() | {"said": _said(own)[:4]}


def tell(logs: Logs, before: Mapping[str, Collection[int]], began: float, back: float) -> dict[str, Any]:
    """What a cut has done to a job that is over.

    Args:
        before: the rounds of each worker when the cable was taken out.
        began: when that was.
        back: when it was put back.

    Returns:
        again_s: seconds until the others had done two more rounds; rounds_lost; back_s: from the cable's return until
        the slowest worker had done two; pause_s: the longest one of the others between two rounds; rounds_meanwhile:
        that they did without it; rounds_missed: in which the slowest has no part.
    """
    others = sorted(logs.rounds(OTHERS[0]).values())
    again_s = logs.again_s(OTHERS, began)
    return {
        "again_s": again_s,
        "rounds_lost": None if again_s is None else logs.rounds_lost(before, OTHERS, began),
        "back_s": logs.again_s([SLOWEST], back),
        "pause_s": logs.pause_s(OTHERS[0], began),
        "rounds_meanwhile": sum(began < at < back for at in others),
        "rounds_missed": len(others) - len(logs.rounds(SLOWEST)),
    }


def _noticed_s(folder: Path, began: float, longest_s: float) -> float | None:
    said = len(_said(folder))
    if not wait_for(lambda: len(_said(folder)) > said, longest_s):
        return None
    return round(time.time() - began, 2)


def _said(folder: Path) -> list[str]:
    """What the other workers have said of faults."""
    return [line for name in OTHERS for line in notices((folder / f"{name}.log").read_text().splitlines())]


def _exit_code(worker: subprocess.Popen[bytes], longest_s: float) -> int | None:
    """None: it has not ended in time."""
    try:
        return worker.wait(longest_s)
    except subprocess.TimeoutExpired:
        return None
