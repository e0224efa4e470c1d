"""Rounds/s of WBSP and Sync-Switch in two commits, in one alternating run: on loopback, and on a network of so much
delay. Needs root for the latter: network namespaces.

    python benchmarks/rounds_per_s.py --before 2d433c6 --repeats 5

LeNet-5. Checkouts and modes take turns, so that a busy machine harms all alike; every process of the network has a host
of its own. Prints the rounds/s of all workers together in each run, their medians, and the medians' ratio.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.namespace_job import ROOT, Host, Loopback, Rounds, missing, network, run_job

FIRST = 5  # rounds that do not count
MANY = "1000000"
MODES = {
    "WBSP": ["-m", "wbsp", "-ll", "0.0005"],
    "WBSP with overlap": ["-m", "wbsp", "--wbsp-overlap", "1", "-ll", "0.0005"],
    "Sync-Switch, BSP": ["-m", "sync-switch", "--switch-order", "1", "--train-steps", MANY, "-l", "0.0005"],
    "Sync-Switch, ASP": ["-m", "sync-switch", "--switch-order", "0", "--train-steps", MANY, "-l", "0.0005"],
}


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """The files of a commit, in a folder of their own."""
    archive = subprocess.run(["git", "-C", ROOT, "archive", commit], capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
        yield Path(folder)


def rounds_per_s(job: Sequence[Rounds]) -> float:
    """Of all workers together, without the first rounds and the last, after which a worker evaluates."""
    times = ([record["total_time"] for record in rounds[FIRST:-1]] for rounds in job)
    return sum((len(of_worker) - 1) / (of_worker[-1] - of_worker[0]) for of_worker in times)


def compare(where: str, hosts: Sequence[Host | Loopback], roots: dict[str, Path], options: argparse.Namespace) -> None:
    """Runs all checkouts and modes in turns, and prints a line a run and one a mode."""
    servers, *workers = hosts
    found: dict[tuple[str, str], list[float]] = {(mode, name): [] for mode in options.modes for name in roots}
    for _ in range(options.repeats):
        for (mode, name), of_both in found.items():
            flags = [
                [*MODES[mode], "-b", str(options.batch_size), "--min-step-time", str(step_s)]
                for step_s in options.workers
            ]
            of_both.append(rounds_per_s(run_job(servers, workers, options.seconds, flags, roots[name])))
            print(f"{where}, {mode}, {name}: {of_both[-1]:.2f} rounds/s", flush=True)
    for mode in options.modes:
        before, after = (statistics.median(found[mode, name]) for name in roots)
        print(f"{where}, {mode}: {before:.2f} -> {after:.2f} rounds/s, {after / before:.2f} times", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compares on loopback, then on the network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default="2d433c6", help="commit to compare with")
    parser.add_argument("--after", default="HEAD", help="commit that is compared")
    parser.add_argument("--workers", type=float, nargs="+", default=[0.02, 0.04], help="step times (s)")
    parser.add_argument("--batch-size", type=int, default=16, help="small, so that two cores are enough for the steps")
    parser.add_argument("--delay", type=float, default=0.025, help="of the network, one way (s)")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--where", nargs="+", choices=("loopback", "network"), default=["loopback", "network"])
    parser.add_argument("--seconds", type=float, default=15, help="of each run")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    if "network" in options.where and (why := missing()):
        raise SystemExit(why)
    count = 1 + len(options.workers)
    with checkout(options.before) as before, checkout(options.after) as after:
        roots = {options.before: before, options.after: after}
        if "loopback" in options.where:
            compare("loopback", [Loopback()] * count, roots, options)
        if "network" in options.where:
            with (
                tempfile.TemporaryDirectory() as folder,
                network(Path(folder) / "net", count) as net,
                net.delayed(options.delay),
            ):
                compare(f"{1000 * options.delay:g} ms each way", net.hosts, roots, options)


if __name__ == "__main__":
    main()
