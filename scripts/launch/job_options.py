"""What both launchers (local_cluster.py, cluster.py) share: a job's options, checks of its flags, its log folder."""

import argparse
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import config
from algorithms import ENTRIES, OWNERS, Workers, entry_name, filed_as
from config import preset_flags, transport_of
from flag_parser import FlagParser
from flag_values import at_least, number, or_auto, several, whole, zero_or_one
from scripts.launch.best_number import best_number
from scripts.launch.console import console
from scripts.launch.hosts_file import Hosts
from scripts.launch.restarts import DEFAULT_RESTARTS
from scripts.launch.roles import ROOT, JobSpec, Layout, main_flags
from scripts.launch.run_option import add_run
from scripts.launch.supervisor import JobOutcome
from server.setups import differences
from trainer import command_line, straggler_trace
from trainer.jobs.sources import ignored_network, libraries, sources
from trainer.run_logs.earlier_runs import LOCK_FILE, claim
from utils import EXIT_OK, SetupError

_port = number(lambda value: 0 <= value < 65536, "a port from 1 to 65535, or 0 for a free one", int)
EXCHANGES = (config.KVSTORE, config.HUB, *config.AMONG_WORKERS)  # mpiexec starts those of the other one
# main.py's flags that only the launcher sets.
LAUNCHER_FLAGS = (
    *("mode", "network", "job", "split_by_class", "log_dir", "earlier", "device", "cpu", "gpu"),
    "of_workers",
    *("state_server_ip", "state_server_port", "page"),
)


def names(allowed: Collection[str] | None) -> Callable[[str], tuple[str, ...]]:
    """Makes a parser for names with commas; None: any names are allowed."""

    def parse(text: str) -> str:
        if allowed is not None and text not in allowed:
            raise argparse.ArgumentTypeError(f"{text!r} is unknown; choose from {', '.join(allowed)}")
        return text

    return several(parse, "names with commas")


# ------------------------------------------------------------------------------------------------- the command line


def add_mode(parser: argparse.ArgumentParser) -> None:
    """Adds the flag of the mode."""
    presets = (
        f"{name} is {' '.join((OWNERS[name].name, *preset_flags(name)))}"
        f"{'' if entry.workers is Workers.ALL else f' on {entry.workers.value}'}"
        for name, entry in ENTRIES.items()
        if entry is not OWNERS[name] or entry.tuned
    )
    parser.add_argument("-m", "--mode", choices=ENTRIES, default="esync", help="; ".join(("the algorithm", *presets)))
    add_fastest(parser)


def add_fastest(parser: argparse.ArgumentParser) -> None:
    """Adds the number of workers that take part."""
    words = (
        "how many workers take part: the K fastest by their step times, or auto, which takes the K of the shortest "
        "time to a target that a law fitted to many runs expects; filed as MODE-kK (default: all, or what the mode "
        "says; of fastest-... half, rounded up)"
    )
    workers = or_auto(whole("[1-9][0-9]{0,3}", "is not a number of workers from 1 on, or auto"))
    parser.add_argument("--fastest", type=workers, default=0, metavar="K", help=words)


def check_fastest(k: int | str, modes: Collection[str]) -> None:
    """Checks that one of the modes leaves open who takes part, where --fastest K is given. Raises SetupError if none
    does."""
    if k and not any(ENTRIES[mode].workers.takes_number for mode in modes):
        raise SetupError(f"--fastest {k} does nothing in mode {', '.join(modes)}: leave it out, or choose another mode")


def add_network(parser: argparse.ArgumentParser) -> None:
    """Adds the flag of the network; its names are in the help but not in the usage."""
    names = ", ".join(config.NETWORKS)
    parser.add_argument(
        "-n", "--network", choices=config.NETWORKS, default="lenet", metavar="NETWORK", help=f"one of {names}"
    )


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults, and the module's docstring unchanged."""


