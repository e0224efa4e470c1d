"""The command line: one table of flags, which is the frozen dataclass `Config` itself.

The published flags keep their names, types, defaults and meaning; the others are this project's own.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flag_types import above_zero, at_least, device_name, fraction, port, switch_order, zero_or_one
from flag_use import check_given
from utils import CHECKPOINT_FILE, VARIANTS, SetupError, mode_name

MODES = ("esync", "sync", "async", "ssp", "local-sgd", "wbsp", "sync-switch", "local")
COORDINATED = ("esync", "wbsp", "sync-switch")  # these modes ask a state server
DISTRIBUTED = tuple(mode for mode in MODES if mode != "local")
AVERAGING = ("esync", "local-sgd")  # these average what several local steps changed
LOCAL_STEPS = (*AVERAGING, "wbsp")  # these have a step size for local steps, the others one for gradients
GRADIENTS = tuple(mode for mode in MODES if mode not in LOCAL_STEPS)
ONE_SERVER = ("wbsp", "sync-switch")  # these change whole models at one moment (trainer/whole_models.py)
MAX_BATCHES = 1 << 24  # whole numbers up to this survive the kvstore's float32
NETWORKS = (
    "alexnet",
    "resnet18-v1",
    "resnet50-v1",
    "resnet50-v2",
    "mobilenet-v1",
    "mobilenet-v2",
    "inception-v3",
    "lenet",
)
DATASETS = ("fashion-mnist", "mnist", "cifar10")
POLICIES = ("journal", "upload-aware", "preprint")
QUERIES = ("blocking", "non-blocking")
LOG_FORMS = ("auto", "files", "lines")
EVALUATE = AUTO, YES, NO = "auto", "yes", "no"  # whether a worker evaluates
STRAGGLER_POLICIES = ("none", "greedy", "elastic")


def _flag(
    *names: str,
    default: Any,
    help: str,
    type: Callable[[str], Any] = str,
    choices: Sequence[str] | None = None,
    modes: Sequence[str] = MODES,
    needs: tuple[str, Any] | None = None,
    published: bool = False,
    instead: Sequence[str] = (),
    of_host: bool = False,
    **more: Any,
) -> Any:
    """A field of Config and its flag.

    Args:
        modes: where it counts. In another one it would do nothing, so to give it there is an error.
        needs: a field that must have this value, else it does nothing either.
        published: the published program takes it in silence in any mode; so it gets a warning, not an error.
        instead: fields that count in the other modes, for that warning.
        of_host: a matter of the worker's own host. All other flags must be the same on all workers of a job.
        more: goes to argparse.
    """
    arguments = {"default": default, "help": help, "type": type, "choices": choices, **more}
    about = {"modes": tuple(modes), "needs": needs, "published": published, "instead": instead, "of_host": of_host}
    return dataclasses.field(default=default, metadata={"names": names, "arguments": arguments, **about})


@dataclass(frozen=True)
class Config:
    """Every flag of main.py, parsed and checked. Step sizes act on the gradient of the SUMMED batch loss."""

    # Published flags.
    learning_rate: float = _flag(
        "-l",
        "--learning-rate",
        default=0.001,
        type=above_zero,
        modes=GRADIENTS,
        published=True,
        instead=("local_lr",),
        help="step size of SSGD, ASGD, DC-ASGD, SSP, Sync-Switch and standalone SGD",
    )
    local_lr: float = _flag(
        "-ll",
        "--local-lr",
        default=0.001,
        type=above_zero,
        modes=LOCAL_STEPS,
        published=True,
        instead=("learning_rate",),
        help="step size of the local steps of ESync, local SGD and WBSP",
    )
    global_lr: float = _flag(
        "-gl",
        "--global-lr",
        default=1.0,
        type=above_zero,
        modes=AVERAGING,
        published=True,
        instead=("learning_rate", "local_lr"),
        help="factor on the averaged model update of ESync and local SGD",
    )
    batch_size: int = _flag("-b", "--batch-size", default=64, type=at_least(1), help="samples per step on each device")
    data_dir: str = _flag(
        "-dd", "--data-dir", default="data", help="folder that holds the dataset's folder", of_host=True
    )
    gpu: int = _flag(
        "-g", "--gpu", default=0, type=at_least(0), help="id of the one GPU that this process uses", of_host=True
    )
    cpu: int = _flag("-c", "--cpu", default=0, type=zero_or_one, help="1 trains on the CPU", of_host=True)
    network: str = _flag("-n", "--network", default="resnet18-v1", choices=NETWORKS, help="the network to train")
    log_dir: str = _flag(
        "-ld", "--log-dir", default="logs", help="round logs go into a folder of the device in it", of_host=True
    )
    eval_duration: int = _flag(
        "-e", "--eval-duration", default=1, type=at_least(1), help="rounds between two evaluations (on one worker)"
    )
    mode: str = _flag("-m", "--mode", default="esync", choices=MODES, help="the synchronisation algorithm")
    use_dcasgd: int = _flag(
        "-dcasgd",
        "--use-dcasgd",
        default=0,
        type=zero_or_one,
        modes=("async",),
        published=True,
        help="1 selects DC-ASGD in async mode",
    )
    split_by_class: int = _flag(
        "-s",
        "--split-by-class",
        default=0,
        type=zero_or_one,
        modes=DISTRIBUTED,
        published=True,
        help="1: equal parts in order of class (non-i.i.d.)",
    )
    state_server_ip: str = _flag(
        "-ip",
        "--state-server-ip",
        default="127.0.0.1",
        modes=COORDINATED,
        published=True,
        of_host=True,
        help="host of the state server",
    )
    state_server_port: str = _flag(
        "-port",
        "--state-server-port",
        default="10010",
        type=port,
        modes=COORDINATED,
        published=True,
        of_host=True,
        help="port of the state server",
    )

    # This project's own.
    dataset: str = _flag("--dataset", default="fashion-mnist", choices=DATASETS, help="the data to train on")
    device_name: str = _flag(
        "--device-name",
        default="",
        type=device_name,
        help="name of this worker's log folder (default: cpu, or gpu with its id)",
        of_host=True,
    )
    log_form: str = _flag(
        "--log-form",
        default="auto",
        choices=LOG_FORMS,
        of_host=True,
        help="log of the rounds: a file iter-N.txt for each (files, as published), or a line of rounds.jsonl for each "
        "(lines); auto: lines in mode local, whose rounds are single steps, else files",
    )
    eval_seconds: float = _flag(
        "--eval-seconds",
        default=0.0,
        type=at_least(0, float),
        help="evaluate after so many seconds, whatever rounds they hold, in place of -e (0: as -e says)",
    )
    evaluate: str = _flag(
        "--evaluate",
        default="auto",
        choices=EVALUATE,
        modes=DISTRIBUTED,
        of_host=True,
        help="whether this worker evaluates the global model: yes, no, or if it is the fastest (auto)",
    )
    max_rounds: int = _flag("--max-rounds", default=0, type=at_least(0), help="stop after so many rounds (0: no limit)")
    max_seconds: float = _flag(
        "--max-seconds", default=0.0, type=at_least(0, float), help="stop after so many seconds (0: no limit)"
    )
    target_accuracy: float = _flag(
        "--target-accuracy", default=0.0, type=fraction, help="stop at this test accuracy (0: no target)"
    )
    seed: int = _flag("--seed", default=0, type=at_least(0), help="seed of initial weights, shuffling and dropout")
    min_step_time: float = _flag(
        "--min-step-time",
        default=0.0,
        type=at_least(0, float),
        help="pad every local step to so many seconds: emulates a slower device",
        of_host=True,
    )
    straggler_trace: str = _flag(
        "--straggler-trace",
        default="",
        help="CSV file (start_s,duration_s,extra_s,kind), emulates a straggler: for a while every local step takes "
        "longer (compute, also without that column), or each push and each pull (network)",
        of_host=True,
    )
    dcasgd_lambda: float = _flag(
        "--dcasgd-lambda",
        default=0.04,
        type=at_least(0, float),
        modes=("async",),
        needs=("use_dcasgd", 1),
        help="strength of DC-ASGD's delay compensation; acts on the summed loss: 0.04 at batch 64 is 2.56 on the mean",
    )
    policy: str = _flag(
        "--policy",
        default="journal",
        choices=POLICIES,
        modes=("esync",),
        help="ESync's rule: reach-server time (journal), the same but training on while the straggler uploads, for "
        "slow links (upload-aware), or computing time and --epsilon (preprint)",
    )
    epsilon: float = _flag(
        "--epsilon",
        default=0.5,
        type=at_least(0, float),
        modes=("esync",),
        needs=("policy", "preprint"),
        help="tolerance in seconds of the preprint's rule",
    )
    query: str = _flag(
        "--query",
        default="non-blocking",
        choices=QUERIES,
        modes=("esync",),
        help="ESync's question after each local step: wait for the answer, or train on until it comes",
    )
    query_delay: float = _flag(
        "--query-delay",
        default=0.0,
        type=at_least(0, float),
        modes=COORDINATED,
        help="seconds on top of each round trip to the state server: emulates a slower network",
        of_host=True,
    )
    staleness: int = _flag(
        "--staleness",
        default=3,
        type=at_least(0),
        modes=("ssp",),
        help="ssp: steps that a worker may be ahead of the slowest",
    )
    sync_every: int = _flag(
        "--sync-every", default=8, type=at_least(1), modes=("local-sgd",), help="local-sgd: local steps a round"
    )
    wbsp_overlap: int = _flag(
        "--wbsp-overlap",
        default=0,
        type=zero_or_one,
        modes=("wbsp",),
        help="wbsp: 1 pushes and pulls in a second thread while training goes on (PCC)",
    )
    switch_order: str = _flag(
        "--switch-order",
        default="10",
        type=switch_order,
        modes=("sync-switch",),
        help="sync-switch: the phases, 1 for BSP and 0 for ASP",
    )
    train_steps: tuple[int, ...] = _flag(
        "--train-steps",
        default=(400, 7600),
        type=at_least(1),
        nargs="+",
        metavar="STEPS",
        modes=("sync-switch",),
        help="sync-switch: steps of each phase; a step is one update under BSP, as many batches as workers under ASP",
    )
    momentum: float = _flag(
        "--momentum",
        default=0.0,
        type=fraction,
        modes=("sync-switch",),
        help="sync-switch: momentum of the server's SGD, below 1",
    )
    straggler_policy: str = _flag(
        "--straggler-policy",
        default="none",
        choices=STRAGGLER_POLICIES,
        modes=("sync-switch",),
        help="sync-switch: what to do with a transient straggler under BSP: nothing, go over to ASP while it lasts "
        "(greedy), or leave it out for the rest of the phase (elastic)",
    )
    ckpt_frequency: tuple[int, ...] = _flag(
        "--ckpt-frequency",
        default=(0,),
        type=at_least(0),
        nargs="+",
        metavar="STEPS",
        modes=("sync-switch",),
        help="sync-switch: steps between two checkpoints, one number, or one for each phase (0: none)",
    )
    checkpoint: str = _flag(
        "--checkpoint",
        default="",
        modes=("sync-switch",),
        metavar="FILE",
        help="sync-switch: rank 0 keeps its checkpoint there (default: checkpoint.npz in the log folder)",
        of_host=True,
    )
    resume: int = _flag(
        "--resume",
        default=0,
        type=zero_or_one,
        modes=("sync-switch",),
        nargs="?",
        const=1,
        help="sync-switch: go on from the checkpoint, and with the logs",
    )
    start_timeout: float = _flag(
        "--start-timeout",
        default=600.0,
        type=at_least(0, float),
        modes=DISTRIBUTED,
        help="seconds to wait for the other processes of the job at the start (0: for ever)",
        of_host=True,
    )

    @property
    def device(self) -> str:
        """Name of this worker's log folder: cpu, gpu0, ... unless --device-name says otherwise."""
        return self.device_name or ("cpu" if self.cpu else f"gpu{self.gpu}")

    @property
    def logs_lines(self) -> bool:
        """Whether rounds are logged as lines of one file."""
        return self.log_form == "lines" or (self.log_form == "auto" and self.mode == "local")

    @property
    def mode_folder(self) -> Path:
        """NETWORK/MODE, this job's place in the log tree; DC-ASGD, for example, has one of its own."""
        variants = (name for name, (mode, flag) in VARIANTS.items() if mode == self.mode and getattr(self, flag))
        return Path(self.network) / mode_name(next(variants, self.mode), bool(self.split_by_class))

    @property
    def rule(self) -> str:
        """The state server's name of the policy that it is asked for."""
        if self.mode == "sync-switch":
            return f"sync-switch-{self.straggler_policy}"
        return self.policy if self.mode == "esync" else self.mode

    @property
    def checkpoint_path(self) -> Path:
        """Where rank 0 keeps its checkpoint."""
        return Path(self.checkpoint) if self.checkpoint else Path(self.log_dir) / CHECKPOINT_FILE

    @property
    def ckpt_steps(self) -> tuple[int, ...]:
        """Steps between two checkpoints, one number for each phase."""
        same = self.ckpt_frequency * len(self.switch_order)
        return same if len(self.ckpt_frequency) == 1 else self.ckpt_frequency


