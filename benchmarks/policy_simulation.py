"""Simulates ESync's policies on the papers' clusters, and times a decision.

Workers, network and parameter server are simulated on a virtual clock (SimpleStateServer/simulation); the messages go
through the state server's own handlers and policies. Prints four tables and ends:

  preprint   the 6 workers of the preprint, 4 fast and 2 slow, against what their transmission leaves possible
  journal    the 12 workers of the journal at heterogeneity 10, 150 and 300
  link       4 workers that compute equally fast, one of them behind a slow link
  cost       time of the answer to one query as the number of workers grows, for each policy

The first three depend on nothing but the options; the last is measured on this machine.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "SimpleStateServer"))

from server.handlers import Handlers
from server.messages import Query, Response
from server.policies import POLICIES
from server.state import STEP_TIME_WINDOW
from simulation import clusters
from simulation.cluster import Algorithm, Outcome, Way, WorkerModel
from simulation.measures import ClusterMeasures, measure
from simulation.simulate import PREPRINT_EPSILON_S, simulate

from trainer.coordinator.queries import worthwhile_wait

TARGET = 0.95  # of the possible computing time ratio
IDEAL_STEPS = clusters.PREPRINT_SLOW_STEP_S / clusters.PREPRINT_FAST_STEP_S

SSGD = Way(Algorithm.SSGD)
BLOCKING = Way(Algorithm.BLOCKING)
NON_BLOCKING = Way(Algorithm.NON_BLOCKING)
TRAINER = Way(Algorithm.BETWEEN_PASSES, patience=worthwhile_wait)
TEST_STEP = Way(Algorithm.NON_BLOCKING, test_step=True)
IN_STEP, RELEASING = Way(Algorithm.IN_STEP), Way(Algorithm.RELEASING)

NAMES = {
    SSGD: "does not ask",
    BLOCKING: "blocking",
    NON_BLOCKING: "non-blocking",
    TRAINER: "as trainer/coordinator/queries.py",
    TEST_STEP: "non-blocking, test step",
}


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    tables: Sequence[str]
    rounds: int
    round_trips_ms: Sequence[float]
    noise: float
    seed: int
    num_workers: Sequence[int]
    queries: int


# ---------------------------------------------------------------------------------------------- tables 1 to 3

HEADER = (
    f"{'policy':<12} {'asks':<24} {'RTT':>5} | {'local steps':>12} | {'computing ratio':>15} | {'of possible':>11} |"
    f" {'longest wait':>12} | {'given up':>8} | {'samples':>8} {'round':>7} |\n"
    f"{'':<12} {'':<24} {'ms':>5} | {'fast':>7} {'slow':>4} | {'fast':>7} {'slow':>7} | {'all':>5} {'from2':>5} |"
    f" {'fast':>6} {'slow':>5} | {'%':>8} | {'1/s':>8} {'s':>7} | >= {TARGET:g}"
)


def row(policy: str, way: Way, workers: Sequence[WorkerModel], outcome: Outcome, batch_size: int) -> str:
    """One line of a table. The first worker is a fast one, the last a slow one."""
    whole, later = measure(outcome, batch_size), measure(outcome, batch_size, first_round=2)
    fast, slow, round_trip_s = later.workers[0], later.workers[-1], workers[0].round_trip_s
    least, least_later = _least_of_possible(whole), _least_of_possible(later)
    abandoned = max(worker.abandoned_ratio for worker in later.workers)
    return (
        f"{policy:<12} {NAMES[way]:<24} {1e3 * round_trip_s:>5g} |"
        f" {fast.steps_per_round:>7.2f} {slow.steps_per_round:>4.2f} |"
        f" {fast.computing_ratio:>7.4f} {slow.computing_ratio:>7.4f} | {least:>5.3f} {least_later:>5.3f} |"
        f" {fast.longest_wait_s:>6.3f} {slow.longest_wait_s:>5.3f} | {100 * abandoned:>8.2f} |"
        f" {later.samples_per_s:>8.1f} {later.round_s:>7.3f} | {'yes' if least >= TARGET else 'no'}"
    )


def _least_of_possible(measures: ClusterMeasures) -> float:
    return min(worker.of_possible for worker in measures.workers)


def legend(options: Options) -> str:
    """What the columns mean."""
    return (
        f"{options.rounds} rounds, noise {options.noise:g}, seed {options.seed}. No step time is known in round 1, so "
        "all columns but one are from round 2 on.\n"
        "  RTT              round trip of a query\n"
        "  local steps      mean in a round; fast: the first worker, slow: the last\n"
        "  computing ratio  time of the steps that went into updates / total time\n"
        "  of possible      the same / (1 - 2 m / max(c + 2 m)), least of all workers: of all rounds, from round 2\n"
        "  longest wait     seconds from the arrival of the own update at the server to that of the last one\n"
        "  given up         time of steps that were begun and dropped, largest of all workers"
    )


def ways(round_trips_s: Sequence[float]) -> Iterator[tuple[str, Way, float]]:
    """(policy, way, round trip in s) of each line of a table."""
    yield "SSGD", SSGD, 0.0
    for policy in ("preprint", "journal"):
        for way in (BLOCKING, NON_BLOCKING):
            for round_trip_s in round_trips_s:
                yield policy, way, round_trip_s
    for way in (TRAINER, TEST_STEP):
        for round_trip_s in round_trips_s:
            yield "journal", way, round_trip_s


def run(policy: str, way: Way, workers: Sequence[WorkerModel], options: Options) -> Outcome:
    """A simulation with the command line's options."""
    rule = policy if policy in POLICIES else "journal"  # SSGD asks nobody
    return simulate(workers, options.rounds, rule, way, seed=options.seed)


