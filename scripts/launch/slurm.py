"""Submits a job to Slurm, and runs it on the nodes that Slurm gives it, as scripts/cluster.sh runs one on hosts.

    scripts/slurm.sh -m esync -n lenet --nodes 3 --time=60 -- --max-seconds 600
    scripts/slurm.sh -m esync -n lenet --nodes 1 devices=gpu0,gpu1 --gres=gpu:2 --het '4 workers=2 --constraint=old'

Words that are no option here go to sbatch; give options whose letter has a meaning here by their long names. NAME=VALUE
with a column of the hosts file (workers, devices, flags, step_time_s, ...) holds for each node. Each --het GROUP is a
component of a heterogeneous job: the number of its nodes, then such words. What follows `--` goes to every worker's
main.py. All nodes see the project, its data and the log tree. The first one runs the launcher and all but the workers;
ports follow from the job's id. scancel and the time limit end the job with the workers' rounds. An array (--array=0-4)
has a task for each seed, in LOG_BASE/seed-N.
Exit codes: 0 submitted, 2 something to put right; with --wait, and of the Slurm job, those of scripts/cluster.sh.
"""

from __future__ import annotations

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import argparse
import contextlib
import dataclasses
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from flag_parser import FlagParser
from flag_values import at_least
from scripts.launch import cluster, job_options, node_groups
from scripts.launch.host_connection import agent_script
from scripts.launch.hosts_file import Host
from scripts.launch.hosts_layout import LaunchPlan
from scripts.launch.node_groups import Nodes, Request, group
from scripts.launch.roles import ROOT, JobSpec
from scripts.launch.stop_signals import StopSignals
from utils import EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, SetupError


def parse(arguments: Sequence[str]) -> Request:
    """Parses the command line; a bad value ends the process with exit code 2."""
    parser = FlagParser("scripts/slurm.sh", description=__doc__, formatter_class=job_options.HelpFormatter)
    parser.add_argument("-N", "--nodes", type=at_least(1), default=1, help="number of nodes (of the first group)")
    parser.add_argument("--het", type=group, nargs="+", default=[], metavar="GROUP", help="'NODES [WORD...]', as above")
    parser.add_argument("--requeue", action="store_true", help="begin again where a process or node is lost")
    parser.add_argument("--wait", action="store_true", help="until the job has ended; Ctrl-C ends the job, too")
    parser.add_argument("--in-job", action="store_true", help=argparse.SUPPRESS)  # of the batch script
    return node_groups.parse(parser, arguments)


def plan_of(request: Request, nodes: Nodes, hosts: Path, environment: Mapping[str, str]) -> LaunchPlan:
    """The job on these nodes; `hosts` becomes the hosts file. Raises SetupError as cluster.parse."""
    node_groups.write_hosts(hosts, request.groups, nodes)
    given, flags = argparse.Namespace(**vars(request.given)), request.flags
    if task := environment.get("SLURM_ARRAY_TASK_ID"):
        given.log_base, given.run = request.log_base, f"seed-{task}"
        flags = (*flags, "--seed", task)
    plan = node_groups.plan_of(given, hosts, node_groups.id_of(environment, 0), flags)
    groups = {name: number for number, names in enumerate(nodes) for name in names}

    def connect(host: Host) -> list[str]:
        het = [f"--het-group={groups[host.address]}"] if len(nodes) > 1 else []
        where = ["--overlap", "--nodes=1", "--ntasks=1", "--mem=0", f"--nodelist={host.address}"]
        # Slurm's SIGTERM is for the launcher alone, which tells the workers (trainer/stop.py).
        return ["srun", *het, *where, "sh", "-c", f"trap '' TERM; {agent_script(str(ROOT))}"]

    return dataclasses.replace(plan, connect=connect)


def job_of(arguments: Sequence[str]) -> JobSpec:
    """The job that a command line asks for, checked with nodes that Slurm may give. Raises SetupError as `plan_of`."""
    request = parse(arguments)
    nodes = [[f"node{number}-{place}" for place in range(g.nodes)] for number, g in enumerate(request.groups)]
    with tempfile.TemporaryDirectory() as folder:
        return plan_of(request, nodes, Path(folder) / "nodes", {}).job


