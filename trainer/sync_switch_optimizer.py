"""The parameter server's side of Sync-Switch (sync_switch.py): weights, velocity, where the job is (schedule.py), and
who is told to stay in step with the others. This module runs in the server's process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trainer.decisions import Action, Decisions, Upload
from trainer.engine import mx
from trainer.parameters import wait_for
from trainer.rates import CONSTANT, Ramp, RateSchedule
from trainer.schedule import Schedule, Step, Way, phase_under
from trainer.steps import sgd_step
from trainer.whole_models import BAD_UPLOAD, TEXT_SIZE, WANT_STOP, Keys, WholeModelOptimizer, text_of, text_to_numbers

SAVE = 3  # a command beside UPLOAD and WANT_STOP
COUNTED_BY = 1 << 20  # a status vector holds float32, which count to 2^24: so a number of samples is two numbers there


class PhaseRule(NamedTuple):
    """Hyper-parameters of a phase."""

    learning_rate: float  # eta, of the mean of all N workers' gradients; an update of n of them takes n / N of it
    momentum: Ramp  # mu, by the samples of the phase
    schedule: RateSchedule = CONSTANT  # factor on eta, by the samples of the phase
    batch_size: int = 0  # 0: as it was


@dataclass(frozen=True)
class Settings:
    """What the algorithm is to do; `steps` and `ckpt_steps` have one number for each phase in `order`."""

    order: str  # 1 for BSP, 0 for ASP
    steps: tuple[int, ...]
    ckpt_steps: tuple[int, ...]  # between two checkpoints; 0: none
    learning_rate: float  # eta of all phases, where `rules` has none
    momentum: float  # mu of all phases, where `rules` has none
    policy: str
    weight_decay: float = 0.0  # lambda, as steps.py has it
    schedule: RateSchedule = CONSTANT  # factor on eta, by the samples of all phases
    rules: tuple[PhaseRule, ...] = ()  # of each phase, where they differ

    @property
    def saves(self) -> bool:
        """Whether there are checkpoints."""
        return any(self.ckpt_steps)

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
        saved_batches: of all workers in what was last saved.
        saved: parts done of each phase in it (schedule.py).
        saved_samples: of all workers in it, of each phase.
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
    saved_batches: int
    saved: tuple[int, ...]
    saved_samples: tuple[int, ...]
    left_out: tuple[int, ...]
    reason: str

    @classmethod
    def read(cls, numbers: np.ndarray, num_phases: int) -> Status:
        """Reads a status vector."""
        over, finished, phase, bsp, steps, freed, at_once, dropped, dealt_with_at, in_step, saved_batches, *rest = map(
            round, numbers[:-TEXT_SIZE].tolist()
        )
        saved, samples, flags = np.split(np.array(rest, dtype=int), [num_phases, 3 * num_phases])
        left_out = tuple(rank for rank, flag in enumerate(flags) if flag)
        saved_samples = tuple((samples[::2] * COUNTED_BY + samples[1::2]).tolist())
        return cls(
            bool(over), bool(finished), phase, bool(bsp), steps, freed, bool(at_once), dropped, dealt_with_at,
            bool(in_step), saved_batches, tuple(saved.tolist()), saved_samples, left_out, text_of(numbers),
        )  # fmt: skip


class SyncSwitchOptimizer(WholeModelOptimizer):
    """The server's side: weights, velocity and the schedule.

    Behind the model stands the copy for checkpoints, where there are any: weights, statistics, velocity.
    """

    def __init__(
        self,
        keys: Keys,
        schedule: Schedule,
        settings: Settings,
        decays: Sequence[bool],
        samples: Sequence[int] | None = None,
    ) -> None:
        """
        Args:
            schedule: where the job begins.
            decays: of each weight, whether weight decay acts on it. So many of the sent arrays are gradients; behind
                them stand BatchNorm's statistics.
            samples: that were trained on in each phase, where a job is resumed.
        """
        super().__init__(keys)
        self._schedule = schedule
        self._settings = settings
        self._decays = decays
        self._num_weights = len(decays)
        self._velocity: list[mx.nd.NDArray] = []
        self._samples = list(samples or [0] * len(settings.order))  # of all workers, by phase
        self._samples_sent = [0] * keys.num_workers  # with each worker's last upload
        self._uploads = [0] * keys.num_workers
        self._freed = [0] * keys.num_workers
        self._at_once = [False] * keys.num_workers
        self._in_step = [True] * keys.num_workers
        self._reasons = [""] * keys.num_workers
        self._decisions: Decisions
        self._note_saved()

    def begin(self) -> None:
        """The velocity is zero, or what a checkpoint held."""
        self._velocity = self._first_velocity()
        self._decisions = Decisions(self._settings.decides_by, self.keys.num_workers, self.now())

    def act(self, rank: int, code: int, values: Sequence[float]) -> Iterable[int]:
        """UPLOAD: gradients and statistics are there, or BAD_UPLOAD; WANT_STOP: the stop request of a worker that
        waits; SAVE: copy all for a checkpoint."""
        if code == WANT_STOP or (code == BAD_UPLOAD and values[0]):
            self._schedule.want_stop()
        if code == WANT_STOP:
            return (rank,)
        if code == BAD_UPLOAD:  # it goes on at once, and has another try with its next batch
            self._freed[rank] += 1
            self._at_once[rank] = True
        elif code == SAVE:
            self._save()
        else:
            left_out = frozenset(self._schedule.left_out)
            free = self._take(rank, Upload.read(values)).free
            self._at_once[rank] = rank in free
            for other in free:
                self._freed[other] += 1
            keeps = [0] if self._settings.saves else []  # rank 0 keeps checkpoints, also while it waits
            return {rank, *free, *(self._schedule.left_out - left_out), *keeps}
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

    @property
    def _phase(self) -> int:
        return min(self._schedule.current, len(self._schedule.phases) - 1)

    def _apply(self, ranks: tuple[int, ...], phase: int) -> None:
        """One update out of some workers' gradients, summed in the order of their ranks, however they arrived.

        Args:
            phase: index of the one whose hyper-parameters count.
        """
        count, settings, rule = len(ranks), self._settings, self._settings.rule(phase)
        share = count / self.keys.num_workers
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
            sgd_step(target, mean, rule.learning_rate * share * factor, decay, velocity, momentum)
        wait_for(self.shown[position] for position in range(self.keys.num_sent))

    def _first_velocity(self) -> list[mx.nd.NDArray]:
        weights = [self.shown[position] for position in range(self._num_weights)]
        if self._settings.saves:  # the initial copy is what a checkpoint held, or zero
            return [self.shown[2 * self.keys.num_sent + position].copy() for position in range(self._num_weights)]
        return [mx.nd.zeros_like(weight) for weight in weights] if self._settings.has_momentum else []

    def _save(self) -> None:
        current = [self.shown[position] for position in range(self.keys.num_sent)]
        for position, array in enumerate([*current, *self._velocity], start=self.keys.num_sent):
            array.copyto(self.shown[position])
        wait_for(self.shown.values())
        self._note_saved()

    def _note_saved(self) -> None:
        samples = (part for count in self._samples for part in divmod(count, COUNTED_BY))
        self._saved = [self._schedule.batches, *(phase.done for phase in self._schedule.phases), *samples]

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
            *self._saved,
            *(other in schedule.left_out for other in left_out),
        )
        return [*map(float, state), *text_to_numbers(self._reasons[rank])]
