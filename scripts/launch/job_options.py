"""What the launchers share, for one machine and for several: a job's options, checks of its flags, its log folder.

scripts/launch/local_cluster.py and scripts/launch/cluster.py say what a job is; scripts/launch/roles.py makes its
processes, and scripts/launch/supervisor.py runs them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import config
from algorithms import ENTRIES, OWNERS, Workers
from config import preset_flags
from flag_values import at_least, several
from scripts.launch.ports import port_or_zero
from scripts.launch.restarts import DEFAULT_RESTARTS
from scripts.launch.roles import ROOT, Job, Layout, main_flags
from scripts.launch.run_option import add_run, run_of
from scripts.launch.supervisor import Outcome
from trainer import command_line
from trainer.rendezvous.config_check import ProcessInfo, differences
from trainer.run_logs.earlier_runs import LOCK_FILE
from utils import EXIT_OK, SetupError

# main.py's flags that say where a worker belongs and what it is filed as.
CLUSTERS_OWN = (
    "mode",
    "network",
    "collective",
    "split_by_class",
    "log_dir",
    "earlier",
    "device",
    "cpu",
    "gpu",
    "state_server_ip",
    "state_server_port",
)


def names(allowed: Collection[str] | None) -> Callable[[str], tuple[str, ...]]:
    """Makes a parser for names with commas, of those that are allowed; None: of any."""

    def parse(text: str) -> str:
        if allowed is not None and text not in allowed:
            raise argparse.ArgumentTypeError(f"{text!r} is unknown; choose from {', '.join(allowed)}")
        return text

    return several(parse, "names with commas")


# ------------------------------------------------------------------------------------------------- the command line


def add_mode(parser: argparse.ArgumentParser) -> None:
    """Adds the flag of the mode."""
    presets = (
        f"{name} is {' '.join((OWNERS[name].name, *preset_flags(name), *_on(entry.workers)))}"
        for name, entry in ENTRIES.items()
        if entry is not OWNERS[name]
    )
    parser.add_argument("-m", "--mode", choices=ENTRIES, default="esync", help="; ".join(("the algorithm", *presets)))


def _on(workers: Workers) -> tuple[str, ...]:
    return () if workers is Workers.ALL else (f"on {workers.value}",)


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


def add_job(parser: argparse.ArgumentParser, data_dir: Path) -> None:
    """Adds the options that all jobs have, but for the mode and the workers."""
    add_network(parser)
    parser.add_argument(
        "--collective",
        choices=(config.PS, *config.AMONG_WORKERS),
        default=config.PS,
        help="how the workers of esync, sync, local-sgd and lb-bsp sum: on the parameter server (ps), or among "
        "themselves, without scheduler and servers",
    )
    parser.add_argument("--servers", type=at_least(1), default=1, help="number of parameter servers")
    add_log_base(parser, ROOT / "logs")
    parser.add_argument("--data-dir", type=Path, default=data_dir, help="folder that holds the dataset's folder")
    parser.add_argument("--split-by-class", action="store_true", help="non-i.i.d. data: each worker has its classes")
    parser.add_argument("--root-port", type=port_or_zero, default=0, help="port of the scheduler; 0: a free one")
    parser.add_argument(
        "--state-server-port", type=port_or_zero, default=0, help="port of the state server; 0: a free one"
    )
    parser.add_argument("--grace", type=seconds, default=60.0, help="seconds that the workers get to end their round")
    parser.add_argument(
        "--restarts",
        type=at_least(0),
        default=DEFAULT_RESTARTS,
        help=f"with --on-worker-death {config.RESTART} behind `--`: how often the job may be started again without a "
        f"new checkpoint between; with {config.CONTINUE}: how often workers may be, each less than a minute after the "
        "one before",
    )


def add_log_base(parser: argparse.ArgumentParser, default: Path) -> None:
    """Adds the options that say where a run is filed."""
    parser.add_argument("--log-base", type=Path, default=default, help="folder of the log tree")
    add_run(parser)


def log_base(given: argparse.Namespace) -> Path:
    """The log tree that a run is filed in."""
    base: Path = given.log_base
    return base / run_of(given)


seconds = at_least(0, float)


def check_split(mode: str, split_by_class: bool) -> None:
    """Makes sure that there is something to split.

    Raises:
        SetupError: there is not.
    """
    if split_by_class and not OWNERS[mode].is_distributed:
        raise SetupError(
            f"--split-by-class does nothing in mode {mode}, where each device has all classes: leave it out"
        )


def check_collective(given: argparse.Namespace) -> None:
    """Makes sure that no option is about processes that there are not.

    Raises:
        SetupError: one is.
    """
    if given.collective == config.PS:
        return
    for option, value, default in (("--servers", given.servers, 1), ("--root-port", given.root_port, 0)):
        if value != default:
            raise SetupError(
                f"{option} {value} does nothing with --collective {given.collective}, which has neither scheduler nor "
                "parameter server: leave it out"
            )


def check_ports(root_port: int, state_server_port: int) -> None:
    """Makes sure that the two ports that were asked for are two.

    Raises:
        SetupError: they are the same.
    """
    if root_port and root_port == state_server_port:
        raise SetupError(f"--root-port and --state-server-port are both {root_port}: choose two")


def taking_part(mode: str, step_times_s: Sequence[float]) -> tuple[int, ...]:
    """Which workers of a cluster take part in a mode, ascending, by the step times of all.

    Raises:
        SetupError: nobody does.
    """
    who = ENTRIES[mode].workers
    if not (places := who.among(step_times_s)):
        raise SetupError(f"-m {mode} takes {who.value}, and the cluster has no other: give it two workers or more")
    return places


def check_known(mode: str, step_times_s: Mapping[str, float]) -> None:
    """Makes sure that a mode can choose among workers of machines of their own.

    Args:
        step_times_s: by worker; 0: nobody says.

    Raises:
        SetupError: it cannot.
    """
    unknown = [name for name, seconds in step_times_s.items() if not seconds]
    if unknown:
        raise SetupError(
            f"-m {mode} takes {ENTRIES[mode].workers.value}, and nothing says how long a step of {unknown[0]} takes: "
            "give each worker a step_time_s above 0 in the hosts file, which emulates it; or choose yourself, by a "
            f"hosts file without the others and -m {OWNERS[mode].name}"
        )


def chosen(mode: str, names: Sequence[str]) -> str:
    """Who takes part, for the user, where that is not everybody."""
    return f"{mode} takes {ENTRIES[mode].workers.value}: {', '.join(names)}"


# ---------------------------------------------------------------------------------------------- the workers' flags


def check_flags(
    job: Job,
    layout: Layout,
    ours: tuple[str, ...] = (),
    fixed: Sequence[str] = (),
    whose: str = "the cluster",
    where: str = "behind `--`",
) -> list[config.Config]:
    """Makes sure that every worker will start, and as what it is logged as.

    Args:
        job: with all flags behind `--`.
        layout: the workers, with their own flags.
        ours: those of the flags behind `--` that are not the user's.
        fixed: fields of Config that the user's flags must leave alone, beside the cluster's own.
        whose: the one who says otherwise, for the message.
        where: the user's flags are, for the message.

    Returns:
        What each worker's flags say.

    Raises:
        SetupError: a flag of the user's contradicts the cluster, or workers differ where they must not. Wrong flags
            end the process, as in main.py.
    """
    pairs = list(worker_configs(job, layout, ours))
    # A trace for all may come behind `--`, but not beside those of single workers: which of the two would be meant?
    traces = ("straggler_trace",) if any(own.straggler_trace for _, own in pairs) else ()
    for parsed, own in pairs:
        command_line.check_job(parsed, job.num_servers, len(layout.seats))
        for name in (*CLUSTERS_OWN, *traces, *fixed):
            value, expected = getattr(parsed, name), getattr(own, name)
            if value != expected:
                flag = "--" + name.replace("_", "-")
                there = "not given" if expected == "" else expected
                raise SetupError(
                    f"{flag} {value} {where} contradicts {whose}, where it is {there}: "
                    "leave it out, or use an option of this script instead (--help)"
                )
        if parsed.entry != own.entry:
            raise SetupError(
                f"the flags {where} make {parsed.entry} of -m {job.mode}: leave them out, or give -m {parsed.entry}"
            )
    told = [parsed for parsed, _ in pairs]
    _check_restarts(job, layout, told[0])
    if job.algorithm.is_distributed:  # the processes compare theirs as well, once they meet
        _check_equal(layout, told)
    return told


def _check_restarts(job: Job, layout: Layout, told: config.Config) -> None:
    if told.on_worker_death == config.END:
        if job.restarts != DEFAULT_RESTARTS:
            raise SetupError(
                f"--restarts {job.restarts} does nothing without --on-worker-death {config.RESTART} or "
                f"{config.CONTINUE} behind `--`: leave it out, or give both"
            )
    elif len(layout.seats) > 1 and not job.algorithm.is_distributed:
        raise SetupError(
            f"--on-worker-death {config.RESTART} is for one job, and in mode {job.mode} each of the workers (here "
            f"{len(layout.seats)}) is one by itself: start one at a time, or leave it out"
        )


def _check_equal(layout: Layout, told: Sequence[config.Config]) -> None:
    cards = [
        ProcessInfo(
            "worker", seat.site.name, seat.device, seat.site.address, seat.port, setup=command_line.job_setup(parsed)
        )
        for seat, parsed in zip(layout.seats, told, strict=True)
    ]
    if found := differences(cards):
        raise SetupError(f"the workers' flags differ: {'; '.join(found.values())}; give such a flag once, behind `--`")


def worker_configs(
    job: Job, layout: Layout, ours: tuple[str, ...] = ()
) -> Iterator[tuple[config.Config, config.Config]]:
    """What each worker's flags say, and what they would say without the user's, with only `ours` behind `--`."""
    plain = dataclasses.replace(job, worker_arguments=ours)
    for seat in layout.seats:
        own = main_flags(plain, layout, dataclasses.replace(seat, more_flags=()))
        yield command_line.parse(main_flags(job, layout, seat)), command_line.parse(own)


# -------------------------------------------------------------------------------------------------- the log folder


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


def warnings(job: Job, layout: Layout) -> list[str]:
    """What the user should know before the job begins, or goes on with others than before."""
    return [*filter(None, [job.chosen, _checkpoints_apart(job, layout)])]


def _checkpoints_apart(job: Job, layout: Layout) -> str:
    """A warning where each host has checkpoints of its own, and a job needs those of all; empty where it does not."""
    if not job.algorithm.is_distributed or len({seat.site.name for seat in layout.seats}) == 1:
        return ""
    every = [told for told, _ in worker_configs(job, layout)]
    if not any(told.ckpt_frequency and not told.survives and not told.checkpoint for told in every):
        return ""
    return (
        "warning: each host keeps the checkpoints of its own workers: without those of the others a job may find no "
        "round to go on from; name a folder that all hosts see with --checkpoint"
    )


def last_word(job: Job, outcome: Outcome) -> list[str]:
    """What the user is told once the job has ended well."""
    if outcome.exit_code != EXIT_OK or outcome.changes:
        return []
    return [f"{'stopped' if outcome.was_stopped else 'done'}; the logs are in {job.log_folder}"]
