"""The flags of main.py: those that all algorithms share are the fields of `Config`, which holds those of one algorithm.

The published flags keep their names, types, defaults and meaning; the others are this project's own. An algorithm's own
flags stand in its file; trainer/command_line.py parses all of them.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flag_values as values
from algorithm_row import LEARNING_RATES, SGD, Algorithm, AlgorithmFlags, TransportKind, Workers
from algorithms import ALGORITHMS, ENTRIES, OWNERS, TABLE, WATCHED, entry_name, folder_name
from flag_parser import Flag, Flags
from utils import CHECKPOINT_FOLDER, EARLIER, SEED_FOLDER

__all__ = ["LEARNING_RATES", "SGD"]  # and what stands here

MODES = tuple(ALGORITHMS)
NETWORKS = (
    *("alexnet", "resnet18-v1", "resnet50-v1", "resnet50-v2", "mobilenet-v1", "mobilenet-v2", "inception-v3"),
    *("lenet", "resnet20", "resnet32", "cnn", "mlp"),
)
NO_NETWORK = "none"  # of simulate.py alone: takes time and sends bytes, without computing
# Folders of a log tree that belong to no run, and no job file.
TAKEN_FOLDERS = (*NETWORKS, NO_NETWORK, EARLIER, "figures", "trials")
DATASETS = ("fashion-mnist", "mnist", "cifar10", "cifar100")
LOG_FORMS = ("auto", "files", "lines")
KVSTORE = "kvstore"  # MXNet's
HUB = "hub"
AMONG_WORKERS = ("ring", "butterfly", "binary-blocks")  # workers find each other through the state server
MPI = "mpi"  # MPI's own algorithm, among the processes that mpiexec starts
EXCHANGES = (KVSTORE, HUB, *AMONG_WORKERS, MPI)
ON_WORKER_DEATH = END, RESTART, CONTINUE = "end", "restart", "continue"
COMPRESSIONS = UNCOMPRESSED, FP16 = "none", "fp16"
EVALUATE = AUTO, YES, NO = "auto", "yes", "no"  # whether a worker evaluates


def one_of(words: Sequence[str]) -> str:
    """Such as "a, b or c"."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


class Scope(NamedTuple):
    """The modes in which a flag counts."""

    words: str
    includes: Callable[[Algorithm], bool]


IN_JOBS = Scope("all but standalone", lambda row: row.is_distributed)
IN_SUMS = Scope("those that sum over all workers", lambda row: row.transport is TransportKind.SUM)
WITH_STATE_SERVER = Scope("where workers talk to a state server", lambda row: row.has_state_server)


def _mode(text: str) -> str:
    """Parses -m; the error for a preset, which only launchers take, says which flags make it."""
    if text in OWNERS and text not in ALGORITHMS:
        flags, workers = " ".join((OWNERS[text].name, *preset_flags(text))), ENTRIES[text].workers
        where = "" if workers is Workers.ALL else f" on {workers.value} of a cluster"
        raise argparse.ArgumentTypeError(
            f"{text} is a preset of the launchers and of simulate.py: give -m {flags} here{where}"
        )
    return text


def is_taken(name: str) -> bool:
    """Whether a folder's name has a meaning of its own in a log tree."""
    return name in TAKEN_FOLDERS or SEED_FOLDER.fullmatch(name) is not None


def job_file(text: str) -> str:
    """Parses --job, whose stem names the run in the log tree; trainer/jobs/sources.py reads the file."""
    path = Path(text)
    if path.suffix != ".py":
        raise argparse.ArgumentTypeError(
            f"{text!r} is no Python file; give one that ends in .py (the name of a job at a state server is "
            "--job-name now)"
        )
    if is_taken(path.stem):
        raise argparse.ArgumentTypeError(
            f"{text}: {path.stem} is a built-in network, or has a meaning of its own in a log tree; rename the file"
        )
    try:
        values.run_name(path.stem)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}; rename the file") from None
    return text


def name_in_logs(job: str | Path, network: str) -> str:
    """The name of a run's folder in the log tree: the job file's stem, without a file the network."""
    return Path(job).stem if job else network


