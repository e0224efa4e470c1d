"""Shared by all rooms: version, errors with exit codes, logging, atomic files, what a process may use. Standard library
only."""

import collections
import contextlib
import json
import logging
import math
import os
import queue
import re
import resource
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

from esync.base import *  # noqa: F403  (errors, exit codes, files: all of it is also this module's)
from esync.base import EXIT_BUG as EXIT_BUG, SetupError as SetupError


def version_number() -> str:
    """The program's version, such as "0.6.0", with which CHANGELOG.md begins."""
    return (Path(__file__).resolve().parent / "VERSION").read_text().strip()


# Texts in workers' logs and run files that other programs look for.
STOPPED = "a signal came"  # why a worker was stopped
LEFT = "left the job, which goes on without it"  # the same with --leave
DIVERGED = "training has diverged"  # why a worker ends

# Packages that programs import at once (requirements.in).
PACKAGES = ("django", "greenlet", "httptools", "matplotlib", "msgspec", "mxnet", "numpy", "tomli", "uvloop")


def missing_package(error: BaseException) -> str:
    """What to do about an import of a package that is not installed; empty for another error."""
    package = str(getattr(error, "name", "")).partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package not in PACKAGES:
        return ""
    return f"there is no {package} for {sys.executable}: .venv/bin/python has it, which scripts/setup.sh makes"


# ------------------------------------------------------------------------------------------------- output

LOG_TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
KEPT_LINES = 10_000  # of a process's output, while its disk is full


class Output:
    """Stdout or stderr, whose reader may leave, as head does: what comes then is dropped, and the work goes on."""

    def __init__(self, stream: Any, keeps: bool = False) -> None:
        """`keeps`: where the disk is full, the newest lines stay until there is room; else that is an error."""
        self._stream, self.is_read, self._keeps = stream, True, keeps
        self._unwritten: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._unwritten.append(text)
        with self._going_on():
            while self._unwritten:
                self._stream.write(self._unwritten[0])
                self._unwritten.popleft()
        return len(text)

    def flush(self) -> None:
        with self._going_on():
            self._stream.flush()

    @contextlib.contextmanager
    def _going_on(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            self.is_read = False
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())  # else Python tells it when it ends
        except OSError:
            if not self._keeps:
                raise


def setup_logging(role: str) -> None:
    """Sends log lines as `2026-11-21 12:00:01 role | text`: errors to stderr, all others to stdout."""
    normal, errors = (logging.StreamHandler(Output(stream, keeps=True)) for stream in (sys.stdout, sys.stderr))
    normal.addFilter(lambda record: record.levelno < logging.ERROR)
    errors.setLevel(logging.ERROR)
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s {role} | %(message)s",
        datefmt=LOG_TIME_FORMAT,
        handlers=[normal, errors],
        force=True,
    )


def fail(message: str) -> None:
    """Writes why this process ends in one line to stderr, at once, also from a thread."""
    tell_launcher({"error": f"error: {printable(message)}"})
    logging.error("error: %s", message)
    for handler in logging.getLogger().handlers:
        handler.flush()


@contextlib.contextmanager
def die_on_error(what: str) -> Iterator[None]:
    """Ends the process on an error in a callback or a thread, where an exception would only be printed."""
    try:
        yield
    except BaseException:
        logging.exception(what)
        fail(what)
        os._exit(EXIT_BUG)


def die_where_a_thread_does() -> None:
    """From here on a thread that fails before it has begun, for want of memory, ends the process: what started it would
    wait for ever, since Python only prints the error."""
    errors: queue.SimpleQueue[Any] = queue.SimpleQueue()
    sys.unraisablehook = errors.put  # not in Python: such a thread has no memory for a frame

    def end() -> None:
        while True:
            error = errors.get()
            is_fatal = "in thread started by" in (error.err_msg or "")
            try:
                sys.__unraisablehook__(error)
                if is_fatal:
                    fail(f"a thread could not begin: {error.exc_type.__name__}")
            finally:
                if is_fatal:
                    os._exit(EXIT_BUG)

    threading.Thread(target=end, name="failed threads", daemon=True).start()


