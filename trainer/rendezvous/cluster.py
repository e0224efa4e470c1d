"""What a process knows of the job's others: from the environment variables of MXNet's parameter server, and once it has
joined them."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from config import Config
from flag_values import device_name
from utils import SetupError

WORKER = "worker"
ROLES = ("scheduler", "server", WORKER)


@dataclass(frozen=True)
class Cluster:
    """The job's processes, from the environment variables of MXNet's parameter server."""

    role: str  # one of ROLES
    root_uri: str  # of the scheduler; empty where there is none
    root_port: int
    num_servers: int
    num_workers: int

    @property
    def has_scheduler(self) -> bool:
        """Whether there is more than workers."""
        return bool(self.root_uri)

    @classmethod
    def of_workers(cls, environment: Mapping[str, str] = os.environ) -> Cluster:
        """One of workers alone. Of the variables only DMLC_NUM_WORKER counts.

        Raises:
            SetupError: it is missing or has a value that no cluster can have, or this is to be no worker.
        """
        if (role := environment.get("DMLC_ROLE") or WORKER) != WORKER:
            raise SetupError(f"DMLC_ROLE={role!r}: a job that sums among the workers has no other processes")
        return cls(WORKER, "", 0, 0, _count(environment, "DMLC_NUM_WORKER"))

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


def named_by_task(config: Config, environment: Mapping[str, str] = os.environ) -> Config:
    """The flags of one of the tasks that dmlc's launcher starts by the same command: each has its own log folder.

    Raises:
        SetupError: DMLC_TASK_ID cannot be a part of a folder's name.
    """
    task = environment.get("DMLC_TASK_ID")
    if not task or config.device_name:
        return config
    try:
        return dataclasses.replace(config, device_name=device_name(f"{config.device}-{task}"))
    except argparse.ArgumentTypeError as error:
        raise SetupError(f"DMLC_TASK_ID={task!r}: {error}; unset it, or give --device-name") from None


class Gathers(Protocol):
    """What brings values of all workers together."""

    def gather(self, label: str, value: Any) -> list[Any] | None:
        """Gives a value (JSON) and waits for those of all workers, by rank; None where they cannot be had."""
