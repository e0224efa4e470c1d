"""What packet loss on one worker's link costs ESync, beside SSGD on the same network. Needs root: network namespaces.

    python benchmarks/lossy_link.py --percent 1 --repeats 3

Every process has its own host: one for state server, scheduler and parameter server, and one for each worker. The modes
take turns, so that a busy machine harms both alike. Prints samples/s of all workers, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.namespace_job import missing, network, run_job, samples_per_second

MODES = {"esync": ["-ll", "0.0005"], "sync": ["-l", "0.0005"]}


def main() -> None:
    """Runs the modes in turns and prints a line a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=float, nargs="+", default=[0.03, 0.03, 0.03, 0.12], help="step times (s)")
    parser.add_argument("--lossy", type=int, default=1, help="number of the worker behind the lossy link, from 0")
    parser.add_argument("--percent", type=int, default=1, help="packets lost on its link; 0: none")
    parser.add_argument("--seconds", type=float, default=20, help="of each run")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if why := missing():
        raise SystemExit(why)
    results: dict[str, list[float]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory() as folder, network(Path(folder) / "net", 1 + len(options.workers)) as net:
        servers, *hosts = net.hosts
        if options.percent:
            hosts[options.lossy].lose(options.percent)
        for _ in range(options.repeats):
            for mode, of_mode in results.items():
                flags = [["-m", mode, *MODES[mode], "--min-step-time", str(step_s)] for step_s in options.workers]
                of_mode.append(samples_per_second(run_job(servers, hosts, options.seconds, flags)))
                print(f"{mode}: {of_mode[-1]:.0f} samples/s", flush=True)
    esync, sync = (statistics.median(results[mode]) for mode in ("esync", "sync"))
    print(f"medians of {options.repeats}: esync {esync:.0f}, sync {sync:.0f} samples/s: {esync / sync:.2f} times")


if __name__ == "__main__":
    main()
