"""The drill of a full disk of logs and checkpoints, which gets room again: a small tmpfs, mounted as root."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.fault_drill.drilled_job import Job
from experiments.fault_drill.drilled_logs import END_S, LONGEST_S, noticed_s
from experiments.fault_drill.faults import NAMES

SIZE_MIB = 24
BLOCK = bytes(4096)  # the least that a tmpfs gives a file
SETTLED_S = 0.5  # in which the last lines of ended processes are read


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
    """A disk in a folder, unmounted at the end of the block.

    Raises:
        OSError: it cannot be mounted.
    """
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


def drill(way: str, mode: str, seconds: float, folder: Path) -> dict[str, Any]:
    """One job whose disk is filled while all train; then there is room, and the same command with --resume follows.

    Args:
        folder: of the disk.

    Returns:
        A row of the drill. full_exit_code: of the job whose disk was full; noticed_s: seconds until one of its
        processes said so; again_s: from the second start until all had done two more rounds; rounds_lost: of those in
        the logs.
    """
    with mounted(folder, SIZE_MIB) as disk:
        filler = disk / "filler"
        first = Job(way, mode, seconds, disk / "logs")
        row = _fill_while_it_trains(first, filler)
        before = first.logs.all_rounds()
        filler.unlink(missing_ok=True)
        since = time.time()
        second = Job(way, mode, seconds, disk / "logs", resumes=True)
        try:
            row["again_s"] = second.train_again(NAMES, since)
            if row["again_s"] is not None:
                row["rounds_lost"] = second.logs.rounds_lost(before, NAMES, since)
            row["exit_code"] = second.end(seconds + END_S)
        finally:
            second.end(0.0)
        left = second.logs.left()
        left["left_running"] += row.pop("left_running")
        return row | left | {"said": first.notices() + second.notices()}


def _fill_while_it_trains(job: Job, filler: Path) -> dict[str, Any]:
    row: dict[str, Any] = {}
    try:
        if job.wait_for(job.has_begun, LONGEST_S):
            began = time.time()

            def has_ended() -> bool:
                fill(filler)  # again: the beginning of a checkpoint that could not be written is removed
                return job.is_over

            job.wait_for(has_ended, LONGEST_S)
            time.sleep(SETTLED_S)
            row["noticed_s"] = noticed_s(job.lines, began)
    finally:
        row["full_exit_code"] = job.end(0.0)
    return row | {"left_running": job.logs.left_running()}
