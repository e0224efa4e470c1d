"""Runs of a set, each a process of simulate.py or scripts/local_cluster.sh: begun, ended, and read into a line."""

import contextlib
import dataclasses
import hashlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import summary
from report import metrics
from report.metrics import Devices
from scripts.launch.roles import ROOT
from scripts.run_lines import Line
from trainer import version
from utils import DIVERGED, EXIT_FORCED, EXIT_OK, RUN_FILE, STOPPED, SetupError, read_json

Measure = Callable[[Line, dict[str, Any], Devices], dict[str, Any]]  # fields of a line, from what was logged

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
OUTPUT = "output.txt"  # what a run has printed, in the folder of its logs


@dataclass(frozen=True)
class Ended:
    """A run that has ended."""

    base: Path  # its log tree
    folder: str  # of its mode in the log tree: NETWORK/MODE
    code: int  # its exit code

    @cached_property
    def _text(self) -> str:
        return (self.base / OUTPUT).read_text(errors="replace")

    @property
    def diverged(self) -> bool:
        """Whether its loss was no longer finite."""
        return self.code != EXIT_OK and DIVERGED in self._text

    @property
    def failed(self) -> str:
        """The error that ended it otherwise; empty for nearly all."""
        if self.code == EXIT_OK or self.diverged:
            return ""
        lines = [line for line in self._text.splitlines() if line.strip()]
        return (lines[-1].partition(" | ")[2] or lines[-1]) if lines else f"exit code {self.code}"

    @property
    def was_stopped(self) -> bool:
        """Whether a signal has ended it, by any worker's run.json."""
        return any(
            f'"ended": "{STOPPED}"' in path.read_text() for path in (self.base / self.folder).glob(f"*/*/{RUN_FILE}")
        )

    def read(self) -> tuple[dict[str, Any], Devices]:
        """One worker's run.json, and what all workers logged. Raises SetupError if it did not reach the end of a
        round."""
        folder = self.base / self.folder
        try:
            about = read_json(next(iter(sorted(folder.glob(f"*/*/{RUN_FILE}"))), folder / RUN_FILE))
            return about, summary.summarise_mode(folder, lambda text: None)
        except OSError as error:
            raise SetupError(str(error)) from None


def size_of(folder: Path) -> int:
    """Bytes of all files in it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextlib.contextmanager
def at_signals(do: Callable[[], object]) -> Iterator[None]:
    """Inside, Ctrl-C and SIGTERM do this."""
    before = {each: signal.signal(each, lambda *_: do()) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class Processes:
    """Runs processes, several at a time, and ends them all when it is asked to."""

    def __init__(self, work: Path) -> None:
        """`work` holds the logs of runs, a folder each; the caller removes these."""
        self.work = work
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.RLock()  # a second signal may come while the first is handled
        self.stopped = False  # no other run is begun
        self.log_bytes = 0  # that all runs have left

    def stop(self) -> None:
        """Ends all runs at the end of their round, and begins no other."""
        with self._lock:
            self.stopped = True
            for process in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT)  # it leads a group: a shell's children get it too
                if process.args[0] == "bash":  # type: ignore[index]
                    process.terminate()  # it would run the next command

    def do(
        self, command: Sequence[str], folder: str, base: Path | None = None, environment: Mapping[str, str] = ONE_THREAD
    ) -> Ended | None:
        """Runs a command to its end; None where it was stopped.

        Args:
            command: a program of this project and its flags, without a place for the logs.
            folder: that of Ended.
            base: the log tree; by default a new one, of the command alone.
            environment: variables beside this process's.
        """
        if self.stopped:
            return None
        if base is None:
            base = self.work / hashlib.sha256(repr(command).encode()).hexdigest()[:16]
            shutil.rmtree(base, ignore_errors=True)
        base.mkdir(parents=True, exist_ok=True)
        program, *words = command
        own = words[: words.index("--")] if "--" in words else words  # behind it are the workers' flags
        interpreter = [] if program.endswith(".sh") else [sys.executable]
        whole = [*interpreter, str(ROOT / program), *own, "--log-base", str(base), *words[len(own) :]]
        with (base / OUTPUT).open("wb") as output:
            settings = {**os.environ, **environment}
            code = self._exit_code(whole, stdout=output, stderr=subprocess.STDOUT, env=settings)
        with self._lock:
            self.log_bytes += size_of(base)
        return None if code is None or (self.stopped and code) else Ended(base, folder, code)

    def shell(self, command: str, environment: Mapping[str, str]) -> int:
        """Runs a shell's command in the project's folder; returns its exit code."""
        return self._exit_code(["bash", "-euc", command], cwd=ROOT, env={**os.environ, **environment}) or 0

    def _exit_code(self, command: Sequence[str], **settings: Any) -> int | None:
        """None where no other process is to be begun."""
        with self._lock:
            if self.stopped:
                return None
            # In its own session, so that Ctrl-C reaches it once: from stop().
            process: subprocess.Popen[bytes] = subprocess.Popen(command, start_new_session=True, **settings)
            self._running.add(process)
        code = process.wait()
        with self._lock:
            self._running.discard(process)
        return code


def exit_code_of(work: Callable[[], int]) -> int:
    """Does a set's work; a stop by a signal and an error become a line and an exit code."""
    try:
        return summary.run_tool(work)
    except KeyboardInterrupt:
        logging.info("stopped; the same command continues")
        return EXIT_FORCED


def make(processes: Processes, line: Line, measure: Measure[Line]) -> Line | None:
    """Runs a line's command; returns the line with its results, or None where it was stopped. Only the logs of a run
    that failed stay."""
    ended = processes.do(line.command, line.folder)
    if ended is None:
        return None
    made = result(line, ended, measure)
    if made is None or not made.failed:
        shutil.rmtree(ended.base, ignore_errors=True)
    return made


def result(line: Line, ended: Ended, measure: Measure[Line]) -> Line | None:
    """The line with the results of a run that has ended; None where a signal has ended it."""
    line = dataclasses.replace(
        line, diverged=ended.diverged, failed=ended.failed, commit=version.commit(), program=version.files_hash()
    )
    try:
        about, devices = ended.read()
    except SetupError as error:
        return dataclasses.replace(line, failed=str(error)) if line.has_model else line
    if ended.was_stopped:
        return None
    return dataclasses.replace(line, **measure(line, about, devices), ended=about.get("ended") or "")


def curve_of(devices: Devices) -> list[tuple[float, float]]:
    """[seconds, accuracy] of the worker that evaluates."""
    evaluator = metrics.evaluating_device(devices, lambda text: None)
    return [(round(s, 3), round(accuracy, 5)) for s, accuracy in (evaluator.curve if evaluator else ())]