def batch_script(request: Request, job: JobSpec) -> str:
    """What sbatch gets."""
    is_array = any(word.startswith(("--array", "-a")) for word in request.groups[0].options)
    lines = [
        f"--job-name={request.given.mode}-{job.mode_folder.parent.name}",
        f"--output={request.log_base}/slurm-{'%A_%a' if is_array else '%j'}.log",
        "--open-mode=append",
        "--signal=B:TERM@90",  # seconds before the time limit; Slurm may be a minute early
    ]
    lines += ["--requeue"] if request.given.requeue else []
    for number, each in enumerate(request.groups):
        lines += ["hetjob"] if number else []
        lines += [f"--nodes={each.nodes} --ntasks-per-node=1 {shlex.join(each.options)}".rstrip()]
    command = [str(ROOT / "scripts" / "slurm.sh"), "--in-job", *request.words, "--", *request.flags]
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {line}" for line in lines), f"exec {shlex.join(command)}", ""])


def submit(script: str, log_base: Path, waits: bool) -> int:
    """Gives Slurm a job. Where it waits, it prints the job's log at the end and returns the job's exit code."""
    node_groups.check_runs(["sbatch", "--version"], "submit where Slurm's commands are")
    log_base.mkdir(parents=True, exist_ok=True)
    command = ["sbatch", "--parsable", *(["--wait"] if waits else [])]
    pipe = subprocess.PIPE
    # In a session of its own, so that Ctrl-C does not end it before the job.
    sbatch = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    assert sbatch.stdin and sbatch.stdout and sbatch.stderr
    with StopSignals() as signals, sbatch:
        with contextlib.suppress(BrokenPipeError), sbatch.stdin as stdin:  # it has not read what it refuses
            stdin.write(script)
        if not (job := sbatch.stdout.readline().partition(";")[0].strip()):
            raise node_groups.refused("sbatch", sbatch.stderr.read())
        print(f"Slurm job {job}; its log: {log_base}/slurm-{job}.log", flush=True)
        ends = [["--batch", "--signal=TERM"], ["--state=PENDING"]]
        while sbatch.poll() is None:
            while signals.first and ends:
                subprocess.run(["scancel", *ends.pop(), job], check=False)
            with contextlib.suppress(subprocess.TimeoutExpired):
                sbatch.wait(0.2)
    for log in sorted(log_base.glob(f"slurm-{job}[._]*log")) if waits else ():
        print(log.read_text(errors="replace"), end="")
    return int(sbatch.returncode)


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """The command: submits, or runs the job in the batch script; returns the exit code."""
    try:
        request = parse(arguments)
        if request.given.in_job:
            if not (nodes := node_groups.in_slurm(environment)):
                raise SetupError("--in-job is for the batch script of a Slurm job: leave it out")
            hosts = request.log_base / f"slurm-{environment['SLURM_JOB_ID']}-hosts.csv"
            code = cluster.main((), lambda _: plan_of(request, nodes, hosts, environment))
            starts = int(environment.get("SLURM_RESTART_COUNT", 0))
            is_lost = code == EXIT_PEER_LOST or (code == EXIT_SETUP and starts)  # a dead node that Slurm gives again
            if request.given.requeue and is_lost and starts < request.given.restarts:
                subprocess.run(["scontrol", "requeue", environment["SLURM_JOB_ID"]], check=False)
            return code
        script = batch_script(request, job_of(arguments))
        if not request.given.dry_run:
            return submit(script, request.log_base, request.given.wait)
        print(script, end="")
        return EXIT_OK
    except (SetupError, OSError) as error:
        print(f"scripts/slurm.sh: error: {error}", file=sys.stderr)
        return EXIT_SETUP


if __name__ == "__main__":
    start.run(lambda: main(sys.argv[1:]))
