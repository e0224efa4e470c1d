"""The optimizer on Sync-Switch's parameter server (sync_switch.py): weights, velocity, phases (schedule.py), and the
policy that tells workers to stay in step. This module runs in the server's process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rates import CONSTANT, Ramp, RateSchedule
from trainer.algorithms.schedule import Outcome, Schedule, SyncProtocol, phase_under
from trainer.algorithms.server_policies import Action, PolicyRunner, UploadReport
from trainer.algorithms.whole_models import (
    BAD_UPLOAD,
    TEXT_SIZE,
    WANT_STOP,
    Keys,
    WholeModelOptimizer,
    text_of,
    text_to_numbers,
)
from trainer.pieces import sum_of
from trainer.steps import sgd_step


class PhaseRule(NamedTuple):
    """Hyper-parameters of a phase."""

    learning_rate: float  # eta, of the mean of all N workers' gradients; an update of n of them takes n / N of it
    momentum: Ramp  # mu, by the samples of the phase
    schedule: RateSchedule = CONSTANT  # factor on eta, by the samples of the phase
    batch_size: int = 0  # 0: unchanged
    of_each: bool = False  # eta is of each single gradient, not of N


@dataclass(frozen=True)
class SyncSwitchSettings:
    """The phases, their hyper-parameters and the straggler policy."""

    order: str  # 1 for BSP, 0 for ASP
    steps: tuple[int, ...]  # of each phase
    learning_rate: float  # eta of all phases, without `rules`
    momentum: float  # mu of all phases, without `rules`
    policy: str
    weight_decay: float = 0.0  # lambda, as in steps.py
    schedule: RateSchedule = CONSTANT  # factor on eta, by the samples of all phases
    rules: tuple[PhaseRule, ...] = ()  # of each phase; empty: all are alike

    def rule(self, phase: int) -> PhaseRule:
        return self.rules[phase] if self.rules else PhaseRule(self.learning_rate, Ramp.constant(self.momentum))

    @property
    def has_momentum(self) -> bool:
        return not all(self.rule(phase).momentum.is_zero for phase in range(len(self.order)))


@dataclass(frozen=True)
class SyncSwitchStatus:
    """The server's message to a worker."""

    over: bool  # the job has ended for all workers
    finished: bool  # all phases are done
    phase: int  # index of the current one
    bsp: bool  # the job runs under BSP
    steps: int  # done in all phases
    answered: int  # number of this worker's gradients after which it may continue
    at_once: bool  # its last gradient was answered on arrival
    dropped: int  # number of its gradients that were not applied
    processed_at: int  # batches of all workers when its last gradient was applied or dropped
    in_step: bool  # the latest decision tells it to stay in step with the others
    left_out: tuple[int, ...]  # ranks that elastic has left out
    reason: str  # of the latest decision on this worker, in words

    @classmethod
    def read(cls, numbers: np.ndarray) -> SyncSwitchStatus:
        over, finished, phase, bsp, steps, answered, at_once, dropped, processed_at, in_step, *flags = map(
            round, numbers[:-TEXT_SIZE].tolist()
        )
        left_out = tuple(rank for rank, flag in enumerate(flags) if flag)
        return cls(
            bool(over), bool(finished), phase, bool(bsp), steps, answered, bool(at_once), dropped, processed_at,
            bool(in_step), left_out, text_of(numbers),
        )  # fmt: skip


