"""What the head of an algorithm's file is made of: its row, and flags, of which several algorithms share some.

Standard library only.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from flag_parser import Flag, Flags
from flag_values import above_zero, at_least, below_one, rate_schedule, zero_or_one
from utils import SetupError


class TransportKind(enum.Enum):
    """What an algorithm needs between its processes."""

    NONE = "nothing: one process alone"
    SUM = "the sum over all workers"
    HUB = "a server part of its own, on the hub"


class Workers(enum.Enum):
    """Which workers of a cluster take part."""

    ALL = "all workers"
    FASTEST = "the fastest worker"
    K_FASTEST = "the K fastest workers"
    BUT_SLOWEST = "all workers but the slowest"

    @property
    def takes_number(self) -> bool:
        """Whether --fastest says how many they are."""
        return self in (Workers.ALL, Workers.K_FASTEST)

    def among(self, step_times_s: Sequence[float], k: int = 0) -> tuple[int, ...]:
        """Their places in a cluster, ascending, by its workers' step times. Of equally fast workers the first counts as
        the fastest, and the last as the slowest. `k`: of --fastest; 0: all, or of K_FASTEST half, rounded up."""
        count = len(step_times_s)
        by_speed = sorted(range(count), key=step_times_s.__getitem__)  # stable: equal ones keep their order
        number = {
            Workers.ALL: k or count,
            Workers.FASTEST: 1,
            Workers.K_FASTEST: k or (count + 1) // 2,
            Workers.BUT_SLOWEST: count - 1,
        }
        return tuple(sorted(by_speed[: number[self]]))


class Look(NamedTuple):
    """One look in every figure, also in black and white, and for colour-blind readers; no two share a part of it."""

    colour: str  # of Okabe and Ito's palette, then of Paul Tol's dark ones, then as far from all others as possible
    line: str | tuple[int, tuple[int, ...]]  # as matplotlib takes it: offset and lengths of the dashes
    marker: str | tuple[int, int, int]  # a letter, or corners, style and degrees of a star
    hatch: str


class EventKind(NamedTuple):
    """An event that a round log can name, and its mark on a curve of accuracy."""

    name: str
    marker: str  # as matplotlib takes it
    size: float  # points; so is `edge`
    edge: float = 1.2
    is_hollow: bool = True  # else a tick across the curve
    is_frequent: bool = False  # marked from the first evaluation on only


RELEASE = EventKind("release", "|", 6, 0.9, is_hollow=False, is_frequent=True)  # a newer global model
MEMBERS = EventKind("members", "P", 6.5)  # workers were lost, or joined; of every row
RESUME = EventKind("resume", "s", 6)  # the job continued from a checkpoint
EVALUATOR = EventKind("evaluator", "^", 7)  # the worker evaluates itself from here on; of every row

LEARNING_RATES = ("learning_rate", "local_lr")  # of gradients and of local steps: each algorithm has one of them
OPTIMIZERS = SGD, RMSPROP, ADAM, ADAMW = "sgd", "rmsprop", "adam", "adamw"


class AlgorithmFlags(Flags):
    """The flags of an algorithm: those of the steps (trainer/steps.py), and a subclass's own. What other code asks of
    any algorithm's stands here."""

    momentum: float = Flag(0.0, below_one, needs=("optimizer", SGD)).means(
        "momentum mu of SGD, in all steps: v <- mu * v + gradient, w <- w - learning rate * v"
    )
    weight_decay: float = Flag(0.0, at_least(0, float)).means(
        "lambda: adds lambda * w to the gradient of the MEAN loss (so batch size * lambda * w to that of the summed "
        "one), for the weights of convolutions and dense layers"
    )
    clip_norm: float = Flag(0.0, at_least(0, float)).means(
        "most that the norm of a step's gradient may be, of the MEAN loss and all weights together; a longer one is "
        "scaled down, as by torch's clip_grad_norm_ (0: none is). Where a server takes the steps each worker does it"
    )
    lr_schedule: str = Flag("constant", rate_schedule).means(
        "factor on the learning rate by the samples that all workers have trained on: constant, or, joined by +, "
        "warmup:10000 (from 0), step:300000,450000x0.1 (a tenth after each), cosine:600000 (to 0; x0.01: to 0.01)"
    )

    rate_field: ClassVar[str]  # of its step size
    # What other code reads of any algorithm's: some have a flag in its place.
    optimizer: str = SGD  # of the workers' steps; a server takes SGD's
    sync_every: int = 1  # local steps a round, where they are always as many
    global_lr: float = 1.0  # of the outer optimiser, as is its momentum
    outer_momentum: float = 0.0
    epsilon: float = 0.5  # of the state server's rule, as is `anchor`
    anchor: int | str = 0
    switch_order: str = ""  # of phases, as are the next two
    train_steps: tuple[int, ...] = ()
    phase_lr_schedule: tuple[str, ...] = ("constant",)

    def check(self, num_workers: int | None) -> None:
        """Raises SetupError where flags do not fit together. `num_workers` is None where it is not known yet."""

    @property
    def rate(self) -> float:
        """Its step size."""
        return float(getattr(self, self.rate_field))

    def step_sizes(self, batch_size: int, num_workers: int) -> list[tuple[str, float, int]]:
        """The step size and the batch size of each of its phases, with a name."""
        return [("", self.rate, batch_size)]


class GradientSteps(AlgorithmFlags):
    """Of gradients that the workers exchange, and of a worker alone."""

    rate_field = "learning_rate"
    learning_rate: float = Flag(0.001, above_zero, "-l", published=True).means(
        "learning rate of the gradients (Sync-Switch: under BSP; under ASP it is divided by the number of workers)"
    )