def transmission_as_published() -> str:
    """How the transmission time follows from published figures; see simulation/clusters.py."""
    round_s, by_traffic_s = clusters.preprint_ssgd_round_s(), clusters.preprint_ssgd_round_by_traffic_s()
    m, line_s = clusters.preprint_transmission_s(), clusters.line_rate_transmission_s(6)
    slow = clusters.PREPRINT_SLOW_STEP_S
    return (
        f"Transmission as published: SSGD trains 45 samples/s, so a round of 6 x 64 samples takes {round_s:.2f} s.\n"
        f"Without the CPU's step of {slow:g} s, push and pull take {round_s - slow:.2f} s, m = {m:.2f} s each way.\n"
        "It agrees with\n"
        f"  6 x 44.7 MB a round at the published 31 MB/s: {by_traffic_s:.2f} s a round;\n"
        f"  the CPU's published ratio under SSGD, 0.40: here {slow / round_s:.2f};\n"
        f"  1 Gb/s: 6 x 44.7 MB take {line_s:.2f} s each way at the full rate; m is at {line_s / m:.0%} of it.\n"
        f"So no worker can compute more than {1 - 2 * m / round_s:.3f} of the time."
    )


def preprint_table(options: Options) -> None:
    """Table 1."""
    print(f"TABLE 1: the preprint's cluster, 4 workers of {clusters.PREPRINT_FAST_STEP_S:g} s and 2 of 3.5 s a step\n")
    print(f"{transmission_as_published()}\n\n{legend(options)}")
    print(f"The ideal number of local steps of a fast worker is 3.5 / 0.03 = {IDEAL_STEPS:.1f}.\n\n{HEADER}")
    round_trips_s = [each / 1e3 for each in options.round_trips_ms]
    for policy, way, round_trip_s in ways(round_trips_s):
        workers = clusters.preprint_cluster(round_trip_s, options.noise)
        print(row(policy, way, workers, run(policy, way, workers, options), clusters.PREPRINT_BATCH))
    print(f"{'published: ESync':<43} |              |    0.37    0.40 |             |              |          |   1555")
    print(f"{'published: SSGD':<43} |    1.00 1.00 | .01-.26    0.40 |             |              |          |     45")
    print("\n" + as_published(options) + "\n")


def as_published(options: Options) -> str:
    """The published programs simulated: does the simulation give the published numbers?"""
    round_trip_s = clusters.PREPRINT_FAST_STEP_S
    workers = clusters.preprint_cluster(round_trip_s, options.noise)
    measures = measure(run("preprint", BLOCKING, workers, options), clusters.PREPRINT_BATCH, first_round=2)
    fast, slow = measures.workers[0], measures.workers[-1]
    with_queries = fast.computing_ratio + fast.steps_per_round * round_trip_s / measures.round_s
    return (
        f"Check against the published run: preprint's rule, epsilon {PREPRINT_EPSILON_S:g} s, blocking, and a query "
        "that costs about one GPU step (30 ms):\n"
        f"  {measures.samples_per_s:.0f} samples/s (published 1555)\n"
        f"  fast workers' ratio {fast.computing_ratio:.2f}, or {with_queries:.2f} with their queries (published 0.37)\n"
        f"  slow workers' ratio {slow.computing_ratio:.2f} (published 0.40)"
    )