def parse(parser: FlagParser, arguments: Sequence[str]) -> tuple[argparse.Namespace, tuple[str, ...]]:
    """Parses the words before `--`, and returns those behind it, which are main.py's flags. A flag on the wrong side of
    `--` ends the process with exit code 2, as a bad value does."""
    before, behind = _sides(parser, arguments)
    return _with_network(parser, parser.parse_args(before, argparse.Namespace(network=""))), behind


def parse_some(parser: FlagParser, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str], tuple[str, ...]]:
    """As `parse`; returns also the words before `--` that the parser does not know, in the middle."""
    before, behind = _sides(parser, arguments)
    given, unknown = parser.parse_known_args(before, argparse.Namespace(network=""))
    return _with_network(parser, given), unknown, behind


def _with_network(parser: argparse.ArgumentParser, given: argparse.Namespace) -> argparse.Namespace:
    """With the default of -n, if it is not given; if it is, a line says once where it does nothing."""
    if given.network and getattr(given, "job", None) and (ignored := ignored_network(given.job, given.network)):
        _once(f"warning: {ignored}")
    given.network = given.network or parser.get_default("network")
    return given


_once = functools.cache(console)


def _sides(parser: FlagParser, arguments: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...]]:
    cut = [*arguments, "--"].index("--")
    mains = {name for field in config.FIELDS for name in config.names_of(field)}
    parser.elsewhere = dict.fromkeys(mains, "it is a flag of main.py: give it behind `--`")
    for word in arguments[cut + 1 :]:
        if (flag := word.partition("=")[0]) in {*parser.flags} - {*mains, "-h", "--help"}:
            parser.error(f"{flag} is an option of this script: give it before `--`")
    return arguments[:cut], tuple(arguments[cut + 1 :])


def add_job(parser: argparse.ArgumentParser, data_dir: Path) -> None:
    """Adds the options of a job, except its mode and workers."""
    add_network(parser)
    parser.add_argument(
        "--job",
        type=lambda text: Path(config.job_file(text)).absolute(),
        metavar="FILE",
        help="Python file with the network, the data, the loss, the metric or the loop to train with "
        "(docs/own-job.md); its name takes the place of NETWORK in the log tree, and -n and --dataset name what it "
        "leaves out",
    )
    _add_exchange(parser, EXCHANGES)
    words = "number of parameter servers; a job on the hub has one server, the hub, and no scheduler"
    parser.add_argument("--servers", type=at_least(1), default=1, help=words)
    add_log_base(parser, ROOT / "logs")
    parser.add_argument("--data-dir", type=Path, default=data_dir, help="folder that holds the dataset's folder")
    parser.add_argument("--split-by-class", action="store_true", help="non-i.i.d. data: each worker has its classes")
    parser.add_argument("--root-port", type=_port, default=0, help="port of scheduler or hub; 0: a free one")
    parser.add_argument("--state-server-port", type=_port, default=0, help="port of the state server; 0: a free one")
    words = "0: no status page; the state server is started only where the workers cannot do without"
    parser.add_argument("--page", type=zero_or_one, default=1, metavar="{0,1}", help=words)
    words = "seconds that the workers get to end their round (that of -m decoupled stands behind `--`)"
    parser.add_argument("--grace", type=seconds, default=60.0, help=words)
    parser.add_argument(
        "--restarts",
        type=at_least(0),
        default=DEFAULT_RESTARTS,
        help=f"with --on-worker-death {config.RESTART} behind `--`: most starts of the job again without a new "
        f"checkpoint between them; with {config.CONTINUE}: most starts of a worker again, each less than a minute "
        "after the one before; then the others continue without it (of the hub again: then the job ends); with "
        "--requeue of scripts/slurm.sh: most times that the job begins again",
    )


def _add_exchange(parser: argparse.ArgumentParser, choices: Sequence[str]) -> None:
    its = config.FIELDS["exchange"]
    kind = its.arguments["type"]
    parser.add_argument("--exchange", type=kind, choices=choices, default="", help=its.help)
    parser.add_argument(its.formerly, dest="exchange", type=kind, choices=choices, help=argparse.SUPPRESS)


