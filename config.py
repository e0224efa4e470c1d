"""The flags: the frozen dataclass `Config` is their table, and trainer/command_line.py parses them.

The published flags keep their names, types, defaults and meaning; the others are this project's own. algorithms.py says
in which modes a flag counts.
"""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import flag_values as values
from algorithms import ALGORITHMS, ENTRIES, OWNERS, WATCHED, Algorithm, Workers, entry_name, folder_name
from utils import CHECKPOINT_FOLDER, EARLIER, SEED_FOLDER

MODES = tuple(ALGORITHMS)
NETWORKS = (
    *("alexnet", "resnet18-v1", "resnet50-v1", "resnet50-v2", "mobilenet-v1", "mobilenet-v2", "inception-v3"),
    *("lenet", "resnet20", "resnet32", "cnn", "mlp"),
)
NO_NETWORK = "none"  # of simulate.py alone: takes time and sends bytes, without computing
# Folders of a log tree that belong to no run, and no job file.
TAKEN_FOLDERS = (*NETWORKS, NO_NETWORK, EARLIER, "figures", "trials")
DATASETS = ("fashion-mnist", "mnist", "cifar10", "cifar100")
POLICIES = ("journal", "upload-aware", "preprint")
QUERIES = ("blocking", "non-blocking")
LOG_FORMS = ("auto", "files", "lines")
KVSTORE = "kvstore"  # MXNet's
HUB = "hub"
AMONG_WORKERS = ("ring", "butterfly", "binary-blocks")  # workers find each other through the state server
MPI = "mpi"  # MPI's own algorithm, among the processes that mpiexec starts
EXCHANGES = (KVSTORE, HUB, *AMONG_WORKERS, MPI)
ON_WORKER_DEATH = END, RESTART, CONTINUE = "end", "restart", "continue"
COMPRESSIONS = UNCOMPRESSED, FP16 = "none", "fp16"
EVALUATE = AUTO, YES, NO = "auto", "yes", "no"  # whether a worker evaluates
STRAGGLER_POLICIES = ("none", "greedy", "elastic")
OPTIMIZERS = SGD, RMSPROP, ADAM, ADAMW = "sgd", "rmsprop", "adam", "adamw"
SAME = "same"  # as a phase's momentum: that of --momentum
LEARNING_RATES = ("learning_rate", "local_lr")  # of gradients and of local steps: each mode has one of them

T = TypeVar("T")

# --------------------------------------------------------------------------------------------------- the flags


def _flag(
    default: Any,
    help: str,
    *short: str,
    type: Callable[[str], Any] = str,
    needs: tuple[str, Any] | None = None,  # (field, value or values) without which the flag does nothing
    published: bool = False,  # the published program accepts it everywhere: where it does nothing that is no error
    instead: Sequence[str] = (),  # fields that count in other modes, for the warning about this
    of_host: bool = False,  # may differ between the workers of a job; all other flags must be the same
    formerly: str = "",  # its name in version 0.6.0
    **more: Any,  # for argparse
) -> Any:
    """A field of Config and its flag, whose long name is the field's."""
    about = {"needs": needs, "published": published, "instead": instead, "of_host": of_host, "formerly": formerly}
    return dataclasses.field(
        default=default, metadata={"short": short, "arguments": {"help": help, "type": type, **more}, **about}
    )


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


