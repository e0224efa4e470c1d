"""The command line of main.py, and of other programs that take its flags: parses it and checks combinations."""

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from algorithms import ENTRIES, OWNERS, TransportKind
from config import (
    AMONG_WORKERS,
    CONTINUE,
    FIELDS,
    FP16,
    HUB,
    KVSTORE,
    LEARNING_RATES,
    MPI,
    NETWORKS,
    RESTART,
    WITH_STATE_SERVER,
    Config,
    modes_of,
    names_of,
    one_of,
    titles_of,
)
from flag_parser import FlagParser
from trainer.jobs.sources import ignored_network
from utils import SetupError, version_number


@dataclass(frozen=True)
class Program:
    """A program that takes these flags."""

    name: str = "main.py"
    flags: Collection[str] = ()  # those that it takes beside these, for the error of an unknown one
    networks: Sequence[str] = NETWORKS  # choices of -n
    # Fields of Config without a meaning for this program, given the others, each with the reason
    nowhere: Callable[[Config], Mapping[str, str]] = lambda config: {}


def parse(
    arguments: Sequence[str] | None = None,
    warn: Callable[[str], None] = lambda text: None,  # gets a line for each published flag that does nothing
    program: Program | None = None,  # main.py by default
    beside: Collection[str] = (),  # other modes and presets for the same command line: their flags are no errors
) -> Config:
    """Parses the command line; an unknown flag or a bad value ends the process with exit code 2."""
    program = program or Program()
    parser = FlagParser(
        prog=program.name,
        description="Train one model on machines of different speed. The role comes from DMLC_ROLE "
        "(scheduler, server, worker); without it only local mode runs.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        elsewhere=dict.fromkeys(program.flags, ""),
    )
    parser.add_argument("--version", action="version", version=f"ESync on MXNet {version_number()}")
    for name, field in FIELDS.items():
        own = dict(field.arguments)
        if name == "network":
            own["choices"] = program.networks
        shown = field.help
        if shown != argparse.SUPPRESS:
            shown = ": ".join(filter(None, (", ".join(titles_of(name)), shown)))
        parser.add_argument(*names_of(name), dest=name, default=field.default, help=shown, **own)
        if field.formerly:
            parser.add_argument(field.formerly, dest=name, help=argparse.SUPPRESS, **own)
    # argparse does not overwrite these values, so they mark the flags that were not given.
    absent = argparse.Namespace(**dict.fromkeys(FIELDS, _ABSENT))
    values = vars(parser.parse_args(arguments, absent))
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if value is not _ABSENT
    }
    config = Config(**given)
    try:
        for name, why in program.nowhere(config).items():
            if name in given:
                raise SetupError(f"{names_of(name)[0]} means nothing to {program.name}: {why}; leave it out")
        if config.job and "network" in given and (ignored := ignored_network(config.job, config.network)):
            warn(ignored)
        _check_given(config, {name: given[name] for name in given if not _is_for_others(name, config, beside)}, warn)
        _check_together(config, num_workers=None)
    except SetupError as error:
        parser.error(str(error))
    return config


_ABSENT = object()


def _is_for_others(field: str, config: Config, beside: Collection[str]) -> bool:
    """Whether a flag does nothing here, but something in another mode or preset of the command line."""
    modes, needs = modes_of(field), FIELDS[field].needs
    if config.mode not in modes:
        return any(OWNERS[entry].name in modes for entry in beside)
    if _is_met(needs, config):
        return False
    return any(needs in ENTRIES[entry].values for entry in beside)


def _is_met(needs: tuple[str, Any] | None, config: Config) -> bool:
    """Whether the field that a flag needs has a wanted value."""
    if needs is None:
        return True
    field, wanted = needs
    value = config.values_by_name()[field]
    return value in wanted if isinstance(wanted, tuple) else bool(value == wanted)


def _check_given(config: Config, given: Mapping[str, Any], warn: Callable[[str], None]) -> None:
    """Warns of given published flags that do nothing, since existing scripts have them. Raises SetupError if a flag of
    this project's own does nothing."""
    for name, value in given.items():
        its, modes = FIELDS[name], modes_of(name)
        text = f"{names_of(name)[0]} {_as_typed(value)}"
        if its.counts_in is WITH_STATE_SERVER and (config.needs_state_server or config.tells_state_server):
            continue  # in any mode: the workers find each other there, or tell it what they do
        if config.mode not in modes:
            where = one_of(modes)
            if not its.published:
                raise SetupError(
                    f"{text} belongs to mode {where}, not to {config.mode}: leave it out, or change the mode (-m)"
                )
            rate = names_of(config.settings.rate_field)[0]
            rather = f"; in mode {config.mode} {rate} counts" if name in (*LEARNING_RATES, "global_lr") else ""
            warn(f"{text} does nothing in mode {config.mode}: it counts in mode {where}{rather}")
        elif its.needs and not _is_met(its.needs, config):
            other, needed = its.needs
            wanted = one_of(needed) if isinstance(needed, tuple) else needed
            raise SetupError(f"{text} does nothing without {names_of(other)[0]} {wanted}: leave it out, or give both")


