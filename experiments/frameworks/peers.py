"""This project beside gluon, DistributedDataParallel, local SGD of torch.distributed, and torchft, on the same work.

    python -m experiments.frameworks.peers --set equal --network mlp --runs 3 --out FILE
    python -m experiments.frameworks.peers --set unlike --network lenet --seconds 90 --target 0.85 --out FILE
    python -m experiments.frameworks.peers --set quotas --network lenet --probe FILE.csv       # as root
    python -m experiments.frameworks.peers --table --out FILE

In each turn, which has its seed, each way of a set trains Fashion-MNIST once: batches of 64, one thread a process,
plain SGD. A line of the file is one run, over its last `--seconds`: samples/s of all workers, CPU seconds of all
processes of the job, MB that a worker sends a round, the peak memory of the largest worker, and the lines that the
user writes. With `--target` a process beside evaluates, at most once a second; such a run ends at the target and gives
the seconds to it, and nothing else to the table. `--probe` writes the cluster file of the set's workers that `advise`
would, for simulate.py, and runs nothing.
"""

from __future__ import annotations

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import argparse
import inspect
import json
import math
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from esync.measure import LINES_FILE
from experiments import markdown
from experiments.frameworks import loops, processes
from experiments.frameworks.rank import BATCH, CURVE
from experiments.quotas import limited
from flag_parser import FlagParser
from trainer.run_logs.rounds import Round, read_rounds
from utils import EXIT_INCOMPLETE, EXIT_OK, SetupError, append_line

BEGINS_S, WARM_UP_S = 120.0, 2.0
# Seconds of a step of each worker, by sleeping, and the part of a core that each has
STEP_S = {"one": (0.0,), "equal": (0.0,) * 2, "unlike": (0.02, 0.05, 0.2), "quotas": (0.0,) * 3}
SHARES = {"quotas": {0: 1.0, 1: 0.5, 2: 0.2}}
BASE = {"one": "torch"}  # the way that the others are compared with; else DDP
RULES = ("esync", "esync-outer")
WAYS = {  # flags of this project's programs (processes.of_project), or a function of loops.py with its arguments
    "one": {"gluon": "gluon_loop", "-m local": "-m local", "torch": "torch_loop", "-m local, torch": "-m local --job"},
    "equal": {
        "gluon, dist_sync": "gluon_loop dist_sync",
        **{f"-m sync, {each}": f"-m sync --exchange {each}" for each in ("kvstore", "hub", "ring")},
        "DDP": "ddp",
        **{f"-m sync, {each}, torch": f"-m sync --exchange {each} --job" for each in ("hub", "ring")},
    },
    "unlike": {
        **{f"-m {each}, torch": f"-m {each} --exchange hub --job" for each in RULES},
        **{f"esync.Worker, {each}": f"esync_worker {each}" for each in RULES},
        **{"DDP": "ddp", "PeriodicModelAverager": "periodic_averager"},
        **{"torchft LocalSGD": "torchft_local_sgd", "torchft DiLoCo": "torchft_diloco"},
    },
    "quotas": {
        **{"-m esync": "-m esync --exchange hub", "-m esync-outer": "-m esync-outer --exchange hub"},
        "-m esync-outer, two": "-m esync-outer --fastest 2 --exchange hub",
        "-m fastest-outer, two": "-m fastest-outer --fastest 2 --exchange hub",
        "-m alone": "-m alone",
        **{f"-m {each}, torch": f"-m {each} --exchange hub --job" for each in RULES},
        **{"DDP": "ddp", "PeriodicModelAverager": "periodic_averager"},
    },
}


