"""Which collective wins where one of four hosts is behind a slow, long link: real hosts beside simulate.py.

    python experiments/benchmarks/collective_links.py --raw results/collectives/four-hosts.json

Needs root: the hosts are network namespaces. Three workers and one behind 10 Mbit/s (the kernel's token bucket, both
ways) and 25 ms (a switch in user space, since the kernels at hand have no netem) train LeNet-5 with SSGD and steps of
0.05 s. Takes about two minutes. Prints the median seconds of a round, and those of the same cluster in virtual time.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import simulate
from config import AMONG_WORKERS, PS
from experiments.benchmarks.namespace_job import Rounds, missing, network, run_job
from trainer.simulation import virtual_cluster

STEP_S, MBIT, LATENCY_S = 0.05, 10, 0.025
WAYS = (PS, *AMONG_WORKERS)
SKIPPED = 2  # first rounds, which are not like the others
CLUSTER = f"step_time_s,bandwidth_mbit_s,latency_s\n{STEP_S},,\n{STEP_S},,\n{STEP_S},,\n{STEP_S},{MBIT},{LATENCY_S}\n"


def round_s(rounds: Rounds) -> float:
    """Median seconds of a round."""
    moments = [record["total_time"] for record in rounds[SKIPPED:]]
    return statistics.median(after - before for before, after in itertools.pairwise(moments))


def virtual_s(way: str, folder: Path) -> float:
    """The same in virtual time."""
    (folder / "far.csv").write_text(CLUSTER)
    flags = ["--cluster", str(folder / "far.csv"), "--log-base", str(folder / way), "-n", "lenet", "--evaluate", "no"]
    _, (one,) = simulate.parse([*flags, "-m", "sync", "--collective", way, "--max-rounds", "6", "--log-form", "files"])
    virtual_cluster.run(one.job)
    paths = sorted((folder / way).glob("lenet/sync/virtual/cpu0/iter-*.txt"), key=lambda path: int(path.stem[5:]))
    return round_s([json.loads(path.read_text()) for path in paths])


def main() -> None:
    """Prints a row a collective."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=12, help="of each run")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--raw", type=Path, help="JSON file for what was measured")
    options = parser.parse_args()
    if why := missing():
        raise SystemExit(why)
    measured = {}
    print("| collective | real, s a round | virtual, s a round | virtual / real |\n| --- | --- | --- | --- |")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        net = stack.enter_context(network(folder / "net", 5))
        servers, *hosts = net.hosts
        hosts[-1].narrow(MBIT)
        stack.enter_context(net.delayed(LATENCY_S, far=hosts[-1]))
        for way in options.ways:
            flags = ["-m", "sync", "-l", "0.0005", "--min-step-time", str(STEP_S), "--evaluate", "no"]
            job = run_job(servers, hosts, options.seconds, [flags] * len(hosts), collective=way)
            measured[way] = real, virtual = round_s(job[0]), virtual_s(way, folder)
            print(f"| {way} | {real:.3f} | {virtual:.3f} | {virtual / real:.2f} |", flush=True)
    if options.raw is not None:
        about = {"step_s": STEP_S, "mbit_s": MBIT, "latency_s": LATENCY_S, "seconds_of_each_run": options.seconds}
        rows = {way: {"real_s": real, "virtual_s": virtual} for way, (real, virtual) in measured.items()}
        options.raw.write_text(json.dumps({**about, "seconds_a_round": rows}) + "\n")


if __name__ == "__main__":
    main()