class OwnSteps(AlgorithmFlags):
    """Where the workers take the steps, and no server."""

    optimizer: str = Flag(SGD, choices=OPTIMIZERS).means(
        "optimizer of the workers' steps: SGD, RMSProp or Adam with MXNet's defaults, or AdamW as torch has it, whose "
        "--weight-decay is apart from the gradient"
    )


class OwnGradientSteps(GradientSteps, OwnSteps):
    """Both of these."""


class LocalSteps(OwnSteps):
    """Steps on weights of each worker's own."""

    rate_field = "local_lr"
    local_lr: float = Flag(0.001, above_zero, "-ll", published=True).means("learning rate of the local steps")


class OuterSteps(LocalSteps):
    """Steps of the global model, along the workers' updates."""

    global_lr: float = Flag(1.0, above_zero, "-gl", published=True).means(
        "factor on the averaged model update: the learning rate of the outer optimiser"
    )
    outer_momentum: float = Flag(0.0, below_one).means(
        "momentum of the outer optimiser, below 1: its gradient is the averaged model update of a round, its learning "
        "rate -gl (0 and -gl 1: the plain mean)"
    )


class Averaging(OuterSteps):
    """The mean of models that the workers sum (averaging.py)."""

    outer_nesterov: int = Flag(0, zero_or_one).means(
        "the outer momentum is Nesterov's (1, as in DiLoCo) or heavy-ball (0, as in SlowMo)"
    )
    estimate_statistics: int = Flag(0, at_least(0)).means(
        "number of batches of this worker's samples from which BatchNorm's running statistics are estimated before an "
        "evaluation, for it and for the saved model (0: those averaged over the workers, as published, which fit no "
        "model after rounds with many local steps)"
    )

    def check(self, num_workers: int | None) -> None:
        if self.outer_nesterov and not self.outer_momentum:
            raise SetupError(
                "--outer-nesterov 1 does nothing without momentum: also give --outer-momentum, above 0 and below 1 "
                "(DiLoCo: 0.9, with -gl 0.7), or leave it out"
            )


class FixedRounds(AlgorithmFlags):
    """Rounds of as many local steps as a flag says."""

    sync_every: int = Flag(8, at_least(1)).means("local steps a round (--dylu 1: of the fastest worker)")


class FixedAveraging(FixedRounds, Averaging):
    """The mean of models after rounds of as many local steps: local SGD's flags."""


@dataclass(frozen=True)
class Entry:
    """An algorithm, or a preset of one: it has a name of its own in launchers, logs, tables and figures."""

    name: str  # in the log tree
    title: str  # as the papers call it
    stem: str  # of its summary's file name
    paper: str = ""  # several are separated by "; "; each ends with its arXiv: or doi: number, where it has one
    look: Look = field(default=Look("", "", "", ""))  # `algorithms` has it
    values: tuple[tuple[str, Any], ...] = ()  # of a preset: flags' fields, and what they are set to
    tuned: tuple[tuple[str, Any], ...] = ()  # fields and their first values: the user's flags may set others
    given: tuple[str, ...] = ()  # of a preset: fields that make it with any value but zero; `tuned` has their first
    # A preset can let only some workers take part. These train in the algorithm's mode, and the launcher files their
    # logs under the preset's name.
    workers: Workers = Workers.ALL
    fastest: int = 0  # K of NAME-kK


@dataclass(frozen=True, kw_only=True)
class Algorithm(Entry):
    """A row. Its name is the value of -m."""

    settings: type[AlgorithmFlags]  # its own flags
    trainer: str  # class or function of its file that makes a worker's trainer of (context, settings)
    server: str = ""  # class or function of its file that makes its server part on the hub; imported by the hub
    # Of the kind HUB: an optimizer of MXNet's can take the place of the server part, where none of these flags is given
    # (of a tuple all); None: it never can
    on_kvstore: tuple[tuple[str, ...], ...] | None = None
    is_distributed: bool = True  # there are other processes, such as a hub
    rule: str | None = None  # the state server's policy, with fields of flags in braces; None: there is none
    page_only: bool = False  # the server part on the hub decides by the rule; a state server is told, for its page
    shares_batch: bool = False  # the rule decides on the sizes of the workers' batches
    waits: bool = True  # a worker waits for others in its exchanges
    events: tuple[EventKind, ...] = ()  # that its logs can tell, beside those of all rows
    module: str = ""  # its file; `algorithms` says it

    @property
    def transport(self) -> TransportKind:
        return TransportKind.HUB if self.server else TransportKind.SUM if self.is_distributed else TransportKind.NONE

    @property
    def has_kvstore(self) -> bool:
        """Whether MXNet's kvstore can carry its arrays."""
        return self.transport is TransportKind.SUM or self.on_kvstore is not None

    @property
    def has_state_server(self) -> bool:
        return self.rule is not None

    @property
    def needs_state_server(self) -> bool:
        """Whether its workers cannot train without it."""
        return self.has_state_server and not self.page_only


HEADS: dict[str, dict[str, Any]] = {}  # what files define whose head alone was read, by module


class EndOfHead(Exception):
    """The rest of an algorithm's file is not read."""


def end_of_head(module: dict[str, Any]) -> None:
    """Ends the reading of a file for its row; `module` is its `globals()`. What follows may import numpy and all of
    trainer/: programs that show flags, or draw figures, have no use for it. Where the whole file is imported later, its
    head is the one that was read."""
    if module["__spec__"] is None:
        raise EndOfHead
    module.update(HEADS.get(module["__name__"], {}))