def journal_table(options: Options) -> None:
    """Table 2."""
    m = clusters.line_rate_transmission_s(clusters.JOURNAL_GPUS + clusters.JOURNAL_CPUS)
    print(f"TABLE 2: the journal's cluster, 6 GPUs and 6 CPUs, 1 Gb/s (m = {m:.2f} s each way), batch 32\n")
    print(f"{legend(options)}\n")
    round_trips_s = [each / 1e3 for each in options.round_trips_ms]
    for heterogeneity in (10, 150, 300):
        fast_s = clusters.journal_cluster(heterogeneity)[0].step_s
        slow_s = heterogeneity * fast_s
        limit = 1 - 2 * m / (slow_s + 2 * m)
        print(
            f"heterogeneity {heterogeneity}: steps of {fast_s:.4f} s and {slow_s:.3f} s, "
            f"possible computing ratio {limit:.3f}\n{HEADER}"
        )
        for policy, way, round_trip_s in ways(round_trips_s):
            workers = clusters.journal_cluster(heterogeneity, round_trip_s, options.noise)
            print(row(policy, way, workers, run(policy, way, workers, options), clusters.JOURNAL_BATCH))
        print()


def link_table(options: Options) -> None:
    """Table 3."""
    far = clusters.slow_link_cluster()[-1]
    print(
        "TABLE 3: 4 workers that compute equally fast, LeNet-5; the last one's link has 10 Mbit/s and 25 ms (m = "
        f"{far.transmission_s:.2f} s each way)\n\n{legend(options)}\n"
    )
    for step_s in (0.02, 0.05, 0.1, 0.15, 0.2, 0.5):
        print(f"steps of {step_s:g} s\n{HEADER}")
        workers = clusters.slow_link_cluster(step_s, options.round_trips_ms[0] / 1e3, options.noise)
        for way in (BLOCKING, TRAINER):
            measured = []
            for policy in ("journal", "upload-aware"):
                outcome = run(policy, way, workers, options)
                measured.append(measure(outcome, clusters.SLOW_LINK_BATCH, first_round=2))
                print(row(policy, way, workers, outcome, clusters.SLOW_LINK_BATCH))
            before, after = measured
            print(
                f"{'':<12} {NAMES[way]:<24} the three compute {before.workers[0].computing_ratio:.3f} -> "
                f"{after.workers[0].computing_ratio:.3f} of the time, all do "
                f"{after.samples_per_s / before.samples_per_s - 1:+.0%} samples/s"
            )
        print()


# ---------------------------------------------------------------------------------------------------- table 4


class TimedHandlers(Handlers):
    """The state server, with two stopwatches on each query."""

    def __init__(self) -> None:
        super().__init__()
        self.wall_us: list[float] = []
        self.cpu_us: list[float] = []

    def query(self, message: Query, now: float) -> Response:
        """As in Handlers."""
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        response = super().query(message, now)
        self.cpu_us.append((time.thread_time_ns() - cpu) / 1e3)
        self.wall_us.append((time.perf_counter_ns() - wall) / 1e3)
        return response


def mixed_cluster(num_workers: int, seed: int) -> list[WorkerModel]:
    """Step times from 0.05 to 1 s, evenly spread by their logarithm, with noise, so that stragglers change."""
    draw = random.Random(seed)
    return [
        WorkerModel(0.05 * 20 ** draw.random(), transmission_s=0.1, round_trip_s=0.001, noise=0.1)
        for _ in range(num_workers)
    ]