def parse(arguments: Sequence[str] | None = None, warn: Callable[[str], None] = lambda text: None) -> Config:
    """Parses the command line; an unknown flag or a bad value ends the process with exit code 2.

    Args:
        warn: gets a line for each published flag that does nothing in the chosen mode.
    """
    parser = argparse.ArgumentParser(
        prog="main.py",
        description="Train one model on machines of different speed. The role comes from DMLC_ROLE "
        "(scheduler, server, worker); without it only local mode runs.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    fields = dataclasses.fields(Config)
    for field in fields:
        parser.add_argument(*field.metadata["names"], dest=field.name, **field.metadata["arguments"])
    # argparse leaves alone what is there already, so this tells a flag that was given from its default.
    absent = argparse.Namespace(**{field.name: _ABSENT for field in fields})
    values = vars(parser.parse_args(arguments, absent))
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if value is not _ABSENT
    }
    config = Config(**given)
    try:
        check_given(config, given, warn)
        _check(config)
    except SetupError as error:
        parser.error(str(error))
    return config


_ABSENT = object()


def _check(config: Config) -> None:
    """Makes sure that the flags fit together.

    Raises:
        SetupError: they do not.
    """
    if config.mode != "sync-switch":
        return
    order, phases = config.switch_order, len(config.switch_order)
    if len(config.train_steps) != phases:
        raise SetupError(
            f"--switch-order {order} has {phases} phase(s), --train-steps {len(config.train_steps)} number(s): "
            "give one number for each phase"
        )
    if len(config.ckpt_frequency) not in (1, phases):
        raise SetupError(
            f"--switch-order {order} has {phases} phase(s), --ckpt-frequency {len(config.ckpt_frequency)} number(s): "
            "give one number, or one for each phase"
        )
    if not any(config.ckpt_frequency) and (config.resume or config.checkpoint):
        flag = "--resume" if config.resume else "--checkpoint"
        raise SetupError(f"{flag} needs checkpoints, and there are none: also give --ckpt-frequency")
    if config.momentum == 1:
        raise SetupError("--momentum 1 never forgets: give a number from 0 to below 1")
    if config.straggler_policy == "greedy" and not ("1" in order and order.endswith("0")):
        raise SetupError(
            "--straggler-policy greedy takes steps of the next ASP phase while a straggler lasts, so each BSP phase "
            f"needs one behind it; --switch-order is {order}: choose one with a 1 that ends with 0, or another policy"
        )
    if config.straggler_policy == "elastic" and "1" not in order:
        raise SetupError(f"--straggler-policy elastic acts under BSP; --switch-order {order} has no BSP phase")


def job_setup(config: Config) -> dict[str, str]:
    """The flags that count in the mode and must be the same on all workers: flag -> value, as on the command line."""
    fields = (
        field
        for field in dataclasses.fields(Config)
        if config.mode in field.metadata["modes"] and not field.metadata["of_host"]
    )
    return {field.metadata["names"][0]: _as_typed(getattr(config, field.name)) for field in fields}


def _as_typed(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def check_job(config: Config, num_servers: int, num_workers: int) -> None:
    """Makes sure that a cluster can run what the flags ask for.

    Raises:
        SetupError: it cannot.
    """
    if config.mode in ONE_SERVER and num_servers != 1:
        raise SetupError(
            f"mode {config.mode} keeps the model on one parameter server, here there are {num_servers}: set "
            "DMLC_NUM_SERVER=1 in every process (local_cluster.sh: --servers 1)"
        )
    batches = sum(config.train_steps) * num_workers
    if config.mode == "sync-switch" and batches > MAX_BATCHES:
        raise SetupError(f"--train-steps makes {batches} batches of all workers; {MAX_BATCHES} can be counted")