def exchange_of(given: argparse.Namespace, worker_arguments: Sequence[str]) -> tuple[str, str]:
    """What carries the arrays: named before or behind `--`, or what the flags behind it need; empty: that of the mode.
    Where no exchange is named and the job is to go on without lost workers, the hub takes the place of the kvstore:
    then a line says so. Raises SetupError where two are named."""
    row = OWNERS[given.mode]
    if not row.is_distributed:
        return given.exchange, ""
    asked = FlagParser(prog="main.py", add_help=False)
    _add_exchange(asked, (config.AUTO, *EXCHANGES))
    for name in dict.fromkeys(["on_worker_death", *(name for names in row.on_kvstore or () for name in names)]):
        field = config.FIELDS[name]
        asked.add_argument(*config.names_of(name), dest=name, default=field.default, **field.arguments)
    found = vars(asked.parse_known_args([*preset_flags(given.mode), *worker_arguments])[0])
    named = found.pop("exchange")
    if named and given.exchange and named != given.exchange:
        raise SetupError(f"--exchange {named} behind `--` contradicts --exchange {given.exchange}: leave one out")
    named = given.exchange or named
    parsed = config.Config(mode=row.name, exchange=named or config.AUTO, **found)
    transport = parsed.transport
    if not named and transport == config.KVSTORE and parsed.on_worker_death == config.CONTINUE:
        why = "since MXNet's kvstore does not go on without a lost worker"
        return config.HUB, f"--on-worker-death {config.CONTINUE}: this job runs on the hub (--exchange hub), {why}"
    return transport if named or transport != transport_of(given.mode) else "", ""


def spec_of(given: argparse.Namespace, worker_arguments: tuple[str, ...], hosts: Hosts) -> JobSpec:
    """The job that the options ask for, on these hosts. Raises SetupError as `exchange_of`, or if its ports are one."""
    if given.root_port and given.root_port == given.state_server_port:
        raise SetupError(f"--root-port and --state-server-port are both {given.root_port}: choose two")
    exchange, implied = exchange_of(given, worker_arguments)
    return JobSpec(
        mode=given.mode,
        network=given.network,
        job_file=given.job,
        num_servers=given.servers,
        log_base=log_base(given).resolve(),
        run=given.run,
        data_dir=given.data_dir,
        split_by_class=given.split_by_class,
        root_port=given.root_port,
        state_server_port=given.state_server_port,
        worker_arguments=worker_arguments,
        grace_s=given.grace,
        hosts=hosts,
        notes=(implied,) if implied else (),
        exchange=exchange,
        page=bool(given.page),
        restarts=given.restarts,
        requeues=getattr(given, "requeue", False),
    )


def add_log_base(parser: argparse.ArgumentParser, default: Path) -> None:
    """Adds the options for a run's log tree."""
    parser.add_argument("--log-base", type=Path, default=default, help="folder of the log tree")
    add_run(parser)


def log_base(given: argparse.Namespace) -> Path:
    """A run's log tree."""
    base: Path = given.log_base
    return base / given.run


seconds = at_least(0, float)


def check_options(given: argparse.Namespace) -> None:
    """Checks the job file, and the options that not every job can have. Raises SetupError if the file cannot be read or
    parsed, or an option does nothing in this job."""
    if given.job:
        sources(given.job)
    check_fastest(given.fastest, [given.mode])
    row, has_no_server = OWNERS[given.mode], given.exchange in config.AMONG_WORKERS
    asks, alone = ", whose workers ask the state server", ", where each device has all classes"
    among_workers = f"with --exchange {given.exchange}, which has neither scheduler nor parameter server"
    for does_nothing, option, where in (
        (not given.page and row.needs_state_server, "--page 0", f"in mode {given.mode}{asks}"),
        (given.split_by_class and not row.is_distributed, "--split-by-class", f"in mode {given.mode}{alone}"),
        (has_no_server and given.servers != 1, f"--servers {given.servers}", among_workers),
        (has_no_server and given.root_port, f"--root-port {given.root_port}", among_workers),
    ):
        if does_nothing:
            raise SetupError(f"{option} does nothing {where}: leave it out")