def _exchange(text: str) -> str:
    """Parses --exchange; version 0.6.0 called the kvstore ps."""
    return KVSTORE if text == "ps" else text


class Config(Flags):
    """Every flag of main.py, parsed and checked. Learning rates act on the gradient of the SUMMED batch loss."""

    batch_size: int = Flag(64, values.at_least(1), "-b").means(
        "samples per step on each device (LB-BSP: at first, and on average)"
    )
    data_dir: str = Flag("data", str, "-dd", of_host=True).means(
        "folder that holds the dataset's folder, such as fashion-mnist with its four *-ubyte.gz files"
    )
    gpu: int = Flag(0, values.at_least(0), "-g", of_host=True).means("id of the one GPU that this process uses")
    cpu: int = Flag(0, values.zero_or_one, "-c", of_host=True).means("1 trains on the CPU")
    network: str = Flag("resnet18-v1", str, "-n", choices=NETWORKS).means("the network to train")
    log_dir: str = Flag("logs", str, "-ld", of_host=True).means(
        "folder that holds this worker's folder, from which earlier logs and models are removed when training begins "
        "(worker.sh: logs/NETWORK/MODE/HOST, and moves them as --earlier)"
    )
    eval_duration: int = Flag(1, values.at_least(1), "-e").means(
        "rounds between two evaluations on the whole test set, by one worker"
    )
    mode: str = Flag("esync", _mode, "-m", choices=MODES).means("the synchronisation algorithm")
    split_by_class: int = Flag(0, values.zero_or_one, "-s", published=True, counts_in=IN_JOBS).means(
        "1 sorts the samples by class and gives each worker an equal part (non-i.i.d.)"
    )
    state_server_ip: str = Flag(
        "127.0.0.1", values.host, "-ip", published=True, of_host=True, counts_in=WITH_STATE_SERVER
    ).means("host of the state server")
    state_server_port: str = Flag(
        "10010", values.port, "-port", published=True, of_host=True, counts_in=WITH_STATE_SERVER
    ).means("port of the state server")

    # This project's own.
    page: int | str = Flag("auto", values.zero_one_or_auto).means(
        "1: the workers tell the state server at -ip and -port what they do, for its page; 0: they do not, in a mode "
        "that can do without; auto: 1 in the modes in which a rule of the state server decides, else 0"
    )
    job: str = Flag("", job_file, metavar="FILE", of_host=True).means(
        "Python file with the network, the data, the loss, the metric or the loop to train with (docs/own-job.md); "
        "what it leaves out comes from -n and --dataset"
    )
    dataset: str = Flag("fashion-mnist", choices=DATASETS).means(
        "the data to train on (cifar10 and cifar100: from the binary or the python archive; of cifar100 the fine "
        "labels)"
    )
    augment: int = Flag(0, values.zero_or_one).means(
        "1 changes training images at random, as is usual for CIFAR: 4 black pixels more at each edge, a random crop "
        "of the old size, and half of the images mirrored left to right; test images stay as they are"
    )
    device_name: str = Flag("", values.device_name, of_host=True).means(
        "name of this worker's log folder (default: cpu, or gpu with its id)"
    )
    of_workers: int = Flag(0, values.at_least(0)).means(
        "workers of the cluster of which a launcher's --fastest has chosen those of this job, for the title in tables "
        "and figures (0: all take part; set by the launchers)"
    )
    earlier: str = Flag("", of_host=True, metavar="FOLDER").means(
        "LOG_BASE/earlier, where LOG_BASE/NETWORK/MODE/HOST is -ld: earlier logs and models are moved to "
        "LOG_BASE/earlier/DATE-TIME/NETWORK/MODE/HOST and not removed, and the last five runs stay there (set by the "
        "launchers and worker.sh)"
    )
    log_form: str = Flag("auto", choices=LOG_FORMS, of_host=True).means(
        "log of a round: a file iter-N.txt (files, as published), or a line of rounds.jsonl (lines); "
        "auto: lines in mode local, whose rounds are single steps, else files"
    )
    quiet: int = Flag(0, values.zero_or_one, nargs="?", const=1, of_host=True).means(
        "1, or no value: no lines of rounds on the console and in this process's own log, but those of the first round "
        "and of evaluations (simulate.py: none of progress); the logs of rounds have all"
    )
    tensorboard: str = Flag("", of_host=True, metavar="FOLDER").means(
        "writes each round for TensorBoard too: loss, metric, samples/s, local steps, waiting share, as the run "
        "FOLDER/NETWORK/MODE/HOST-DEVICE; needs tensorboardX (requirements-tensorboard.txt)"
    )
    eval_seconds: float = Flag(0.0, values.at_least(0, float)).means(
        "seconds between two evaluations, in place of -e (0: -e counts)"
    )
    validation: int = Flag(0, values.at_least(0)).means(
        "number of training samples to hold out, always the same ones, and to evaluate on in place of the test set: to "
        "choose step sizes (0: none)"
    )
    evaluate: str = Flag("auto", choices=EVALUATE, of_host=True, counts_in=IN_JOBS).means(
        "whether this worker evaluates and saves the global model: yes, no, or if it is the fastest in a test step "
        "(auto; of equal ones the lowest rank)"
    )
    evaluator: int | str = Flag("auto", values.zero_one_or_auto, of_host=True).means(
        "1: a process beside the worker evaluates, on the CPU, so that training does not wait; after two evaluations "
        "in a row for which it is not ready the worker evaluates; 0: the worker evaluates, as published; auto: 1 for a "
        "worker on a CPU with --job, and the launchers give 1 to workers on a CPU; else 0"
    )
    max_rounds: int = Flag(0, values.at_least(0)).means(
        "stop after this many rounds (0: no limit); in async, ssp, wbsp, async-local and decoupled, where workers do "
        "not wait for all others, each worker counts its own"
    )
    max_seconds: float = Flag(0.0, values.at_least(0, float)).means("stop after this many seconds (0: no limit)")
    target_accuracy: float = Flag(0.0, values.fraction).means("stop at this test accuracy (0: no target)")
    target: float | None = Flag(None, values.finite).means(
        "stop when the metric reaches this value, also a negative one: from below, or from above where less of it is "
        "better (None: no target)"
    )
    target_evaluations: int = Flag(1, values.at_least(1)).means(
        "evaluations in a row whose mean is to be at the target, since single ones are noisy"
    )
    init_from: str = Flag("", metavar="FILE", of_host=True).means(
        "file with the network's initial parameters: best.json or final.json of a saved model, or a .params file of "
        "MXNet; those that are missing there or have another shape keep their own initial values"
    )
    seed: int = Flag(0, values.at_least(0)).means(
        "seed of initial weights, partitions, shuffling, augmentation and dropout"
    )
    max_bad_steps: int = Flag(10, values.at_least(0)).means(
        "steps in a row on one worker, of which a gradient or the update is not finite, that end the job; each is "
        "skipped (0: no check, gradients leave while others are still computed, and the first loss that is not finite "
        "ends the job)"
    )
    min_step_time: float = Flag(0.0, values.at_least(0, float), of_host=True).means(
        "seconds to which each local step is padded: emulates a slower device"
    )
    sample_time: float = Flag(0.0, values.at_least(0, float), of_host=True).means(
        "seconds that each sample of its batch adds to --min-step-time: emulates a slower device on which a smaller "
        "batch is a faster step"
    )
    straggler_trace: str = Flag("", of_host=True).means(
        "CSV file (start_s,duration_s,extra_s,kind), emulates a transient straggler: in each period every local step "
        "takes longer (compute, the default), or each sample of it (sample), or each push of gradients or of an update "
        "and each pull of a model (network)"
    )
    exchange: str = Flag(AUTO, _exchange, formerly="--collective", choices=(AUTO, *EXCHANGES), counts_in=IN_JOBS).means(
        "what carries the arrays between processes: MXNet's kvstore; the hub, which goes on without lost workers; or, "
        "in modes that sum, the workers themselves, without a server: they find each other through the state server, "
        "or are started by mpiexec (mpi). auto: the kvstore where the mode has it, else the hub"
    )
    job_name: str = Flag(
        "default", values.job_name, needs=("exchange", AMONG_WORKERS), metavar="NAME", counts_in=IN_SUMS
    ).means("name of this job among those whose workers find each other through the same state server at the same time")
    compression: str = Flag(UNCOMPRESSED, choices=COMPRESSIONS, counts_in=IN_SUMS).means(
        "what the workers sum travels as it is (none), or as 16-bit floats (fp16: half of the bytes; not with "
        "--exchange mpi or hub)"
    )
    query_delay: float = Flag(0.0, values.at_least(0, float), of_host=True, counts_in=WITH_STATE_SERVER).means(
        "seconds on top of each round trip to the state server: emulates a slower network"
    )
    ckpt_frequency: int = Flag(0, values.at_least(0)).means(
        "rounds between two checkpoints of each worker; the last round has one too (0: none)"
    )
    ckpt_keep: int = Flag(3, values.at_least(1)).means("number of checkpoints of each worker that stay")
    checkpoint: str = Flag("", metavar="FOLDER", of_host=True).means(
        "folder of all checkpoints of the job, which all of its processes must see (default: .checkpoints in the "
        "log folder)"
    )
    resume: int | str = Flag(0, values.zero_one_or_auto, nargs="?", const=1).means(
        "1, or no value: resume from the newest checkpoint and continue the logs; with --on-worker-death continue also "
        "if this worker has no checkpoint; auto: the same if there is a checkpoint, else the job begins"
    )
    on_worker_death: str = Flag(END, choices=ON_WORKER_DEATH).means(
        "effect of a lost process: the job ends (end); the launchers restart it from the newest checkpoint (restart, "
        "with --ckpt-frequency); or the others go on and lost workers come back (continue): on the hub, or with "
        "--exchange ring, butterfly or binary-blocks, where others can join too"
    )
    min_workers: int = Flag(
        1, values.at_least(1), needs=("on_worker_death", (RESTART, CONTINUE)), counts_in=IN_JOBS
    ).means(
        "with fewer workers the job waits until others join; with a hub, or where the launchers have "
        "given up the others, it ends; with restart no worker is left out below this"
    )
    fault_timeout: float | str = Flag(
        "auto", values.above_zero_or_auto, needs=("on_worker_death", CONTINUE), counts_in=IN_SUMS
    ).means(
        "seconds until the others go on without a frozen or unreached worker (a killed one is noticed at once); auto: "
        "by the length of the rounds, after a silence of 1 to 10 seconds"
    )
    leave: int = Flag(
        0, values.zero_or_one, needs=("on_worker_death", CONTINUE), of_host=True, counts_in=IN_JOBS
    ).means("1: on SIGTERM or SIGINT this worker leaves alone, and the others continue")
    probe: int = Flag(0, values.zero_or_one).means(argparse.SUPPRESS)
    start_timeout: float = Flag(600.0, values.at_least(0, float), of_host=True, counts_in=IN_JOBS).means(
        "seconds to wait for the other processes of the job at the start (0: for ever)"
    )

    settings: AlgorithmFlags  # of the mode's algorithm: its own flags

    def __init__(self, **values: Any) -> None:
        """`values`: of flags, by field; those of other algorithms are left out. Raises TypeError for an unknown one."""
        if unknown := values.keys() - FIELDS.keys():
            raise TypeError(f"there is no flag {', '.join(unknown)}")
        super().__init__(**{name: value for name, value in values.items() if name in self.FLAGS})
        kind = self.algorithm.settings
        vars(self)["settings"] = kind(**{name: value for name, value in values.items() if name in kind.FLAGS})

    def values_by_name(self) -> dict[str, Any]:
        """Of all flags; those of other algorithms have their defaults."""
        defaults = {name: its.default for name, its in FIELDS.items()}
        return {**defaults, **super().values_by_name(), **self.settings.values_by_name()}

    @property
    def algorithm(self) -> Algorithm:
        return ALGORITHMS[self.mode]

    @property
    def transport(self) -> str:
        """What carries the arrays: one of EXCHANGES; empty: nothing travels."""
        if not self.algorithm.is_distributed:
            return ""
        if self.exchange != AUTO:
            return self.exchange
        return KVSTORE if self.algorithm.has_kvstore and not self.hub_flags else HUB

    @property
    def hub_flags(self) -> list[str]:
        """Fields that are set and that MXNet's own server cannot have."""
        sets, values = self.algorithm.on_kvstore or (), self.values_by_name()
        return [each[-1] for each in sets if all(values[field] != FIELDS[field].default for field in each)]

    @property
    def survives(self) -> bool:
        """Whether workers may be lost or join: the remaining ones sum among themselves, in the same processes."""
        return self.on_worker_death == CONTINUE and self.transport not in (KVSTORE, HUB)

    @property
    def leaves_out(self) -> bool:
        """Whether the hub continues with the remaining workers, and lost ones can come back."""
        return self.on_worker_death == CONTINUE and self.transport == HUB

    @property
    def needs_state_server(self) -> bool:
        return self.algorithm.needs_state_server or self.transport in AMONG_WORKERS

    @property
    def tells_state_server(self) -> bool:
        """Whether the workers tell it what they do."""
        return self.page == 1 or (self.page == "auto" and self.algorithm.has_state_server)

    @property
    def device(self) -> str:
        """Name of this worker's log folder: cpu, gpu0, ... unless --device-name says otherwise."""
        return self.device_name or ("cpu" if self.cpu else f"gpu{self.gpu}")

    @property
    def shortest_step_s(self) -> float:
        return self.min_step_time + self.batch_size * self.sample_time

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Samples per step, of each phase of the algorithm."""
        return tuple(size for *_, size in self.settings.step_sizes(self.batch_size, num_workers=1))

    @property
    def logs_lines(self) -> bool:
        return self.log_form == "lines" or (self.log_form == "auto" and not self.algorithm.is_distributed)

    @property
    def evaluates_beside(self) -> bool:
        return bool(self.job and self.cpu) if self.evaluator == "auto" else bool(self.evaluator)

    @property
    def entry(self) -> str:
        """Name of the algorithm, or of its preset that the flags make, such as dcasgd of async. Presets that select
        workers are unknown here: their launchers set `log_dir`."""
        return entry_name(self.mode, self.values_by_name())

    @property
    def run_name(self) -> str:
        """What the run is called in the log tree: the job file's stem, or the network."""
        return name_in_logs(self.job, self.network)

    @property
    def mode_folder(self) -> Path:
        """NETWORK/MODE in the log tree, such as resnet18-v1/dcasgd-niid."""
        return Path(self.run_name) / folder_name(self.entry, bool(self.split_by_class))

    @property
    def rule(self) -> str:
        """The state server's name of the policy."""
        return (self.algorithm.rule or WATCHED).format_map(self.values_by_name())

    @property
    def checkpoint_folder(self) -> Path:
        return Path(self.checkpoint) if self.checkpoint else Path(self.log_dir) / CHECKPOINT_FOLDER


