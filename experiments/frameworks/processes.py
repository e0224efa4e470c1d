"""The processes of a way of peers.py: their commands, their beginning and end, and what they use."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from algorithms import owner_of
from experiments.frameworks import loops
from experiments.frameworks.rank import BATCH, ROOT
from experiments.quotas import descendants
from scripts.launch.hosts_layout import free_ports
from utils import SetupError

HERE, ENDS_S = Path(__file__).resolve().parent, 30.0  # ENDS_S: of a process that is asked to end
NETWORKS = {"mlp": "mlp", "lenet": "lenet", "resnet18": "resnet18-v1"}  # as `-n` names them
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
Command = tuple[list[str], dict[str, str]]  # with variables


def job_file(network: str) -> Path:
    """That of torch."""
    return HERE / f"torch_{network}.py"


def of_project(given: argparse.Namespace, words: Sequence[str], steps_s: Sequence[float], folder: Path) -> Command:
    """A program of this project by flags, of which a last `--job` stands for the job file."""
    own = str(job_file(given.network))
    what = [*words, own] if words[-1] == "--job" else [*words, "-n", NETWORKS[given.network]]
    rate = "-ll" if owner_of(words[1]).settings.rate_field == "local_lr" else "-l"
    flags = [rate, str(loops.RATE / BATCH), "-b", str(BATCH), "--quiet", "--seed", str(given.seed)]
    if given.target:
        flags += ["--eval-seconds", "1", "--evaluator", "1", "--target-evaluations", "3"]
        flags += ["--target-accuracy", str(given.target)]
    else:
        flags += ["-e", "1000000", "--evaluator", "0"]
    if len(steps_s) == 1:
        return [sys.executable, "main.py", *what, "-c", "1", "-ld", str(folder), *flags], ONE_THREAD
    cluster = ["--workers", ",".join(map(str, steps_s)), "--log-base", str(folder), "--", "--log-form", "lines"]
    return ["scripts/local_cluster.sh", *what, *cluster, *flags], ONE_THREAD


def of_loop(
    given: argparse.Namespace, words: Sequence[str], steps_s: Sequence[float], folder: Path
) -> Iterator[Command]:
    """The ranks of a loop, behind the servers that it needs. `words`: its name and arguments."""
    port, master, count = *map(str, free_ports(2)), str(len(steps_s))
    loop, address, host = words[0], f"127.0.0.1:{port}", "127.0.0.1"
    python = str(given.torchft) if loop.startswith("torchft") else sys.executable
    variables = {
        **{**ONE_THREAD, "MASTER_ADDR": host, "MASTER_PORT": master, "WORLD_SIZE": count},
        **{"ESYNC_SERVER": address, "TORCHFT_LIGHTHOUSE": f"http://{address}", "DMLC_INTERFACE": "lo"},
        **{"DMLC_PS_ROOT_URI": host, "DMLC_PS_ROOT_PORT": port, "DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": count},
    }
    if loop == "esync_worker":
        yield [python, "-m", "esync", "serve", address], variables
    if loop.startswith("torchft"):
        yield [str(Path(python).with_name("torchft_lighthouse")), "--min_replicas", count, "--bind", address], variables
    for role in ("scheduler", "server") if "dist_sync" in words else ():
        yield [python, "-c", "import mxnet"], {**variables, "DMLC_ROLE": role}
    network = f"{'gluon' if loop == 'gluon_loop' else 'torch'}_{given.network}"
    for rank, step_s in enumerate(steps_s):
        command = [python, "-m", "experiments.frameworks.rank", *words, "--network", network, "--ranks", count]
        command += ["--rank", str(rank), "--step-s", str(step_s), "--folder", str(folder / str(rank))]
        command += ["--seed", str(given.seed)]
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "DMLC_ROLE": "worker"}
        yield [*command, *["--evaluate"] * bool(given.target and not rank)], {**variables, **own}


@contextlib.contextmanager
def running(commands: Iterable[Command], folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes, which are ended with the block; `folder` gets what they print."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command, variables in commands:
            with (folder / f"{len(processes)}.log").open("wb") as log:
                own, both = {**os.environ, **variables}, subprocess.STDOUT
                each = subprocess.Popen(command, cwd=ROOT, env=own, stdout=log, stderr=both, start_new_session=True)
            processes.append(each)
        yield processes
    finally:
        for each in processes:
            each.terminate()
        for each in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(ENDS_S)
            each.kill()  # one that has not ended


def check(processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    """Raises SetupError where one has ended, with the last line that it printed."""
    for number, process in enumerate(processes):
        if process.poll() is not None:
            said = (folder / f"{number}.log").read_text(errors="replace").split("\n")
            last = next((line for line in reversed(said) if line.strip()), f"exit code {process.returncode}")
            raise SetupError(f"process {number} has ended: {last}")


def used() -> tuple[float, int]:
    """CPU seconds of all processes that this one has started, and the peak MiB of the largest worker among them."""
    found = descendants()
    ticks = sum(int(each) for _, numbers in found.values() for each in numbers[11:15])
    workers = [pid for pid, (name, numbers) in found.items() if name.startswith("worker ") and numbers[0] != "Z"]
    status = "".join(Path(f"/proc/{pid}/status").read_text() for pid in workers or found)
    peaks = re.findall(r"VmHWM:\s*(\d+)", status)
    return ticks / os.sysconf("SC_CLK_TCK"), round(max(map(int, peaks), default=0) / 1024)
