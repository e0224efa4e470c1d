"""Runs a whole job on several hosts over ssh, fetches the logs, and leaves no process behind.

    scripts/cluster.sh --hosts hosts.csv -m esync -n resnet18-v1 -- -ll 0.0005 --max-seconds 600

The hosts file has a header and one line a host; only the column address is needed. The scheduler, the servers and the
state server run on the first host, unless the column roles says otherwise. What follows `--` goes to every
worker's main.py. Each host needs the project with its .venv, the workers' hosts also the data (scripts/setup.sh,
scripts/get_data.sh); ssh must log in without a password. Ctrl-C ends the job with the workers' rounds, a second one at
once; a process that dies ends it, and so does the end of this program or of a connection. With --ckpt-frequency N
--on-worker-death restart behind `--` a process that dies does not: all go on from the newest checkpoint. Logs:
LOG_BASE/NETWORK/MODE/HOST/DEVICE/iter-*.txt, as summary.py reads them, and one log a process in LOG_BASE/NETWORK/MODE/.
A job file (--job) and its modules are sent to the hosts.
Exit codes: 0 done or stopped, 2 something to put right first, 3 a process or a host was lost, 4 as 0, but
without all logs, 130 killed.
"""

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import argparse
import contextlib
import dataclasses
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from algorithms import ENTRIES, Workers, filed_as
from config import END
from flag_parser import FlagParser
from flag_values import port
from scripts.launch import hosts_file, job_options, previous_run, restart_policy, step_times
from scripts.launch.console import console, unhurried
from scripts.launch.host_connection import ANSWER_S, SILENT_S, HostConnection, ssh_command
from scripts.launch.host_logs import fetch_logs
from scripts.launch.hosts_file import Hosts
from scripts.launch.hosts_layout import (
    INTERFACE,
    example,
    make_layout,
    node_of,
    num_ports,
    places_of,
    port_ranges,
)
from scripts.launch.job_processes import POLL_S
from scripts.launch.restart_policy import RestartPolicy
from scripts.launch.roles import JOB_FOLDER, ROOT, TOKEN, JobSpec, Layout, Node, build
from scripts.launch.supervisor import JobOutcome
from trainer.jobs.sources import sources
from trainer.simulation import cluster_file
from utils import EXIT_FORCED, EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, SetupError

# ------------------------------------------------------------------------------------------------- the command line


def parse(arguments: Sequence[str]) -> JobSpec:
    """Parses the command line; a bad value ends the process with exit code 2. Raises SetupError if the hosts file is
    wrong, or a flag for the workers contradicts the job."""
    columns = "\n".join(f"  {name:<16} {text}" for name, text in hosts_file.COLUMNS.items())
    parser = FlagParser(
        prog="scripts/cluster.sh",
        description=__doc__,
        epilog=f"columns of the hosts file, in any order:\n{columns}",
        formatter_class=job_options.HelpFormatter,
    )
    parser.add_argument("--hosts", type=Path, required=True, default=argparse.SUPPRESS, metavar="FILE", help="a CSV")
    parser.add_argument("--ssh", default="ssh", help="the ssh command and its options, such as 'ssh -F FILE'")
    parser.add_argument(
        "--without", type=job_options.names(None), default=(), metavar="HOSTS", help="hosts of the file to leave out"
    )
    parser.add_argument(
        "--cluster",
        type=Path,
        metavar="FILE",
        help="a cluster file of these workers, in the order of the hosts file: its step times say which are the "
        "fastest, in place of steps that are timed first; it emulates nothing",
    )
    add_job(parser)
    given, worker_arguments = job_options.parse(parser, arguments)
    return job_of(given, worker_arguments, hosts_file.read(given.hosts).without(given.without))


