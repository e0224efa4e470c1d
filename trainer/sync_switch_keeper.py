"""The parameter server's side of Sync-Switch (sync_switch.py): weights, velocity, and where the job is (schedule.py).
This module runs in the server's process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.engine import mx
from trainer.parameters import wait_for
from trainer.schedule import Schedule, Way
from trainer.whole_models import Keys, ModelKeeper

COMPUTED, WANT_STOP, SAVE = 1, 2, 3  # commands; COMPUTED also says: wants the job to stop, was told to go alone

_LISTS = 4  # on the board, with a number for each worker


@dataclass(frozen=True)
class Settings:
    """What the algorithm is to do; `steps` and `ckpt_steps` have one number for each phase in `order`."""

    order: str  # 1 for BSP, 0 for ASP
    steps: tuple[int, ...]
    ckpt_steps: tuple[int, ...]  # between two checkpoints; 0: none
    learning_rate: float  # eta
    momentum: float  # mu
    policy: str

    @property
    def saves(self) -> bool:
        """Whether there are checkpoints."""
        return any(self.ckpt_steps)


@dataclass(frozen=True)
class Board:
    """What the server tells the workers."""

    over: bool
    finished: bool
    phase: int  # index of the current one
    bsp: bool
    steps: int  # done in all
    freed: tuple[int, ...]  # by rank: how many of its gradients are dealt with
    left_out: tuple[int, ...]  # ranks
    dropped: tuple[int, ...]  # by rank: how many of its gradients were not applied
    dealt_with_at: tuple[int, ...]  # by rank: the batches of all workers when its last gradient was dealt with
    saved_batches: int  # of all workers in what was last saved
    saved: tuple[int, ...]  # parts done of each phase in it (schedule.py)

    @classmethod
    def read(cls, numbers: np.ndarray, num_workers: int) -> Board:
        """Reads the board's numbers."""
        over, finished, phase, bsp, steps, *rest = np.rint(numbers).astype(int).tolist()
        freed, left_out, dropped, dealt_with_at = (
            tuple(rest[part * num_workers :][:num_workers]) for part in range(_LISTS)
        )
        ranks = tuple(rank for rank, flag in enumerate(left_out) if flag)
        saved_batches, *saved = rest[_LISTS * num_workers :]
        return cls(
            bool(over), bool(finished), phase, bool(bsp), steps,
            freed, ranks, dropped, dealt_with_at, saved_batches, tuple(saved),
        )  # fmt: skip

    @staticmethod
    def size(num_workers: int, num_phases: int) -> int:
        """How many numbers there are."""
        return 6 + _LISTS * num_workers + num_phases


class SyncSwitchKeeper(ModelKeeper):
    """The server's side: weights, velocity and the schedule.

    Behind the model stands the copy for checkpoints, where there are any: weights, statistics, velocity.
    """

    def __init__(self, keys: Keys, schedule: Schedule, settings: Settings, num_weights: int) -> None:
        """
        Args:
            schedule: where the job begins.
            num_weights: how many of the sent arrays are gradients; behind them stand BatchNorm's statistics.
        """
        super().__init__(keys, Board.size(keys.num_workers, len(schedule.phases)))
        self._schedule = schedule
        self._settings = settings
        self._num_weights = num_weights
        self._velocity: list[mx.nd.NDArray] = []
        self._freed = [0] * keys.num_workers
        self._note_saved()
        self._write_board()

    def command(self, values: np.ndarray) -> None:
        """COMPUTED: an inbox is full; WANT_STOP: a waiting worker's wish; SAVE: copy all for a checkpoint."""
        code, rank = int(values[0]), int(values[1])
        if not self._velocity:
            self._velocity = self._first_velocity()
        if code == COMPUTED:
            step = self._schedule.arrive(rank, alone=bool(values[3]), wants_stop=bool(values[2]))
            if step.apply:
                self._apply(step.apply)
            for other in step.free:
                self._freed[other] += 1
        elif code == WANT_STOP:
            self._schedule.want_stop()
        else:
            self._save()
        self._write_board()

    def _apply(self, ranks: tuple[int, ...]) -> None:
        """One update out of some workers' gradients, summed in the order of their ranks, however they arrived."""
        count, settings = len(ranks), self._settings
        share = count / self.keys.num_workers
        for position in range(self.keys.num_sent):
            target = self.shown[position]
            arrived = [self.inboxes[rank][position] for rank in ranks]
            mean = arrived[0] if count == 1 else mx.nd.add_n(*arrived) / count
            if position >= self._num_weights:
                target += share * (mean - target)
                continue
            if settings.momentum:
                velocity = self._velocity[position]
                velocity *= settings.momentum
                velocity += mean
                mean = velocity
            mx.nd.sgd_update(target, mean, lr=settings.learning_rate * share, out=target)
        wait_for(self.shown[position] for position in range(self.keys.num_sent))

    def _first_velocity(self) -> list[mx.nd.NDArray]:
        weights = [self.shown[position] for position in range(self._num_weights)]
        if self._settings.saves:  # the initial copy is what a checkpoint held, or zero
            return [self.shown[2 * self.keys.num_sent + position].copy() for position in range(self._num_weights)]
        return [mx.nd.zeros_like(weight) for weight in weights] if self._settings.momentum else []

    def _save(self) -> None:
        current = [self.shown[position] for position in range(self.keys.num_sent)]
        for position, array in enumerate([*current, *self._velocity], start=self.keys.num_sent):
            array.copyto(self.shown[position])
        wait_for(self.shown.values())
        self._note_saved()

    def _note_saved(self) -> None:
        self._saved = [self._schedule.batches, *(phase.done for phase in self._schedule.phases)]

    def _write_board(self) -> None:
        schedule, ranks = self._schedule, range(self.keys.num_workers)
        self.board[:] = [
            schedule.over,
            schedule.finished,
            min(schedule.current, len(schedule.phases) - 1),
            schedule.way is Way.BSP,
            schedule.steps,
            *self._freed,
            *(rank in schedule.left_out for rank in ranks),
            *schedule.dropped,
            *schedule.dealt_with_at,
            *self._saved,
        ]
