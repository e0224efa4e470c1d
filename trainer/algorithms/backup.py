"""SSGD with backup workers (Chen et al., "Revisiting distributed synchronous SGD", 2016, arXiv:1604.00981): of N
workers b are spare. The first N - b gradients of a version of the model make the next one,
w <- w - eta * (sum of these) / (N - b); the b late ones are dropped, and a late worker continues with the newest
version (`Versions`).

As in SSGD each gradient is weighed by N * n_k / n before it is sent, so that all samples of the workers in time count
alike. With b = 0 this is SSGD. The paper has N + b workers of which N count; here b of N are spare, so that the number
of workers is the same in every mode.
"""

from algorithm_row import Algorithm, GradientSteps, end_of_head
from flag_parser import Flag
from flag_values import at_least
from utils import SetupError


class Settings(GradientSteps):
    """The flags of backup workers."""

    backup: int = Flag(1, at_least(0)).means(
        "number b of spare workers, below the number N of workers: a version of the model is complete with N - b "
        "gradients, and later ones are dropped"
    )

    def check(self, num_workers: int | None) -> None:
        if num_workers is not None and self.backup >= num_workers:
            raise SetupError(
                f"--backup {self.backup} of {num_workers} worker(s) leaves no worker whose gradient counts: give a "
                f"number from 0 to {num_workers - 1}, or more workers"
            )


ROW = Algorithm(
    name="backup",
    title="Backup workers",
    paper="Chen et al., 2016, arXiv:1604.00981",
    settings=Settings,
    trainer="BackupTrainer",
    server="BackupServer",
    stem="Backup",
)
end_of_head(globals())

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from esync.measure import GLOBAL_AGGREGATE
from trainer.context import Context
from trainer.hub.hub_trainer import HubTrainer
from trainer.hub.server_part import (
    BAD,
    KEPT,
    SHOWN,
    WANTS_STOP,
    Answer,
    Answers,
    Arrays,
    GlobalModel,
    Message,
    Served,
    ServerSteps,
)
from trainer.steps import sum_of


@dataclass(frozen=True)
class Arrival:
    """The effect of a gradient's arrival; ranks are ascending."""

    apply: tuple[int, ...] = ()  # ranks whose gradients make the next version; empty if there are too few yet
    answered: tuple[int, ...] = ()  # ranks that get the newest version now; empty if the gradient waits for others


class Versions:
    """The first `num_workers - num_backup` gradients of a version make the next one; later ones are dropped.

    A worker's gradient is of the version that it got last: after an upload it waits for the next version.
    """

    def __init__(self, num_workers: int, num_backup: int) -> None:
        self.version = 0  # of the newest model; the initial one is version 0
        self.given = [0] * num_workers  # by rank, the version that the worker got last
        self.dropped = [0] * num_workers  # by rank, number of gradients that came too late
        self.over = False  # the job has ended; each worker ends with its next answer
        self._num_left = num_workers
        self._most_needed = self._num_needed = num_workers - num_backup
        self._waiting: list[int] = []
        self._stop_wanted = False

    def begin_with(self, version: int) -> None:
        """All workers begin with this version; called before any gradient arrives."""
        self.version = version
        self.given = [version for _ in self.given]

    def want_stop(self) -> None:
        """A worker wants the job to end: it ends with the next version."""
        self._stop_wanted = True

    def arrive(self, rank: int) -> Arrival:
        is_late = self.given[rank] < self.version
        if self.over or is_late:  # at the end also that of a worker that is just back: no version follows
            self.dropped[rank] += is_late
            return self._answer((rank,))
        self._waiting.append(rank)
        return self._complete_version()

    def remove_worker(self, rank: int) -> Arrival:
        """A worker is lost. It counts as a spare one until fewer workers are left than a version needs."""
        self._num_left -= 1
        self._num_needed = min(self._num_needed, self._num_left)
        if rank in self._waiting:
            self._waiting.remove(rank)
        return self._complete_version()

    def add_worker(self, rank: int) -> None:
        """A lost worker is back, with the newest version."""
        self._num_left += 1
        self._num_needed = min(self._most_needed, self._num_left)
        self.given[rank] = self.version

    def _complete_version(self) -> Arrival:
        if not self._waiting or len(self._waiting) < self._num_needed:
            return Arrival()
        apply = tuple(sorted(self._waiting))
        self._waiting.clear()
        self.version += 1
        self.over = self._stop_wanted
        return self._answer(apply, apply)

    def skip(self, rank: int) -> None:
        """A worker's gradient is not finite: the worker gets the newest version and tries again."""
        self.given[rank] = self.version

    def _answer(self, ranks: tuple[int, ...], apply: tuple[int, ...] = ()) -> Arrival:
        for rank in ranks:
            self.given[rank] = self.version
        return Arrival(apply, ranks)


