"""CPU time and memory of a process, from /proc; and a server as a child process."""

import contextlib
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

HOST = "127.0.0.1"
START_TIMEOUT_S = 30.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    """Seconds of CPU of all threads of a process, in user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def resident_mb(pid: int) -> float:
    """Memory of a process in RAM, in MB (10^6 bytes); 0 where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES / 1e6
    except (OSError, IndexError):
        return 0.0


def allow_many_files() -> int:
    """Raises this process's limit of open files to the hard limit, which children inherit; returns it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def start(command: Sequence[str], folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Starts a server and waits until it listens.

    Raises:
        SystemExit: it ended, or did not listen in time.
    """
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=folder, stdin=nothing, stdout=nothing, stderr=nothing)
    give_up = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return process
        time.sleep(0.05)
    process.kill()
    raise SystemExit(f"error: the server did not start: {' '.join(command)}")


@contextlib.contextmanager
def compiled(*sources: Path) -> Iterator[list[str]]:
    """The programs of some C files, in a temporary folder.

    Raises:
        SystemExit: there is no compiler.
    """
    with tempfile.TemporaryDirectory() as folder:
        programs = []
        for source in sources:
            programs.append(f"{folder}/{source.stem}")
            try:
                subprocess.run(["gcc", "-O2", "-o", programs[-1], str(source)], check=True)
            except FileNotFoundError:
                sys.exit("error: gcc is missing, which builds the load generator: apt-get install gcc libc6-dev")
        yield programs
