"""Samples/s of synchronous SGD with two processes of one thread each: a gluon script of one's own on MXNet's dist_sync,
this project on a parameter server and as a ring, PyTorch's DistributedDataParallel with gloo (own_script.py).

    .venv/bin/python experiments/benchmarks/frameworks.py --torch PYTHON --raw results/frameworks/lenet.json
    .venv/bin/python experiments/benchmarks/frameworks.py --torch PYTHON --network resnet18-v1 --raw FILE --turns 3

PYTHON has torch, torchvision and numpy. All ways take turns; a file that is there gets more turns.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import start  # first: what it does is for the other imports too

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments import markdown
from experiments.benchmarks.collectives import ROOT, running
from flag_parser import FlagParser
from scripts.launch.ports import free_ports
from trainer.run_logs.round_log import read_rounds

WAYS = {"gluon": "gluon on dist_sync", "ps": "this project, ps", "ring": "this project, ring", "torch": "PyTorch, gloo"}
DATA, WARM_UP = ROOT / "data" / "fashion-mnist", 5  # steps


def own(way: str, network: str, seconds: float, python: str, folder: Path) -> float:
    """Both processes' samples/s by own_script.py."""
    port = str(free_ports(1)[0])
    cluster = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": port, "DMLC_NUM_SERVER": "1"}
    cluster |= {"DMLC_NUM_WORKER": "2", "DMLC_INTERFACE": "lo"}
    command = [python, str(Path(__file__).with_name("own_script.py")), way, network]
    with contextlib.ExitStack() as stack:
        for role in ("scheduler", "server") if way == "gluon" else ():
            log = folder / f"{role}.log"
            stack.enter_context(running([python, "-c", "import mxnet"], log, DMLC_ROLE=role, **cluster))
        logs = [folder / f"{rank}.log" for rank in range(2)]
        workers = [
            stack.enter_context(
                running([*command, str(rank), str(seconds), port, str(DATA)], log, DMLC_ROLE="worker", **cluster)
            )
            for rank, log in enumerate(logs)
        ]
        for worker, log in zip(workers, logs, strict=True):
            if worker.wait(100):
                raise SystemExit(log.read_text())
    return statistics.mean(float(log.read_text().split()[-1]) for log in logs)


def ours(way: str, network: str, seconds: float, folder: Path) -> float:
    """Both workers' samples/s by the logs of their rounds, without the last, which evaluates."""
    command = ["scripts/local_cluster.sh", "-m", "sync", "-n", network, "--collective", way, "--workers", "0,0"]
    command += ["--log-base", str(folder), "--", "--max-seconds", str(seconds + 2), "-e", "1000000", "-l", "0.01"]
    command += ["--log-form", "lines"]
    with running(command, folder / "job.log") as job:
        if job.wait(150):
            raise SystemExit((folder / "job.log").read_text())
    rates = []
    for device in folder.glob(f"{network}/sync/*/cpu*"):
        rounds = list(read_rounds(device, print))[WARM_UP - 1 : -1]
        samples = sum(each["num_samples"] for each in rounds[1:])
        rates.append(samples / (rounds[-1]["total_time"] - rounds[0]["total_time"]))
    return sum(rates)


def table(measured: Mapping[str, Sequence[float]]) -> str:
    """Medians with their range, and the median ratio to PyTorch's of the same turn."""
    rows = [["", "samples/s", "of PyTorch's, turn by turn"]]
    for way, rates in measured.items():
        ratios = [rate / other for rate, other in zip(rates, measured["torch"], strict=True)]
        each = f"{statistics.median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})"
        rows.append([WAYS[way], each, f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"])
    return markdown.table(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = FlagParser(description=__doc__)
    parser.add_argument("--torch", required=True, help="a Python with torch")
    parser.add_argument("--network", default="lenet", choices=["lenet", "resnet18-v1"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--raw", type=Path, required=True, help="JSON file of the samples/s of all turns")
    options = parser.parse_args(arguments)
    versions = "import torch; print(torch.__version__)"
    torch = subprocess.run([options.torch, "-c", versions], capture_output=True, text=True, check=True).stdout.strip()
    raw = {"network": options.network, "torch": torch, "samples_per_s": {way: [] for way in WAYS}}
    if options.raw.exists():
        raw = json.loads(options.raw.read_text())
    for _ in range(options.turns):
        turn = {}
        for way in WAYS:
            with tempfile.TemporaryDirectory() as name:
                if way in ("ps", "ring"):
                    turn[way] = ours(way, options.network, options.seconds, Path(name))
                else:
                    python = sys.executable if way == "gluon" else options.torch
                    turn[way] = own(way, options.network, options.seconds, python, Path(name))
        for way, rate in turn.items():
            raw["samples_per_s"][way].append(round(rate, 1))
        options.raw.write_text(json.dumps(raw) + "\n")
    print(table(raw["samples_per_s"]))


if __name__ == "__main__":
    start.run(main)
