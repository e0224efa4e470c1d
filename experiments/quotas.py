"""Parts of a core for workers, by control groups: version 1, tested, and version 2, not tested; both need root."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from utils import SetupError

PERIOD_S = 0.1
LOOK_S = 0.1  # between two looks for new processes
REMOVED_S = 2.0  # for the processes of a group to end
# Files of a control group's quota by version.
GROUPS = {
    Path("/sys/fs/cgroup/cpu"): {"cpu.cfs_period_us": "{1}", "cpu.cfs_quota_us": "{0}"},
    Path("/sys/fs/cgroup"): {"cpu.max": "{0} {1}"},
}


def group(name: str, share: float) -> Path:
    """Makes a control group with a quota; returns its folder. Raises SetupError if none can be made here."""
    for mount, files in GROUPS.items():
        folder = mount / f"esync-{os.getpid()}-{name}"
        try:
            folder.mkdir()
            for file, value in files.items():
                with (folder / file).open("r+") as setting:  # which exists in a control group alone
                    setting.write(value.format(round(share * PERIOD_S * 1e6), round(PERIOD_S * 1e6)))
            return folder
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
    raise SetupError("no control group with a CPU quota can be made here: that needs root, and /sys/fs/cgroup")


def remove(folder: Path) -> None:
    """Removes a control group, whose processes have ended or are about to."""
    give_up = time.monotonic() + REMOVED_S
    while time.monotonic() < give_up:
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.02)
    logging.warning("warning: %s cannot be removed: it has processes", folder)


def descendants() -> dict[int, tuple[str, list[str]]]:
    """Name, and numbers of proc(5) from the state on, of each process that this one has started, or they have."""
    stats: dict[int, tuple[str, list[str]]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, numbers = path.read_text().rpartition(") ")
            stats[int(path.parent.name)] = name.partition(" (")[2], numbers.split()
    found = [os.getpid()]
    for parent in found:
        found += [pid for pid, (_, numbers) in stats.items() if int(numbers[1]) == parent]
    return {pid: stats[pid] for pid in found[1:]}


@contextlib.contextmanager
def limited(shares: Mapping[int, float]) -> Iterator[dict[int, Path]]:
    """Inside, worker N of the jobs that this process starts has `shares[N]` of a core, as soon as its process has its
    name; the one that evaluates beside it has no quota. Yields the groups of those that were found, by N. Raises
    SetupError if no group can be made here."""
    groups: dict[int, Path] = {}
    found, placed, over = dict[int, Path](), dict[int, str](), threading.Event()  # placed: names by id

    def look() -> None:
        while not over.wait(LOOK_S):
            for pid, (name, numbers) in descendants().items():
                kind, _, number = name.partition(" ")
                its = groups.get(int(number)) if kind == "worker" else None
                if kind == "evaluator" and int(numbers[1]) in placed:
                    its = next(iter(groups.values())).parent
                if its and placed.get(pid) != name:
                    with contextlib.suppress(OSError):  # it has ended
                        (its / "cgroup.procs").write_text(str(pid))
                        placed[pid] = name
                        found.update({int(number): its} if kind == "worker" else {})

    thread = threading.Thread(target=look)
    try:
        for number, share in shares.items():
            groups[number] = group(f"worker-{number}", share)
        if groups:
            thread.start()
        yield found
    finally:
        over.set()
        if thread.ident:
            thread.join()
        for folder in groups.values():
            remove(folder)
