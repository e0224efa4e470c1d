"""Shared by all rooms: version, errors with exit codes, logging, atomic files. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def version_number() -> str:
    """The program's version, such as "0.6.0", with which CHANGELOG.md begins."""
    return (Path(__file__).resolve().parent / "VERSION").read_text().strip()


# ---------------------------------------------------------------------------------------------- exit codes

EXIT_OK = 0  # the job ended as asked: a limit, a target or a first signal; the logs are complete
EXIT_BUG = 1  # an unexpected error; the traceback is in the log
EXIT_SETUP = 2  # a flag, a file, a device, a port or an address is wrong; nothing was trained or overwritten
EXIT_PEER_LOST = 3  # another process of the job died or stopped responding
EXIT_FORCED = 130  # a second signal: stopped at once

# Texts in workers' logs and run files that other programs look for.
BEGINS = "training begins"  # all workers are there
STOPPED = "a signal came"  # why a worker was stopped
LEFT = "left the job, which goes on without it"  # the same with --leave
DIVERGED = "training has diverged"  # why a worker ends


class JobError(Exception):
    """Ends this process with one line on stderr and `exit_code`; never with a traceback."""

    exit_code = EXIT_BUG


class SetupError(JobError):
    """A mistake that the user can correct before the job starts; the message says how."""

    exit_code = EXIT_SETUP


class PeerLost(JobError):
    """Another process of the job is lost, so this one cannot continue."""

    exit_code = EXIT_PEER_LOST


class JobOver(JobError):
    """The job has ended without this process, or continues without it."""

    exit_code = EXIT_OK


# Packages that programs import at once (requirements.in).
PACKAGES = ("django", "greenlet", "httptools", "matplotlib", "msgspec", "mxnet", "numpy", "uvloop")


def missing_package(error: BaseException) -> str:
    """What to do about an import of a package that is not installed; empty for another error."""
    package = str(getattr(error, "name", "")).partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package not in PACKAGES:
        return ""
    return f"there is no {package} for {sys.executable}: scripts/setup.sh makes .venv, whose python has it"


# ------------------------------------------------------------------------------------------------- logging


LOG_TIME_FORMAT = "%Y-%m-%d %H:%M:%S"


def setup_logging(role: str) -> None:
    """Sends log lines as `2026-11-21 12:00:01 role | text`: errors to stderr, all others to stdout."""
    normal, errors = logging.StreamHandler(sys.stdout), logging.StreamHandler(sys.stderr)
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


# --------------------------------------------------------------------------------------------- atomic files


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as JSON, atomically.

    Raises:
        SetupError: the disk is full, or the folder cannot be written to.
    """
    write_atomically(path, json.dumps(value, allow_nan=False).encode())


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file so that a reader sees the old or the new content as a whole.

    Raises:
        SetupError: the disk is full, or the folder cannot be written to.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise SetupError(f"{error.filename or path} cannot be written: {error.strerror}") from None


def append_line(path: Path, line: str) -> None:
    """Appends a line to a file; a crash can truncate this line alone.

    Raises:
        SetupError: the disk is full, or the folder cannot be written to.
    """
    try:
        with path.open("ab+", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                if file.read(1) != b"\n":  # an earlier writer was stopped within a line
                    line = f"\n{line}"
            content = f"{line}\n".encode()
            if file.write(content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    except OSError as error:
        raise SetupError(f"{error.filename or path} cannot be written: {error.strerror}") from None


def read_json(path: Path) -> Any:
    """Reads a JSON file.

    Raises:
        SetupError: the file is missing, truncated or not JSON. The message names it.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise SetupError(f"{path} does not exist") from None
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}") from None
    return parsed_json(content, str(path))


def parsed_json(content: bytes, where: str) -> Any:
    """Parses JSON in UTF-8, 16 or 32.

    Args:
        where: file, perhaps with its line, for the message.

    Raises:
        SetupError: it is not JSON.
    """
    try:
        return json.loads(content)
    except RecursionError:
        raise SetupError(f"{where} cannot be read as JSON: it is nested too deeply") from None
    except ValueError as error:
        raise SetupError(f"{where} cannot be read as JSON: {error}") from None


# --------------------------------------------------------------------------------------------------- containers


RUN_AS_OWNER = 'run the container as the owner of the mounted folder (--user "$(id -u):$(id -g)")'


def remedy(on_host: str, in_image: str) -> str:
    """The advice about an error: `in_image` inside the project's Docker image, otherwise `on_host`."""
    return in_image if "ESYNC_IMAGE" in os.environ else on_host


# ------------------------------------------------------------------------------------------- log trees

RUN_FILE = "run.json"
CHECKPOINT_FOLDER = ".checkpoints"
SEED_FOLDER = re.compile(r"seed-\d+")  # the log tree of one of several runs
EARLIER = "earlier"  # folder of earlier runs, in the log tree and in the folder of checkpoints
FLOAT32_COUNTS_TO = 1 << 24  # up to here the kvstore, which has float32 alone, keeps whole numbers exact