def taking_part(mode: str, step_times_s: Sequence[float], k: int | str, steps: int = 1) -> tuple[int, ...]:
    """The indices of the workers that take part in a mode, ascending, given the step times of all. `k` is that of
    --fastest, `steps` the local steps a round of modes that have a flag for it. Raises SetupError if none does, there
    are fewer than K workers, or a step time that has to be known is not."""
    workers = ENTRIES[mode].workers
    if isinstance(k, str):
        if not all(step_times_s):
            raise SetupError(f"--fastest {k}: a step time is unknown: give seconds, or a number of workers")
        k = best_number(OWNERS[mode], step_times_s, steps)
    if k > len(step_times_s):
        raise SetupError(f"--fastest {k}: the cluster has {len(step_times_s)} worker(s): give 1 to {len(step_times_s)}")
    if not (places := workers.among(step_times_s, k)):
        raise SetupError(f"-m {mode} takes {workers.value}, and the cluster has no other: give it two workers or more")
    return places


def of_fastest(job: JobSpec, k: int | str, names: Sequence[str], places: Sequence[int]) -> JobSpec:
    """A job of which the workers at these places take part, of those with these names."""
    told = f"{job.mode} takes the fastest {len(places)} of {len(names)} workers: {', '.join(names[p] for p in places)}"
    entry = filed_as(job.mode, len(places) if k else 0)
    return dataclasses.replace(job, notes=(*job.notes, told), entry=entry, of_workers=len(names))


# ---------------------------------------------------------------------------------------------- the workers' flags


def check_flags(
    job: JobSpec,  # with all flags behind `--`
    layout: Layout,  # the workers, with their own flags
    ours: tuple[str, ...] = (),  # the flags behind `--` that are not the user's
    fixed: Sequence[str] = (),  # more fields of Config that the user's flags must not change
    opponent: str = "the cluster",  # flags the user's contradict, for the message
    where: str = "behind `--`",  # the user's flags are, for the message
) -> None:
    """Checks that every worker will start, and that its logs belong where they are filed. Raises SetupError if one of
    the user's flags contradicts the cluster, workers differ where they must not, or a straggler trace that is here is
    malformed. Wrong flags end the process, as in main.py."""
    without_own = tuple(dataclasses.replace(worker, flags=()) for worker in layout.workers)
    plain = dataclasses.replace(job, worker_arguments=ours), dataclasses.replace(layout, workers=without_own)
    pairs = [*zip(worker_configs(job, layout), worker_configs(*plain), strict=True)]
    # A trace for all workers behind `--` would be ambiguous beside those of single workers.
    traces = ("straggler_trace",) if any(own.straggler_trace for _, own in pairs) else ()
    for parsed, own in pairs:
        command_line.check_step_time(parsed)
        command_line.check_job(parsed, job.num_servers, len(layout.workers))
        values, ours_only = ({**each.values_by_name(), "device": each.device} for each in (parsed, own))
        for name in (*LAUNCHER_FLAGS, *traces, *fixed):
            value, expected = values[name], ours_only[name]
            if value != expected:
                flag = "--" + name.replace("_", "-")
                ours_is = "not given" if expected == "" else expected
                raise SetupError(
                    f"{flag} {value} {where} contradicts {opponent}, where it is {ours_is}: "
                    "leave it out, or use an option of this script instead (--help)"
                )
        made = entry_name(parsed.mode, values, ENTRIES[job.mode].workers)
        if made != job.mode:
            raise SetupError(f"the flags {where} make {made} of -m {job.mode}: leave them out, or give -m {made}")
        if parsed.straggler_trace and layout.state_server.is_here:
            straggler_trace.read(ROOT / parsed.straggler_trace)
    configs = [parsed for parsed, _ in pairs]
    _check_restarts(job, layout, configs[0])
    if job.algorithm.is_distributed:  # the processes also compare theirs when they meet
        processes = (
            (f"worker {each.folder} on host {each.host} ({each.node.address})", command_line.job_setup(parsed))
            for each, parsed in zip(layout.workers, configs, strict=True)
        )
        if found := differences(processes):
            told = "; ".join(found.values())
            raise SetupError(f"the workers' flags differ: {told}; give such a flag once, behind `--`")


