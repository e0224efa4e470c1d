"""How soon the workers of a job without a parameter server end when one of them is killed.

    .venv/bin/python -m benchmarks.killed_worker --network resnet18-v1

Starts a job of three workers with each collective, kills a worker at a random moment of a round, and prints after how
many seconds each of the others had ended, and with which line. Takes about 15 s for each collective.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from config import AMONG_WORKERS

ROOT = Path(__file__).resolve().parents[1]
BEGIN_S, END_S = 120.0, 30.0  # for training to begin, and for all to end


def workers(folder: Path) -> dict[str, int]:
    """Process ids of the workers whose logs are in a folder, by device."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:  # it has just ended
            continue
        if "--device-name" in words and str(folder) in " ".join(words):
            found[words[words.index("--device-name") + 1]] = int(process.name)
    return found


def has_ended(pid: int) -> bool:
    """Whether a process has, also if nobody has asked for its exit code yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def kill_one(collective: str, network: str, folder: Path, choose: random.Random) -> tuple[list[float], str]:
    """Seconds after which each of the others had ended, and the last line of the first of them."""
    command = [sys.executable, "-m", "scripts.local_cluster", "-m", "sync", "-n", network, "--log-base", str(folder)]
    flags = ["--workers", "0,0,0", "--collective", collective, "--", "-e", "100000", "-b", "16"]
    logs = folder / network / "sync"
    with (folder / "launcher.log").open("wb") as output:
        job = subprocess.Popen([*command, *flags], cwd=ROOT, stdout=output, stderr=output)
    try:
        give_up = time.monotonic() + BEGIN_S
        while not list(logs.glob("*/cpu0/iter-10.txt")):
            if time.monotonic() > give_up or job.poll() is not None:
                raise SystemExit((folder / "launcher.log").read_text())
            time.sleep(0.01)
        time.sleep(choose.random())
        running = workers(folder)
        victim = choose.choice(sorted(running))
        os.kill(running.pop(victim), signal.SIGKILL)
        killed, ended_s = time.monotonic(), dict[str, float]()
        while len(ended_s) < len(running) and time.monotonic() < killed + END_S:
            now_s = time.monotonic() - killed
            ended_s |= {name: now_s for name, pid in running.items() if name not in ended_s and has_ended(pid)}
            time.sleep(0.001)
        job.wait(END_S)
        first = min(ended_s, key=lambda name: ended_s[name])
        line = (logs / f"worker{first.removeprefix('cpu')}.log").read_text().splitlines()[-1]
        return sorted(ended_s.values()), line.partition(" | ")[2]
    finally:
        job.kill()
        job.wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a row a job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="lenet")
    parser.add_argument("--repeats", type=int, default=1, help="jobs of each collective")
    parser.add_argument("--seed", type=int, default=0, help="of who is killed, and when")
    options = parser.parse_args(arguments)
    choose = random.Random(options.seed)
    print("| collective | the others had ended after, s | with the line |\n| --- | --- | --- |")
    for collective in AMONG_WORKERS:
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory() as name:
                ended_s, line = kill_one(collective, options.network, Path(name), choose)
            print(f"| {collective} | {', '.join(f'{each:.3f}' for each in ended_s)} | {line} |", flush=True)


if __name__ == "__main__":
    main()
