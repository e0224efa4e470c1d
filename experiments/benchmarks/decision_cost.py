"""The cost of a decision of the state server, by each rule, as the number of workers grows.

    .venv/bin/python experiments/benchmarks/decision_cost.py

Microseconds from message to answer in the handlers, without HTTP. CPU time leaves out the time of other programs.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import start  # first: what it does is for the other imports too

import argparse
import heapq
import math
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from flag_parser import FlagParser

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "SimpleStateServer"))

from server.handlers import Handlers
from server.messages import Query, Report, Reset, Status
from server.policies import POLICIES, Sync
from server.row import STEP_TIME_WINDOW
from server.worker import Action

from flag_values import at_least

JOB, SAMPLES = "benchmark", 64
TRANSMISSION_S = 0.1
NOISE = 0.1  # standard deviation of the logarithm of all times: the slowest worker changes


def print_table(options: argparse.Namespace) -> None:
    """A line for each rule and number of workers, and a comparison of the greatest with the least."""
    columns = f"{'mean':>7} {'p50':>7} {'p99':>9}"
    print(f"{'':<19} {'':>7} {'':>7} | {'wall clock, us':^25} | {'CPU time, us':^25}")
    print(f"{'rule':<19} {'workers':>7} {'queries':>7} | {columns} | {columns}")
    for rule in sorted(POLICIES):
        means = []
        for num_workers in sorted(options.workers):
            wall_us, cpu_us = zip(*timed_queries(rule, num_workers, options.queries, options.seed), strict=True)
            means.append(statistics.fmean(cpu_us))
            print(
                f"{rule:<19} {num_workers:>7} {len(cpu_us):>7} | {_summary(wall_us)} | {_summary(cpu_us)}", flush=True
            )
        times = max(options.workers) / min(options.workers)
        print(f"{rule:<19} {times:g} times the workers take {means[-1] / means[0]:.2f} times the CPU time")


def _summary(times: Sequence[float]) -> str:
    ordered = sorted(times)
    p50, p99 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.99))
    return f"{statistics.fmean(ordered):>7.1f} {p50:>7.1f} {p99:>9.1f}"


def timed_queries(rule: str, num_workers: int, least: int, seed: int) -> Iterator[tuple[float, float]]:
    """Microseconds of each query, by the wall clock and of CPU time, in whole rounds with `least` queries or more.

    In a round all workers report, and ask after each of their steps, in the order in which these end. Under a rule that
    aggregates they do so until they are told to; else once. Step times are 0.05 to 1 s, evenly by their logarithm.
    Sync-Switch's rules compare nothing before STEP_TIME_WINDOW rounds; these are not timed, nor is round 1 of others.
    """
    draw = random.Random(seed)
    usual_s = [0.05 * 20 ** draw.random() for _ in range(num_workers)]
    handlers, now, asked, round_ = Handlers(), 0.0, 0, 0
    handlers.reset(Reset("benchmark", JOB, num_workers, rule, epsilon=0.0), now)
    untimed = STEP_TIME_WINDOW if POLICIES[rule].watch.sync is Sync.STAYS_IN_STEP else 1

    def noisy(usual_s: float) -> float:
        return usual_s * draw.lognormvariate(0.0, NOISE)

    def step_of(rank: int) -> tuple[float, int, float]:
        step_s = noisy(usual_s[rank])
        return now + step_s, rank, step_s

    while asked < least:
        round_ += 1
        for rank in range(num_workers):
            status = Status(rank, 0, round_, usual_s[rank], TRANSMISSION_S)
            handlers.report(Report(f"worker-{rank}", JOB, status), now)
        done = [0] * num_workers
        running = [step_of(rank) for rank in range(num_workers)]
        heapq.heapify(running)
        while running:
            now, rank, step_s = heapq.heappop(running)
            done[rank] += 1
            status = Status(rank, done[rank], round_, step_s, noisy(TRANSMISSION_S))
            message = Query(f"worker-{rank}", JOB, status, samples=SAMPLES)
            wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
            action = handlers.query(message, now).action
            cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
            if round_ > untimed:
                asked += 1
                yield wall / 1e3, cpu / 1e3
            if action is Action.TRAIN and POLICIES[rule].watch.sync is Sync.AGGREGATES:
                heapq.heappush(running, step_of(rank))


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    form = argparse.RawDescriptionHelpFormatter
    parser = FlagParser(description=__doc__, formatter_class=form)
    parser.add_argument(
        "--workers", type=at_least(1), nargs="+", default=[10, 1000, 10000], metavar="N",
        help="numbers of workers (10 1000 10000)",
    )  # fmt: skip
    parser.add_argument("--queries", type=at_least(1), default=20000, help="to time for each line, about (20000)")
    parser.add_argument("--seed", type=int, default=0, help="of the step times (0)")
    print_table(parser.parse_args(arguments))


if __name__ == "__main__":
    start.run(main)
