"""What a job pays for surviving while nothing happens, without any of it and with each part, in one run: rounds/s, and
milliseconds of computing a sample.

    python experiments/benchmarks/survival_cost.py --repeats 5

LeNet-5 (or -n), two workers on loopback whose steps take as long as they take, or at least --min-step-time: with steps
much longer than what they compute, what is found is what is waited for, whatever else the cores are busy with. Kinds of
jobs and modes take turns, so that a busy machine harms all alike. Computing is what the system has counted of all
processes of the job, servers too, while they train: another job on the machine takes its time elsewhere, so it is far
less noisy than rounds/s. Prints both of all workers together in each run, then tables of medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.benchmarks.namespace_job import Loopback, Rounds, children, run_job

MODES = {
    "ESync": (["-m", "esync", "-ll", "0.0005"], "ps"),
    "SSGD": (["-m", "sync", "-l", "0.0005"], "ps"),
    "ASGD": (["-m", "async", "-l", "0.0005"], "ps"),
    "ESync, ring": (["-m", "esync", "-ll", "0.0005"], "ring"),
    "SSGD, ring": (["-m", "sync", "-l", "0.0005"], "ring"),
}
NO_LOOK = ["--max-bad-steps", "0"]
NOTHING, LOOKS, CHECKPOINTS = "nothing", "looks at numbers", "a checkpoint every 100 rounds"
CONTINUES = "going on without the lost"
KINDS = {
    NOTHING: NO_LOOK,
    LOOKS: [],
    CHECKPOINTS: [*NO_LOOK, "--ckpt-frequency", "100"],
    CONTINUES: [*NO_LOOK, "--on-worker-death", "continue"],
}


FIRST_ROUND = 20  # when the looking begins
WARM_UP = 5  # rounds that do not count in rounds/s
EARLIER_S = 3.0  # than the job, whose last act is an evaluation, it ends

Found = dict[tuple[str, str], list[float]]  # by mode and kind of job, one number a turn
Seen = tuple[float, list[int]]  # seconds that all processes have computed, and rounds that each worker has done


class Computing:
    """How much the processes of a job compute while it trains."""

    def __init__(self, seconds: float, workers: int) -> None:
        """
        Args:
            seconds: that it trains.
            workers: how many.
        """
        self._seconds = seconds
        self._workers = workers
        self._seen: list[Seen] = []

    def follow(self, folder: Path) -> None:
        """Looks at a job that has just been started, and again shortly before its end."""
        logs = [folder / f"cpu{number}" for number in range(self._workers)]
        while not all((log / f"iter-{FIRST_ROUND}.txt").exists() for log in logs):
            time.sleep(0.02)
        self._seen = [_look(logs)]
        time.sleep(self._seconds - EARLIER_S)
        self._seen.append(_look(logs))

    def ms_a_sample(self, job: Sequence[Rounds]) -> float:
        """Of all workers together, between the two looks.

        Args:
            job: what the workers logged in the end.
        """
        (begin_s, done), (end_s, done_then) = self._seen
        samples = (
            record["num_samples"]
            for rounds, first, last in zip(job, done, done_then, strict=True)
            for record in rounds[first:last]
        )
        return 1000 * (end_s - begin_s) / sum(samples)


def _look(logs: Sequence[Path]) -> Seen:
    computed_s = sum(map(_computed_s, children(os.getpid())))
    return computed_s, [len(list(log.glob("iter-*.txt"))) for log in logs]


def _computed_s(pid: int) -> float:
    """Seconds that a process has computed in all its threads, for itself and in the system."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def rounds_per_s(job: Sequence[Rounds]) -> float:
    """Of all workers together, without the first rounds and the last, after which a worker evaluates."""
    times = ([record["total_time"] for record in rounds[WARM_UP:-1]] for rounds in job)
    return sum((len(of_worker) - 1) / (of_worker[-1] - of_worker[0]) for of_worker in times)


def kinds_of(mode: str, asked: Sequence[str]) -> list[str]:
    """Of those that were asked for, what such a job can have, and nothing."""
    goes_on = MODES[mode][1] != "ps" or mode == "ASGD"
    return [NOTHING, *(kind for kind in asked if kind != CONTINUES or goes_on)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures all kinds of jobs in all modes, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--network", default="lenet")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS][1:], default=[*KINDS][1:], help="beside nothing of it")
    parser.add_argument("--min-step-time", type=float, default=0, metavar="SECONDS", help="of each step, at least")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8, help="of each run")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    asked = [(mode, kind) for mode in options.modes for kind in kinds_of(mode, options.kinds)]
    rates: Found = {each: [] for each in asked}
    computed: Found = {each: [] for each in asked}
    here, workers = Loopback(), [Loopback()] * options.workers
    for _ in range(options.repeats):
        for mode, kind in asked:
            own, collective = MODES[mode]
            flags = [*own, *KINDS[kind], "-n", options.network, "-b", str(options.batch_size)]
            flags += ["--min-step-time", str(options.min_step_time)]
            computing = Computing(options.seconds, options.workers)
            job = run_job(
                here, workers, options.seconds, [flags] * options.workers, collective=collective,
                meanwhile=computing.follow,
            )  # fmt: skip
            rates[mode, kind].append(rounds_per_s(job))
            computed[mode, kind].append(computing.ms_a_sample(job))
            print(
                f"{mode}, {kind}: {rates[mode, kind][-1]:.2f} rounds/s, {computed[mode, kind][-1]:.4f} ms a sample",
                flush=True,
            )
    print_table("rounds/s", rates, options.modes, options.kinds, 1)
    print_table("ms of computing a sample", computed, options.modes, options.kinds, 3)


def print_table(what: str, found: Found, modes: Sequence[str], kinds: Sequence[str], digits: int) -> None:
    """Medians, and by how much each turn's run was apart from that without anything."""
    print(f"\n| {what}, medians | {NOTHING} | {' | '.join(kinds)} |\n{'| --- ' * (2 + len(kinds))}|")
    for mode in modes:
        nothing, its = found[mode, NOTHING], kinds_of(mode, kinds)
        cells = [compared(nothing, found[mode, kind], digits) if kind in its else "-" for kind in kinds]
        print(f"| {mode} | {statistics.median(nothing):.{digits}f} | {' | '.join(cells)} |")


def compared(nothing: Sequence[float], other: Sequence[float], digits: int) -> str:
    """The median, and by how much each turn's run was apart from that without anything: median, least and greatest."""
    apart = sorted(100 * (each / own - 1) for own, each in zip(nothing, other, strict=True))
    between = f"{statistics.median(apart):+.1f} %; {apart[0]:+.0f} to {apart[-1]:+.0f}"
    return f"{statistics.median(other):.{digits}f} ({between})"


if __name__ == "__main__":
    main()
