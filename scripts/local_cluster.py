"""Starts a whole job on this machine, waits for it, and leaves no process behind whatever happens.

State server (where the mode asks one), scheduler, parameter servers and CPU workers on 127.0.0.1; each worker pads its
steps to the time that it is given, so that one machine stands for several of different speeds. What follows `--` goes
to every worker's main.py. Logs: LOG_BASE/NETWORK/MODE/HOST/cpuN/iter-*.txt, as summary.py reads them, and one log a
process in LOG_BASE/NETWORK/MODE/. Ctrl-C ends the job with the workers' rounds, a second one at once.
Exit codes: 0 done or stopped, 2 something to put right first, 3 a process died, 130 killed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import random
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import config
from flag_types import at_least
from scripts import cluster_file
from scripts.cluster_file import Worker
from scripts.process import Role
from scripts.roles import MODES, ROOT, Options, build_roles, workers
from scripts.supervisor import Outcome, Supervisor, Waits, console
from trainer import straggler_trace
from utils import EXIT_OK, VARIANTS, SetupError

DEFAULT_WORKERS = "0.03,0.06,0.3"
STANDALONE_WORKERS = "0"


# main.py's flags that say where a worker belongs and what it is filed as.
CLUSTERS_OWN = (
    "mode",
    *(flag for _, flag in VARIANTS.values()),
    "network",
    "split_by_class",
    "log_dir",
    "device",
    "cpu",
    "state_server_ip",
    "state_server_port",
)

LOCK_FILE = ".lock"


# ---------------------------------------------------------------------------------------------------------- ports


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, ascending. Below those that the kernel gives to outgoing connections."""
    found: list[int] = []
    for port in random.sample(range(10000, 32768), 1000):
        if len(found) < count and is_free(port):
            found.append(port)
    return sorted(found)


def is_free(port: int) -> bool:
    """Whether a server could listen on it, on any address."""
    with socket.socket() as probe:
        # As servers do: connections of an earlier one that linger are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


# ------------------------------------------------------------------------------------------------- the command line


def parse(arguments: Sequence[str]) -> Options:
    """Parses the command line; a bad value ends the process with exit code 2.

    Raises:
        SetupError: a port is in use, the cluster file is wrong, an option does nothing in the mode, or a flag behind
            `--` contradicts the cluster.
    """
    own, worker_arguments = split(arguments)
    parser = argparse.ArgumentParser(
        prog="scripts/local_cluster.sh", description=__doc__, formatter_class=HelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "-m", "--mode", choices=MODES, default="esync", help="algorithm; dcasgd is async, wbsp-pcc is wbsp with overlap"
    )
    add_job(parser)
    given = parser.parse_args(own)
    if given.mode == "local" and given.split_by_class:
        raise SetupError("--split-by-class does nothing in mode local, where each device has all classes: leave it out")
    options = to_options(given, chosen_workers(given), worker_arguments)
    check_worker_flags(options)
    return options


def add_job(parser: argparse.ArgumentParser) -> None:
    """Adds all options of a job but its mode."""
    add_network(parser)
    parser.add_argument("--servers", type=at_least(1), default=1, help="number of parameter servers")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--workers",
        type=step_times,
        default=argparse.SUPPRESS,
        help="shortest time of a local step in seconds, one number a worker, with commas; 0: as fast as this machine "
        f"(default: {DEFAULT_WORKERS}; in mode local: {STANDALONE_WORKERS})",
    )
    which.add_argument(
        "--cluster",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help=f"in place of --workers: a CSV file with the header {','.join(cluster_file.COLUMNS)} and one row for each "
        "worker, or the name of a ready-made one in scripts/clusters",
    )
    parser.add_argument("--log-base", type=Path, default=ROOT / "logs", help="folder of the log tree")
    parser.add_argument("--data-dir", type=Path, default=ROOT / "data", help="folder that holds the dataset's folder")
    parser.add_argument("--split-by-class", action="store_true", help="non-i.i.d. data: each worker has its classes")
    parser.add_argument("--root-port", type=_port, default=0, help="port of the scheduler; 0: a free one")
    parser.add_argument("--state-server-port", type=_port, default=0, help="port of the state server; 0: a free one")
    parser.add_argument("--grace", type=seconds, default=60.0, help="seconds that the workers get to end their round")


def chosen_workers(given: argparse.Namespace) -> tuple[Worker, ...]:
    """The workers that --workers or --cluster asks for, or the mode's own.

    Raises:
        SetupError: the cluster file, or a trace that it names, is missing or malformed.
    """
    if "cluster" in given:
        return cluster_file.read(cluster_file.find(given.cluster))
    default = step_times(STANDALONE_WORKERS if given.mode == "local" else DEFAULT_WORKERS)
    return tuple(map(Worker, getattr(given, "workers", default)))


def to_options(given: argparse.Namespace, chosen: Sequence[Worker], worker_arguments: tuple[str, ...]) -> Options:
    """The job that was asked for, with ports that are free now.

    Raises:
        SetupError: a port that was asked for is in use.
    """
    root_port, state_server_port, *worker_ports = _ports(given.root_port, given.state_server_port, len(chosen))
    return Options(
        mode=given.mode,
        network=given.network,
        num_servers=given.servers,
        step_times_s=tuple(worker.step_time_s for worker in chosen),
        straggler_traces=tuple(worker.straggler_trace for worker in chosen),
        log_base=given.log_base.resolve(),
        data_dir=given.data_dir.resolve(),
        split_by_class=given.split_by_class,
        root_port=root_port,
        state_server_port=state_server_port,
        worker_ports=tuple(worker_ports),
        worker_arguments=worker_arguments,
        grace_s=given.grace,
    )


