"""Submits a job to Slurm, and runs it on the nodes that Slurm gives it, as scripts/cluster.sh runs one on hosts.

    scripts/slurm.sh -m esync -n lenet --nodes 3 --time=60 -- --max-seconds 600
    scripts/slurm.sh -m esync -n lenet --nodes 1 devices=gpu0,gpu1 --gres=gpu:2 --het '4 workers=2 --constraint=old'

Words that are no option here go to sbatch; those of one letter that mean something here, in their long form. NAME=VALUE
with a column of the hosts file (workers, devices, flags, step_time_s, ...) holds for each node. Each --het GROUP is a
component of a heterogeneous job: the number of its nodes, then such words. What follows `--` goes to every worker's
main.py. The project, its data and the log tree are in folders that all nodes see. The first node runs the launcher, the
scheduler, the servers and the state server; the ports follow from the job's id. scancel and the time limit end the job
with the workers' rounds. An array (--array=0-4) has a task for each seed, in LOG_BASE/seed-N.
Exit codes: 0 submitted, 2 something to put right; with --wait, and of the Slurm job, those of scripts/cluster.sh.
"""

from __future__ import annotations

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import argparse
import csv
import dataclasses
import io
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from config import FIELDS, names_of
from flag_parser import FlagParser
from flag_values import at_least
from scripts.launch import cluster, hosts_file, job_options
from scripts.launch.host_connection import agent_script
from scripts.launch.hosts_file import Host
from scripts.launch.hosts_layout import LaunchPlan
from scripts.launch.roles import ROOT
from scripts.launch.stop_signals import StopSignals
from utils import EXIT_OK, EXIT_SETUP, SetupError

NODE_COLUMNS = [name for name in hosts_file.COLUMNS if name not in ("address", "name", "user", "port", "folder")]
FIRST_PORT, PORTS_A_JOB, JOBS = 10_000, 16, 1024  # below those that the system gives to clients
WARNING_S = 90  # before the time limit; Slurm may be a minute early


@dataclasses.dataclass(frozen=True)
class Group:
    """Nodes of one kind: a component of a heterogeneous job, or the whole job."""

    nodes: int
    columns: Mapping[str, str]  # of the hosts file, the same for each node
    options: tuple[str, ...]  # of sbatch


def group_of(nodes: int, words: Sequence[str]) -> Group:
    """Tells a group's columns from sbatch's options."""
    pairs = [word.partition("=")[::2] for word in words if word.partition("=")[0] in NODE_COLUMNS and "=" in word]
    columns = {name: value.replace(",", " ") if name == "devices" else value for name, value in pairs}
    return Group(nodes, columns, tuple(word for word in words if word.partition("=")[0] not in NODE_COLUMNS))


def _het(text: str) -> Group:
    nodes, *words = shlex.split(text) or [""]
    return group_of(at_least(1)(nodes), words)


_het.__name__ = "number of nodes, with options behind it,"


@dataclasses.dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    given: argparse.Namespace
    groups: tuple[Group, ...]
    words: tuple[str, ...]  # before `--`, without those of sbatch
    flags: tuple[str, ...]  # behind it


def parse(arguments: Sequence[str]) -> Request:
    """Parses the command line; a bad value ends the process with exit code 2."""
    parser = FlagParser("scripts/slurm.sh", description=__doc__, formatter_class=job_options.HelpFormatter)
    parser.add_argument("-N", "--nodes", type=at_least(1), default=1, help="number of nodes (of the first group)")
    parser.add_argument("--het", type=_het, nargs="+", default=[], metavar="GROUP", help="'NODES [WORD...]', see above")
    parser.add_argument("--wait", action="store_true", help="until the job has ended; Ctrl-C ends the job, too")
    parser.add_argument("--in-job", action="store_true", help=argparse.SUPPRESS)  # of the batch script
    cluster.add_job(parser)
    given, unknown, flags = job_options.parse_some(parser, arguments)
    mains = {name for field in FIELDS for name in names_of(field)} - {"--job-name"}
    if wrong := [word for word in unknown if word.partition("=")[0] in mains]:
        parser.refuse(wrong)
    left, words = [*unknown], list[str]()
    for word in arguments[: len(arguments) - len(flags)]:
        if left and word == left[0]:
            left.pop(0)
        elif word not in ("--", "--dry-run", "--wait"):
            words.append(word)
    groups = (group_of(given.nodes, unknown), *given.het)
    columns = [f"{name}={value}" for name, value in groups[0].columns.items()]
    return Request(given, groups, (*words, *columns), flags)


