"""What this package and the trainer share: exit codes, errors, files that are written as a whole. Standard library
only."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

EXIT_OK = 0  # the job ended as asked: a limit, a target or a first signal; the logs are complete
EXIT_BUG = 1  # an unexpected error; the traceback is in the log
EXIT_SETUP = 2  # a flag, a file, a device, a port or an address is wrong; nothing was trained or overwritten
EXIT_PEER_LOST = 3  # another process of the job died or stopped responding
EXIT_INCOMPLETE = 4  # as EXIT_OK, but a full disk has not taken all logs
EXIT_FORCED = 130  # a second signal: stopped at once
EXIT_PIPE = 141  # done, but the reader of the output left before its end: 128 + SIGPIPE


class JobError(Exception):
    """Ends this process with one line on stderr and `exit_code`; never with a traceback."""

    exit_code = EXIT_BUG


class SetupError(JobError):
    """A mistake that the user can correct before the job starts; the message says how."""

    exit_code = EXIT_SETUP


class Incomplete(JobError):
    """The job is done, but not all of its logs and models could be written."""

    exit_code = EXIT_INCOMPLETE


class PeerLost(JobError):
    """Another process of the job is lost, so this one cannot continue."""

    exit_code = EXIT_PEER_LOST


class JobOver(JobError):
    """The job has ended without this process, or continues without it."""

    exit_code = EXIT_OK


RUN_FILE = "run.json"  # of a worker, beside its rounds
REACHED = "reached"  # a job, its target: a text in workers' run files that other programs look for


def authority(host: str, port: int | str) -> str:
    """Host and port as in a URL: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as JSON, atomically. Raises SetupError if the disk is full, or the folder cannot be written to."""
    write_atomically(path, json.dumps(value, allow_nan=False).encode())


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file so that a reader sees the old or the new content as a whole, and its folder if there is none.
    Raises SetupError if the disk is full, or the folder cannot be written to."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise SetupError(f"{error.filename or path} cannot be written: {error.strerror}") from None


def append_line(path: Path, line: str) -> None:
    """Appends a line to a file, whose folder is made if there is none; a crash can truncate this line alone. Raises
    SetupError if the disk is full, or the folder cannot be written to."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                if file.read(1) != b"\n":  # an earlier writer was stopped within a line
                    line = f"\n{line}"
            content = f"{line}\n".encode()
            try:
                while content:  # what follows a short write tells why it was short
                    content = content[file.write(content) :]
            except OSError:
                file.truncate(end)  # the line may be written later
                raise
    except OSError as error:
        raise SetupError(f"{error.filename or path} cannot be written: {error.strerror}") from None