@dataclass(frozen=True)
class Config:
    """Every flag of main.py, parsed and checked. Learning rates act on the gradient of the SUMMED batch loss."""

    # Published flags.
    learning_rate: float = _flag(
        0.001,
        "learning rate of the gradients (Sync-Switch: under BSP; under ASP it is divided by the number of workers)",
        "-l",
        type=values.above_zero,
        published=True,
        instead=LEARNING_RATES,
    )
    local_lr: float = _flag(
        0.001, "learning rate of the local steps", "-ll", type=values.above_zero, published=True, instead=LEARNING_RATES
    )
    global_lr: float = _flag(
        1.0,
        "factor on the averaged model update: the learning rate of the outer optimiser",
        "-gl",
        type=values.above_zero,
        published=True,
        instead=LEARNING_RATES,
    )
    batch_size: int = _flag(
        64, "samples per step on each device (LB-BSP: at first, and on average)", "-b", type=values.at_least(1)
    )
    data_dir: str = _flag(
        "data",
        "folder that holds the dataset's folder, such as fashion-mnist with its four *-ubyte.gz files",
        "-dd",
        of_host=True,
    )
    gpu: int = _flag(0, "id of the one GPU that this process uses", "-g", type=values.at_least(0), of_host=True)
    cpu: int = _flag(0, "1 trains on the CPU", "-c", type=values.zero_or_one, of_host=True)
    network: str = _flag("resnet18-v1", "the network to train", "-n", choices=NETWORKS)
    log_dir: str = _flag(
        "logs",
        "folder that holds this worker's folder, from which earlier logs and models are removed when training begins "
        "(worker.sh: logs/NETWORK/MODE/HOST, and moves them as --earlier)",
        "-ld",
        of_host=True,
    )
    eval_duration: int = _flag(
        1, "rounds between two evaluations on the whole test set, by one worker", "-e", type=values.at_least(1)
    )
    mode: str = _flag("esync", "the synchronisation algorithm", "-m", type=_mode, choices=MODES)
    use_dcasgd: int = _flag(0, "1 selects DC-ASGD", "-dcasgd", type=values.zero_or_one, published=True)
    split_by_class: int = _flag(
        0,
        "1 sorts the samples by class and gives each worker an equal part (non-i.i.d.)",
        "-s",
        type=values.zero_or_one,
        published=True,
    )
    state_server_ip: str = _flag(
        "127.0.0.1", "host of the state server", "-ip", type=values.host, published=True, of_host=True
    )
    state_server_port: str = _flag(
        "10010", "port of the state server", "-port", type=values.port, published=True, of_host=True
    )

    # This project's own.
    page: int | str = _flag(
        "auto",
        "1: the workers tell the state server at -ip and -port what they do, for its page; 0: they do not, in a mode "
        "that can do without; auto: 1 in the modes in which a rule of the state server decides, else 0",
        type=values.zero_one_or_auto,
    )
    job: str = _flag(
        "",
        "Python file with the network, the data, the loss, the metric or the loop to train with (docs/own-job.md); "
        "what it leaves out comes from -n and --dataset",
        type=job_file,
        metavar="FILE",
        of_host=True,
    )
    dataset: str = _flag(
        "fashion-mnist",
        "the data to train on (cifar10 and cifar100: from the binary or the python archive; of cifar100 the fine "
        "labels)",
        choices=DATASETS,
    )
    augment: int = _flag(
        0,
        "1 changes training images at random, as is usual for CIFAR: 4 black pixels more at each edge, a random crop "
        "of the old size, and half of the images mirrored left to right; test images stay as they are",
        type=values.zero_or_one,
    )
    device_name: str = _flag(
        "", "name of this worker's log folder (default: cpu, or gpu with its id)", type=values.device_name, of_host=True
    )
    of_workers: int = _flag(
        0,
        "workers of the cluster of which a launcher's --fastest has chosen those of this job, for the title in tables "
        "and figures (0: all take part; set by the launchers)",
        type=values.at_least(0),
    )
    earlier: str = _flag(
        "",
        "LOG_BASE/earlier, where LOG_BASE/NETWORK/MODE/HOST is -ld: earlier logs and models are moved to "
        "LOG_BASE/earlier/DATE-TIME/NETWORK/MODE/HOST and not removed, and the last five runs stay there (set by the "
        "launchers and worker.sh)",
        of_host=True,
        metavar="FOLDER",
    )
    log_form: str = _flag(
        "auto",
        "log of a round: a file iter-N.txt (files, as published), or a line of rounds.jsonl (lines); "
        "auto: lines in mode local, whose rounds are single steps, else files",
        choices=LOG_FORMS,
        of_host=True,
    )
    quiet: int = _flag(
        0,
        "1, or no value: no lines of rounds on the console and in this process's own log, but those of the first round "
        "and of evaluations (simulate.py: none of progress); the logs of rounds have all",
        type=values.zero_or_one,
        nargs="?",
        const=1,
        of_host=True,
    )
    tensorboard: str = _flag(
        "",
        "writes each round for TensorBoard too: loss, metric, samples/s, local steps, waiting share, as the run "
        "FOLDER/NETWORK/MODE/HOST-DEVICE; needs tensorboardX (requirements-tensorboard.txt)",
        of_host=True,
        metavar="FOLDER",
    )
    eval_seconds: float = _flag(
        0.0, "seconds between two evaluations, in place of -e (0: -e counts)", type=values.at_least(0, float)
    )
    validation: int = _flag(
        0,
        "number of training samples to hold out, always the same ones, and to evaluate on in place of the test set: to "
        "choose step sizes (0: none)",
        type=values.at_least(0),
    )
    evaluate: str = _flag(
        "auto",
        "whether this worker evaluates and saves the global model: yes, no, or if it is the fastest in a test step "
        "(auto; of equal ones the lowest rank)",
        choices=EVALUATE,
        of_host=True,
    )
    evaluator: int | str = _flag(
        "auto",
        "1: a process beside the worker evaluates, on the CPU, so that training does not wait; after two evaluations "
        "in a row for which it is not ready the worker evaluates; 0: the worker evaluates, as published; auto: 1 for a "
        "worker on a CPU with --job, and the launchers give 1 to workers on a CPU; else 0",
        type=values.zero_one_or_auto,
        of_host=True,
    )
    max_rounds: int = _flag(
        0,
        "stop after this many rounds (0: no limit); in async, ssp, wbsp, async-local and decoupled, where workers do "
        "not wait for all others, each worker counts its own",
        type=values.at_least(0),
    )
    max_seconds: float = _flag(0.0, "stop after this many seconds (0: no limit)", type=values.at_least(0, float))
    target_accuracy: float = _flag(0.0, "stop at this test accuracy (0: no target)", type=values.fraction)
    target: float | None = _flag(
        None,
        "stop when the metric reaches this value, also a negative one: from below, or from above where less of it is "
        "better (None: no target)",
        type=values.finite,
    )
    target_evaluations: int = _flag(
        1,
        "evaluations in a row whose mean is to be at the target, since single ones are noisy",
        type=values.at_least(1),
    )
    init_from: str = _flag(
        "",
        "file with the network's initial parameters: best.json or final.json of a saved model, or a .params file of "
        "MXNet; those that are missing there or have another shape keep their own initial values",
        metavar="FILE",
        of_host=True,
    )
    seed: int = _flag(
        0, "seed of initial weights, partitions, shuffling, augmentation and dropout", type=values.at_least(0)
    )
    max_bad_steps: int = _flag(
        10,
        "a step of which a gradient or the update is not finite is skipped; after this many in a row on one worker the "
        "job ends (0: no check, gradients leave while others are still computed, and the first loss that is not "
        "finite ends the job)",
        type=values.at_least(0),
    )
    momentum: float = _flag(
        0.0,
        "momentum mu of SGD, in all steps: v <- mu * v + gradient, w <- w - learning rate * v",
        type=values.below_one,
        needs=("optimizer", SGD),
    )
    weight_decay: float = _flag(
        0.0,
        "lambda: adds lambda * w to the gradient of the MEAN loss (so batch size * lambda * w to that of the summed "
        "one), for the weights of convolutions and dense layers",
        type=values.at_least(0, float),
    )
    optimizer: str = _flag(
        SGD,
        "optimizer of the workers' steps: SGD, RMSProp or Adam with MXNet's defaults, or AdamW as torch has it, whose "
        "--weight-decay is apart from the gradient",
        choices=OPTIMIZERS,
    )
    clip_norm: float = _flag(
        0.0,
        "most that the norm of a step's gradient may be, of the MEAN loss and all weights together; a longer one is "
        "scaled down, as by torch's clip_grad_norm_ (0: none is). Where a server takes the steps each worker does it",
        type=values.at_least(0, float),
    )
    lr_schedule: str = _flag(
        "constant",
        "factor on the learning rate by the samples that all workers have trained on: constant, or, joined by +, "
        "warmup:10000 (from 0), step:300000,450000x0.1 (a tenth after each), cosine:600000 (to 0; x0.01: to 0.01)",
        type=values.rate_schedule,
    )
    min_step_time: float = _flag(
        0.0,
        "seconds to which each local step is padded: emulates a slower device",
        type=values.at_least(0, float),
        of_host=True,
    )
    sample_time: float = _flag(
        0.0,
        "seconds that each sample of its batch adds to --min-step-time: emulates a slower device on which a smaller "
        "batch is a faster step",
        type=values.at_least(0, float),
        of_host=True,
    )
    straggler_trace: str = _flag(
        "",
        "CSV file (start_s,duration_s,extra_s,kind), emulates a transient straggler: in each period every local step "
        "takes longer (compute, the default), or each sample of it (sample), or each push of gradients or of an update "
        "and each pull of a model (network)",
        of_host=True,
    )
    dcasgd_lambda: float = _flag(
        0.04,
        "strength of DC-ASGD's delay compensation, on the summed loss: 0.04 at batch 64 is 2.56 on the mean; with "
        "--dcasgd-adaptive 1 lambda_0, which is the same on both, and 2 in the paper",
        type=values.at_least(0, float),
        needs=("use_dcasgd", 1),
    )
    dcasgd_adaptive: int = _flag(
        0,
        "1 adapts that strength to each weight, by the mean square of its gradients (DC-ASGD-a)",
        type=values.zero_or_one,
        needs=("use_dcasgd", 1),
    )
    max_delay: int = _flag(
        0,
        "R of Ringmaster ASGD: the server drops a gradient if it has applied R others or more since the worker's last "
        "pull, and the worker goes on with the newest weights (0: it drops none)",
        type=values.at_least(0),
    )
    table: int = _flag(
        0,
        "1 selects Ringleader ASGD: one step by each worker a round, along the mean of all workers' mean gradients of "
        "the round; no gradient is thrown away, and no worker waits for another",
        type=values.zero_or_one,
    )
    rescale: int = _flag(
        0,
        "1 selects Rescaled ASGD: a worker's gradients are weighed by its step time over the mean of all workers'",
        type=values.zero_or_one,
    )
    outer_momentum: float = _flag(
        0.0,
        "momentum of the outer optimiser, below 1: its gradient is the averaged model update of a round, its learning "
        "rate -gl (0 and -gl 1: the plain mean)",
        type=values.below_one,
    )
    outer_nesterov: int = _flag(
        0, "the outer momentum is Nesterov's (1, as in DiLoCo) or heavy-ball (0, as in SlowMo)", type=values.zero_or_one
    )
    normalise: int = _flag(
        0,
        "1 normalises each worker's model update by its local steps of the round (FedNova): divides by their number, "
        "and as in the paper with --momentum, whose velocity then restarts in each round, and with --lr-schedule; with "
        "--optimizer sgd alone",
        type=values.zero_or_one,
    )
    estimate_statistics: int = _flag(
        0,
        "number of batches of this worker's samples from which BatchNorm's running statistics are estimated before an "
        "evaluation, for it and for the saved model (0: those averaged over the workers, as published, which fit no "
        "model after rounds with many local steps)",
        type=values.at_least(0),
    )
    policy: str = _flag(
        "journal",
        "reach-server time (journal), the same but training on while the straggler uploads, for slow links "
        "(upload-aware), or computing time and --epsilon (preprint)",
        choices=POLICIES,
    )
    epsilon: float = _flag(
        0.5, "tolerance in seconds of the preprint's rule", type=values.at_least(0, float), needs=("policy", "preprint")
    )
    anchor: int | str = _flag(
        0,
        "local steps of the straggler in a round; the others take as many as fit into those. auto: the smallest number "
        "for which the update's transmission (with a server one way) takes less than a tenth of these steps "
        "and itself, by the measured times, 32 at most (0: one, as published)",
        type=values.steps_or_auto,
    )
    query: str = _flag(
        "non-blocking",
        "question after each local step: wait for the answer (as published), or train on meanwhile",
        choices=QUERIES,
    )
    exchange: str = _flag(
        AUTO,
        "what carries the arrays: MXNet's kvstore; the hub, which goes on without lost workers; or, in modes that sum, "
        "the workers themselves, without a server: they find each other through the state server, or are started by "
        "mpiexec (mpi). auto: the kvstore where the mode has it, else the hub",
        formerly="--collective",
        type=_exchange,
        choices=(AUTO, *EXCHANGES),
    )
    job_name: str = _flag(
        "default",
        "name of this job among those whose workers find each other through the same state server at the same time",
        type=values.job_name,
        needs=("exchange", AMONG_WORKERS),
        metavar="NAME",
    )
    compression: str = _flag(
        UNCOMPRESSED,
        "what the workers sum travels as it is (none), or as 16-bit floats (fp16: half of the bytes; not with "
        "--exchange mpi or hub)",
        choices=COMPRESSIONS,
    )
    query_delay: float = _flag(
        0.0,
        "seconds on top of each round trip to the state server: emulates a slower network",
        type=values.at_least(0, float),
        of_host=True,
    )
    backup: int = _flag(
        1,
        "number b of spare workers, below the number N of workers: a version of the model is complete with N - b "
        "gradients, and later ones are dropped",
        type=values.at_least(0),
    )
    staleness: int = _flag(3, "steps that a worker may be ahead of the slowest", type=values.at_least(0))
    sync_every: int = _flag(8, "local steps a round (--dylu 1: of the fastest worker)", type=values.at_least(1))
    dylu: int = _flag(
        1,
        "1 gives each worker local steps in proportion to its speed, --sync-every for the fastest (dynamic local "
        "updates), and one in its first round; 0: --sync-every for all",
        type=values.zero_or_one,
    )
    delay_momentum: int = _flag(
        1,
        "1 applies the outer momentum after as many updates as there are workers, and of each update the part "
        "-gl / workers (delayed Nesterov); 0: momentum and the whole -gl in each update",
        type=values.zero_or_one,
    )
    quorum: int = _flag(
        0,
        "number K of workers, up to the number N of workers, whose updates are enough for a new global model; later "
        "ones count in the one after that (0: more than half of the workers)",
        type=values.at_least(0),
    )
    grace: float | str = _flag(
        AUTO,
        "seconds from the quorum to the new global model, in which further workers are waited for; auto: until one "
        "uploads again, since it takes no new model before",
        type=values.seconds_or_auto,
        metavar="SECONDS",
    )
    wbsp_overlap: int = _flag(0, "1 pushes and pulls in a second thread during training (PCC)", type=values.zero_or_one)
    switch_order: str = _flag("10", "the phases, 1 for BSP and 0 for ASP", type=values.switch_order)
    train_steps: tuple[int, ...] = _flag(
        (400, 7600),
        "steps of each phase; a step is one update under BSP, as many batches as workers under ASP",
        type=values.at_least(1),
        nargs="+",
        metavar="STEPS",
    )
    phase_lr: tuple[float, ...] = _flag(
        (0.0,),
        "learning rate of an update in each phase: of the mean of all workers' gradients under BSP, of each gradient "
        "under ASP; one number, or one for each phase (0: -l)",
        type=values.at_least(0, float),
        nargs="+",
        metavar="RATE",
    )
    phase_lr_schedule: tuple[str, ...] = _flag(
        ("constant",),
        "--lr-schedule by the samples of the phase alone; one, or one for each phase",
        type=values.rate_schedule,
        nargs="+",
        metavar="SCHEDULE",
    )
    phase_momentum: tuple[str, ...] = _flag(
        (SAME,),
        "momentum in each phase: a number, 0..0.9:50000 for one that grows over 50,000 samples of the phase, or same "
        "(--momentum); one, or one for each phase",
        type=values.phase_momentum,
        nargs="+",
        metavar="MOMENTUM",
    )
    phase_batch_size: tuple[int, ...] = _flag(
        (0,),
        "samples per step on each device in each phase; one number, or one for each phase (0: -b)",
        type=values.at_least(0),
        nargs="+",
        metavar="SAMPLES",
    )
    straggler_policy: str = _flag(
        "none",
        "response to a transient straggler under BSP: none, switch to ASP while it lasts (greedy), or leave it out for "
        "the rest of the phase (elastic)",
        choices=STRAGGLER_POLICIES,
    )
    ckpt_frequency: int = _flag(
        0,
        "rounds between two checkpoints of each worker; the last round has one too (0: none)",
        type=values.at_least(0),
    )
    ckpt_keep: int = _flag(3, "number of checkpoints of each worker that stay", type=values.at_least(1))
    checkpoint: str = _flag(
        "",
        "folder of all checkpoints of the job, which all of its processes must see (default: .checkpoints in the "
        "log folder)",
        metavar="FOLDER",
        of_host=True,
    )
    resume: int | str = _flag(
        0,
        "1, or no value: resume from the newest checkpoint and continue the logs; with --on-worker-death continue also "
        "if this worker has no checkpoint; auto: the same if there is a checkpoint, else the job begins",
        type=values.zero_one_or_auto,
        nargs="?",
        const=1,
    )
    on_worker_death: str = _flag(
        END,
        "effect of a lost process: the job ends (end); the launchers restart it from the newest checkpoint (restart, "
        "with --ckpt-frequency); or the others go on and lost workers come back (continue): on the hub, or with "
        "--exchange ring, butterfly or binary-blocks, where others can join too",
        choices=ON_WORKER_DEATH,
    )
    min_workers: int = _flag(
        1,
        "with fewer workers the job waits until others join; with a hub, or where the launchers have "
        "given up the others, it ends; with restart no worker is left out below this",
        type=values.at_least(1),
        needs=("on_worker_death", (RESTART, CONTINUE)),
    )
    fault_timeout: float | str = _flag(
        "auto",
        "seconds until the others go on without a frozen or unreached worker (a killed one is noticed at once); auto: "
        "by the length of the rounds, after a silence of 1 to 10 seconds",
        type=values.above_zero_or_auto,
        needs=("on_worker_death", CONTINUE),
    )
    leave: int = _flag(
        0,
        "1: on SIGTERM or SIGINT this worker leaves alone, and the others continue",
        type=values.zero_or_one,
        needs=("on_worker_death", CONTINUE),
        of_host=True,
    )
    # Measures in place of training (trainer/hub/probe.py); set by scripts/probe.py.
    probe: int = _flag(0, argparse.SUPPRESS, type=values.zero_or_one)
    start_timeout: float = _flag(
        600.0,
        "seconds to wait for the other processes of the job at the start (0: for ever)",
        type=values.at_least(0, float),
        of_host=True,
    )

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
        sets = self.algorithm.on_kvstore or ()
        return [each[-1] for each in sets if all(getattr(self, field) != FIELDS[field].default for field in each)]

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
    def steps_a_round(self) -> int:
        """Local steps, where a flag says how many."""
        return self.sync_every if "sync_every" in self.algorithm.all_flags else 1

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
        return entry_name(self.mode, vars(self))

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
        return (self.algorithm.rule or WATCHED).format_map(vars(self))

    @property
    def checkpoint_folder(self) -> Path:
        return Path(self.checkpoint) if self.checkpoint else Path(self.log_dir) / CHECKPOINT_FOLDER

    def of_phases(self, given: tuple[T, ...]) -> tuple[T, ...]:
        """A value for each phase, of a flag with one for all or one for each."""
        return given * len(self.switch_order) if len(given) == 1 else given


def one_of(words: Sequence[str]) -> str:
    """Such as "a, b or c"."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


FIELDS = {field.name: field for field in dataclasses.fields(Config)}


def names_of(field: str) -> tuple[str, ...]:
    """The names of a field's flag, the shortest first."""
    return (*FIELDS[field].metadata["short"], "--" + field.replace("_", "-"))


def transport_of(entry: str) -> str:
    """What carries the arrays of an entry of the table, as Config.transport, where no flag says more."""
    preset = ENTRIES[entry]
    return Config(mode=OWNERS[entry].name, **dict((*preset.values, *preset.tuned))).transport


def preset_flags(entry: str) -> tuple[str, ...]:
    """The flags that make a preset of its algorithm, and those with which launchers and simulate.py start the entry."""
    preset = ENTRIES[entry]
    return tuple(str(word) for field, value in (*preset.values, *preset.tuned) for word in (names_of(field)[-1], value))