def cost_table(options: Options) -> None:
    """Table 4."""
    print("TABLE 4: time of one query in the handlers (message to answer, without HTTP), in microseconds")
    print("CPU time leaves out what other programs took from this one meanwhile.\n")
    print(f"{'':<19} {'':>7} {'':>7} | {'wall clock':^25} | {'CPU time':^25}")
    columns = f"{'mean':>7} {'p50':>7} {'p99':>9}"
    print(f"{'policy':<19} {'workers':>7} {'queries':>7} | {columns} | {columns}")
    for policy in sorted(POLICIES):
        means = []
        for num_workers in options.num_workers:
            handlers = timed_job(policy, num_workers, options)
            means.append(statistics.fmean(handlers.cpu_us))
            print(
                f"{policy:<19} {num_workers:>7} {len(handlers.cpu_us):>7} | {_summary(handlers.wall_us)} | "
                f"{_summary(handlers.cpu_us)}"
            )
        first, last = options.num_workers[0], options.num_workers[-1]
        if last > first:
            exponent = math.log(means[-1] / means[0]) / math.log(last / first)
            print(
                f"{policy:<19} {last / first:g} times the workers take {means[-1] / means[0]:.2f} times the CPU time: "
                f"it grows as N^{exponent:.2f} (linear: N^1)"
            )
    print()


def _summary(times: list[float]) -> str:
    ordered = sorted(times)
    p50, p99 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.99))
    return f"{statistics.fmean(ordered):>7.1f} {p50:>7.1f} {p99:>9.1f}"


def timed_job(policy: str, num_workers: int, options: Options) -> TimedHandlers:
    """The state server after a job in which it was asked about `options.queries` times or more, and how long it took.

    Sync-Switch's rules compare nothing until all workers have done STEP_TIME_WINDOW steps; those are not timed.
    """
    handlers = TimedHandlers()
    way, first_rounds, steps_per_round = BLOCKING, 0, 2.5 * num_workers  # or more
    if policy == "wbsp":
        way = RELEASING
    elif policy.startswith("sync-switch"):
        way, first_rounds, steps_per_round = IN_STEP, STEP_TIME_WINDOW, num_workers
    rounds = first_rounds + max(2, math.ceil(options.queries / steps_per_round))
    workers = mixed_cluster(num_workers, options.seed)
    simulate(workers, rounds, policy, way, epsilon=0.0, handlers=handlers, seed=options.seed)
    for times in (handlers.wall_us, handlers.cpu_us):
        del times[: first_rounds * num_workers]
    return handlers


# ----------------------------------------------------------------------------------------------- command line

TABLES = {"preprint": preprint_table, "journal": journal_table, "link": link_table, "cost": cost_table}


def parse(arguments: Sequence[str] | None) -> Options:
    """Reads the command line; a bad value ends the process with exit code 2."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"which to print: {', '.join(TABLES)}; default: all")
    parser.add_argument("--rounds", type=_rounds, default=20, help="of each simulation in tables 1 to 3 (20)")
    parser.add_argument(
        "--round-trips", type=_not_below_zero, nargs="+", default=[1.0, 20.0], metavar="MS",
        help="of a query in tables 1 to 3 (in table 3 only the first), in milliseconds (1 20)",
    )  # fmt: skip
    parser.add_argument(
        "--noise", type=_not_below_zero, default=0.0,
        help="of step and transfer times in tables 1 to 3; 0.1 is 10 percent (0)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the noise and of table 4's step times (0)")
    parser.add_argument(
        "--workers", type=_count, nargs="+", default=[10, 1000, 10000], metavar="N",
        help="numbers of workers in table 4, ascending (10 1000 10000)",
    )  # fmt: skip
    parser.add_argument("--queries", type=_count, default=20000, help="to time for each line of table 4, about (20000)")
    given = parser.parse_args(arguments)
    for table in given.tables:
        if table not in TABLES:
            parser.error(f"unknown table {table!r}; choose from {', '.join(TABLES)}")
    return Options(
        given.tables or list(TABLES),
        given.rounds,
        given.round_trips,
        given.noise,
        given.seed,
        sorted(given.workers),
        given.queries,
    )


def _count(text: str) -> int:
    return _whole(text, 1)


def _rounds(text: str) -> int:
    return _whole(text, 2)  # the first is shown apart


def _whole(text: str, minimum: int) -> int:
    if not text.isdecimal() or int(text) < minimum:
        raise argparse.ArgumentTypeError(f"{text!r}; give a whole number from {minimum} on")
    return int(text)


def _not_below_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}; give a number from 0 on")
    return value


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables that were asked for."""
    options = parse(arguments)
    for table in options.tables:
        TABLES[table](options)


if __name__ == "__main__":
    main()
