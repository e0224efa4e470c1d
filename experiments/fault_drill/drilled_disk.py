"""The drills of a full disk, which gets room again: of logs and checkpoints, or of one worker's logs. It is a small
tmpfs, mounted as root."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from algorithms import folder_name
from experiments.fault_drill.drilled_job import Job, send
from experiments.fault_drill.drilled_logs import END_S, LONGEST_S, POLL_S, noticed_s
from experiments.fault_drill.faults import ONE, Fault

SIZE_MIB = 24
BLOCK = bytes(4096)  # the least that a tmpfs gives a file
FULL_S = 10.0  # until there is room again


def missing() -> str:
    """The reason why no disk can be filled here, or nothing."""
    if os.geteuid() != 0:
        return "mounting a disk needs root"
    if not shutil.which("mount") or not shutil.which("umount"):
        return "mount is not here; it comes with Debian's package mount"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with mounted(Path(folder), mib=1):
                return ""
        except OSError as error:
            return f"no disk can be mounted here: {error}"


@contextlib.contextmanager
def mounted(folder: Path, mib: int) -> Iterator[Path]:
    """A disk in a folder, unmounted at the end of the block. Raises OSError if it cannot be mounted."""
    _unmount(folder)  # the disk of a drill that was killed
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "esync-drill", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(done.stderr.strip())
    try:
        yield folder
    finally:
        _unmount(folder)


def _unmount(folder: Path) -> None:
    if folder.is_mount():
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # also where a process still writes there


def fill(file: Path) -> None:
    """Takes all room on its disk."""
    try:
        with file.open("ab", buffering=0) as filler:
            while True:
                filler.write(BLOCK)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def drill(way: str, mode: str, fault: Fault, seconds: float, folder: Path) -> dict[str, Any]:
    """One job of which a disk is filled for FULL_S while all train; victims are killed once it is full.

    Returns:
        A row of the drill. noticed_s: seconds until one of the job's processes said so; pause_s: the longest time
        between two rounds of a worker since then.
    """
    own = folder / "logs" / "lenet" / folder_name(mode, split_by_class=False) / socket.gethostname() / "cpu2"
    row: dict[str, Any] = {"exit_code": None}
    with mounted(own if fault.fills_disk == ONE else folder, SIZE_MIB) as disk:
        with Job(way, mode, seconds, folder / "logs") as job:
            if job.wait_for(job.has_begun, LONGEST_S):
                began, before = time.time(), job.logs.all_rounds()
                fill(disk / "filler")
                send(job.pids(), fault.victims, signal.SIGKILL)
                while time.time() < began + FULL_S:
                    fill(disk / "filler")  # again: the beginning of a checkpoint that could not be written is removed
                    time.sleep(POLL_S)
                (disk / "filler").unlink()
                row["exit_code"] = job.end(seconds + END_S)
                row |= {"noticed_s": noticed_s(job.lines, began), "pause_s": job.logs.longest_s(before)}
        return row | job.logs.left() | {"said": job.notices()}