class SyncSwitchOptimizer(WholeModelOptimizer):
    """Weights, velocity and schedule, on the server."""

    def __init__(self, keys: Keys, schedule: Schedule, settings: SyncSwitchSettings, decays: Sequence[bool]) -> None:
        """`decays`: of each weight, whether weight decay acts on it. The sent arrays are as many gradients, then
        BatchNorm's statistics."""
        super().__init__(keys)
        self._schedule = schedule
        self._settings = settings
        self._decays = decays
        self._num_weights = len(decays)
        self._velocity: list[np.ndarray] = []
        self._samples = [0] * len(settings.order)  # of all workers, by phase
        self._samples_sent = [0] * keys.num_workers  # with each worker's last upload
        self._uploads = [0] * keys.num_workers
        self._answered = [0] * keys.num_workers
        self._at_once = [False] * keys.num_workers
        self._in_step = [True] * keys.num_workers
        self._reasons = [""] * keys.num_workers
        self._policy: PolicyRunner

    def state(self) -> dict[str, Any]:
        # Without the gradients that wait for others.
        return {
            "done": [phase.done for phase in self._schedule.phases],
            "batches": self._schedule.batches,
            "samples": [*self._samples],
            "velocity": self._velocity,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        super().restore(saved)
        self._schedule = self._schedule.resumed(saved["done"], saved["batches"])
        self._samples = list(saved["samples"])

    def begin(self) -> None:
        if self._settings.has_momentum:
            self._velocity = [np.zeros_like(self.shown[position]) for position in range(self._num_weights)]
        for array, saved in zip(self._velocity, self.take_saved().get("velocity", ()), strict=False):
            array[:] = saved.reshape(array.shape)
        self._policy = PolicyRunner(f"sync-switch-{self._settings.policy}", self.keys.num_workers, self.now())

    def act(self, rank: int, code: int, values: Sequence[float]) -> Iterable[int]:
        if code == WANT_STOP or (code == BAD_UPLOAD and values[0]):
            self._schedule.want_stop()
        if code == WANT_STOP:
            return (rank,)
        if code == BAD_UPLOAD:  # the worker continues at once with its next batch
            self._answered[rank] += 1
            self._at_once[rank] = True
        else:
            left_out = frozenset(self._schedule.left_out)
            answered = self._arrive(rank, UploadReport.read(values)).answered
            self._at_once[rank] = rank in answered
            for other in answered:
                self._answered[other] += 1
            return {rank, *answered, *(self._schedule.left_out - left_out)}
        return (rank,)

    def _arrive(self, rank: int, upload: UploadReport) -> Outcome:
        """In a BSP phase the policy decides whether the worker stays in step; the schedule decides the rest."""
        now = self.now()
        self._uploads[rank] += 1
        self._policy.enter(rank, self._uploads[rank], now)
        self._policy.uploaded(rank, upload, now)
        out_of_step = False
        if self._schedule.policy_applies:
            decision = self._policy.decide(rank, now)
            out_of_step = decision.action is Action.TRAIN
            self._in_step[rank], self._reasons[rank] = not out_of_step, decision.reason
        self._samples_sent[rank] = upload.samples
        phase = self._phase_of_gradients  # before it may be the next one
        step = self._schedule.arrive(rank, out_of_step, upload.wants_stop)
        if step.apply:
            self._apply(step.apply, phase)
        return step

    def remove_worker(self, rank: int) -> Iterable[int]:
        self._policy.remove_worker(rank)
        phase = self._phase_of_gradients
        step = self._schedule.remove_worker(rank)
        if step.apply:
            self._apply(step.apply, phase)
        for other in step.answered:
            self._answered[other] += 1
        return range(self.keys.num_workers)

    def add_worker(self, rank: int) -> None:
        self._schedule.add_worker(rank)

    @property
    def _phase(self) -> int:
        return min(self._schedule.current, len(self._schedule.phases) - 1)

    @property
    def _phase_of_gradients(self) -> int:
        return phase_under(self._settings.order, self._phase, self._schedule.protocol is SyncProtocol.BSP)

    def _apply(self, ranks: tuple[int, ...], phase: int) -> None:
        """Makes one update of these workers' gradients, summed in the order of ranks, not of arrival; the phase gives
        the hyper-parameters."""
        count, settings, rule = len(ranks), self._settings, self._settings.rule(phase)
        share = count / self._schedule.num_left
        samples = sum(self._samples_sent[rank] for rank in ranks)
        self._samples[phase] += samples
        of_phase = self._samples[phase]
        factor = settings.schedule.factor(sum(self._samples)) * rule.schedule.factor(of_phase)
        momentum, has_momentum = rule.momentum.value(of_phase), settings.has_momentum
        for position in range(self.keys.num_arrays):
            target = self.shown[position]
            arrived = [self.buffers[rank][position] for rank in ranks]
            mean = arrived[0] if count == 1 else sum_of(arrived) / count
            if position >= self._num_weights:
                target += share * (mean - target)
                continue
            decay = settings.weight_decay * samples / count * self._decays[position]
            velocity = self._velocity[position] if has_momentum else None
            rate = rule.learning_rate * (count if rule.of_each else share)
            sgd_step(target, mean, rate * factor, decay, velocity, momentum)

    def status(self, rank: int) -> list[float]:
        schedule = self._schedule
        left_out = range(self.keys.num_workers) if schedule.leaves_out else ()
        state = (
            schedule.over,
            schedule.finished,
            self._phase,
            schedule.protocol is SyncProtocol.BSP,
            schedule.steps,
            self._answered[rank],
            self._at_once[rank],
            schedule.dropped[rank],
            schedule.processed_at[rank],
            self._in_step[rank],
            *(other in schedule.left_out for other in left_out),
        )
        return [*map(float, state), *text_to_numbers(self._reasons[rank])]
