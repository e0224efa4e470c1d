"""The parameter server's side of Sync-Switch (sync_switch.py): weights, velocity, where the job is (schedule.py), and
who is told to stay in step with the others. This module runs in the server's process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rates import CONSTANT, Ramp, RateSchedule
from trainer.algorithms.schedule import Schedule, Step, Way, phase_under
from trainer.algorithms.server_policies import Action, Decisions, Upload
from trainer.algorithms.whole_models import (
    BAD_UPLOAD,
    TEXT_SIZE,
    WANT_STOP,
    Keys,
    WholeModelOptimizer,
    text_of,
    text_to_numbers,
)
from trainer.engine import mx
from trainer.parameters import wait_for
from trainer.steps import sgd_step


class PhaseRule(NamedTuple):
    """Hyper-parameters of a phase."""

    learning_rate: float  # eta, of the mean of all N workers' gradients; an update of n of them takes n / N of it
    momentum: Ramp  # mu, by the samples of the phase
    schedule: RateSchedule = CONSTANT  # factor on eta, by the samples of the phase
    batch_size: int = 0  # 0: as it was
    of_each: bool = False  # eta is that of each gradient, however many workers there are


@dataclass(frozen=True)
class Settings:
    """What the algorithm is to do; `steps` has one number for each phase in `order`."""

    order: str  # 1 for BSP, 0 for ASP
    steps: tuple[int, ...]
    learning_rate: float  # eta of all phases, where `rules` has none
    momentum: float  # mu of all phases, where `rules` has none
    policy: str
    weight_decay: float = 0.0  # lambda, as steps.py has it
    schedule: RateSchedule = CONSTANT  # factor on eta, by the samples of all phases
    rules: tuple[PhaseRule, ...] = ()  # of each phase, where they differ

    @property
    def decides_by(self) -> str:
        """Name of the state server's policy."""
        return f"sync-switch-{self.policy}"

    def rule(self, phase: int) -> PhaseRule:
        """Of a phase, by its index."""
        return self.rules[phase] if self.rules else PhaseRule(self.learning_rate, Ramp.constant(self.momentum))

    @property
    def has_momentum(self) -> bool:
        """Whether there is a velocity, in any phase."""
        return not all(self.rule(phase).momentum.is_zero for phase in range(len(self.order)))


@dataclass(frozen=True)
class Status:
    """What the server tells a worker.

    Attributes:
        over: the job is, for all.
        finished: all phases are done.
        phase: index of the current one.
        bsp: how the job goes on.
        steps: done in all.
        freed: how many of the worker's gradients are dealt with.
        at_once: the last one was as soon as it was there.
        dropped: how many were not applied.
        dealt_with_at: the batches of all workers when its last gradient was dealt with.
        in_step: it was told to stay in step with the others, by the latest decision on it.
        left_out: ranks; none but under elastic.
        reason: of the latest decision on this worker, in words.
    """

    over: bool
    finished: bool
    phase: int
    bsp: bool
    steps: int
    freed: int
    at_once: bool
    dropped: int
    dealt_with_at: int
    in_step: bool
    left_out: tuple[int, ...]
    reason: str

    @classmethod
    def read(cls, numbers: np.ndarray) -> Status:
        """Reads a status vector."""
        over, finished, phase, bsp, steps, freed, at_once, dropped, dealt_with_at, in_step, *flags = map(
            round, numbers[:-TEXT_SIZE].tolist()
        )
        left_out = tuple(rank for rank, flag in enumerate(flags) if flag)
        return cls(
            bool(over), bool(finished), phase, bool(bsp), steps, freed, bool(at_once), dropped, dealt_with_at,
            bool(in_step), left_out, text_of(numbers),
        )  # fmt: skip


