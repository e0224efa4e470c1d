"""What a process knows of the job's others, from the environment variables of MXNet's parameter server."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from utils import SetupError

ROLES = ("scheduler", "server", "worker")


@dataclass(frozen=True)
class Cluster:
    """The job's processes, from the environment variables of MXNet's parameter server."""

    role: str  # one of ROLES
    root_uri: str
    root_port: int
    num_servers: int
    num_workers: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Cluster | None:
        """None where DMLC_ROLE is not set: a process on its own.

        Raises:
            SetupError: a variable is missing or has a value that no cluster can have.
        """
        role = environment.get("DMLC_ROLE")
        if not role:
            return None
        if role not in ROLES:
            raise SetupError(f"DMLC_ROLE={role!r} is unknown; choose from {', '.join(ROLES)}")
        missing = [name for name in ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT") if not environment.get(name)]
        if missing:
            raise SetupError(f"DMLC_ROLE={role} also needs {' and '.join(missing)}: the scheduler's address")
        return cls(
            role=role,
            root_uri=environment["DMLC_PS_ROOT_URI"],
            root_port=_count(environment, "DMLC_PS_ROOT_PORT", 65535),
            num_servers=_count(environment, "DMLC_NUM_SERVER"),
            num_workers=_count(environment, "DMLC_NUM_WORKER"),
        )


def _count(environment: Mapping[str, str], name: str, maximum: int = sys.maxsize) -> int:
    text = environment.get(name, "")
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= maximum:
        raise SetupError(f"{name}={text!r} is not a whole number from 1 on: set it to the same value in every process")
    return int(text)
