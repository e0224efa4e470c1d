"""The nodes that a site gives a job (by Slurm, PBS): what the command line says of them, and the job on them.

All of them see the project, its data and the log tree in the same folders.
"""

import argparse
import contextlib
import csv
import dataclasses
import difflib
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path

from config import FIELDS, names_of
from flag_parser import FlagParser
from flag_values import at_least
from scripts.launch import cluster, hosts_file, job_options
from scripts.launch.hosts_file import Hosts
from scripts.launch.hosts_layout import example, num_ports
from scripts.launch.roles import JobSpec
from scripts.launch.stop_signals import StopSignals
from utils import SetupError

COLUMNS = [name for name in hosts_file.COLUMNS if name not in ("address", "name", "user", "port", "folder")]
FIRST_PORT, PORTS_A_JOB, JOBS = 10_000, 16, 1024  # below those that the system gives to clients
Nodes = Sequence[Sequence[str]]  # their names, by group
BOTH = ("--job-name",)  # a flag of main.py, and an option of others
# Of variables by which mpiexec sees the job that it is in.
OF_JOB = ("SLURM_JOB", "SLURM_NODELIST", "SLURM_TASKS", "SLURM_HET", "PBS_")


@dataclasses.dataclass(frozen=True)
class Group:
    """Nodes of one kind."""

    nodes: int
    columns: Mapping[str, str]  # of the hosts file, the same for each node
    options: tuple[str, ...]  # for another program


def group_of(nodes: int, words: Sequence[str]) -> Group:
    """Tells columns of the hosts file, as NAME=VALUE, from the options of another program. Raises SetupError if a word
    is neither."""
    columns, options = dict[str, str](), [""]
    for word in words:
        name, is_given, value = word.partition("=")
        is_value = options[-1].startswith("-") and "=" not in options[-1]  # unless it is a column misspelt
        if is_given and name in COLUMNS:
            columns[name] = value.replace(",", " ") if name == "devices" else value
            continue
        near = difflib.get_close_matches(name, hosts_file.COLUMNS, n=1, cutoff=0.7)
        if is_given and name.isidentifier() and (near or not is_value):
            allowed = ", ".join(COLUMNS)
            raise SetupError(f"{name} in {word} is none of {allowed}; the value of an option is OPTION={word}")
        options.append(word)
    return Group(nodes, columns, tuple(options[1:]))


def group(text: str) -> Group:
    """Parses a group: its number of nodes, then words as of `group_of`."""
    try:
        nodes, *words = shlex.split(text)
        number = at_least(1)(nodes)
    except ValueError:
        form = "give the number of its nodes, then its words, such as '2 workers=2 --mem=500'"
        raise argparse.ArgumentTypeError(f"{text!r} is no group: {form}") from None
    return group_of(number, words)


@dataclasses.dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    given: argparse.Namespace
    log_base: Path
    groups: tuple[Group, ...]
    words: tuple[str, ...]  # before `--`, without the options of the other program
    flags: tuple[str, ...]  # behind it

    @property
    def is_array(self) -> bool:
        return bool(self.option("--array", "-a"))

    def option(self, *names: str) -> str:
        """The first option of the other program that begins with one of these; empty if there is none."""
        words = (word for each in self.groups for word in each.options)
        return next((word for word in words if word.startswith(names)), "")

    def flag(self, *fields: str) -> str:
        """The first flag for the workers that sets one of these fields of Config; empty if there is none."""
        words = [*self.flags, *(word for each in self.groups for word in each.columns.get("flags", "").split())]
        names = {name for field in fields for name in names_of(field)}
        return next((word for word in words if word.partition("=")[0] in names), "")


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


def hosts_of(groups: Sequence[Group], nodes: Nodes, file: Path | None = None) -> Hosts:
    """The hosts that are nodes, given by group; a file, if any, is written, too. Raises SetupError if one is wrong."""
    cells = [{"address": name, **its.columns} for its, names in zip(groups, nodes, strict=True) for name in names]
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w", newline="") as text:
            table = csv.DictWriter(text, ["address", *COLUMNS], lineterminator="\n")
            table.writeheader()
            table.writerows(cells)
    rows = [hosts_file.Row("the job", dict.fromkeys(hosts_file.COLUMNS, "") | each) for each in cells]
    return hosts_file.hosts_of(rows, "the job", Path.cwd())