def lines_of(words: Sequence[str], network: str) -> int:
    """Lines that a user writes, without blank ones and docstrings: the loop with what it calls, and the network."""
    texts = []
    if words[0] != "-m":
        loop = getattr(loops, words[0])
        called = inspect.getclosurevars(loop).globals.values()
        texts = [inspect.getsource(each) for each in (loop, *filter(inspect.isfunction, called))]
    if words[0] == "gluon_loop":
        texts.append(inspect.getsource(getattr(loops, f"gluon_{network}")))
    elif words[0] != "-m" or words[-1] == "--job":
        texts.append(processes.job_file(network).read_text())
    return len(re.findall(r'^ *[^\s"].*$', "\n".join(texts), re.MULTILINE))


def run(given: argparse.Namespace, way: str) -> dict[str, Any]:
    """One run of a way. Raises SetupError where a process ends, or too little was done."""
    words, steps_s = WAYS[given.set][way].split(), STEP_S[given.set]
    few = dict(zip(words, [*words[1:], ""], strict=True)).get("--fastest", len(steps_s))
    count = 1 if "alone" in words else int(few)
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.monotonic()
        if words[0] == "-m":
            commands = [processes.of_project(given, words, steps_s, folder)]
        else:
            commands = [*processes.of_loop(given, words, steps_s, folder)]
        with limited(SHARES.get(given.set, {})), processes.running(commands, folder) as started:
            while len([*folder.rglob(LINES_FILE)]) < count and time.monotonic() < began + BEGINS_S:
                processes.check(started, folder)
                time.sleep(0.1)
            time.sleep(WARM_UP_S)
            begin, (before_s, _) = time.monotonic(), processes.used()
            until = begin + given.seconds
            while (left_s := until - time.monotonic()) > 0 and not (given.target and _is_over(given, started, folder)):
                time.sleep(min(1.0, left_s))
            if not given.target or any(each.poll() for each in started):
                processes.check(started, folder)
            (after_s, mib), end = processes.used(), time.monotonic()
        logs = [read_rounds(path.parent, lambda text: None) for path in folder.rglob(LINES_FILE)]
        curve = [(each.elapsed_s, each.evaluation[1]) for log in logs for each in log if each.evaluation]
        curve += _curve(folder)
    if len(logs) < count:
        raise SetupError(f"{len(logs)} of {count} workers ended a round within {BEGINS_S:.0f} s")
    about = {"set": given.set, "network": given.network, "way": way, "seconds": given.seconds, "target": given.target}
    about |= {"seed": given.seed, "lines": lines_of(words, given.network)}
    if given.target:
        return {**about, "target_s": held_s(curve, given.target)}
    rate = sum(rate_of(log[:-1], given.seconds) for log in logs)
    cores = (after_s - before_s) / (end - begin)
    sent = statistics.median((each.bytes_pushed or 0) / 1e6 for log in logs for each in log)
    return {**about, "samples_per_s": round(rate, 1), "cpu_s": round(1000 * cores / rate, 4), "mib": mib, "mb": sent}


def _curve(folder: Path) -> list[tuple[float, float]]:
    """Seconds and accuracies that the ranks of a loop have written so far."""
    return [tuple(json.loads(line)) for path in folder.rglob(CURVE) for line in path.read_text().splitlines()]


def _is_over(given: argparse.Namespace, started: Sequence[subprocess.Popen[bytes]], folder: Path) -> bool:
    """Whether the target is held; a job of this project ends there by itself."""
    return any(each.poll() is not None for each in started) or held_s(_curve(folder), given.target) is not None


def held_s(curve: Sequence[tuple[float, float]], target: float) -> float | None:
    """Seconds until the mean of three evaluations in a row is at the target."""
    threes = zip(curve, curve[1:], curve[2:], strict=False)
    return next((three[2][0] for three in threes if statistics.fmean(value for _, value in three) >= target), None)


def rate_of(log: Sequence[Round], seconds: float) -> float:
    """Samples/s of a worker in its last seconds, from the end of a round on. Raises SetupError without another one."""
    last = [each for each in log if each.elapsed_s >= log[-1].elapsed_s - seconds]
    if len(last) < 2:
        raise SetupError("a worker did not do two rounds: give more --seconds")
    return sum(each.samples for each in last[1:]) / (last[-1].elapsed_s - last[0].elapsed_s)


