"""The nodes that a site gives a job (by Slurm, PBS): what the command line says of them, and the job on them.

All of them see the project, its data and the log tree in the same folders.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from config import FIELDS, names_of
from flag_parser import FlagParser
from flag_values import at_least
from scripts.launch import cluster, hosts_file, job_options
from scripts.launch.hosts_layout import LaunchPlan
from utils import SetupError

COLUMNS = [name for name in hosts_file.COLUMNS if name not in ("address", "name", "user", "port", "folder")]
FIRST_PORT, PORTS_A_JOB, JOBS = 10_000, 16, 1024  # below those that the system gives to clients
Nodes = Sequence[Sequence[str]]  # their names, by group
BOTH = ("--job-name",)  # a flag of main.py, and an option of others


@dataclasses.dataclass(frozen=True)
class Group:
    """Nodes of one kind."""

    nodes: int
    columns: Mapping[str, str]  # of the hosts file, the same for each node
    options: tuple[str, ...]  # for another program


def group_of(nodes: int, words: Sequence[str]) -> Group:
    """Tells columns of the hosts file, as NAME=VALUE, from the options of another program."""
    pairs = [word.partition("=")[::2] for word in words if _is_column(word)]
    columns = {name: value.replace(",", " ") if name == "devices" else value for name, value in pairs}
    return Group(nodes, columns, tuple(word for word in words if not _is_column(word)))


def _is_column(word: str) -> bool:
    name, is_given, _ = word.partition("=")
    return bool(is_given) and name in COLUMNS


def group(text: str) -> Group:
    """Parses a group: its number of nodes, then words as of `group_of`."""
    nodes, *words = shlex.split(text) or [""]
    return group_of(at_least(1)(nodes), words)


@dataclasses.dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    given: argparse.Namespace
    log_base: Path
    groups: tuple[Group, ...]
    words: tuple[str, ...]  # before `--`, without the options of the other program
    flags: tuple[str, ...]  # behind it


def parse(parser: FlagParser, arguments: Sequence[str]) -> Request:
    """Adds the options of a job, and parses. Unknown words before `--` are of the first group.

    A bad value ends the process with exit code 2, and so does a flag of main.py before `--`.
    """
    cluster.add_job(parser)
    given, unknown, flags = job_options.parse_some(parser, arguments)
    mains = {name for field in FIELDS for name in names_of(field)} - {*BOTH}
    if wrong := [word for word in unknown if word.partition("=")[0] in mains]:
        parser.refuse(wrong)
    first = group_of(getattr(given, "nodes", 1), unknown)
    left, words = [*first.options], list[str]()
    for word in arguments[: len(arguments) - len(flags)]:
        if left and word == left[0]:
            left.pop(0)
        elif word not in ("--", "--dry-run", "--wait"):
            words.append(word)
    groups = (first, *getattr(given, "het", ()))
    return Request(given, job_options.log_base(given).resolve(), groups, tuple(words), flags)


def write_hosts(path: Path, groups: Sequence[Group], nodes: Nodes) -> None:
    """Writes the hosts file of nodes, given by group."""
    text = io.StringIO()
    table = csv.DictWriter(text, ["address", *COLUMNS], lineterminator="\n")
    table.writeheader()
    for group, names in zip(groups, nodes, strict=True):
        table.writerows({"address": name, **group.columns} for name in names)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.getvalue())


def plan_of(given: argparse.Namespace, hosts: Path, job_id: int, flags: tuple[str, ...]) -> LaunchPlan:
    """The job on the hosts of a file; its ports follow from the id.

    Raises:
        SetupError: the file or a flag is wrong.
    """
    given = argparse.Namespace(**{**vars(given), "hosts": hosts, "ssh": ""})
    given.base_port = given.base_port or FIRST_PORT + PORTS_A_JOB * (job_id % JOBS)
    plan = cluster.plan_of(given, flags)
    if "--ckpt-frequency" in flags and "--checkpoint" not in flags:  # the job may resume on other nodes
        plan = cluster.plan_of(given, ("--checkpoint", str(plan.job.log_folder / ".checkpoints"), *flags))
    return dataclasses.replace(plan, job=dataclasses.replace(plan.job, is_shared=True))


def refused(program: str, said: str) -> SetupError:
    """The error that another program has told, in one line."""
    lines = [line.strip() for line in said.splitlines() if line.strip(" -")]
    return SetupError(f"{program}: {' '.join(lines[:2]) or 'it fails without a word'}")


def check_runs(command: Sequence[str], where: str) -> None:
    """Runs a short command. Raises SetupError where its program is not here (`where`: what to do), or fails."""
    program = Path(command[0]).name
    if not shutil.which(command[0]):
        raise SetupError(f"there is no {program} here: {where}")
    # Here alone: in a job of Slurm or PBS mpiexec would begin on all nodes.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PBS_"))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise refused(program, done.stderr)


def in_slurm(environment: Mapping[str, str]) -> list[list[str]]:
    """The names of the nodes of this Slurm job, by component; empty outside of one."""
    size = int(environment.get("SLURM_HET_SIZE", 0))
    names = [f"SLURM_JOB_NODELIST_HET_GROUP_{number}" for number in range(size)] or ["SLURM_JOB_NODELIST"]
    commands = [["scontrol", "show", "hostnames", environment[name]] for name in names if name in environment]
    return [subprocess.run(each, stdout=subprocess.PIPE, text=True, check=True).stdout.split() for each in commands]


def id_of(environment: Mapping[str, str], other: int) -> int:
    """The number of this job of Slurm or PBS; another one elsewhere."""
    found = re.match(r"\d+", environment.get("SLURM_JOB_ID", "") or environment.get("PBS_JOBID", ""))
    return int(found.group()) if found else other
