"""What a trainer works with: what is learnt, which processes take part, how the job is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainer.clock import Clock, RealClock
from trainer.emulation import Speed
from trainer.membership import Membership
from trainer.steps import PLAIN, Rule
from trainer.stop import Limits

if TYPE_CHECKING:
    from config import Config
    from trainer.collectives.compression import Compression
    from trainer.coordinator.client import StateClient
    from trainer.datasets.batches import Batches
    from trainer.datasets.samples import Samples
    from trainer.device import Passes
    from trainer.evaluation.evaluator_process import EvaluatorProcess
    from trainer.evaluation.saved_model import ModelSaver
    from trainer.recovering import Recovers
    from trainer.run_logs.pace import Pacing
    from trainer.survival.checkpoint_manager import CheckpointManager
    from trainer.transport.protocol import Transport


@dataclass(slots=True)
class LearningTask:
    """What is learnt, and from which samples.

    Attributes:
        feed: brings a batch to the form that the passes take.
        warm_up_batch: any samples; nothing is learnt from them.
        passes: the network's own, where none are given.
        classes: that the network tells apart; 0: it computes nothing.
        evaluate: returns the accuracy; None where an evaluation only takes time.
    """

    network: Any
    feed: Callable[[Samples], tuple[Any, Any]]
    batches: Batches
    warm_up_batch: Samples
    passes: Passes | None = None
    classes: int = 0
    evaluate: Callable[[], float | None] | None = None


@dataclass(slots=True)
class Peers:
    """The other processes of the job, and this worker's place among them.

    Attributes:
        membership: asked at the start of each round.
        transport: of a distributed algorithm.
        state_server: of an algorithm that speaks to one.
        recovery: makes the object that the loop asks, in a job that survives the loss of a worker.
        lost: ranks of workers without which a job with a parameter server continues.
        leaves: whether this worker was asked to leave while the others continue.
        is_evaluator: told the seconds of a test step, says whether this worker evaluates; all workers ask.
    """

    membership: Callable[[], Membership] = Membership
    transport: Transport | None = None
    num_servers: int = 0
    state_server: StateClient | None = None
    recovery: Callable[[Any], Recovers] | None = None
    lost: Callable[[], frozenset[int]] = frozenset
    leaves: Callable[[], bool] = lambda: False
    is_evaluator: Callable[[float], bool] = lambda step_s: True


@dataclass(slots=True)
class RunSettings:
    """How the job is run.

    Attributes:
        rule: of the steps that the flags ask for, without their size.
        compression: of what the workers sum; None: it travels as it is.
        stop_requested: whether a signal came.
        eval_every: rounds between evaluations.
        eval_every_s: seconds between them, in place of `eval_every` where it is not 0.
        evaluator: starts a process that evaluates in place of this worker.
        saver: stores the network on the worker that evaluates.
        max_bad_steps: in a row, behind which the job ends; 0: numbers are not checked.
        speed: that is emulated.
        pacing: checks that it is kept; None in virtual time, where it always is.
        checkpoints: this worker's; None where none are taken.
        logs_lines: rounds are lines of one file, not files.
        tell_every_s: between lines on the console; rounds with an evaluation have theirs in any case.
    """

    rule: Rule = PLAIN
    compression: Compression | None = None
    clock: Clock = field(default_factory=RealClock)
    limits: Limits = field(default_factory=Limits)
    stop_requested: Callable[[], bool] = lambda: False
    eval_every: int = 1
    eval_every_s: float = 0.0
    evaluator: Callable[[], EvaluatorProcess] | None = None
    saver: ModelSaver | None = None
    max_bad_steps: int = 0
    speed: Speed = field(default_factory=Speed)
    pacing: Pacing | None = None
    checkpoints: CheckpointManager | None = None
    logs_lines: bool = False
    tell_every_s: float = 0.0


@dataclass(slots=True)
class Context:
    """One worker's. An algorithm's module has a function `build(context)`, which algorithms.py names."""

    config: Config
    task: LearningTask
    peers: Peers
    run: RunSettings

    @property
    def shared(self) -> Transport:
        """The way to the other workers, of a distributed algorithm."""
        assert self.peers.transport is not None
        return self.peers.transport

    @property
    def state(self) -> StateClient:
        """The state server's client, of an algorithm that speaks to one."""
        assert self.peers.state_server is not None
        return self.peers.state_server
