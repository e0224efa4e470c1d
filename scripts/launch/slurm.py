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

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import argparse
import contextlib
import dataclasses
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from flag_parser import FlagParser
from flag_values import at_least
from scripts.launch import cluster, job_options, node_groups
from scripts.launch.host_connection import agent_script
from scripts.launch.hosts_file import Host
from scripts.launch.node_groups import Nodes, Request, group
from scripts.launch.roles import ROOT, JobSpec
from scripts.launch.stop_signals import StopSignals
from utils import EXIT_FORCED, EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, SetupError


def parse(arguments: Sequence[str]) -> Request:
    """Parses the command line; a bad value ends the process with exit code 2."""
    parser = FlagParser("scripts/slurm.sh", description=__doc__, formatter_class=job_options.HelpFormatter)
    parser.add_argument("-N", "--nodes", type=at_least(1), default=1, help="number of nodes (of the first group)")
    parser.add_argument("--het", type=group, nargs="+", default=[], metavar="GROUP", help="'NODES [WORD...]', as above")
    parser.add_argument("--requeue", action="store_true", help="begin again where a process or node is lost")
    parser.add_argument("--wait", action="store_true", help="until the job has ended; Ctrl-C ends the job, too")
    parser.add_argument("--in-job", action="store_true", help=argparse.SUPPRESS)  # of the batch script
    return node_groups.parse(parser, arguments)


def job_in(request: Request, nodes: Nodes, environment: Mapping[str, str], file: Path | None = None) -> JobSpec:
    """The job on these nodes, of which it writes a hosts file, if any. Raises SetupError as cluster.parse."""
    given, flags = argparse.Namespace(**vars(request.given)), request.flags
    if task := environment.get("SLURM_ARRAY_TASK_ID"):
        given.log_base, given.run = request.log_base, f"seed-{task}"
        flags = (*flags, "--seed", task)
    hosts = node_groups.hosts_of(request.groups, nodes, file)
    job = node_groups.job_on(given, hosts, node_groups.id_of(environment, 0), flags)
    groups = {name: number for number, names in enumerate(nodes) for name in names}

    def connect(host: Host) -> list[str]:
        het = [f"--het-group={groups[host.address]}"] if len(nodes) > 1 else []
        where = ["--overlap", "--nodes=1", "--ntasks=1", "--mem=0", f"--nodelist={host.address}"]
        # Slurm's SIGTERM is for the launcher alone, which tells the workers (trainer/runtime/stop_signals.py).
        return ["srun", *het, *where, "sh", "-c", f"trap '' TERM; {agent_script(str(ROOT))}"]

    return dataclasses.replace(job, connect=connect)


def job_of(request: Request) -> JobSpec:
    """The job that is asked for, checked with nodes that Slurm may give. Raises SetupError as `job_in`."""
    if word := request.option("--output", "-o"):
        raise SetupError(f"{word}: the log of a job is LOG_BASE/slurm-JOB.log: leave it out, or give --log-base")
    if request.is_array and (word := request.flag("seed", "checkpoint", "tensorboard")):
        raise SetupError(f"{word}: each task of an array has its own seed and folders: leave it out")
    nodes = [[f"node{number}-{place}" for place in range(g.nodes)] for number, g in enumerate(request.groups)]
    return job_in(request, nodes, {})


def batch_script(request: Request, job: JobSpec) -> str:
    """What sbatch gets."""
    log = str(request.log_base).replace("%", "%%") + f"/slurm-{'%A_%a' if request.is_array else '%j'}.log"
    lines = [
        shlex.quote(f"--job-name={request.given.mode}-{job.mode_folder.parent.name}"),
        f"--output={shlex.quote(log)}",
        "--open-mode=append",
        "--signal=B:TERM@90",  # seconds before the time limit; Slurm may be a minute early
    ]
    lines += ["--requeue"] if request.given.requeue else []
    for number, each in enumerate(request.groups):
        lines += ["hetjob"] if number else []
        lines += [f"--nodes={each.nodes} --ntasks-per-node=1 {shlex.join(each.options)}".rstrip()]
    command = [str(ROOT / "scripts" / "slurm.sh"), "--in-job", *request.words, "--", *request.flags]
    here = f"cd {shlex.quote(str(Path.cwd()))}"  # where relative paths begin
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {line}" for line in lines), here, f"exec {shlex.join(command)}", ""])


def submit(script: str, request: Request) -> int:
    """Gives Slurm a job. Where it waits, it prints the job's log at the end and returns the job's exit code."""
    node_groups.printed_by(["sbatch", "--version"], "submit where Slurm's commands are")
    request.log_base.mkdir(parents=True, exist_ok=True)
    command, waits = ["sbatch", "--parsable"], request.given.wait
    with StopSignals() as signals:
        sbatch, line = node_groups.submitted([*command, *(["--wait"] if waits else [])], script, signals)
        if not (job := line.partition(";")[0].strip()):
            print("stopped before sbatch has answered: squeue shows whether there is a job", file=sys.stderr)
            return EXIT_FORCED
        print(f"Slurm job {job}; its log: {request.log_base}/slurm-{job}{'_*' * request.is_array}.log", flush=True)
        ends = [["--batch", "--signal=TERM"], ["--state=PENDING"]]
        while (is_due := bool(signals.first and ends)) or sbatch.poll() is None:
            if is_due:
                subprocess.run(["scancel", *ends.pop(), job], check=False)
            with contextlib.suppress(subprocess.TimeoutExpired):
                sbatch.wait(0.2)
    for path in sorted(request.log_base.glob(f"slurm-{job}[._]*log")) if waits else ():
        print(path.read_text(errors="replace"), end="")
    return EXIT_FORCED if signals.first and not waits else int(sbatch.returncode)


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """The command: submits, or runs the job in the batch script; returns the exit code."""
    try:
        request = parse(arguments)
        if request.given.in_job:
            if not (nodes := node_groups.in_slurm(environment)):
                raise SetupError("--in-job is for the batch script of a Slurm job: leave it out")
            job = node_groups.id_of(environment, 0)
            hosts = request.log_base / f"slurm-{job}-hosts.csv"
            code = cluster.main((), lambda _: job_in(request, nodes, environment, hosts))
            starts = int(environment.get("SLURM_RESTART_COUNT", 0))
            is_lost = code == EXIT_PEER_LOST or (code == EXIT_SETUP and starts)  # a dead node that Slurm gives again
            if request.given.requeue and is_lost and starts < request.given.restarts:
                subprocess.run(["scontrol", "requeue", str(job)], check=False)
            return code
        script = batch_script(request, job_of(request))
        if not request.given.dry_run:
            return submit(script, request)
        print(script, end="")
        return EXIT_OK
    except (SetupError, OSError) as error:
        print(f"scripts/slurm.sh: error: {error}", file=sys.stderr)
        return EXIT_SETUP


if __name__ == "__main__":
    start.run(lambda: main(sys.argv[1:]))