class SyncSwitchOptimizer(WholeModelOptimizer):
    """The server's side: weights, velocity and the schedule."""

    def __init__(self, keys: Keys, schedule: Schedule, settings: Settings, decays: Sequence[bool]) -> None:
        """
        Args:
            schedule: where the job begins.
            decays: of each weight, whether weight decay acts on it. So many of the sent arrays are gradients; behind
                them stand BatchNorm's statistics.
        """
        super().__init__(keys)
        self._schedule = schedule
        self._settings = settings
        self._decays = decays
        self._num_weights = len(decays)
        self._velocity: list[mx.nd.NDArray] = []
        self._samples = [0] * len(settings.order)  # of all workers, by phase
        self._samples_sent = [0] * keys.num_workers  # with each worker's last upload
        self._uploads = [0] * keys.num_workers
        self._freed = [0] * keys.num_workers
        self._at_once = [False] * keys.num_workers
        self._in_step = [True] * keys.num_workers
        self._reasons = [""] * keys.num_workers
        self._decisions: Decisions

    def state(self) -> dict[str, Any]:
        """As WholeModelOptimizer says: what waits for others is not among it."""
        return {
            "done": [phase.done for phase in self._schedule.phases],
            "batches": self._schedule.batches,
            "samples": self._samples,
            "velocity": [array.asnumpy() for array in self._velocity],
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """As WholeModelOptimizer says."""
        super().restore(saved)
        self._schedule = self._schedule.resumed(saved["done"], saved["batches"])
        self._samples = list(saved["samples"])

    def begin(self) -> None:
        """The velocity is zero, or what a checkpoint held."""
        if self._settings.has_momentum:
            self._velocity = [mx.nd.zeros_like(self.shown[position]) for position in range(self._num_weights)]
        for array, saved in zip(self._velocity, self.take_saved().get("velocity", ()), strict=False):
            array[:] = saved.reshape(array.shape)
        self._decisions = Decisions(self._settings.decides_by, self.keys.num_workers, self.now())

    def act(self, rank: int, code: int, values: Sequence[float]) -> Iterable[int]:
        """UPLOAD: gradients and statistics are there, or BAD_UPLOAD; WANT_STOP: the stop request of a worker that
        waits."""
        if code == WANT_STOP or (code == BAD_UPLOAD and values[0]):
            self._schedule.want_stop()
        if code == WANT_STOP:
            return (rank,)
        if code == BAD_UPLOAD:  # it goes on at once, and has another try with its next batch
            self._freed[rank] += 1
            self._at_once[rank] = True
        else:
            left_out = frozenset(self._schedule.left_out)
            free = self._take(rank, Upload.read(values)).free
            self._at_once[rank] = rank in free
            for other in free:
                self._freed[other] += 1
            return {rank, *free, *(self._schedule.left_out - left_out)}
        return (rank,)

    def _take(self, rank: int, upload: Upload) -> Step:
        """Decides, where the job is under BSP, whether the worker is to stay in step; then what is done is the
        schedule's."""
        now = self.now()
        self._uploads[rank] += 1
        self._decisions.enter(rank, self._uploads[rank], now)
        self._decisions.uploaded(rank, upload, now)
        alone = False
        if self._schedule.may_be_left:
            decision = self._decisions.decide(rank, now)
            alone = decision.action is Action.TRAIN
            self._in_step[rank], self._reasons[rank] = not alone, decision.reason
        self._samples_sent[rank] = upload.samples
        schedule = self._schedule
        phase = phase_under(self._settings.order, self._phase, schedule.way is Way.BSP)  # before it may be the next one
        step = schedule.arrive(rank, alone, upload.wants_stop)
        if step.apply:
            self._apply(step.apply, phase)
        return step

    def go_on_without(self, rank: int) -> Iterable[int]:
        """As WholeModelOptimizer says: where the others wait for it, they go on."""
        self._decisions.go_on_without(rank)
        phase = phase_under(self._settings.order, self._phase, self._schedule.way is Way.BSP)
        step = self._schedule.go_on_without(rank)
        if step.apply:
            self._apply(step.apply, phase)
        for other in step.free:
            self._freed[other] += 1
        return range(self.keys.num_workers)

    @property
    def _phase(self) -> int:
        return min(self._schedule.current, len(self._schedule.phases) - 1)

    def _apply(self, ranks: tuple[int, ...], phase: int) -> None:
        """One update out of some workers' gradients, summed in the order of their ranks, however they arrived.

        Args:
            phase: index of the one whose hyper-parameters count.
        """
        count, settings, rule = len(ranks), self._settings, self._settings.rule(phase)
        share = count / self._schedule.num_left
        samples = sum(self._samples_sent[rank] for rank in ranks)
        self._samples[phase] += samples
        of_phase = self._samples[phase]
        factor = settings.schedule.factor(sum(self._samples)) * rule.schedule.factor(of_phase)
        momentum, has_momentum = rule.momentum.value(of_phase), settings.has_momentum
        for position in range(self.keys.num_sent):
            target = self.shown[position]
            arrived = [self.buffers[rank][position] for rank in ranks]
            mean = arrived[0] if count == 1 else mx.nd.add_n(*arrived) / count
            if position >= self._num_weights:
                target += share * (mean - target)
                continue
            decay = settings.weight_decay * samples / count * self._decays[position]
            velocity = self._velocity[position] if has_momentum else None
            rate = rule.learning_rate * (count if rule.of_each else share)
            sgd_step(target, mean, rate * factor, decay, velocity, momentum)
        wait_for(self.shown[position] for position in range(self.keys.num_sent))

    def status(self, rank: int) -> list[float]:
        """As WholeModelOptimizer says."""
        schedule = self._schedule
        left_out = range(self.keys.num_workers) if schedule.leaves_out else ()
        state = (
            schedule.over,
            schedule.finished,
            self._phase,
            schedule.way is Way.BSP,
            schedule.steps,
            self._freed[rank],
            self._at_once[rank],
            schedule.dropped[rank],
            schedule.dealt_with_at[rank],
            self._in_step[rank],
            *(other in schedule.left_out for other in left_out),
        )
        return [*map(float, state), *text_to_numbers(self._reasons[rank])]
