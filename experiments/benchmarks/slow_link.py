"""What ESync's rule for slow links gains beside the journal's, on a real network. Needs root: network namespaces.

    python experiments/benchmarks/slow_link.py --repeats 3

Three workers and one behind a link of 10 Mbit/s (the kernel's token bucket, both ways) and 25 ms (slept in each push
and pull, and twice in each question: the kernels at hand have no netem), all with LeNet-5 and steps of 0.05 s. The
rules take turns, so that a busy machine harms both alike. Prints the share of the time that the three compute, and
samples/s.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.benchmarks.namespace_job import Rounds, missing, network, run_job, samples_per_second
from trainer.run_logs.round_log import computing_seconds

RULES = ("journal", "upload-aware")
TRACE = "start_s,duration_s,extra_s,kind\n0,1000000,{latency_s},network\n"


def computing_share(rounds: Rounds) -> float:
    """Seconds of batches, passes and local updates over all seconds."""
    return sum(map(computing_seconds, rounds)) / rounds[-1]["total_time"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the rules in turns and prints a line a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-time", type=float, default=0.05, help="of all workers (s)")
    parser.add_argument("--mbit", type=int, default=10, help="of the slow link, Mbit/s each way")
    parser.add_argument("--latency", type=float, default=0.025, help="of the slow link, one way (s)")
    parser.add_argument("--query", default="non-blocking", help="as main.py's flag")
    parser.add_argument("--seconds", type=float, default=20, help="of each run")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    if why := missing():
        raise SystemExit(why)
    shares: dict[str, list[float]] = {rule: [] for rule in RULES}
    samples: dict[str, list[float]] = {rule: [] for rule in RULES}
    with tempfile.TemporaryDirectory() as folder, network(Path(folder) / "net", 5) as net:
        trace = Path(folder) / "trace.csv"
        trace.write_text(TRACE.format(latency_s=options.latency))
        servers, *hosts = net.hosts
        hosts[-1].narrow(options.mbit)
        far = ["--straggler-trace", str(trace), "--query-delay", str(2 * options.latency)]
        for _ in range(options.repeats):
            for rule in RULES:
                flags = ["-m", "esync", "-ll", "0.0005", "--policy", rule, "--query", options.query]
                flags += ["--min-step-time", str(options.step_time)]
                job = run_job(servers, hosts, options.seconds, [flags, flags, flags, [*flags, *far]])
                shares[rule].append(statistics.fmean(map(computing_share, job[:3])))
                samples[rule].append(samples_per_second(job))
                print(
                    f"{rule}: the three compute {shares[rule][-1]:.3f}, {samples[rule][-1]:.0f} samples/s", flush=True
                )
    share, speed = ([statistics.median(values[rule]) for rule in RULES] for values in (shares, samples))
    print(
        f"medians of {options.repeats}, journal and upload-aware: {share[0]:.3f} -> {share[1]:.3f} computing, "
        f"{speed[0]:.0f} -> {speed[1]:.0f} samples/s ({speed[1] / speed[0] - 1:+.0%})"
    )


if __name__ == "__main__":
    main()
