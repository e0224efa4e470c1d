"""The flags: one table, which is the frozen dataclass `Config` itself (trainer/command_line.py parses them).

The published flags keep their names, types, defaults and meaning; the others are this project's own. In which modes a
flag counts is the table's in algorithms.py.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from algorithms import ALGORITHMS, ENTRIES, OWNERS, Algorithm, Workers, entry_name, folder_name
from flag_values import (
    above_zero,
    at_least,
    below_one,
    device_name,
    fraction,
    job_name,
    phase_momentum,
    port,
    rate_schedule,
    switch_order,
    threshold,
    zero_or_one,
)
from utils import CHECKPOINT_FOLDER

MODES = tuple(ALGORITHMS)
NETWORKS = (
    *("alexnet", "resnet18-v1", "resnet50-v1", "resnet50-v2", "mobilenet-v1", "mobilenet-v2", "inception-v3"),
    *("lenet", "resnet20", "resnet32", "cnn", "mlp"),
)
NO_NETWORK = "none"  # of simulate.py alone: takes times and sends bytes, and computes nothing
DATASETS = ("fashion-mnist", "mnist", "cifar10", "cifar100")
POLICIES = ("journal", "upload-aware", "preprint")
QUERIES = ("blocking", "non-blocking")
LOG_FORMS = ("auto", "files", "lines")
PS = "ps"
AMONG_WORKERS = ("ring", "butterfly", "binary-blocks")  # who find each other through the state server
MPI = "mpi"  # whose own algorithm is taken, among the processes that mpiexec starts
COLLECTIVES = (PS, *AMONG_WORKERS, MPI)
ON_WORKER_DEATH = END, RESTART, CONTINUE = "end", "restart", "continue"
COMPRESSIONS = UNCOMPRESSED, FP16, TWO_BIT = "none", "fp16", "2bit"
EVALUATE = AUTO, YES, NO = "auto", "yes", "no"  # whether a worker evaluates
STRAGGLER_POLICIES = ("none", "greedy", "elastic")
OPTIMIZERS = SGD, RMSPROP, ADAM = "sgd", "rmsprop", "adam"
SAME = "same"  # of a phase's momentum: as the flag for all says
LEARNING_RATES = ("learning_rate", "local_lr")  # of gradients and of local steps: each mode has one of them

T = TypeVar("T")

# --------------------------------------------------------------------------------------------------- the flags


def _flag(
    default: Any,
    help: str,
    *short: str,
    type: Callable[[str], Any] = str,
    needs: tuple[str, Any] | None = None,
    published: bool = False,
    instead: Sequence[str] = (),
    of_host: bool = False,
    **more: Any,
) -> Any:
    """A field of Config and its flag, whose long name is the field's.

    Args:
        needs: a field that must have this value, or one of these, else it does nothing either.
        published: the published program takes it in silence in any mode; so it gets a warning, not an error.
        instead: fields that count in the other modes, for that warning.
        of_host: a matter of the worker's own host. All other flags must be the same on all workers of a job.
        more: goes to argparse.
    """
    about = {"needs": needs, "published": published, "instead": instead, "of_host": of_host}
    return dataclasses.field(
        default=default, metadata={"short": short, "arguments": {"help": help, "type": type, **more}, **about}
    )


def _mode(text: str) -> str:
    """The value of -m; says what stands for a preset, which is a name of the launchers'."""
    if text in OWNERS and text not in ALGORITHMS:
        words = " ".join((OWNERS[text].name, *preset_flags(text)))
        who = ENTRIES[text].workers
        where = "" if who is Workers.ALL else f" on {who.value} of a cluster"
        raise argparse.ArgumentTypeError(
            f"{text} is a preset of the launchers and of simulate.py: give -m {words} here{where}"
        )
    return text