def _check_together(config: Config, num_workers: int | None) -> None:
    """Checks combinations of flags, also by the algorithm's own check. Raises SetupError if flags do not fit together,
    as from the checks below."""
    if config.page == 0 and config.algorithm.needs_state_server:
        raise SetupError(
            f"--page 0 means nothing in mode {config.mode}, whose workers ask the state server: leave it out"
        )
    if not config.ckpt_frequency and (config.resume or config.checkpoint):
        flag = "--resume" if config.resume else "--checkpoint"
        raise SetupError(f"{flag} needs checkpoints, and there are none: also give --ckpt-frequency")
    if config.target_accuracy and config.target is not None:
        raise SetupError("--target-accuracy and --target are the same limit: leave one of them out")
    if config.on_worker_death == RESTART:
        _check_restart(config)
    _check_exchange(config)
    if config.on_worker_death == CONTINUE:
        _check_survival(config)
    config.settings.check(num_workers)


def _check_exchange(config: Config) -> None:
    """Whether the mode can have the exchange that was asked for."""
    row, asked, carries_fp16 = config.algorithm, f"--exchange {config.exchange}", (KVSTORE, *AMONG_WORKERS)
    if config.compression == FP16 and config.transport not in carries_fp16:
        raise SetupError(
            f"--compression {FP16} does not go with --exchange {config.transport}: MPI and the hub add up numbers of "
            f"one kind; leave it out, or take --exchange {one_of(carries_fp16)}"
        )
    if config.exchange in (*AMONG_WORKERS, MPI) and row.transport is TransportKind.HUB:
        raise SetupError(f"{asked}: mode {config.mode} does not sum: it has a server, so leave --exchange out")
    if config.exchange == KVSTORE and not row.has_kvstore:
        raise SetupError(f"{asked}: mode {config.mode} has a server of its own, which is the hub: leave --exchange out")
    if config.exchange == KVSTORE and config.hub_flags:
        flag = f"{names_of(config.hub_flags[0])[-1]} {_as_typed(config.values_by_name()[config.hub_flags[0]])}"
        raise SetupError(f"{asked}: MXNet's own server has no {flag}: give --exchange {HUB}, or leave {flag} out")


def _check_survival(config: Config) -> None:
    asked = f"--on-worker-death {CONTINUE}"
    if not config.transport:
        raise SetupError(f"{asked}: mode {config.mode} trains alone: leave it out, or choose {RESTART}")
    if config.transport == MPI:
        raise SetupError(f"{asked}: mpiexec ends all processes when one fails: leave it out")
    if config.transport == KVSTORE:
        others = f", or {one_of(AMONG_WORKERS)}" if config.algorithm.transport is TransportKind.SUM else ""
        raise SetupError(
            f"{asked}: MXNet's kvstore does not go on without a lost worker: also give --exchange {HUB}{others}; or "
            f"choose {RESTART}"
        )
    if config.algorithm.shares_batch:
        raise SetupError(f"{asked}: mode {config.mode} cannot; its batch sizes are those of one set of workers")
    if config.transport == HUB and config.fault_timeout != FIELDS["fault_timeout"].default:
        raise SetupError(f"{asked}: --fault-timeout {config.fault_timeout} does nothing on the hub: leave it out")
    if config.transport == HUB and config.ckpt_frequency:
        raise SetupError(
            f"{asked} on the hub: lost workers come back with its model, not from a checkpoint: leave "
            f"--ckpt-frequency out, or choose {RESTART}"
        )


def _check_restart(config: Config) -> None:
    restart = f"--on-worker-death {RESTART}"
    if config.transport == MPI:
        raise SetupError(f"{restart} needs the launchers, since mpiexec restarts no process: leave it out")
    if not config.ckpt_frequency:
        raise SetupError(f"{restart} resumes from checkpoints, and there are none: also give --ckpt-frequency")
    if config.ckpt_keep < 2:  # a worker may have written one more than a killed one
        raise SetupError(f"{restart} needs two checkpoints of each worker: give --ckpt-keep 2 or more, or leave it out")


def _as_typed(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def job_setup(config: Config) -> dict[str, str]:
    """The flags that count in the mode and must be the same on all workers: flag -> value, as on the command line."""
    own = {"resume"} if config.survives else set()  # then a worker may have no checkpoint
    names = (name for name in FIELDS if config.mode in modes_of(name) and not FIELDS[name].of_host and name not in own)
    values = {**config.values_by_name(), "exchange": config.transport}
    return {names_of(name)[0]: _as_typed(values[name]) for name in names}


def check_step_time(config: Config) -> None:
    """Checks the emulated speed. Raises SetupError if a step is longer than the job, as of milliseconds."""
    if 0 < config.max_seconds < config.shortest_step_s:
        given = config.min_step_time or config.sample_time
        meant = f"did you mean {given / 1000:g}?" if given >= 1 else "give shorter ones, or a longer job"
        raise SetupError(
            f"an emulated step takes {config.shortest_step_s:g} s, and the job {config.max_seconds:g} s "
            f"(--max-seconds): step times are in seconds; {meant}"
        )


def check_job(config: Config, num_servers: int, num_workers: int) -> None:
    """Checks the flags against the size of the cluster. Raises SetupError if they do not fit."""
    if config.transport == HUB and num_servers != 1:
        raise SetupError(
            f"mode {config.mode} has one server, the hub, here there are {num_servers}: set DMLC_NUM_SERVER=1 in every "
            "process (local_cluster.sh: --servers 1)"
        )
    _check_together(config, num_workers)
