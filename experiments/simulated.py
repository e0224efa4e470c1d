"""simulate.py, or a job of scripts/local_cluster.sh, as processes: begun, ended and read."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import summary
from report.metrics import Devices
from scripts.launch.roles import ROOT
from utils import DIVERGED, EXIT_OK, RUN_FILE, STOPPED, SetupError, read_json

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
OUTPUT = "output.txt"  # what a run has printed, in its log tree


@dataclass(frozen=True)
class Ended:
    """A run that has ended.

    Attributes:
        base: its log tree.
        folder: of its mode in the log tree, as NETWORK/MODE.
        code: its exit code.
    """

    base: Path
    folder: str
    code: int

    @cached_property
    def _text(self) -> str:
        return (self.base / OUTPUT).read_text(errors="replace")

    @property
    def diverged(self) -> bool:
        """Whether it ended because its loss was no longer finite."""
        return self.code != EXIT_OK and DIVERGED in self._text

    @property
    def failed(self) -> str:
        """The error that ended it otherwise; empty in nearly all."""
        if self.code == EXIT_OK or self.diverged:
            return ""
        lines = [line for line in self._text.splitlines() if line.strip()]
        return (lines[-1].partition(" | ")[2] or lines[-1]) if lines else f"exit code {self.code}"

    def read(self) -> tuple[dict[str, Any], Devices]:
        """What run.json of one of its workers says, and what all of them did.

        Raises:
            SetupError: it did not get as far as the end of a round.
        """
        folder = self.base / self.folder
        try:
            about = read_json(next(iter(sorted(folder.glob(f"*/*/{RUN_FILE}"))), folder / RUN_FILE))
            return about, summary.summarise_mode(folder, lambda text: None)
        except OSError as error:
            raise SetupError(str(error)) from None


class Simulations:
    """Does runs as processes, of which several may go on at the same time, and ends them all when it is asked to."""

    def __init__(self, work: Path) -> None:
        """
        Args:
            work: where the logs of a run are while it goes on, and stay until they are dropped.
        """
        self._work = work
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.RLock()  # a second signal may come while the first is heard
        self.stopped = False

    def stop(self) -> None:
        """Ends all runs at the end of their round, and begins no other."""
        with self._lock:
            self.stopped = True
            for process in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT)  # it leads a group: a shell's children hear of it too
                if process.args[0] == "bash":  # type: ignore[index]
                    process.terminate()  # it would go on with the next command

    @contextlib.contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """Inside, the first Ctrl-C and the like stop them."""
        before = [signal.signal(each, lambda *_: self.stop()) for each in _SIGNALS]
        try:
            yield
        finally:
            for each, handler in zip(_SIGNALS, before, strict=True):
                signal.signal(each, handler)

    def do(self, command: Sequence[str], folder: str) -> Ended | None:
        """Does one and waits for its end; None where it was stopped.

        Args:
            command: `simulate.py` or `scripts/local_cluster.sh` and its flags, without a place for the logs.
            folder: as that of Ended.
        """
        base = self._work / hashlib.sha256(repr(command).encode()).hexdigest()[:16]
        shutil.rmtree(base, ignore_errors=True)
        base.mkdir(parents=True)
        program, *words = command
        own = words[: words.index("--")] if "--" in words else words  # behind it a launcher has the workers' flags
        interpreter = [] if program.endswith(".sh") else [sys.executable]
        with (base / OUTPUT).open("wb") as output:
            with self._lock:
                if self.stopped:
                    return None
                process = subprocess.Popen(
                    [*interpreter, str(ROOT / program), *own, "--log-base", str(base), *words[len(own) :]],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    start_new_session=True,  # so that Ctrl-C reaches it once: from here
                )
                self._running.add(process)
            code = process.wait()
            with self._lock:
                self._running.discard(process)
        return None if self.stopped and code else Ended(base, folder, code)

    def shell(self, command: str, environment: Mapping[str, str]) -> int:
        """Does a shell's command in the project's folder; returns its exit code."""
        with self._lock:
            if self.stopped:
                return 0
            process = subprocess.Popen(
                ["bash", "-euc", command], cwd=ROOT, env={**os.environ, **environment}, start_new_session=True
            )
            self._running.add(process)
        code = process.wait()
        with self._lock:
            self._running.discard(process)
        return code


def was_stopped(about: dict[str, Any]) -> bool:
    """Whether a signal has ended it, by its run.json."""
    return bool(about.get("ended") == STOPPED)
