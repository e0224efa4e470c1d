"""Which version of this program runs here: for run.json, and to compare it over the hosts of a job."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What a role of a job runs: not what else lies in the root, such as a script of the user's on one host.
_DECIDING = ("batch_sizes", "errors", "job_rates", "max_tree", "state", "throughputs", "worker")
_PROGRAM = (
    *("main.py", "algorithms.py", "config.py", "flag_values.py", "rates.py", "utils.py"),
    *("trainer/**/*.py", "models/**/*.py"),
    # By these the optimizers on the parameter server decide.
    "SimpleStateServer/server/policies/*.py",
    *(f"SimpleStateServer/server/{name}.py" for name in _DECIDING),
)
_GIT_S = 5.0


@functools.cache  # a virtual cluster has a thousand workers that would ask git, one after the other
def commit() -> str | None:
    """The commit that is checked out, with `-dirty` where files were changed since; None where this is no checkout."""
    if not (ROOT / ".git").exists():
        return None  # a folder above may be a checkout of something else
    try:
        finished = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"],
            cwd=ROOT,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):  # no git here, or the checkout belongs to another user
        return None
    return finished.stdout.strip()


def files_hash() -> str:
    """A hash of the program's files, where there is no git too."""
    digest = hashlib.sha256()
    for pattern in _PROGRAM:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
