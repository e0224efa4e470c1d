"""Starts a whole job on several hosts over ssh, waits for it, brings the logs home, and leaves no process behind.

    scripts/cluster.sh --hosts hosts.csv -m esync -n resnet18-v1 -- -ll 0.0005 --max-seconds 600

The hosts file has one line a host below a header with the columns, of which only address is needed. On the first host
the scheduler, the parameter servers and the state server run too, unless the column roles says otherwise. What follows
`--` goes to every worker's main.py. Each host has the project with its .venv, and the workers' hosts the data
(scripts/setup.sh, scripts/get_data.sh); ssh logs in without a question. Ctrl-C ends the job with the workers' rounds, a
second one at once; a process that dies ends it, and so does the end of this program or of a connection. With
--ckpt-frequency N --on-worker-death restart behind `--` a process that dies does not: all go on from the newest
checkpoint. With --ckpt-frequency SIGUSR1 has the job go on with the hosts that are in the file by then. Logs:
LOG_BASE/NETWORK/MODE/HOST/DEVICE/iter-*.txt, as summary.py reads them, and one log a process in LOG_BASE/NETWORK/MODE/.
Exit codes: 0 done or stopped, 2 something to put right first, 3 a process or a host was lost, 130 killed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from algorithms import ENTRIES, Workers
from config import END
from flag_values import port
from scripts.launch import hosts_file, job_options, survival
from scripts.launch.changed_hosts import Changes
from scripts.launch.connections import Connections, data_of
from scripts.launch.console import console
from scripts.launch.hosts_layout import (
    EXAMPLE_CARD,
    SECRET,
    Facts,
    Plan,
    example,
    make_layout,
    num_ports,
    port_ranges,
    trace_file,
)
from scripts.launch.link import Link, ssh_command
from scripts.launch.process import Kind, Role, Running
from scripts.launch.roles import ROOT, Job, Layout, build
from scripts.launch.run_before import RunBefore, run_before
from scripts.launch.run_option import run_of
from scripts.launch.supervisor import Outcome, Supervisor, Waits
from scripts.launch.survival import Survival
from utils import EXIT_FORCED, EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, SetupError

# ------------------------------------------------------------------------------------------------- the command line


def parse(arguments: Sequence[str]) -> Plan:
    """Parses the command line; a bad value ends the process with exit code 2.

    Raises:
        SetupError: the hosts file is wrong, or a flag for the workers contradicts the job.
    """
    own, worker_arguments = job_options.split(arguments)
    columns = "\n".join(f"  {name:<16} {text}" for name, text in hosts_file.COLUMNS.items())
    parser = argparse.ArgumentParser(
        prog="scripts/cluster.sh",
        description=__doc__,
        epilog=f"columns of the hosts file, in any order:\n{columns}",
        formatter_class=job_options.HelpFormatter,
        allow_abbrev=False,
    )
    job_options.add_mode(parser)
    parser.add_argument("--hosts", type=Path, required=True, default=argparse.SUPPRESS, metavar="FILE", help="a CSV")
    job_options.add_job(parser, data_dir=Path("data"))
    parser.add_argument(
        "--base-port",
        type=lambda text: int(port(text)),
        default=0,
        help="MXNet listens on this port of a host and those above it, one a process, but for those "
        "that have a flag; 0: on free ones",
    )
    parser.add_argument("--ssh", default="ssh", help="the ssh command and its options, such as 'ssh -F FILE'")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be started")
    given = parser.parse_args(own)
    job_options.check_split(given.mode, given.split_by_class)
    job_options.check_collective(given)
    job_options.check_ports(given.root_port, given.state_server_port)
    job = Job(
        mode=given.mode,
        network=given.network,
        num_servers=given.servers,
        log_base=job_options.log_base(given).resolve(),
        run=run_of(given),
        data_dir=given.data_dir,
        split_by_class=given.split_by_class,
        root_port=given.root_port,
        state_server_port=given.state_server_port,
        worker_arguments=worker_arguments,
        grace_s=given.grace,
        collective=given.collective,
        restarts=given.restarts,
    )
    hosts = hosts_file.read(given.hosts)
    plan = _with_workers(Plan(job, hosts, tuple(shlex.split(given.ssh)), given.base_port, given.dry_run))
    job_options.check_flags(*example(plan), where="behind `--` or in the hosts file")
    return plan


def _with_workers(plan: Plan) -> Plan:
    """The job of those workers of the hosts that take part in the mode.

    Raises:
        SetupError: the mode chooses them, and nothing says how fast they are.
    """
    mode, workers = plan.job.mode, plan.hosts.workers
    if ENTRIES[mode].workers is Workers.ALL:
        return plan
    names = [f"{worker.host} {worker.folder}" for worker in workers]
    step_times_s = [told.shortest_step_s for told, _ in job_options.worker_configs(*example(plan))]
    job_options.check_known(mode, dict(zip(names, step_times_s, strict=True)))
    places = job_options.taking_part(mode, step_times_s)
    hosts = dataclasses.replace(plan.hosts, workers=tuple(workers[place] for place in places))
    job = dataclasses.replace(plan.job, chosen=job_options.chosen(mode, [names[place] for place in places]))
    return dataclasses.replace(plan, job=job, hosts=hosts)


def show(plan: Plan, say: Callable[[str], None]) -> None:
    """Says what would be started."""
    job, layout = example(plan)
    say(f"# {EXAMPLE_CARD}, ports and numbers of threads that nobody gave are examples: the hosts find them\n")
    for name, host in plan.hosts.hosts.items():
        say(f"{name}: {shlex.join(ssh_command(plan.ssh, host, host.folder or str(ROOT)))}")
    for role in build(job, layout):
        variables = {key: value for key, value in role.environment.items() if key != "PYTHONUNBUFFERED"}
        variables |= {key: "..." for key in SECRET if key in variables}
        words = [*(f"{key}={value}" for key, value in variables.items()), *role.command]
        say(f"{role.host}: cd {shlex.quote(str(role.folder))} && {shlex.join(words)}")


# -------------------------------------------------------------------------------------------------------- the job


def meet(plan: Plan, links: Mapping[str, Link]) -> dict[str, Facts]:
    """Asks the hosts what only they know.

    Raises:
        SetupError: a host cannot be reached, or cannot take part. The message names the host.
    """
    hellos = {name: link.hello() for name, link in links.items()}
    first = plan.hosts.places["scheduler"][0]
    toward = ""
    facts = {}
    for name in sorted(links, key=lambda name: name != first):
        host, hello = plan.hosts.hosts[name], hellos[name]
        found = links[name].ask(do="network", address=host.address, interface=host.interface, toward=toward)
        toward = toward or found["address"]
        facts[name] = Facts(hello["python"], hello["root"], hello["cores"], found["address"], found["interface"])
    if toward.startswith("127.") and len({fact.address for fact in facts.values()}) > 1:
        raise SetupError(
            f"the first host is at {toward}, which the others cannot reach: give the address that they know"
        )
    return facts


def place(plan: Plan, links: Mapping[str, Link], facts: Mapping[str, Facts]) -> tuple[Job, Layout]:
    """Where the job's processes are, at ports that are free now.

    Raises:
        SetupError: as `meet`.
    """
    if plan.base_port:
        ports = port_ranges(plan, plan.base_port, {name: fact.address for name, fact in facts.items()})
    else:
        ports = {name: links[name].ask(do="ports", count=count)["ports"] for name, count in num_ports(plan).items()}
    return make_layout(plan, facts, ports)


def begin(plan: Plan, links: Mapping[str, Link], job: Job, layout: Layout) -> None:
    """Lets every host take note of the logs that are there before the job, and gives it the workers' traces; and the
    data that the processes read which it forks, where the job survives.

    Raises:
        SetupError: the log folder of a host cannot be written to.
    """
    told = next(job_options.worker_configs(job, layout))[0]
    forks = data_of(told) if told.on_worker_death != END and not told.leaves_out else None
    for name, site in layout.sites.items():
        workers = [worker for worker in plan.hosts.workers if worker.host == name]
        traces = {trace_file(worker): worker.straggler_trace for worker in workers}
        links[name].ask(
            do="begin",
            folder=str(site.folder),
            devices=[worker.folder for worker in workers],
            files={name: path.read_text() for name, path in traces.items() if path},
            forks=forks,
        )


def run(read: Callable[[], Plan], say: Callable[[str], None] = console) -> int:
    """Runs a job to its end, with whatever hosts come and go (changed_hosts.py); returns the exit code.

    Args:
        read: the command line and the hosts file; raises SetupError.

    Raises:
        SetupError: the first hosts cannot begin.
    """
    with Changes(read, say) as changes:
        if changes.plan.is_dry_run:
            show(changes.plan, say)
            return EXIT_OK
        plan, all_home = changes.plan, True
        with contextlib.ExitStack() as stack:
            stack.enter_context(job_options.claimed(plan.job.log_folder))
            before = run_before(*example(plan), say)
            changes.connections = connections = stack.enter_context(Connections(plan))
            while True:
                try:
                    links = connections.to(changes.plan.hosts.hosts)
                    outcome, are_home = run_once(changes.plan, links, say, changes, before)
                except SetupError as error:
                    if changes.go_back(str(error)):
                        continue
                    for link in connections.there if changes.have_come else ():
                        bring_home(plan.job, link, say)
                    raise
                all_home &= are_home
                if outcome.changes:
                    changes.go_on()
                elif not (has_failed_to_begin(outcome) and changes.go_back("with these hosts it could not begin")):
                    return outcome.exit_code or (EXIT_OK if all_home else EXIT_PEER_LOST)


def has_failed_to_begin(outcome: Outcome) -> bool:
    """Whether something is wrong with the hosts, which another hosts file may put right."""
    return outcome.exit_code in (EXIT_SETUP, EXIT_PEER_LOST) and not (outcome.has_trained or outcome.was_stopped)


def run_once(
    plan: Plan, links: Mapping[str, Link], say: Callable[[str], None], changes: Changes, before: RunBefore
) -> tuple[Outcome, bool]:
    """Runs the job until it is over, or goes on with other hosts; returns, too, whether all its logs came home."""
    facts = meet(plan, links)
    job, layout = place(plan, links, facts)
    begin(plan, links, job, layout)
    for line in job_options.warnings(job, layout):
        say(line)
    address = f"{layout.scheduler.address}:{job.root_port}"
    meeting = f"; the scheduler is at {address}" if job.has_parameter_server else ""
    say(f"connected to {', '.join(links)}{meeting}")
    survives = survival_of(plan, facts, job, layout, links)
    changes.there = partial(there, links)
    outcome = supervise(job, layout, links, say, survives, changes, before)
    for link in links.values():
        if lost := link.unconfirmed():
            say(
                f"warning: nobody saw the end of {', '.join(lost)}: the connection is gone, and without it they "
                "are killed within a minute"
            )
    # Those of hosts that stay come at the end of all: the others wait meanwhile.
    are_done = [link for link in links.values() if not (outcome.changes and changes.stays(link.host))]
    are_home = [bring_home(job, link, say) for link in are_done if link.host.name in layout.sites]
    before.tell()
    for line in job_options.last_word(job, outcome):
        say(line)
    return outcome, all(are_home)


def there(links: Mapping[str, Link]) -> list[str]:
    """The hosts that are not gone."""
    return [name for name, link in links.items() if link.exit_code is None]


def survival_of(
    plan: Plan, facts: Mapping[str, Facts], job: Job, layout: Layout, links: Mapping[str, Link]
) -> Survival | None:
    """What is done when a process dies: None where the job ends."""
    told = [told for told, _ in job_options.worker_configs(job, layout)]
    folders = {
        (seat.site.name, seat.site.root / each.checkpoint_folder) for seat, each in zip(layout.seats, told, strict=True)
    }
    # Its state server stays where it is.
    job_again = dataclasses.replace(plan.job, state_server_port=job.state_server_port)

    def left() -> Plan:
        """Without the hosts that are gone."""
        return dataclasses.replace(plan, job=job_again, hosts=plan.hosts.only(there(links)))

    def files() -> dict[str, int]:
        found: dict[str, int] = {}
        for host, folder in sorted(folders):
            if links[host].exit_code is not None:
                continue
            try:
                found |= links[host].ask(do="checkpoints", folder=str(folder))["files"]
            except SetupError:
                if links[host].exit_code is None:
                    raise
        return found

    def build_again(resumes: bool, start: int) -> list[Role]:
        job, layout = place(left(), links, facts)
        return roles_of(survival.again(job, told[0], resumes, start), layout, links)

    return survival.of_job(job, told[0], files, lambda: len(left().hosts.workers), build_again)


def roles_of(job: Job, layout: Layout, links: Mapping[str, Link]) -> list[Role]:
    """The processes; whether a service is up its host says."""
    return [
        dataclasses.replace(role, is_ready=partial(links[role.host].is_ready, role.name))
        if role.kind is Kind.SERVICE
        else role
        for role in build(job, layout)
    ]


def supervise(
    job: Job,
    layout: Layout,
    links: Mapping[str, Link],
    say: Callable[[str], None],
    survives: Survival | None,
    changes: Changes,
    before: RunBefore,
) -> Outcome:
    """Runs the processes on their hosts until all have ended."""
    service = (layout.state_server.address, job.state_server_port)

    def start(role: Role) -> Running:
        is_service = role.kind is Kind.SERVICE
        return links[role.host].start(role, layout.sites[role.host].folder, service if is_service else None)

    waits, together = Waits(grace_s=job.grace_s), job.algorithm.is_distributed
    # After a change logs go on where they are.
    appends = changes.have_come or before.goes_on
    roles = [dataclasses.replace(role, appends=appends) for role in roles_of(job, layout, links)]
    return Supervisor(roles, say, waits, start, list(links.values()), together, survives, changes, before.begins).run()


def bring_home(job: Job, link: Link, say: Callable[[str], None]) -> bool:
    """Fetches one host's logs; says where they are if that does not work, and returns whether it did."""
    name = link.host.name
    try:
        link.fetch_logs(job.log_folder / name, job.earlier)
    except (SetupError, OSError) as error:
        say(f"error: the logs of {name} stay there, in {job.folder_there / name} of the project: {error}")
        return False
    return True


def main(arguments: Sequence[str]) -> int:
    """The command: parses, runs, returns the exit code."""
    try:
        return run(lambda: parse(arguments))
    except (SetupError, OSError) as error:  # the disk here is full, say
        print(f"error: {error}", file=sys.stderr)
        return EXIT_SETUP
    except KeyboardInterrupt:  # before the job or after it; while it runs the supervisor obeys
        print("stopped; logs that are not here stay on their hosts", file=sys.stderr)
        return EXIT_FORCED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