def plan_of(request: Request, nodes: Sequence[Sequence[str]], hosts: Path, environment: Mapping[str, str]) -> LaunchPlan:
    """The job on these nodes.

    Args:
        nodes: their names, by group.
        hosts: is written: the hosts file.
        environment: Slurm's variables.

    Raises:
        SetupError: a column or a flag is wrong.
    """
    text = io.StringIO()
    table = csv.DictWriter(text, ["address", *NODE_COLUMNS], lineterminator="\n")
    table.writeheader()
    for group, names in zip(request.groups, nodes, strict=True):
        table.writerows({"address": name, **group.columns} for name in names)
    hosts.parent.mkdir(parents=True, exist_ok=True)
    hosts.write_text(text.getvalue())
    given, flags = argparse.Namespace(**vars(request.given), hosts=hosts, ssh="srun"), request.flags
    given.base_port = given.base_port or FIRST_PORT + PORTS_A_JOB * (int(environment.get("SLURM_JOB_ID", 0)) % JOBS)
    if task := environment.get("SLURM_ARRAY_TASK_ID"):
        given.log_base, given.run = job_options.log_base(given), f"seed-{task}"
        flags = (*flags, "--seed", task)
    plan = cluster.plan_of(given, flags)
    if "--ckpt-frequency" in flags and "--checkpoint" not in flags:  # a job that is requeued gets other nodes
        plan = cluster.plan_of(given, ("--checkpoint", str(plan.job.log_folder / ".checkpoints"), *flags))
    groups = {name: number for number, names in enumerate(nodes) for name in names}

    def connect(host: Host) -> list[str]:
        het = [f"--het-group={groups[host.address]}"] if len(nodes) > 1 else []
        where = ["--overlap", "--nodes=1", "--ntasks=1", "--mem=0", f"--nodelist={host.address}"]
        # Slurm's SIGTERM is for the launcher alone, which tells the workers (trainer/stop.py).
        return ["srun", *het, *where, "sh", "-c", f"trap '' TERM; {agent_script(str(ROOT))}"]

    return dataclasses.replace(plan, connect=connect, job=dataclasses.replace(plan.job, is_shared=True))


def nodes_here(environment: Mapping[str, str]) -> list[list[str]]:
    """The names of this Slurm job's nodes, by group."""
    size = int(environment.get("SLURM_HET_SIZE", 0))
    names = [f"SLURM_JOB_NODELIST_HET_GROUP_{number}" for number in range(size)] or ["SLURM_JOB_NODELIST"]
    if missing := [name for name in names if name not in environment]:
        raise SetupError(f"{missing[0]} is not set: --in-job is for the batch script of a Slurm job")
    commands = [["scontrol", "show", "hostnames", environment[name]] for name in names]
    return [subprocess.run(each, stdout=subprocess.PIPE, text=True, check=True).stdout.split() for each in commands]


def batch_script(request: Request, plan: LaunchPlan) -> str:
    """What sbatch gets."""
    given, base = request.given, job_options.log_base(request.given).resolve()
    first, *others = request.groups
    is_array = any(word.startswith(("--array", "-a")) for word in first.options)
    ours = [
        f"--job-name={given.mode}-{plan.job.mode_folder.parent.name}",
        f"--output={base}/slurm-{'%A_%a' if is_array else '%j'}.log",
        "--open-mode=append",
        f"--signal=B:TERM@{WARNING_S}",
    ]
    lines = [f"#SBATCH {shlex.quote(option)}" for option in ours]
    for number, group in enumerate((first, *others)):
        lines += ["#SBATCH hetjob"] if number else []
        lines += [f"#SBATCH --nodes={group.nodes} --ntasks-per-node=1 {shlex.join(group.options)}".rstrip()]
    command = [str(ROOT / "scripts" / "slurm.sh"), "--in-job", *request.words, "--", *request.flags]
    return "\n".join(["#!/bin/bash", *lines, f"exec {shlex.join(command)}", ""])


def submit(script: str, log_base: Path, waits: bool) -> int:
    """Gives Slurm a job; where it waits, it prints the job's log at the end and returns the job's exit code."""
    command = ["sbatch", "--parsable", *(["--wait"] if waits else [])]
    log_base.mkdir(parents=True, exist_ok=True)
    with StopSignals() as signals, tempfile.TemporaryFile("w+") as file:
        file.write(script)
        file.seek(0)
        with subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE, text=True, start_new_session=True) as sbatch:
            assert sbatch.stdout
            job = sbatch.stdout.readline().partition(";")[0].strip()
            if job:
                print(f"Slurm job {job}; its log: {log_base}/slurm-{job}.log", flush=True)
            is_told = False
            while waits and sbatch.poll() is None:
                if signals.first and not is_told:
                    is_told = True
                    subprocess.run(["scancel", "--state=PENDING", job], check=False)
                    subprocess.run(["scancel", "--batch", "--signal=TERM", job], check=False)
                try:
                    sbatch.wait(0.2)
                except subprocess.TimeoutExpired:
                    pass
    if job and waits:
        for log in sorted(log_base.glob(f"slurm-{job}[._]*log")):
            print(log.read_text(errors="replace"), end="")
        return sbatch.returncode
    return EXIT_OK if job else EXIT_SETUP


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """The command: submits, or runs the job in the batch script; returns the exit code."""
    try:
        request = parse(arguments)
        base = job_options.log_base(request.given).resolve()
        if request.given.in_job:
            hosts = base / f"slurm-{environment.get('SLURM_JOB_ID')}-hosts.csv"
            return cluster.main((), lambda _: plan_of(request, nodes_here(environment), hosts, environment))
        nodes = [[f"node{number}-{place}" for place in range(g.nodes)] for number, g in enumerate(request.groups)]
        with tempfile.TemporaryDirectory() as folder:
            script = batch_script(request, plan_of(request, nodes, Path(folder) / "nodes.csv", {}))
        if request.given.dry_run:
            print(script, end="")
            return EXIT_OK
        return submit(script, base, request.given.wait)
    except (SetupError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_SETUP


if __name__ == "__main__":
    start.run(lambda: main(sys.argv[1:]))