_TABLES: tuple[type[Flags], ...] = (Config, *(row.settings for row in TABLE))
# Every flag, by its field.
FIELDS: dict[str, Flag] = dict(item for table in _TABLES for item in table.FLAGS.items())


def names_of(field: str) -> tuple[str, ...]:
    """The names of a field's flag, the shortest first."""
    return FIELDS[field].names


def modes_of(field: str) -> tuple[str, ...]:
    """The modes in which a flag counts."""
    if field not in Config.FLAGS:
        return tuple(row.name for row in TABLE if field in row.settings.FLAGS)
    scope: Scope | None = FIELDS[field].counts_in
    return tuple(row.name for row in TABLE if scope is None or scope.includes(row))


def titles_of(field: str) -> tuple[str, ...]:
    """Titles of the algorithms whose own flag a field is; none where it belongs to a group or to all."""
    modes = () if field in Config.FLAGS else modes_of(field)
    return () if modes == MODES else tuple(ALGORITHMS[mode].title for mode in modes)


def transport_of(entry: str) -> str:
    """What carries the arrays of an entry of the table, as Config.transport, where no flag says more."""
    preset = ENTRIES[entry]
    return Config(mode=OWNERS[entry].name, **dict((*preset.values, *preset.tuned))).transport


def preset_flags(entry: str) -> tuple[str, ...]:
    """The flags that make a preset of its algorithm, and those with which launchers and simulate.py start the entry."""
    preset = ENTRIES[entry]
    return tuple(str(word) for field, value in (*preset.values, *preset.tuned) for word in (names_of(field)[-1], value))
