"""The version of this program, for run.json and for the comparison of a job's hosts."""

import functools
import hashlib
import logging
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The modules and files that a role of a job runs, without other files in the root, such as a user's scripts.
_DECIDING = ("anchor", "errors", "job_rates", "row", "state", "throughputs")
_MEETING = ("log_limit", "messages", "setups", "wire")
_PROGRAM = (
    *("main.py", "algorithm_row.py", "algorithms.py", "config.py", "flag_parser.py", "flag_values.py", "rates.py"),
    *("start.py", "utils.py"),
    *("esync/**/*.py", "trainer/**/*.py", "models/**/*.py"),
    # Used by the server parts on the hub, and by the rendezvous.
    *("SimpleStateServer/server/policies/*.py", "SimpleStateServer/server/rendezvous/*.py"),
    *(f"SimpleStateServer/server/{name}.py" for name in (*_DECIDING, *_MEETING)),
)
_GIT_S = 5.0


@functools.cache  # each of a virtual cluster's thousand workers would run git
def commit() -> str | None:
    """The checked-out commit, with `-dirty` if files were changed since. Returns None if this is no checkout; also if
    git fails, with a line in the log."""
    if not (ROOT / ".git").exists():
        return None  # a parent folder may be a checkout of something else
    # A caller such as a git hook points git to its own repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        finished = subprocess.run(
            ["git", "-c", "safe.directory=*", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"],
            cwd=ROOT,  # it may belong to another user, whose program runs here anyway
            env={**environment, "GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        logging.info("run.json will not have the commit: %s", said.strip().splitlines()[0])
        return None
    return finished.stdout.strip()


@functools.cache  # each virtual job of a process asks for it
def files_hash() -> str:
    """A hash of the program's files; needs no git."""
    digest = hashlib.sha256()
    for pattern in _PROGRAM:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