@dataclass(frozen=True)
class Config:
    """Every flag of main.py, parsed and checked. Learning rates act on the gradient of the SUMMED batch loss."""

    # Published flags.
    learning_rate: float = _flag(
        0.001,
        "learning rate of the gradients (Sync-Switch: under BSP; under ASP it is divided by the number of workers)",
        "-l",
        type=above_zero,
        published=True,
        instead=LEARNING_RATES,
    )
    local_lr: float = _flag(
        0.001, "learning rate of the local steps", "-ll", type=above_zero, published=True, instead=LEARNING_RATES
    )
    global_lr: float = _flag(
        1.0,
        "factor on the averaged model update: the learning rate of the outer optimiser",
        "-gl",
        type=above_zero,
        published=True,
        instead=LEARNING_RATES,
    )
    batch_size: int = _flag(
        64, "samples per step on each device (LB-BSP: at first, and on average)", "-b", type=at_least(1)
    )
    data_dir: str = _flag(
        "data",
        "holds the folder of the dataset, such as fashion-mnist with its four *-ubyte.gz files",
        "-dd",
        of_host=True,
    )
    gpu: int = _flag(0, "id of the one GPU that this process uses", "-g", type=at_least(0), of_host=True)
    cpu: int = _flag(0, "1 trains on the CPU", "-c", type=zero_or_one, of_host=True)
    network: str = _flag("resnet18-v1", "the network to train", "-n", choices=NETWORKS)
    log_dir: str = _flag(
        "logs",
        "holds this worker's folder, which is emptied of earlier logs and models when training begins (worker.sh: "
        "logs/NETWORK/MODE/HOST, and moved as --earlier says)",
        "-ld",
        of_host=True,
    )
    eval_duration: int = _flag(
        1, "rounds between two evaluations on the whole test set, by one worker", "-e", type=at_least(1)
    )
    mode: str = _flag("esync", "the synchronisation algorithm", "-m", type=_mode, choices=MODES)
    use_dcasgd: int = _flag(0, "1 selects DC-ASGD", "-dcasgd", type=zero_or_one, published=True)
    split_by_class: int = _flag(
        0,
        "1 sorts the samples by class and gives each worker an equal part (non-i.i.d.)",
        "-s",
        type=zero_or_one,
        published=True,
    )
    state_server_ip: str = _flag("127.0.0.1", "host of the state server", "-ip", published=True, of_host=True)
    state_server_port: str = _flag(
        "10010", "port of the state server", "-port", type=port, published=True, of_host=True
    )

    # This project's own.
    dataset: str = _flag(
        "fashion-mnist",
        "the data to train on (cifar10 and cifar100: from the binary or the python archive; of cifar100 the fine "
        "labels)",
        choices=DATASETS,
    )
    augment: int = _flag(
        0,
        "1 changes training images at random, as is usual for CIFAR: each is a crop of itself with 4 black pixels more "
        "at each edge, and half of them are mirrored left to right; test images stay as they are",
        type=zero_or_one,
    )
    device_name: str = _flag(
        "", "name of this worker's log folder (default: cpu, or gpu with its id)", type=device_name, of_host=True
    )
    earlier: str = _flag(
        "",
        "in place of removing earlier logs and models: LOG_BASE/earlier, where LOG_BASE/NETWORK/MODE/HOST is -ld; they "
        "are moved to LOG_BASE/earlier/DATE-TIME/NETWORK/MODE/HOST, and the last five runs stay there (the launchers "
        "and worker.sh say so)",
        of_host=True,
        metavar="FOLDER",
    )
    log_form: str = _flag(
        "auto",
        "log of the rounds: a file iter-N.txt for each (files, as published), or a line of rounds.jsonl for each "
        "(lines); auto: lines in mode local, whose rounds are single steps, else files",
        choices=LOG_FORMS,
        of_host=True,
    )
    eval_seconds: float = _flag(
        0.0,
        "evaluate after so many seconds, whatever rounds they hold, in place of -e (0: as -e says)",
        type=at_least(0, float),
    )
    validation: int = _flag(
        0,
        "hold out so many training samples, always the same ones, and evaluate on them in place of the test set: to "
        "choose step sizes by (0: none)",
        type=at_least(0),
    )
    evaluate: str = _flag(
        "auto",
        "whether this worker evaluates and saves the global model: yes, no, or if it is the fastest in a test step "
        "(auto; of equal ones the lowest rank)",
        choices=EVALUATE,
        of_host=True,
    )
    evaluator: int = _flag(
        0,
        "1: a process beside the worker that evaluates does it, on the CPU, so that training waits for no evaluation; "
        "one that is due while another is under way is left out",
        type=zero_or_one,
        of_host=True,
    )
    max_rounds: int = _flag(
        0,
        "stop after so many rounds (0: no limit); where nobody waits for all others, in async, ssp and wbsp, each "
        "worker does its own",
        type=at_least(0),
    )
    max_seconds: float = _flag(0.0, "stop after so many seconds (0: no limit)", type=at_least(0, float))
    target_accuracy: float = _flag(0.0, "stop at this test accuracy (0: no target)", type=fraction)
    seed: int = _flag(0, "seed of initial weights, partitions, shuffling, augmentation and dropout", type=at_least(0))
    max_bad_steps: int = _flag(
        10,
        "a step of which a gradient or the update is not finite is skipped; after so many in a row on one worker the "
        "job ends (0: nobody looks, gradients leave while others are still computed, and the first loss that is not "
        "finite ends the job)",
        type=at_least(0),
    )
    momentum: float = _flag(
        0.0,
        "momentum mu of SGD, wherever a step is taken: v <- mu * v + gradient, w <- w - learning rate * v",
        type=below_one,
        needs=("optimizer", SGD),
    )
    weight_decay: float = _flag(
        0.0,
        "lambda: adds lambda * w to the gradient of the MEAN loss (so batch size * lambda * w to that of the summed "
        "one), for the weights of convolutions and dense layers",
        type=at_least(0, float),
    )
    optimizer: str = _flag(
        SGD, "what takes the steps that workers take themselves: SGD, or MXNet's RMSProp or Adam", choices=OPTIMIZERS
    )
    lr_schedule: str = _flag(
        "constant",
        "factor on the learning rate by the samples that all workers have trained on: constant, or, joined by +, "
        "warmup:10000 (from 0), step:300000,450000x0.1 (a tenth behind each), cosine:600000 (to 0; x0.01: to 0.01)",
        type=rate_schedule,
    )
    min_step_time: float = _flag(
        0.0, "pad every local step to so many seconds: emulates a slower device", type=at_least(0, float), of_host=True
    )
    sample_time: float = _flag(
        0.0,
        "seconds that each sample of its batch adds to --min-step-time: emulates a slower device on which a smaller "
        "batch is a faster step",
        type=at_least(0, float),
        of_host=True,
    )
    straggler_trace: str = _flag(
        "",
        "CSV file (start_s,duration_s,extra_s,kind), emulates a transient straggler: for a while every local step "
        "takes longer (compute, also without that column), or each sample of it (sample), or each push of gradients or "
        "of an update and each pull of a model (network)",
        of_host=True,
    )
    dcasgd_lambda: float = _flag(
        0.04,
        "strength of DC-ASGD's delay compensation; acts on the summed loss: 0.04 at batch 64 is 2.56 on the mean; with "
        "--dcasgd-adaptive 1 lambda_0, which is the same on both, and 2 in the paper",
        type=at_least(0, float),
        needs=("use_dcasgd", 1),
    )
    dcasgd_adaptive: int = _flag(
        0,
        "1 adapts that strength to each weight, by the mean square of its gradients (DC-ASGD-a)",
        type=zero_or_one,
        needs=("use_dcasgd", 1),
    )
    outer_momentum: float = _flag(
        0.0,
        "momentum of the outer optimiser, below 1: it takes the averaged model update of a round for its gradient and "
        "-gl for its rate (0 and -gl 1: the plain mean)",
        type=below_one,
    )
    outer_nesterov: int = _flag(
        0, "the outer momentum is Nesterov's (1, as DiLoCo's) or the heavy ball's (0, as SlowMo's)", type=zero_or_one
    )
    normalise: int = _flag(
        0,
        "1 divides each worker's model update by how far its local steps of the round go (FedNova): by their number, "
        "and as the paper has it with --momentum, whose velocity then begins anew in each round, and with "
        "--lr-schedule; with --optimizer sgd alone",
        type=zero_or_one,
    )
    estimate_statistics: int = _flag(
        0,
        "before an evaluation estimate BatchNorm's running statistics anew from so many batches of this worker's "
        "samples, for the evaluation and for the model that is saved (0: those averaged over the workers, as "
        "published; after rounds with many local steps these fit to no model)",
        type=at_least(0),
    )
    policy: str = _flag(
        "journal",
        "reach-server time (journal), the same but training on while the straggler uploads, for slow links "
        "(upload-aware), or computing time and --epsilon (preprint)",
        choices=POLICIES,
    )
    epsilon: float = _flag(
        0.5, "tolerance in seconds of the preprint's rule", type=at_least(0, float), needs=("policy", "preprint")
    )
    query: str = _flag(
        "non-blocking",
        "question after each local step: wait for the answer (as published), or train on meanwhile",
        choices=QUERIES,
    )
    collective: str = _flag(
        "ps",
        "how the workers sum: on the parameter server (ps), or among themselves, without scheduler and servers; they "
        "find each other through the state server, or are started by mpiexec (mpi)",
        choices=COLLECTIVES,
    )
    job: str = _flag(
        "default",
        "name of this job among those whose workers find each other through the same state server at the same time",
        type=job_name,
        needs=("collective", AMONG_WORKERS),
        metavar="NAME",
    )
    compression: str = _flag(
        UNCOMPRESSED,
        "what the workers sum travels as it is (none), as 16-bit floats (fp16: half of the bytes; not with "
        "--collective mpi), or to the parameter server as -threshold, 0 or +threshold (2bit, MXNet's gradient "
        "compression: a sixteenth of the bytes on this way, all of them back; with --collective ps alone)",
        choices=COMPRESSIONS,
    )
    compression_threshold: float = _flag(
        0.0,
        "of 2bit, which must have one above 0: about the size of the larger numbers of the gradient of the summed loss "
        "(sync, lb-bsp) or of the model update (esync, local-sgd); what is not sent is kept for the next rounds",
        type=threshold,
        needs=("compression", TWO_BIT),
    )
    query_delay: float = _flag(
        0.0,
        "seconds on top of each round trip to the state server: emulates a slower network",
        type=at_least(0, float),
        of_host=True,
    )
    backup: int = _flag(
        1,
        "how many workers are spare: a version of the model is complete with the gradients of all others, whoever they "
        "are, and those that come later are dropped; less than there are workers",
        type=at_least(0),
    )
    staleness: int = _flag(3, "steps that a worker may be ahead of the slowest", type=at_least(0))
    sync_every: int = _flag(8, "local steps a round", type=at_least(1))
    wbsp_overlap: int = _flag(0, "1 pushes and pulls in a second thread while training goes on (PCC)", type=zero_or_one)
    switch_order: str = _flag("10", "the phases, 1 for BSP and 0 for ASP", type=switch_order)
    train_steps: tuple[int, ...] = _flag(
        (400, 7600),
        "steps of each phase; a step is one update under BSP, as many batches as workers under ASP",
        type=at_least(1),
        nargs="+",
        metavar="STEPS",
    )
    phase_lr: tuple[float, ...] = _flag(
        (0.0,),
        "learning rate of an update in each phase: of the mean of all workers' gradients under BSP, of each gradient "
        "under ASP; one number, or one for each phase (0: as -l says)",
        type=at_least(0, float),
        nargs="+",
        metavar="RATE",
    )
    phase_lr_schedule: tuple[str, ...] = _flag(
        ("constant",),
        "as --lr-schedule, by the samples of the phase alone; one, or one for each phase",
        type=rate_schedule,
        nargs="+",
        metavar="SCHEDULE",
    )
    phase_momentum: tuple[str, ...] = _flag(
        (SAME,),
        "momentum in each phase: a number, 0..0.9:50000 for one that grows over so many samples of the phase, or same "
        "(as --momentum says); one, or one for each phase",
        type=phase_momentum,
        nargs="+",
        metavar="MOMENTUM",
    )
    phase_batch_size: tuple[int, ...] = _flag(
        (0,),
        "samples per step on each device in each phase; one number, or one for each phase (0: as -b says)",
        type=at_least(0),
        nargs="+",
        metavar="SAMPLES",
    )
    straggler_policy: str = _flag(
        "none",
        "what to do with a transient straggler under BSP: nothing, go over to ASP while it lasts (greedy), or leave it "
        "out for the rest of the phase (elastic)",
        choices=STRAGGLER_POLICIES,
    )
    ckpt_frequency: int = _flag(
        0, "rounds between two checkpoints of each worker; the last round has one too (0: none)", type=at_least(0)
    )
    ckpt_keep: int = _flag(3, "checkpoints of each worker that stay", type=at_least(1))
    checkpoint: str = _flag(
        "",
        "folder of all checkpoints of the job, which all of its processes must see (default: .checkpoints in the "
        "log folder)",
        metavar="FOLDER",
        of_host=True,
    )
    resume: int = _flag(
        0,
        "1, or no value: go on from the newest checkpoint, and with the logs; with --on-worker-death continue also "
        "where this worker has none",
        type=zero_or_one,
        nargs="?",
        const=1,
    )
    on_worker_death: str = _flag(
        END,
        "what becomes of the job when a process of it is lost: it ends (end); the launchers start all again, which go "
        "on from the newest checkpoint (restart, with --ckpt-frequency); or the other workers go on (continue): with "
        "--collective ring, butterfly or binary-blocks they take in those that come later, and in the modes of MXNet's "
        "dist_async they go on without the lost",
        choices=ON_WORKER_DEATH,
    )
    min_workers: int = _flag(
        1,
        "with fewer left the job waits until others come; with a parameter server it ends",
        type=at_least(1),
        needs=("on_worker_death", CONTINUE),
    )
    fault_timeout: float = _flag(
        10.0,
        "seconds without a sign of life after which a worker counts as lost (one that is killed is noticed at once)",
        type=above_zero,
        needs=("on_worker_death", CONTINUE),
    )
    leave: int = _flag(
        0,
        "1 lets this worker alone go when it gets SIGTERM or SIGINT: the others go on",
        type=zero_or_one,
        needs=("on_worker_death", CONTINUE),
        of_host=True,
    )
    start_timeout: float = _flag(
        600.0,
        "seconds to wait for the other processes of the job at the start (0: for ever)",
        type=at_least(0, float),
        of_host=True,
    )

    @property
    def algorithm(self) -> Algorithm:
        """The row of the mode."""
        return ALGORITHMS[self.mode]

    @property
    def has_parameter_server(self) -> bool:
        """Whether there are processes beside the workers that train: a scheduler and parameter servers."""
        return self.algorithm.is_distributed and self.collective == PS

    @property
    def survives(self) -> bool:
        """Whether workers come and go: those that are left sum among themselves, in the same processes."""
        return self.on_worker_death == CONTINUE and self.collective != PS

    @property
    def leaves_out(self) -> bool:
        """Whether a parameter server goes on with the workers that are left; nobody comes back to it."""
        return self.on_worker_death == CONTINUE and self.collective == PS

    @property
    def needs_state_server(self) -> bool:
        """Whether nothing goes on without a state server."""
        return self.algorithm.needs_state_server or self.collective in AMONG_WORKERS

    @property
    def device(self) -> str:
        """Name of this worker's log folder: cpu, gpu0, ... unless --device-name says otherwise."""
        return self.device_name or ("cpu" if self.cpu else f"gpu{self.gpu}")

    @property
    def shortest_step_s(self) -> float:
        """Seconds that a local step of this worker takes at least."""
        return self.min_step_time + self.batch_size * self.sample_time

    @property
    def logs_lines(self) -> bool:
        """Whether rounds are logged as lines of one file."""
        return self.log_form == "lines" or (self.log_form == "auto" and not self.algorithm.is_distributed)

    @property
    def entry(self) -> str:
        """Name of the algorithm, or of the preset of it that the flags make: DC-ASGD, for example, is one of async.

        A launcher that lets only some workers take part files their logs under its preset's name (`log_dir`).
        """
        return entry_name(self.mode, vars(self))

    @property
    def mode_folder(self) -> Path:
        """NETWORK/MODE, this job's place in the log tree; DC-ASGD, for example, has one of its own."""
        return Path(self.network) / folder_name(self.entry, bool(self.split_by_class))

    @property
    def rule(self) -> str:
        """The state server's name of the policy that it is asked for; empty where it is not asked."""
        return (self.algorithm.rule or "").format_map(vars(self))

    @property
    def checkpoint_folder(self) -> Path:
        """Where the job's processes keep their checkpoints."""
        return Path(self.checkpoint) if self.checkpoint else Path(self.log_dir) / CHECKPOINT_FOLDER

    def of_phases(self, given: tuple[T, ...]) -> tuple[T, ...]:
        """What a flag with one number, or one for each phase, says of each phase."""
        return given * len(self.switch_order) if len(given) == 1 else given


def one_of(words: Sequence[str]) -> str:
    """Such as "a, b or c"."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


FIELDS = {field.name: field for field in dataclasses.fields(Config)}


def names_of(field: str) -> tuple[str, ...]:
    """The names of a field's flag, the shortest first."""
    return (*FIELDS[field].metadata["short"], "--" + field.replace("_", "-"))


def preset_flags(entry: str) -> tuple[str, ...]:
    """The flags that make a preset of its algorithm, and those that it starts with; none for the algorithm itself."""
    preset = ENTRIES[entry]
    return tuple(str(word) for field, value in (*preset.values, *preset.tuned) for word in (names_of(field)[-1], value))
