"""What a job that goes on without the lost (--on-worker-death continue) does when a worker's link is cut. As root.

    .venv/bin/python benchmarks/cut_link.py

Three workers (LeNet-5), each on a network namespace of its own; the cable of the slowest is taken out in the middle of
its training, for each number of seconds, or until the others are done. Prints a row for each mode and cut: the longest
pause of the others between two rounds, the rounds that they have done meanwhile, the seconds from the cable's return to
the slowest worker's next round, and the rounds of which it has no part in the sum.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.namespace_job import missing, network, run_job
from scripts.drilled_job import AMONG_WORKERS, FLAGS

STEP_TIMES_S = (0.03, 0.06, 0.15)
BEFORE_S, AFTER_S = 6.0, 20.0  # of training before the cut, and after it where it ends
POLL_S, BEGIN_S, END_S = 0.05, 60.0, 120.0


def cut(mode: str, seconds: float) -> str:
    """A row of the table.

    Args:
        seconds: of the cut; infinite: until the others are done.
    """
    trains_s = BEFORE_S + AFTER_S + (0.0 if math.isinf(seconds) else seconds)
    times: dict[str, float] = {}
    written: dict[int, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, network(Path(folder) / "net", 4) as net:
        servers, *hosts = net.hosts

        def meanwhile(logs: Path) -> None:
            _wait(lambda: len(_rounds(logs, 2)) > 3, BEGIN_S)
            time.sleep(BEFORE_S)
            hosts[2].unplug()
            times["cut"] = time.time()
            if math.isinf(seconds):
                _wait(lambda: _others_have_ended(logs), END_S)
            else:
                time.sleep(seconds)
            times["back"] = time.time()
            hosts[2].plug_in()
            if not math.isinf(seconds):
                _wait(lambda: any(at > times["back"] for at in _rounds(logs, 2)), AFTER_S)
            _wait(lambda: _others_have_ended(logs), END_S)
            written.update({number: _rounds(logs, number) for number in range(len(hosts))})

        flags = [*FLAGS[mode].split(), "-m", mode, "--on-worker-death", "continue"]
        each = [[*flags, "--min-step-time", str(step_s)] for step_s in STEP_TIMES_S]
        run_job(servers, hosts, trains_s, each, collective=AMONG_WORKERS[mode], meanwhile=meanwhile)
    others = written[0]
    pause_s = max(later - sooner for sooner, later in pairwise(others) if later > times["cut"])
    done = sum(times["cut"] < at < times["back"] for at in others)
    back = [at - times["back"] for at in written[2] if at > times["back"]]
    back_s = f"{back[0]:.1f}" if back else "-"
    what = "until the others were done" if math.isinf(seconds) else f"{seconds:g} s"
    missed = len(others) - len(written[2])
    return f"| {mode}, {AMONG_WORKERS[mode]} | {what} | {pause_s:.1f} | {done} | {back_s} | {missed} |"


def _rounds(logs: Path, number: int) -> list[float]:
    """When each round of a worker was written, in their order."""
    times = []
    for path in (logs / f"cpu{number}").glob("iter-*.txt"):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return sorted(times)


def _others_have_ended(logs: Path) -> bool:
    return all("ended after round" in (logs / f"worker{number}.log").read_text() for number in (0, 1))


def _wait(condition: Callable[[], object], longest_s: float) -> None:
    give_up = time.monotonic() + longest_s
    while not condition() and time.monotonic() < give_up:
        time.sleep(POLL_S)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", choices=AMONG_WORKERS, default=["esync", "sync"])
    parser.add_argument("--seconds", nargs="+", type=float, default=[5.0, 20.0, math.inf])
    given = parser.parse_args(arguments)
    if why := missing():
        raise SystemExit(why)
    print("| mode | cut for | longest pause of the others, s | rounds of theirs meanwhile | back after, s | missed |")
    print("| --- " * 6 + "|")
    for mode in given.modes:
        for seconds in given.seconds:
            print(cut(mode, seconds), flush=True)


if __name__ == "__main__":
    main()
