"""What the state server's rules do on a slow link, and what a decision costs.

    .venv/bin/python experiments/benchmarks/policy_simulation.py [link] [cost]     # both without a word

link: scripts/clusters/slow-link.csv in virtual time (simulate.py -n none), by ESync's rules `journal` and
`upload-aware`: 4 workers that compute equally fast, LeNet-5, the last one behind 10 Mbit/s and 25 ms. Depends on
nothing but the flags.

cost: microseconds from message to answer in the handlers, without HTTP, as the number of workers grows, by each rule.
Measured on this machine; CPU time leaves out what other programs took from this one meanwhile.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "SimpleStateServer"))

from server.handlers import Handlers
from server.messages import Query, Report, Reset, Status
from server.policies import POLICIES, Sync
from server.state import STEP_TIME_WINDOW
from server.worker import Action

from experiments.benchmarks.virtual_timing import Measured, measure
from flag_values import above_zero, at_least

RULES = ("journal", "upload-aware")
LENET_BYTES = "246824"
JOB, SAMPLES = "benchmark", 64
TRANSMISSION_S = 0.1  # in `cost`
NOISE = 0.1  # there, standard deviation of the logarithm of all times: the slowest is not always the same


def on_slow_link(rule: str, query: str, step_s: float, rounds: int) -> Measured:
    """What the cluster does by a rule; `query` as main.py's flag, `step_s` of all workers."""
    flags = ["-m", "esync", "--policy", rule, "--query", query, "--model-bytes", LENET_BYTES]
    return measure("slow-link", [*flags, "--max-rounds", str(rounds)], step_s)


def link(options: argparse.Namespace) -> None:
    """Prints the first table."""
    print("| steps, questions | rule | local steps, near and far | computing, near and far | samples/s | rounds/s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for step_s in options.steps:
        for query in ("blocking", "non-blocking"):
            speeds = []
            for rule in RULES:
                done = on_slow_link(rule, query, step_s, options.rounds)
                speeds.append(done.samples_per_s)
                cells = [
                    f"{step_s:g} s, {query}",
                    rule,
                    f"{done.steps[0]:.2f}, {done.steps[-1]:.2f}",
                    f"{done.computing[0]:.3f}, {done.computing[-1]:.3f}",
                    f"{done.samples_per_s:.0f}",
                    f"{done.rounds_per_s:.2f}",
                ]
                print(f"| {' | '.join(cells)} |", flush=True)
            print(f"| | | | | {speeds[1] / speeds[0] - 1:+.0%} | |")


def cost(options: argparse.Namespace) -> None:
    """Prints the second table."""
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
    """Microseconds of each query, by the wall clock and of CPU time, in whole rounds with so many or more.

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


TABLES = {"link": link, "cost": cost}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"{' or '.join(TABLES)}; default: all")
    parser.add_argument(
        "--steps", type=above_zero, nargs="+", default=[0.05, 0.1, 0.5], metavar="S", help="link: step times"
    )
    parser.add_argument("--rounds", type=at_least(2), default=100, help="link: of each job (100)")
    parser.add_argument(
        "--workers", type=at_least(1), nargs="+", default=[10, 1000, 10000], metavar="N",
        help="cost: numbers of workers (10 1000 10000)",
    )  # fmt: skip
    parser.add_argument("--queries", type=at_least(1), default=20000, help="cost: to time for each line, about (20000)")
    parser.add_argument("--seed", type=int, default=0, help="cost: of the step times (0)")
    options = parser.parse_args(arguments)
    for table in options.tables:
        if table not in TABLES:
            parser.error(f"unknown table {table!r}; choose from {', '.join(TABLES)}")
    for table in options.tables or TABLES:
        TABLES[table](options)


if __name__ == "__main__":
    main()