def job_on(given: argparse.Namespace, hosts: Hosts, job_id: int, flags: tuple[str, ...]) -> JobSpec:
    """The job on these hosts; its ports follow from the id. Raises SetupError if a flag is wrong, or a host has more
    processes than the job has ports."""
    is_by_id = not given.base_port
    base_port = given.base_port or FIRST_PORT + PORTS_A_JOB * (job_id % JOBS)
    job = cluster.job_of(argparse.Namespace(**{**vars(given), "base_port": base_port}), flags, hosts)
    if is_by_id and (most := max(num_ports(job).values())) > PORTS_A_JOB:
        raise SetupError(
            f"a node needs {most} ports, and by its id a job has {PORTS_A_JOB}: give the first of yours by --base-port"
        )
    first = job_options.first_config(*example(job))
    if first.ckpt_frequency and not first.checkpoint:  # the job may resume on other nodes
        flags = ("--checkpoint", str(job.log_folder / ".checkpoints"), *flags)
    return dataclasses.replace(job, worker_arguments=flags, is_shared=True)


def refused(program: str, said: str) -> SetupError:
    """The error that another program has told, in one line."""
    lines = [line.strip().removeprefix(f"{program}: ") for line in said.splitlines() if line.strip(" -")]
    return SetupError(f"{program}: {' '.join(lines) or 'it fails without a word'}")


def printed_by(command: Sequence[str], where: str, without: tuple[str, ...] = ()) -> str:
    """What a short command prints. Raises SetupError where its program is not here, fails, or prints nothing. `where`
    says what to do without it; variables with a prefix of `without` stay here."""
    program = Path(command[0]).name
    if not shutil.which(command[0]):
        raise SetupError(f"there is no program {command[0]!r} here: {where}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise refused(program, done.stderr)
    if not done.stdout:
        raise SetupError(f"{shlex.join(command)} prints nothing: {where}")
    return done.stdout


def submitted(command: Sequence[str], script: str, signals: StopSignals) -> tuple[subprocess.Popen[str], str]:
    """Gives a program a batch script; returns it and its first line, with the id of the job.

    A signal that came ends the program if it has no answer two seconds later; then the line is empty. Raises SetupError
    if the program ends without one.
    """
    pipe = subprocess.PIPE
    # In a session of its own, so that Ctrl-C does not end it before the job.
    program = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    assert program.stdin and program.stdout and program.stderr
    with contextlib.suppress(BrokenPipeError), program.stdin as stdin:  # it has not read what it refuses
        stdin.write(script)
    polls = 10
    while polls and not wait([program.stdout.fileno()], 0.2):
        polls -= bool(signals.first)
    if not polls:
        os.killpg(program.pid, signal.SIGKILL)
    line = program.stdout.readline()
    if not line and polls:
        raise refused(command[0], program.stderr.read())
    return program, line


def in_slurm(environment: Mapping[str, str]) -> list[list[str]]:
    """The names of the nodes of this Slurm job, by component; empty outside of one. Raises as `printed_by`."""
    het = [f"SLURM_JOB_NODELIST_HET_GROUP_{number}" for number in range(len(environment))]
    lists = [environment[name] for name in het if name in environment]
    if not lists and "SLURM_JOB_NODELIST" in environment:
        lists = [environment["SLURM_JOB_NODELIST"]]
    where = "it knows the nodes of a Slurm job; outside of one unset SLURM_JOB_NODELIST"
    return [printed_by(["scontrol", "show", "hostnames", nodes], where).split() for nodes in lists]


def id_of(environment: Mapping[str, str], other: int) -> int:
    """The number of this job of Slurm or PBS; another one elsewhere."""
    found = re.match(r"\d+", environment.get("SLURM_JOB_ID", "") or environment.get("PBS_JOBID", ""))
    return int(found.group()) if found else other