def add_job(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a job on any hosts."""
    job_options.add_mode(parser)
    job_options.add_job(parser, data_dir=Path("data"))
    parser.add_argument(
        "--base-port",
        type=lambda text: int(port(text)),
        default=0,
        help="MXNet listens on this port of a host and those above it, one a process, except those that have a flag; "
        "0: on free ones, or in a job of Slurm or mpiexec on 16 that follow from its id",
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be started")


def job_of(given: argparse.Namespace, worker_arguments: tuple[str, ...], hosts: Hosts) -> JobSpec:
    """The job that was asked for, on these hosts. Raises SetupError as `parse`."""
    job_options.check_options(given)
    ssh = shlex.split(getattr(given, "ssh", ""))
    job = dataclasses.replace(
        job_options.spec_of(given, worker_arguments, hosts),
        sources=sources(given.job) if given.job else {},
        base_port=given.base_port,
        connect=lambda host: ssh_command(ssh, host, host.folder or str(ROOT)),
        is_dry_run=given.dry_run,
    )
    job = _with_workers(job, given.fastest, getattr(given, "cluster", None))
    job_options.check_flags(*example(job), where="behind `--` or in the hosts file")
    return job


def _with_workers(job: JobSpec, k: int | str, cluster: Path | None) -> JobSpec:
    """The job with those workers of the hosts that take part in the mode; with all where a step time that decides is
    unknown. `k` is that of --fastest, `cluster` a file with the step times. Raises SetupError if there are fewer."""
    if ENTRIES[job.mode].workers is Workers.ALL and not k:
        if cluster:
            raise SetupError(f"--cluster {cluster} does nothing in mode {job.mode} without --fastest: leave it out")
        return job
    configs = [*job_options.worker_configs(*example(job))]
    step_times_s = [parsed.shortest_step_s for parsed in configs]
    if cluster:
        rows = cluster_file.read(cluster).workers
        if len(rows) != len(configs):
            raise SetupError(
                f"--cluster {cluster} has {len(rows)} worker(s), and the hosts have {len(configs)}: give a file of "
                "these hosts"
            )
        step_times_s = [row.shortest_step_s(parsed.batch_size) for row, parsed in zip(rows, configs, strict=True)]
    if not all(step_times_s):
        if isinstance(k, int):
            job_options.taking_part(job.mode, step_times_s, k)  # there are as many
        return dataclasses.replace(job, number=k, entry=filed_as(job.mode, k) if isinstance(k, int) else "")
    return _with_fastest(job, step_times_s, k)


def _with_fastest(job: JobSpec, step_times_s: Sequence[float], k: int | str) -> JobSpec:
    """The job with the workers that take part by these step times, in the order of its workers."""
    workers, steps = job.hosts.workers, job_options.first_config(*example(job)).settings.sync_every
    places = job_options.taking_part(job.mode, step_times_s, k, steps)
    job = job_options.of_fastest(job, k, [worker.name for worker in workers], places)
    hosts = dataclasses.replace(job.hosts, workers=tuple(workers[place] for place in places))
    return dataclasses.replace(job, hosts=hosts, number=None)


def timed(job: JobSpec, say: Callable[[str], None]) -> JobSpec:
    """The job with the workers that take part, once a step of it was timed on each. Raises SetupError if one cannot
    be."""
    assert job.number is not None
    timing = step_times.timing_of(job, job_options.first_config(*example(job)))
    say(f"{step_times.STEPS} steps on each worker tell which are the fastest")
    outcome = _run(timing, lambda line: say(line) if "error" in line else None)
    if outcome.was_stopped or outcome.exit_code != EXIT_OK:
        raise SetupError(f"the steps were not timed; their logs are in {timing.log_folder}")
    times_s = step_times.read(timing.log_folder, job.hosts.workers)
    path = step_times.keep(job.log_base, times_s)
    found = ", ".join(f"{worker.name} {seconds:.4g} s" for worker, seconds in times_s.items())
    say(f"a step took {found}; {path} has these")
    return _with_fastest(job, [*times_s.values()], job.number)


def show(job: JobSpec, say: Callable[[str], None]) -> None:
    """Says what would be started."""
    say(f"# {INTERFACE}, ports and numbers of threads that are not given are examples: the hosts find them\n")
    if job.number is not None:
        say(f"# of these workers the fastest take part, once {step_times.STEPS} steps were timed on each")
    for name, host in job.hosts.hosts.items():
        say(f"{name}: {shlex.join(job.connect(host))}")
    for role in build(*example(job)):
        variables = {key: value for key, value in role.environment.items() if key != "PYTHONUNBUFFERED"}
        variables[TOKEN] = "..."
        words = [*(f"{key}={value}" for key, value in variables.items()), *role.command]
        say(f"{role.host}: cd {shlex.quote(str(role.folder))} && {shlex.join(words)}")


# -------------------------------------------------------------------------------------------------------- the job


def ask_hosts(job: JobSpec, connections: Mapping[str, HostConnection]) -> dict[str, Node]:
    """Asks the hosts what only they know. Raises SetupError if hosts cannot be reached, or cannot take part. The
    message names them."""
    hellos, failures = {}, {}
    for name, connection in connections.items():
        try:
            hellos[name] = next(connection.answers())
        except SetupError as error:
            failures[name] = str(error)
    if failures:
        remedy = f"; or do without: --without {','.join(failures)}" if hellos and not job.is_shared else ""
        raise SetupError("; ".join(failures.values()) + remedy)
    first, *_ = places_of(job)
    toward, nodes = "", {}
    for name in sorted(connections, key=lambda name: name != first):
        host, hello = job.hosts.hosts[name], hellos[name]
        found = connections[name].ask(do="network", address=host.address, interface=host.interface, toward=toward)
        toward = toward or found["address"]
        its = (hello["python"], hello["root"], hello["cores"], found["address"], found["interface"])
        nodes[name] = node_of(job, name, *its)
    if toward.startswith("127.") and len({node.address for node in nodes.values()}) > 1:
        raise SetupError(
            f"the first host is at {toward}, which the others cannot reach: give the address that they know"
        )
    return nodes


def place(job: JobSpec, connections: Mapping[str, HostConnection], nodes: Mapping[str, Node]) -> tuple[JobSpec, Layout]:
    """Places the job's processes, at ports that are free now. Raises SetupError as `ask_hosts`."""
    if job.base_port:
        ports = port_ranges(job, job.base_port, nodes)
    else:
        counts = num_ports(job).items()
        ports = {name: connections[name].ask(do="ports", count=count)["ports"] for name, count in counts}
    return make_layout(job, nodes, ports)


def begin(connections: Mapping[str, HostConnection], job: JobSpec, layout: Layout) -> None:
    """Makes every host note which logs are there before the job, and sends it the job file with its modules and the
    workers' traces; in a job that survives also the data that its fork server reads. Raises SetupError if the log
    folder of a host cannot be written to."""
    first = job_options.first_config(job, layout)
    forks = job_options.forked(job, first) if first.on_worker_death != END else None
    # As text that becomes the same bytes again.
    files = {f"{JOB_FOLDER}/{name}": data.decode(errors="surrogateescape") for name, data in job.sources.items()}
    for name, node in layout.nodes.items():
        workers = [worker for worker in layout.workers if worker.host == name]
        traces = {each.trace_file: each.straggler_trace for each in workers}
        connections[name].ask(
            do="begin",
            folder=str(node.folder),
            devices=[worker.folder for worker in workers],
            files=files | {name: path.read_text() for name, path in traces.items() if path},
            forks=forks,
        )


@contextlib.contextmanager
def connected(job: JobSpec) -> Iterator[dict[str, HostConnection]]:
    """Connects the hosts of a job, by name; the processes on a host end with its connection. Raises SetupError if a
    connection cannot be started."""
    connections: dict[str, HostConnection] = {}

    def pump() -> None:
        for connection in connections.values():
            connection.pump()

    try:
        for name, host in job.hosts.hosts.items():
            pump()  # a name look-up may take long, and the other hosts need their pings
            command = job.connect(host)
            try:
                connections[name] = HostConnection(host, command, job.log_folder / f"{name}-ssh.log", pump)
            except FileNotFoundError as error:
                remedy = "" if job.is_shared else "; choose another with --ssh"
                raise SetupError(f"{command[0]} cannot be started: {error.strerror}{remedy}") from None
            except OSError as error:
                raise SetupError(f"{host.where}: {name} cannot be connected: {error}") from None
        yield connections
    finally:
        for connection in connections.values():
            connection.hang_up()
        for connection in connections.values():
            connection.reap()


def run(job: JobSpec, say: Callable[[str], None] = console) -> int:
    """Runs a job to its end; returns the exit code. Raises SetupError if the hosts cannot begin."""
    with unhurried(say) as say:
        if job.is_dry_run:
            show(job, say)
            return EXIT_OK
        return _run(timed(job, say) if job.number is not None else job, say).exit_code


def _run(asked: JobSpec, say: Callable[[str], None]) -> JobOutcome:
    with job_options.claimed(asked.log_folder):
        before = previous_run.of_job(*example(asked), say)
        with connected(asked) as connections:
            nodes = ask_hosts(asked, connections)
            job, layout = place(asked, connections, nodes)
            begin(connections, job, layout)
            for line in job_options.warnings(job, layout):
                say(line)
            which, address = "server" if job.has_hub else "scheduler", f"{layout.root.address}:{job.root_port}"
            meeting = f"; the {which} is at {address}" if job.has_server else ""
            say(f"connected to {', '.join(connections)}{meeting}")
            policy = policy_of(asked, job, layout, connections, lambda again: place(again, connections, nodes), say)
            start = lambda role: connections[role.host].start(role, layout.nodes[role.host].folder)  # noqa: E731
            links = [*connections.values()]
            outcome = previous_run.supervise(job, build(job, layout), before, say, start, links, policy)
            for connection in links:
                if lost := connection.unconfirmed():
                    say(
                        f"warning: the end of {', '.join(lost)} is not confirmed: the connection is gone, and without "
                        "it they are killed within a minute"
                    )
            are_home = [bring_home(job, connections[name], say) for name in connections if name in layout.nodes]
            before.tell()
            job_options.last_word(job, outcome, say)
            return outcome._replace(exit_code=outcome.exit_code or (EXIT_OK if all(are_home) else EXIT_PEER_LOST))


def policy_of(
    asked: JobSpec,
    job: JobSpec,
    layout: Layout,
    connections: Mapping[str, HostConnection],
    place_again: Callable[[JobSpec], tuple[JobSpec, Layout]],
    say: Callable[[str], None],
) -> RestartPolicy:
    """What follows when a process is lost."""
    configs = [*job_options.worker_configs(job, layout)]
    folders = {
        (worker.node.name, worker.node.root / parsed.checkpoint_folder)
        for worker, parsed in zip(layout.workers, configs, strict=True)
    }

    has_begun = False  # before, a host that does not answer is to be put right

    def there() -> list[str]:
        return [name for name, connection in connections.items() if connection.exit_code is None]

    def files(only: str = "") -> dict[str, int]:
        hosts = [each for each in sorted(folders) if only in ("", each[0])]
        toward = (layout.root.address, job.root_port) if has_begun and job.has_server else None
        return checkpoints(connections, hosts, toward, has_begun and not only, SILENT_S if only else ANSWER_S, say)

    policy = restart_policy.of_job(asked, job, layout, configs[0], files, there, place_again)
    has_begun = True
    return policy


def checkpoints(
    connections: Mapping[str, HostConnection],
    folders: Sequence[tuple[str, Path]],
    toward: tuple[str, int] | None = None,
    gives_up: bool = True,
    longest_s: float = ANSWER_S,
    say: Callable[[str], None] = console,
) -> dict[str, int]:
    """The checkpoints in folders of hosts, and when each was written; without those of hosts that are gone.

    When another host has answered, one that does not reach `toward` is lost, and one that stays silent
    for SILENT_S: its connection is ended. Without `gives_up` none may be missing. The first answer may take
    `longest_s`, in which the launcher does nothing else. Raises SetupError if no host can answer, or one that may not
    be missing.
    """
    waiting = [(connections[host], folder) for host, folder in folders if connections[host].exit_code is None]
    for connection, folder in waiting:
        connection.send_message(do="checkpoints", folder=str(folder), toward=toward)
    found: dict[str, int] = {}
    lost: dict[HostConnection, str] = {}
    has_any, give_up = not waiting, time.monotonic() + longest_s
    while waiting and time.monotonic() < give_up:
        for asked in [*waiting]:
            try:
                answer = asked[0].answer()
            except SetupError as error:
                lost[asked[0]] = str(error)
            else:
                if answer is None:
                    continue
                found |= answer["files"]
                has_any, give_up = True, give_up if has_any or not gives_up else time.monotonic() + SILENT_S
            waiting.remove(asked)
        for each in connections.values():  # the others need their pings
            each.pump()
        time.sleep(POLL_S)
    lost |= {connection: f"{connection.host.where} does not answer" for connection, _ in waiting}
    if lost and not (has_any and gives_up):
        for connection, _ in waiting:
            connection.give_up_answer()
        raise SetupError(next(iter(lost.values())))
    for connection, why in lost.items():
        if connection.exit_code is None:
            say(f"warning: {why}: {connection.host.name} is lost")
            connection.send(signal.SIGKILL)
            connection.reap()
    return found


def bring_home(job: JobSpec, connection: HostConnection, say: Callable[[str], None]) -> bool:
    """Fetches one host's logs; says where they are if that fails, and returns whether it worked."""
    name = connection.host.name
    try:
        fetch_logs(connection, job.log_folder / name, job.earlier)
    except (SetupError, OSError) as error:
        say(f"error: the logs of {name} stay there, in {job.remote_folder / name} of the project: {error}")
        return False
    return True


def main(arguments: Sequence[str], parse: Callable[[Sequence[str]], JobSpec] = parse) -> int:
    """The command: parses, runs, returns the exit code."""
    try:
        return run(parse(arguments))
    except (SetupError, OSError) as error:  # an OSError: the disk here is full, for example
        print(f"error: {error}", file=sys.stderr)
        return EXIT_SETUP
    except KeyboardInterrupt:  # before or after the job; while it runs the supervisor handles it
        print("stopped; logs that are not here stay on their hosts", file=sys.stderr)
        return EXIT_FORCED


if __name__ == "__main__":
    start.run(lambda: main(sys.argv[1:]))
