"""What a job pays for surviving while nothing happens: rounds/s without any of it and with each part, in one run.

    python benchmarks/survival_cost.py --repeats 5

LeNet-5 (or -n), two workers on loopback whose steps take as long as they take, or at least --min-step-time: with steps
much longer than what they compute, what is found is what is waited for, whatever else the cores are busy with. Kinds of
jobs and modes take turns, so that a busy machine harms all alike. Prints the rounds/s of all workers together in each
run, then a table of medians.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

from namespace_job import Loopback, run_job
from rounds_per_s import rounds_per_s

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
    found: dict[tuple[str, str], list[float]] = {
        (mode, kind): [] for mode in options.modes for kind in kinds_of(mode, options.kinds)
    }
    here, workers = Loopback(), [Loopback()] * options.workers
    for _ in range(options.repeats):
        for (mode, kind), of_kind in found.items():
            own, collective = MODES[mode]
            flags = [*own, *KINDS[kind], "-n", options.network, "-b", str(options.batch_size)]
            flags += ["--min-step-time", str(options.min_step_time)]
            job = run_job(here, workers, options.seconds, [flags] * options.workers, collective=collective)
            of_kind.append(rounds_per_s(job))
            print(f"{mode}, {kind}: {of_kind[-1]:.2f} rounds/s", flush=True)
    print(f"\n| rounds/s, medians | {NOTHING} | {' | '.join(options.kinds)} |\n{'| --- ' * (2 + len(options.kinds))}|")
    for mode in options.modes:
        nothing, its = found[mode, NOTHING], kinds_of(mode, options.kinds)
        cells = [compared(nothing, found[mode, kind]) if kind in its else "-" for kind in options.kinds]
        print(f"| {mode} | {statistics.median(nothing):.1f} | {' | '.join(cells)} |")


def compared(nothing: Sequence[float], other: Sequence[float]) -> str:
    """The median, and by how much each turn's run was apart from that without anything: median, least and greatest."""
    apart = sorted(100 * (each / own - 1) for own, each in zip(nothing, other, strict=True))
    return f"{statistics.median(other):.1f} ({statistics.median(apart):+.1f} %; {apart[0]:+.0f} to {apart[-1]:+.0f})"


if __name__ == "__main__":
    main()