def check_worker_flags(
    options: Options, ours: tuple[str, ...] = (), fixed: Sequence[str] = (), whose: str = "the cluster"
) -> None:
    """Makes sure that every worker will start, and as what it is logged as.

    Args:
        options: the job with all flags behind `--`.
        ours: those of the flags behind `--` that are not the user's.
        fixed: fields of Config that the user's flags must leave alone, beside the cluster's own.
        whose: the one who says otherwise, for the message.

    Raises:
        SetupError: a flag behind `--` contradicts the cluster. Wrong flags end the process, as in main.py.
    """
    # A trace for all may come behind `--`, but not beside those of a cluster file: which of the two would be meant?
    traces = ("straggler_trace",) if any(options.straggler_traces) else ()
    for parsed, own in worker_configs(options, ours):
        config.check_job(parsed, options.num_servers, len(options.step_times_s))
        for name in (*CLUSTERS_OWN, *traces, *fixed):
            value, expected = getattr(parsed, name), getattr(own, name)
            if value != expected:
                flag = "--" + name.replace("_", "-")
                there = "not given" if expected == "" else expected
                raise SetupError(
                    f"{flag} {value} behind `--` contradicts {whose}, where it is {there}: "
                    "leave it out, or use an option of this script instead (--help)"
                )
        if parsed.straggler_trace:
            straggler_trace.read(ROOT / parsed.straggler_trace)


def worker_configs(options: Options, ours: tuple[str, ...] = ()) -> Iterator[tuple[config.Config, config.Config]]:
    """What each worker's flags say, and what they would say without the user's behind `--`, with only `ours` there."""
    plain = dataclasses.replace(options, worker_arguments=ours)
    for role, own in zip(workers(options, {}), workers(plain, {}), strict=True):
        yield config.parse(role.command[2:]), config.parse(own.command[2:])


def add_network(parser: argparse.ArgumentParser) -> None:
    """Adds the flag of the network, with its names in the help but not in the usage."""
    names = ", ".join(config.NETWORKS)
    parser.add_argument(
        "-n", "--network", choices=config.NETWORKS, default="lenet", metavar="NETWORK", help=f"one of {names}"
    )


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults, and the module's text as it is."""


def split(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """What comes before `--`, and what comes after it."""
    words = list(arguments)
    cut = words.index("--") if "--" in words else len(words)
    return words[:cut], tuple(words[cut + 1 :])


def _ports(root_port: int, state_server_port: int, num_workers: int) -> list[int]:
    for flag, port in (("--root-port", root_port), ("--state-server-port", state_server_port)):
        if port and not is_free(port):
            raise SetupError(f"{flag} {port} is in use: choose another, or leave the flag out for a free one")
    if root_port and root_port == state_server_port:
        raise SetupError(f"--root-port and --state-server-port are both {root_port}: choose two")
    *worker_ports, free_root_port, free_state_server_port = free_ports(num_workers + 2)
    return [root_port or free_root_port, state_server_port or free_state_server_port, *worker_ports]


seconds = at_least(0, float)


def step_times(text: str) -> tuple[float, ...]:
    """Parses the list of workers."""
    return tuple(seconds(part) for part in text.split(","))


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value < 65536:
        raise argparse.ArgumentTypeError(f"{text} is not a port; give a number from 1 to 65535, or 0 for a free one")
    return value


# -------------------------------------------------------------------------------------------------------- the job


def stale_devices(options: Options) -> list[Path]:
    """Folders of earlier jobs with more workers. Nobody empties them, and summary.py would count them in."""
    there = options.host_folder.glob("*")
    return sorted(path for path in there if path.is_dir() and path.name not in options.devices)


def run(
    options: Options,
    build: Callable[[Options], list[Role]] = build_roles,
    say: Callable[[str], None] = console,
) -> Outcome:
    """Runs one job to its end.

    Args:
        options: what to run.
        build: makes the processes; the tests give stand-ins.
        say: prints a line for the user.
    """
    with claimed(options.log_folder):
        return _run(options, build, say)


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Makes a log folder and keeps other clusters out of it.

    Raises:
        SetupError: it cannot be written to, or another cluster that still runs writes there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK_FILE).open("w")
    except OSError as error:
        raise SetupError(f"log folder {folder}: {error.strerror}; choose another with --log-base") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SetupError(f"another cluster writes its logs to {folder}: give this one its own --log-base") from None
        yield


def _run(options: Options, build: Callable[[Options], list[Role]], say: Callable[[str], None]) -> Outcome:
    for path in stale_devices(options):
        say(f"warning: {path} is of an earlier job and counts in this one's summary; to remove it: rm -r '{path}'")
    outcome = Supervisor(build(options), say, Waits(grace_s=options.grace_s)).run()
    if outcome.exit_code == EXIT_OK:
        say(f"{'stopped' if outcome.was_stopped else 'done'}; the logs are in {options.log_folder}")
    return outcome


def main(arguments: Sequence[str], build: Callable[[Options], list[Role]] = build_roles) -> int:
    """The command: parses, runs, returns the exit code."""
    try:
        return run(parse(arguments), build).exit_code
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
