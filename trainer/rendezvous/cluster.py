"""The size and the scheduler of a job, from the environment variables of MXNet's parameter server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from config import AMONG_WORKERS, HUB, MPI
from utils import SetupError, allow_open_files

WORKER = "worker"
ROLES = ("scheduler", "server", WORKER)


@dataclass(frozen=True)
class ClusterSpec:
    """The job's processes as the environment variables give them."""

    role: str  # one of ROLES
    root_uri: str  # of the scheduler, or the hub; empty in a job of workers alone
    root_port: int
    num_servers: int
    num_workers: int
    has_hub: bool = False  # the server is one, and there is no scheduler

    @property
    def has_scheduler(self) -> bool:
        return bool(self.root_uri) and not self.has_hub

    @property
    def num_processes(self) -> int:
        return int(self.has_scheduler) + self.num_servers + self.num_workers

    @classmethod
    def from_environment(cls, transport: str, environment: Mapping[str, str] = os.environ) -> ClusterSpec | None:
        """`transport`: as in Config. None where the process trains alone, or mpiexec knows the others. In a job of
        workers alone only DMLC_NUM_WORKER counts. Raises SetupError where a variable is missing or has a value that no
        such job can have."""
        role = environment.get("DMLC_ROLE")
        if transport in AMONG_WORKERS:
            if role and role != WORKER:
                raise SetupError(f"DMLC_ROLE={role!r}: a job that sums among the workers has no other processes")
            return cls(WORKER, "", 0, 0, _count(environment, "DMLC_NUM_WORKER"))
        if transport == MPI or not role:
            return None
        if role not in ROLES:
            raise SetupError(f"DMLC_ROLE={role!r} is unknown; choose from {', '.join(ROLES)}")
        has_hub = transport == HUB
        if missing := [name for name in ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT") if not environment.get(name)]:
            named = "server" if has_hub else "scheduler"
            raise SetupError(f"DMLC_ROLE={role} also needs {' and '.join(missing)}: the {named}'s address")
        root_port = _count(environment, "DMLC_PS_ROOT_PORT", 65535)
        num_servers = 1 if has_hub and "DMLC_NUM_SERVER" not in environment else _count(environment, "DMLC_NUM_SERVER")
        num_workers = _count(environment, "DMLC_NUM_WORKER")
        return cls(role, environment["DMLC_PS_ROOT_URI"], root_port, num_servers, num_workers, has_hub)


def allow_files(num_processes: int) -> None:
    """Allows a process of a job to open as many files as it needs, or raises SetupError; MXNet alone would wait without
    a word."""
    files = 32 + 6 * num_processes  # at most two thirds were seen
    allow_open_files(files, files, f"a process of a job of {num_processes}")


def _count(environment: Mapping[str, str], name: str, maximum: int = 100_000) -> int:
    text = environment.get(name, "")
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= maximum:
        raise SetupError(
            f"{name}={text!r} is not a whole number from 1 to {maximum}: set it to the same value in every process"
        )
    return int(text)
