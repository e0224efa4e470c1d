"""A trainer's inputs: the learning task, the other processes, and the settings of the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from esync.clock import Clock, RealClock
from esync.metric import ACCURACY, Metric
from esync.progress import Limits
from trainer.emulation import Speed
from trainer.membership import Changes, Company, Membership
from trainer.steps import PLAIN, Rule

if TYPE_CHECKING:
    from config import Config
    from esync.client import StateClient
    from esync.measure import Measure
    from trainer.datasets.batches import Batches
    from trainer.evaluation.evaluator_process import EvaluatorProcess
    from trainer.evaluation.saved_model import ModelSaver
    from trainer.hub.hub_trainer import Exchange
    from trainer.network import Batch, Network, Passes
    from trainer.run_logs.pace import Pacing
    from trainer.run_logs.scalars import TensorBoard
    from trainer.survival.checkpoint_manager import CheckpointManager
    from trainer.trainer import Trainer
    from trainer.transport.protocol import Transport


@dataclass(slots=True)
class LearningTask:
    """The network and its samples."""

    network: Network
    batches: Batches
    warm_up_batch: Batch  # any samples, for test steps
    loss: Any = None  # of the network's library; None: cross-entropy
    passes: Callable[[Any], Passes] | None = None  # makes a trainer's; None: those of the network and the loss
    classes: int = 0  # number of classes of the network; 0: it computes nothing
    evaluate: Callable[[], float | None] | None = None  # returns the metric; None if an evaluation only takes time
    metric: Metric = ACCURACY  # what `evaluate` returns


@dataclass(slots=True)
class Peers:
    """The other processes of the job, and this worker's place among them."""

    membership: Callable[[], Membership] = Membership  # called at the start of each round
    transport: Transport | None = None  # of an algorithm that sums
    state_server: StateClient | None = None  # of an algorithm that uses one
    company: Callable[[Trainer], Company] = Company  # makes the trainer's
    changes: Callable[[], Changes] = dict  # with a hub alone
    # Seconds since all trained, where this worker has taken the place of a lost one; None: it was there from the begin
    job_age_s: Callable[[], float | None] = lambda: None
    leaves: Callable[[], bool] = lambda: False  # whether this worker was asked to leave while the others continue
    is_evaluator: Callable[[float], bool] = lambda step_s: True  # whether this worker evaluates; all workers call it
    gather: Callable[[str, Any], list[Any] | None] = lambda label, mine: [mine]  # rendezvous_info.Gather
    watch: Callable[[Measure], None] = lambda measure: None  # called when training begins
    hub: Exchange | None = None  # of an algorithm with a server part


@dataclass(slots=True)
class RunSettings:
    """The settings of the run."""

    rule: Rule = PLAIN  # of the steps, without their size
    as_halves: bool = False  # the workers' sums travel as float16
    clock: Clock = field(default_factory=RealClock)
    limits: Limits = field(default_factory=Limits)
    stop_requested: Callable[[], bool] = lambda: False  # whether a signal came
    eval_every: int = 1  # rounds between evaluations
    eval_every_s: float = 0.0  # seconds between evaluations; 0: `eval_every` counts
    evaluator: EvaluatorProcess | None = None  # evaluates in place of this worker
    saver: ModelSaver | None = None  # stores the network on the worker that evaluates
    max_bad_steps: int = 0  # bad steps in a row that end the job; 0: numbers are not checked
    speed: Speed = field(default_factory=Speed)  # emulated speed of this worker
    pacing: Pacing | None = None  # checks that this speed is kept; None in virtual time, where it always is
    board: TensorBoard | None = None  # gets each round too
    checkpoints: CheckpointManager | None = None  # this worker's; None: none are taken
    logs_lines: bool = False  # rounds are lines of one file, not files
    tell_every_s: float = (
        0.0  # seconds between lines on the console; the first round and those with an evaluation have one
    )


@dataclass(slots=True)
class Context:
    """One worker's inputs. An algorithm's trainer is made of it and of its own flags."""

    config: Config
    task: LearningTask
    peers: Peers
    run: RunSettings

    @property
    def hub(self) -> Exchange:
        assert self.peers.hub is not None
        return self.peers.hub

    @property
    def state(self) -> StateClient:
        assert self.peers.state_server is not None
        return self.peers.state_server
