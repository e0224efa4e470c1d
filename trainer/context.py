"""A trainer's inputs: the learning task, the other processes, and the settings of the run."""

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
    """The network and its samples.

    Attributes:
        feed: turns a batch into the inputs and targets of the passes.
        warm_up_batch: any samples, for test steps.
        passes: None: the network's own.
        classes: number of classes of the network; 0: it computes nothing.
        evaluate: returns the accuracy; None if an evaluation only takes time.
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
        membership: called at the start of each round.
        transport: of a distributed algorithm.
        state_server: of an algorithm that uses one.
        recovery: makes the loop's recovery object, in a job that survives the loss of a worker.
        lost: ranks of lost workers, in a job with a parameter server that continues without them.
        leaves: whether this worker was asked to leave while the others continue.
        is_evaluator: takes the seconds of a test step, returns whether this worker evaluates; all workers call it.
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
    """The settings of the run.

    Attributes:
        rule: of the steps, without their size.
        compression: of the workers' sums; None: they travel as they are.
        stop_requested: whether a signal came.
        eval_every: rounds between evaluations.
        eval_every_s: seconds between evaluations; 0: `eval_every` counts.
        evaluator: starts a process that evaluates in place of this worker.
        saver: stores the network on the worker that evaluates.
        max_bad_steps: bad steps in a row that end the job; 0: numbers are not checked.
        speed: emulated speed of this worker.
        pacing: checks that this speed is kept; None in virtual time, where it always is.
        checkpoints: this worker's; None where none are taken.
        logs_lines: rounds are lines of one file, not files.
        tell_every_s: seconds between lines on the console; rounds with an evaluation always have one.
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
    """One worker's inputs. The row of an algorithm in algorithms.py names a function `build(context)`."""

    config: Config
    task: LearningTask
    peers: Peers
    run: RunSettings

    @property
    def shared(self) -> Transport:
        assert self.peers.transport is not None
        return self.peers.transport

    @property
    def state(self) -> StateClient:
        assert self.peers.state_server is not None
        return self.peers.state_server