def _check_restarts(job: JobSpec, layout: Layout, parsed: config.Config) -> None:
    if parsed.on_worker_death == config.END:
        if job.restarts != DEFAULT_RESTARTS and not job.requeues:
            raise SetupError(
                f"--restarts {job.restarts} does nothing without --on-worker-death {config.RESTART} or "
                f"{config.CONTINUE} behind `--`: leave it out, or give both"
            )
    elif len(layout.workers) > 1 and not job.algorithm.is_distributed:
        raise SetupError(
            f"--on-worker-death {config.RESTART} is for one job, and in mode {job.mode} each of the workers (here "
            f"{len(layout.workers)}) is one by itself: start one at a time, or leave it out"
        )


def worker_configs(job: JobSpec, layout: Layout) -> Iterator[config.Config]:
    """Each worker's flags."""
    return (command_line.parse(main_flags(job, layout, worker)) for worker in layout.workers)


def forked(job: JobSpec, worker_config: config.Config) -> tuple[str, str, str]:
    """What a fork server reads and imports: the dataset and its folder, of a job file, which may have data of its own,
    none; and modules. The job file is read here: it may not be on the host yet."""
    found = libraries(job.job_file) if job.job_file else {"mxnet"}
    trainers = [worker_config.algorithm.module, *(["trainer.hub.kvstore_exchange"] if job.has_scheduler else [])]
    modules = ["trainer.worker", *trainers, *(["models"] if "mxnet" in found else []), *sorted(found - {"mxnet"})]
    return "" if job.job_file else worker_config.dataset, worker_config.data_dir, ",".join(modules)


def first_config(job: JobSpec, layout: Layout) -> config.Config:
    """The first worker's flags."""
    return next(worker_configs(job, layout))


# -------------------------------------------------------------------------------------------------- the log folder


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Makes a log folder and locks it against other clusters. Raises SetupError if it cannot be written to, or another
    running cluster has locked it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK_FILE).open("w")
    except OSError as error:
        raise SetupError(f"log folder {folder}: {error.strerror}; choose another with --log-base") from None
    with lock:
        if not claim(folder, lock):
            raise SetupError(f"another cluster writes its logs to {folder}: give this one its own --log-base")
        yield


def warnings(job: JobSpec, layout: Layout) -> list[str]:
    """Lines for the user before the job begins."""
    configs = [*worker_configs(job, layout)]
    lines = [*job.notes]
    is_spread = job.algorithm.is_distributed and len({worker.host for worker in layout.workers}) > 1
    if is_spread and any(each.ckpt_frequency and not each.survives and not each.checkpoint for each in configs):
        lines.append(
            "warning: each host keeps the checkpoints of its own workers: without those of the others a job may find "
            "no round to go on from; name a folder that all hosts see with --checkpoint"
        )
    if (longest_s := max(each.min_step_time for each in configs)) >= 10:  # perhaps milliseconds were given
        lines.append(f"warning: an emulated step takes {longest_s:g} s: step times are in seconds")
    return lines


def last_word(job: JobSpec, outcome: JobOutcome, say: Callable[[str], None]) -> None:
    """Tells the user that the job has ended well, if it has."""
    if outcome.exit_code == EXIT_OK:
        say(f"{'stopped' if outcome.was_stopped else 'done'}; the logs are in {job.log_folder}")