def spread(values: Sequence[float], form: str) -> str:
    """The median and the range."""
    if not values:
        return "-"
    median, least, most = (f"{each:{form}}" for each in (statistics.median(values), min(values), max(values)))
    return f"{median} ({least} to {most})".replace("inf", "missed")


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """A table of each set and network: medians with the range of the turns."""
    parts = []
    for name, network in dict.fromkeys((each["set"], each["network"]) for each in runs):
        its = [each for each in runs if (each["set"], each["network"]) == (name, network)]
        base = BASE.get(name, "DDP")
        of_base = {each["turn"]: each["samples_per_s"] for each in its if each["way"] == base and not each["target"]}
        head = ["samples/s", f"of {base}'s, turn by turn", "CPU s for 1,000 samples", "MB a round", "MiB"]
        rows = [[f"{name}, {network}", *head, "s to the target", "lines"]]
        for way in dict.fromkeys(each["way"] for each in its):
            own = [each for each in its if each["way"] == way]
            timed = [each for each in own if not each["target"]]
            ratios = [each["samples_per_s"] / of_base[each["turn"]] for each in timed if each["turn"] in of_base]
            rates, *others = (
                spread([each[key] for each in timed], form)
                for key, form in (("samples_per_s", ".0f"), ("cpu_s", ".3f"), ("mb", ".3f"), ("mib", ".0f"))
            )
            to_target = spread([each["target_s"] or math.inf for each in own if each["target"]], ".0f")
            rows.append([way, rates, spread(ratios, ".2f"), *others, to_target, str(own[-1]["lines"])])
        parts.append(markdown.table(rows))
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the ways of a set in turns, or prints the tables."""
    parser = FlagParser("experiments/frameworks/peers.py", doc=__doc__)
    parser.add_argument("--out", type=Path, default=Path("peers.jsonl"), help="gets a line of JSON for each run")
    parser.add_argument("--table", action="store_true", help="prints the tables of the file, and runs nothing")
    parser.add_argument("--set", choices=WAYS, default="equal")
    parser.add_argument("--network", choices=processes.NETWORKS, default="mlp")
    parser.add_argument("--ways", nargs="+", help="some ways of the set, by name")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the first turn")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--target", type=float, help="test accuracy, of the mean of three evaluations")
    parser.add_argument("--torchft", type=Path, help="a Python that has torchft, for its ways; else they are left out")
    parser.add_argument("--probe", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    if given.probe:
        from scripts.probe import probe  # with NumPy, which --help does without
        from scripts.run_process import Processes

        steps = ",".join(map(str, STEP_S[given.set]))
        job = ["-n", processes.NETWORKS[given.network], "--", "-b", str(BATCH)]
        with tempfile.TemporaryDirectory() as name, limited(SHARES.get(given.set, {})):
            found = probe(["--workers", steps], job, Path(name), Processes(Path(name)))
            if found is not None:
                given.probe.write_bytes(found.path.read_bytes())
        return EXIT_INCOMPLETE if found is None else EXIT_OK
    code = EXIT_OK
    for seed in range(given.seed, given.seed + (0 if given.table else given.runs)):
        given.seed, turn = seed, time.strftime("%Y-%m-%d %H:%M:%S")
        for way in given.ways or WAYS[given.set]:
            if "torchft" in way and given.torchft is None:
                print(f"{way}: left out, since no --torchft gives a Python that has it", file=sys.stderr, flush=True)
                continue
            try:
                append_line(given.out, json.dumps({"turn": turn, **run(given, way)}))
            except (SetupError, OSError) as error:
                print(f"{way}: {error}", file=sys.stderr, flush=True)
                code = EXIT_INCOMPLETE
    if given.table:
        print(table([json.loads(line) for line in given.out.read_text().splitlines()]))
    return code


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends the processes of a run
    start.run(main)
