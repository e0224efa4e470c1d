"""What packet loss on one worker's link costs ESync, beside SSGD on the same network. Needs root: network namespaces.

    python benchmarks/lossy_link.py --percent 1 --repeats 3

Every process has its own host: one for state server, scheduler and parameter server, and one for each worker. The modes
take turns, so that a busy machine harms both alike. Prints samples/s of all workers, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from namespaces import Host, missing, network  # noqa: E402

PORT, STATE_PORT = "9091", "10010"
MODES = {"esync": ["-ll", "0.0005"], "sync": ["-l", "0.0005"]}


@contextlib.contextmanager
def running(command: Sequence[str], log: Path, folder: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=output, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def samples_per_second(servers: Host, hosts: Sequence[Host], mode: str, options: argparse.Namespace) -> float:
    """Runs one job; returns the throughput of all workers."""
    cluster = {
        "DMLC_PS_ROOT_URI": servers.address,
        "DMLC_PS_ROOT_PORT": PORT,
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": str(len(hosts)),
        "DMLC_INTERFACE": "eth0",
    }
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        serve = servers.command(sys.executable, "manage.py", "serve", f"{servers.address}:{STATE_PORT}")
        stack.enter_context(running(serve, folder / "state.log", ROOT / "SimpleStateServer"))
        for role in ("scheduler", "server"):
            command = servers.command(sys.executable, "main.py")
            stack.enter_context(running(command, folder / f"{role}.log", ROOT, DMLC_ROLE=role, **cluster))
        workers = []
        for number, (host, step_time) in enumerate(zip(hosts, options.workers, strict=True)):
            flags = ["-m", mode, *MODES[mode], "-c", "1", "-n", "lenet", "-e", "100000", "-ld", name]
            flags += ["--device-name", f"cpu{number}", "--max-seconds", str(options.seconds)]
            flags += ["-ip", servers.address, "-port", STATE_PORT, "--min-step-time", str(step_time)]
            command = host.command(sys.executable, "main.py", *flags)
            log = folder / f"worker{number}.log"
            workers.append(stack.enter_context(running(command, log, ROOT, DMLC_ROLE="worker", **cluster)))
        for number, worker in enumerate(workers):
            if worker.wait(options.seconds + 120):
                raise SystemExit((folder / f"worker{number}.log").read_text())
        samples, seconds = 0, 0.0
        for number in range(len(hosts)):
            rounds = [json.loads(path.read_text()) for path in (folder / f"cpu{number}").glob("iter-*.txt")]
            samples += sum(record["num_samples"] for record in rounds)
            seconds = max(seconds, *(record["total_time"] for record in rounds))
        return samples / seconds


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
                of_mode.append(samples_per_second(servers, hosts, mode, options))
                print(f"{mode}: {of_mode[-1]:.0f} samples/s", flush=True)
    esync, sync = (statistics.median(results[mode]) for mode in ("esync", "sync"))
    print(f"medians of {options.repeats}: esync {esync:.0f}, sync {sync:.0f} samples/s: {esync / sync:.2f} times")


if __name__ == "__main__":
    main()
