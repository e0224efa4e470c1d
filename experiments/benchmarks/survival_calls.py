"""What surviving adds to the training thread of a worker, counted: which functions it calls more often than in the same
job without, and how long these calls take.

    python experiments/benchmarks/survival_calls.py

SSGD among two workers in a ring, LeNet-5 (or -n), a fixed number of rounds, under Python's profiler; looked at is the
worker that evaluates nothing. How often a function is called does not depend on what else the machine does, and a
round calls the same functions each time: so the difference of two jobs is what one part adds. Its time is that of one
call, as measured in the job that has more of them, times their difference; the profiler makes it rather too long. Left
out are what happens once in a job, such as a connection, what other threads do, and waits for a lock: how long one
takes is a matter of whom it waits for.
"""

from __future__ import annotations

import argparse
import pstats
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.benchmarks.namespace_job import ROOT, Loopback, run_job

Calls = dict[tuple[str, int, str], tuple[int, float]]  # of a function: how often, and seconds in it alone
LONG_S = 3600.0
WAITS = "<method 'acquire' of '_thread.lock' objects>"
KINDS = {
    "a checkpoint every 10 rounds": (["--ckpt-frequency", "10"], 10),
    "going on without the lost": (["--on-worker-death", "continue"], 1),
}


class Profiled(Loopback):
    """This machine, where programs run under Python's profiler.

    Args:
        stats: the file that it writes.
    """

    def __init__(self, stats: Path) -> None:
        self._stats = stats

    def command(self, *words: str | Path) -> list[str]:
        """A command line of Python that runs here."""
        python, *program = super().command(*words)
        return [python, "-m", "cProfile", "-o", str(self._stats), *program]


def calls_of(network: str, rounds: int, flags: Sequence[str]) -> tuple[Calls, float]:
    """The functions that the training thread of a worker has called, and seconds of a round of that job."""
    own = ["-m", "sync", "-l", "0.0005", "-n", network, "--max-rounds", str(rounds), *flags]
    with tempfile.TemporaryDirectory() as folder:
        stats = [Path(folder) / str(number) for number in range(2)]
        job = run_job(Loopback(), [Profiled(each) for each in stats], LONG_S, [own] * 2, collective="ring")
        # Which of them evaluates in the end depends on who comes first.
        (last, ours), *_ = [
            each for each in zip([rounds[-1] for rounds in job], stats, strict=True) if "accuracy" not in each[0]
        ]
        found = pstats.Stats(str(ours)).stats  # type: ignore[attr-defined]
    return {where: (calls, own_s) for where, (_, calls, own_s, *_) in found.items()}, last["total_time"] / rounds


def added(before: Calls, after: Calls, times: int) -> list[tuple[float, float, str]]:
    """What is called at least so many times more often: seconds and calls, both in all, and the function."""
    more = []
    for where, (calls, own_s) in after.items():
        extra = calls - before.get(where, (0, 0.0))[0]
        path, line, name = where
        if extra >= times and name != WAITS:
            short = Path(path).relative_to(ROOT) if path.startswith(str(ROOT)) else Path(path).name
            more.append((own_s * extra / calls, extra, f"{short}:{line} {name}"))
    return sorted(more, reverse=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints, for each part, what it adds to a round, and the calls that make most of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--network", default="lenet")
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--show", type=int, default=8, help="of the functions, those that take longest")
    options = parser.parse_args(arguments)
    before, _ = calls_of(options.network, options.rounds, [])
    for kind, (flags, every) in KINDS.items():
        after, round_s = calls_of(options.network, options.rounds, flags)
        times = options.rounds // every
        more = added(before, after, times)
        each_ms = 1000 * sum(seconds for seconds, *_ in more) / times
        share = each_ms / 1000 / (every * round_s)
        print(f"{kind}: {times} times {each_ms:.3f} ms, {100 * share:.2f} % of rounds of {1000 * round_s:.1f} ms")
        for seconds, calls, name in more[: options.show]:
            print(f"  {1000 * seconds / times:8.3f} ms, {calls / times:6.1f} calls  {name}")


if __name__ == "__main__":
    main()
