"""What a state server that is restarted has to know of the jobs that survive lost workers: their newest generation.

A record is on the disk before the first START of its generation leaves (groups.py), and goes when the job ends. So
a server that finds one knows the newest generation, and one that could not write has none: it learns the generation
from all of its members (membership.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from pathlib import Path

import msgspec

from server.messages import Generation, Id, Member, Setup
from server.rendezvous.membership import Group

SET_ASIDE = ".before-"  # and the date, behind the name of a record

log = logging.getLogger(__name__)


class Record(msgspec.Struct, frozen=True):
    """A job's newest generation: fields of Group, and the launcher that began the job; empty: it was begun by hand."""

    generation: Generation
    id: Id
    lineage: Id
    members: tuple[Member, ...]
    calls: tuple[tuple[int, int], ...]
    left: frozenset[int]
    setup: Setup
    launcher: str

    def to_group(self, now: float) -> Group:
        """What a server that has read it knows of the job."""
        known = {field: getattr(self, field) for field in self.__struct_fields__ if field != "launcher"}
        return Group(**known, survives=True, heard=now)


class Journal:
    """The records in a folder, a file for each job: JOB.json. One server at a time has the folder, which is there while
    it has a record. Where it cannot be written, the server goes on without records, with a warning."""

    def __init__(self, folder: Path, launcher: str = "", begins_anew: bool = False) -> None:
        """`launcher` is that of this server, as in Launched; `begins_anew` sets all records aside."""
        self._folder, self._launcher = folder, launcher
        self._is_writable = True
        self._lock: int | None = None  # a descriptor of the folder
        for path in sorted(folder.glob("*.json")) if begins_anew and self._hold() else ():
            self._set_aside(path, "--begin-anew")

    def read(self, job: str, now: float) -> Group:
        """What is known of a job. Of one that another launcher has begun that is nothing: its processes have ended with
        it."""
        path = self._path(job)
        if not (path.exists() and self._hold()):
            return Group()
        try:
            content = path.read_bytes()
            record = msgspec.json.decode(content, type=Record)
        except (OSError, msgspec.DecodeError) as error:
            log.warning("warning: %s cannot be read: %s", path, error)
            return Group()
        if self._launcher and record.launcher != self._launcher:
            self._set_aside(path, "another launcher began that job, and has ended")
            return Group()
        # A record that the next one could not replace may be older than the job.
        return record.to_group(now) if self._written(path, content) else Group()

    def write(self, job: str, group: Group) -> None:
        """Keeps a generation; returns once it is on the disk. One that cannot be kept leaves no record."""
        fields = {name: getattr(group, name) for name in Record.__struct_fields__ if name != "launcher"}
        if self._hold():
            self._written(self._path(job), msgspec.json.encode(Record(**fields, launcher=self._launcher)))

    def remove(self, job: str) -> None:
        """The job has ended."""
        if self._lock is not None:
            with contextlib.suppress(OSError):  # another record is there
                self._path(job).unlink()
                self._folder.rmdir()
            self.close()

    def close(self) -> None:
        """Another server may have the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _hold(self) -> bool:
        """Whether this server has the folder, which it makes."""
        if self._lock is None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._lock = os.open(self._folder, os.O_RDONLY)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self._warn(error)
                self.close()
        return self._lock is not None

    def _path(self, job: str) -> Path:
        return self._folder / f"{job}.json"

    def _written(self, path: Path, content: bytes) -> bool:
        assert self._lock is not None
        new = path.with_suffix(".new")
        try:
            with new.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
            os.fsync(self._lock)
        except OSError as error:
            self._warn(error)
            for each in (new, path):
                with contextlib.suppress(OSError):
                    each.unlink()
                    os.fsync(self._lock)
            return False
        self._is_writable = True
        return True

    def _set_aside(self, path: Path, why: str) -> None:
        aside = path.with_name(f"{path.name}{SET_ASIDE}{time.strftime('%Y-%m-%d-%H-%M-%S')}")
        with contextlib.suppress(OSError):
            path.rename(aside)
            log.warning("warning: the record of an earlier job was renamed to %s: %s", aside, why)

    def _warn(self, error: OSError) -> None:
        """Once, until a record is written again."""
        if self._is_writable:
            why = "another state server uses it" if isinstance(error, BlockingIOError) else error.strerror
            log.warning(
                "warning: no record of the workers' generations is kept in %s: %s. Should this server be restarted, it "
                "waits to hear from all workers of a job that has lost some (--journal DIR is another folder)",
                self._folder, why,
            )  # fmt: skip
        self._is_writable = False