def printable(text: str, longest: int = 1000) -> str:
    """A text from elsewhere as a log, or the state server, may have it: one line of so many characters at most."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:longest])


# -------------------------------------------------------------------------------------------- to the launcher

# The variable with the descriptor and the inode of a pipe to the launcher, if one starts this process
LAUNCHER = "ESYNC_LAUNCHER"
PROCESS = "ESYNC_PROCESS"  # the variable with a process's name at its launcher, and the workers that live there


class Status(TypedDict, total=False):
    """What a process tells the launcher of itself, which decides by nothing that the process prints."""

    rank: int  # of a worker
    begun: bool  # training: all workers are there
    trained: bool  # a round
    ended: str  # why training has ended
    error: str  # the line with which the process ends


_status: Status = {}
_pipe, _teller = -1, 0  # and the process that tells: a child that it forks runs a job file's code


def launchers_pipe(pipe: int) -> dict[str, str]:
    """The variable by which a process that inherits this pipe knows it."""
    return {LAUNCHER: f"{pipe} {os.fstat(pipe).st_ino}"}


def know_launcher() -> None:
    """Takes the pipe from the environment, so that no program that this process starts has it. Where the launcher has
    started another program, such as mpiexec, which has started this one, there is none."""
    global _pipe, _teller
    pipe, _, inode = os.environ.pop(LAUNCHER, "").partition(" ")
    _pipe, _teller = -1, os.getpid()
    with contextlib.suppress(OSError, ValueError):
        if os.fstat(int(pipe)).st_ino == int(inode):
            _pipe = int(pipe)
            os.set_inheritable(_pipe, False)


know_launcher()


def tell_launcher(told: Status) -> None:
    """Tells the launcher, if one has started this process, what it does not know yet."""
    if _teller == os.getpid() and not told.items() <= _status.items():
        _status.update(told)
        with contextlib.suppress(OSError):  # there is none, or it is gone
            os.write(_pipe, json.dumps(told).encode() + b"\n")


@contextlib.contextmanager
def setup_errors(what: str, advice: str = "") -> Iterator[None]:
    """Inside, an error of the system becomes a SetupError: what cannot be done, the reason, and the advice."""
    try:
        yield
    except OSError as error:
        raise SetupError("; ".join(filter(None, (f"{what}: {error.strerror}", advice)))) from None


def read_json(path: Path) -> Any:
    """Reads a JSON file. Raises SetupError if the file is missing, truncated or not JSON. The message names it."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise SetupError(f"{path} does not exist") from None
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}") from None
    return parsed_json(content, str(path))


def parsed_json(content: bytes, where: str) -> Any:
    """Parses JSON in UTF-8, 16 or 32. `where` is the file, perhaps with its line, for the message. Raises SetupError if
    it is not JSON."""
    try:
        return json.loads(content)
    except RecursionError:
        raise SetupError(f"{where} cannot be read as JSON: it is nested too deeply") from None
    except ValueError as error:
        raise SetupError(f"{where} cannot be read as JSON: {error}") from None


# ---------------------------------------------------------------------------------------- what this process may use

os.environ.pop("PYTHONSAFEPATH", None)  # with it `python -m` does not find this project's modules


def usable_cores(cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[int]:
    """Numbers of the cores that this process may use: of its affinity, as many as its CPU quota is worth. `cgroups` is
    where the control groups are mounted, of version 1 or 2; `own` lists those of this process."""
    # macOS has no affinity.
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]
    quota = min(_cpu_quotas(cgroups, own), default=math.inf)
    return cores if quota >= len(cores) else cores[: max(1, int(quota))]


def _cpu_quotas(cgroups: Path, own: Path) -> Iterator[float]:
    """The quotas of the process's control groups, in cores: the least one counts."""
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            mount = cgroups / "cpu" if controllers else cgroups
            parts = Path(path).parts[1:]
            for depth in range(len(parts) + 1):  # in a container, the mount may be its own group
                folder = mount.joinpath(*parts[:depth])
                files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
                with contextlib.suppress(OSError, ValueError):  # "max": no quota
                    quota, period = map(int, " ".join((folder / name).read_text() for name in files).split())
                    if quota > 0:
                        yield quota / period


def allow_open_files(wanted: int, needed: int = 0, what: str = "") -> None:
    """Raises this process's limit of open files, as far as allowed. With fewer than `needed`, `what` cannot run. Raises
    SetupError if fewer are allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise SetupError(
            f"this process may open {hard} files (ulimit -Hn), and {what} needs {needed}: raise the limit, such as by "
            f"'ulimit -n {needed}' as root or LimitNOFILE of systemd"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


# --------------------------------------------------------------------------------------------------- containers

RUN_AS_OWNER = 'run the container as the owner of the mounted folder (--user "$(id -u):$(id -g)")'


def remedy(on_host: str, in_image: str = RUN_AS_OWNER) -> str:
    """The advice about an error: `in_image` inside the project's Docker image, otherwise `on_host`."""
    return in_image if "ESYNC_IMAGE" in os.environ else on_host


# ------------------------------------------------------------------------------------------- log trees

CHECKPOINT_FOLDER = ".checkpoints"
SEED_FOLDER = re.compile(r"seed-\d+")  # the log tree of one of several runs
EARLIER = "earlier"  # folder of earlier runs, in the log tree and in the folder of checkpoints