class BackupServer:
    """The newest version, and the gradients that wait for the next one."""

    def __init__(self, job: Served, settings: Settings) -> None:
        saved = job.saved
        self._model, self._num_weights = GlobalModel(job), job.num_weights
        self._versions = Versions(job.num_workers, settings.backup)
        self._versions.begin_with(saved.get("version", 0))
        self._num_batches = saved.get("batches", 0)  # that counted
        self._steps = ServerSteps(job, settings)  # the schedule follows the samples whose gradients counted
        self._sample_counts = job.sample_counts or (1,) * job.num_workers
        self._arrived: dict[int, Arrays] = {}  # by rank, gradients and statistics that wait
        self._lost: set[int] = set()

    def act(self, rank: int, message: Message, arrays: Arrays) -> Answers:
        if message[WANTS_STOP]:
            self._versions.want_stop()
        if not arrays:  # it waits, or its answer is on its way
            return {}
        if BAD in message:
            self._versions.skip(rank)
            return {rank: self._answer(rank)}
        waits = rank in self._arrived  # it had no answer, and began again on a new connection
        self._arrived[rank] = arrays
        return {} if waits else self._answers(self._versions.arrive(rank))

    def joined(self, rank: int) -> Answer:
        if rank in self._lost:
            self._lost.discard(rank)
            self._versions.add_worker(rank)
        return self._answer(rank)

    def lost(self, rank: int) -> Answers:
        if rank in self._lost:
            return {}
        self._lost.add(rank)
        self._arrived.pop(rank, None)
        return self._answers(self._versions.remove_worker(rank))

    def _answers(self, arrival: Arrival) -> Answers:
        if arrival.apply:
            self._apply(arrival.apply)
        for rank in arrival.answered:
            self._arrived.pop(rank, None)
        return {rank: self._answer(rank) for rank in arrival.answered}

    def _answer(self, rank: int) -> Answer:
        """With the newest version."""
        dropped = self._versions.dropped[rank]  # number of the worker's gradients that came too late
        message = {KEPT: self._counts(), "over": self._versions.over, "dropped": dropped}
        return Answer(message, self._model.arrays)

    def _apply(self, ranks: Sequence[int]) -> None:
        """Makes the next version of these workers' gradients, summed in the order of ranks, not of arrival."""
        samples = sum(self._sample_counts[rank] for rank in ranks)
        self._num_batches += len(ranks)
        rate = self._steps.rate(self._num_batches)
        uploads = zip(*(self._arrived[rank] for rank in ranks), strict=True)
        for position, (target, arrived) in enumerate(zip(self._model.to_change(), uploads, strict=True)):
            if position < self._num_weights:
                self._steps.step_one(position, target, sum_of(arrived), rate, len(ranks))
            else:
                shares = (self._sample_counts[rank] / samples for rank in ranks)
                target[...] = sum_of([array * share for array, share in zip(arrived, shares, strict=True)])

    def _counts(self) -> dict[str, int]:
        return {"version": self._versions.version, "batches": self._num_batches}

    def state(self) -> dict[str, Any]:
        # Without the gradients that wait for others.
        return {SHOWN: self._model.arrays, **self._counts(), "steps": self._steps.state()}


class BackupTrainer(HubTrainer):
    """A round sends one gradient and gets the newest model: a late worker at once, the others when N - b gradients
    are there.

    BatchNorm's statistics become the mean over the workers that counted, weighed by their samples.
    """

    def __init__(self, context: Context, settings: Settings) -> None:
        super().__init__(context)
        self._version = 0  # of the model here
        self._dropped = 0  # gradients of this worker
        self._is_lost = False  # the gradient of this round was dropped

    def broadcast(self) -> None:
        self._take(self.begin_at_hub())

    def ready(self) -> bool:
        # After a bad step the next batch belongs to the same round: others may wait for this worker's gradient.
        return not self.step_is_bad

    def synchronize(self, wants_stop: bool) -> bool:
        """Waits until the gradient is applied or dropped, and takes the model of the answer."""
        self.measure.enter(GLOBAL_AGGREGATE)
        said, model = self.ask({WANTS_STOP: wants_stop}, [*self.parameters.gradients, *self.parameters.statistics()])
        self.parameters.replace(model)
        self._take(said)
        over: bool = said["over"]
        return over

    def notes(self) -> dict[str, Any]:
        return {"version": self._version} | ({"steps_lost": 1} if self._is_lost else {})

    def _take(self, said: Message) -> None:
        self._is_lost = said["dropped"] > self._dropped
        self._version, self._dropped = said[KEPT]["version"], said["dropped"]
