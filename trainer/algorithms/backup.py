"""SSGD with backup workers (Chen et al., "Revisiting distributed synchronous SGD", 2016, arXiv:1604.00981): of N
workers b are spare. The first N - b gradients of a version of the model make the next one,
w <- w - eta * (sum of these) / (N - b); the b late ones are dropped, and a late worker continues with the newest
version.

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


class BackupServer:
    """Makes the next version of the model from the first N - b gradients of a version, and drops later ones. A worker's
    gradient is of the version that it got last: after an upload it waits for the next one."""

    def __init__(self, job: Served, settings: Settings) -> None:
        saved, num_workers = job.saved, job.num_workers
        self._model, self._num_weights = GlobalModel(job), job.num_weights
        self._version = saved.get("version", 0)  # of the newest model; the initial one is version 0
        self._given = [self._version] * num_workers  # by rank, the version that the worker got last
        self._dropped = [0] * num_workers  # by rank, number of gradients that came too late
        self._num_needed = num_workers - settings.backup  # gradients of a version, where as many workers are there
        self._num_batches = saved.get("batches", 0)  # that counted
        self._steps = ServerSteps(job, settings)  # the schedule follows the samples whose gradients counted
        self._sample_counts = job.sample_counts or (1,) * num_workers
        self._arrived: dict[int, Arrays] = {}  # by rank, gradients and statistics that wait for the next version
        self._there = set(range(num_workers))  # ranks of workers that are not lost
        self._stop = False  # a worker wants the job to end: it ends with the next version
        self._over = False  # it has ended; each worker ends with its next answer

    def act(self, rank: int, message: Message, arrays: Arrays) -> Answers:
        self._stop |= message[WANTS_STOP]
        if not arrays:  # it waits, or its answer is on its way
            return {}
        if BAD in message:  # it tries again
            return {rank: self._answer(rank)}
        is_late = self._given[rank] < self._version
        if is_late or self._over:  # at the end also that of a worker that is just back: no version follows
            self._dropped[rank] += is_late
            return {rank: self._answer(rank)}
        self._arrived[rank] = arrays  # again, where it had no answer, and began again on a new connection
        return self._complete_version()

    def joined(self, rank: int) -> Answer:
        self._there.add(rank)
        return self._answer(rank)

    def lost(self, rank: int) -> Answers:
        self._there.discard(rank)
        self._arrived.pop(rank, None)
        return self._complete_version()

    def _complete_version(self) -> Answers:
        """Makes the next version, if there are enough gradients, summed in the order of ranks, not of arrival. A lost
        worker counts as a spare one until fewer workers are left than a version needs."""
        if not self._arrived or len(self._arrived) < min(self._num_needed, len(self._there)):
            return {}
        ranks = sorted(self._arrived)
        samples = sum(self._sample_counts[rank] for rank in ranks)
        self._num_batches += len(ranks)
        rate = self._steps.rate(self._num_batches)
        uploads = zip(*(self._arrived.pop(rank) for rank in ranks), strict=True)
        for position, (target, arrived) in enumerate(zip(self._model.to_change(), uploads, strict=True)):
            if position < self._num_weights:
                self._steps.step_one(position, target, sum_of(arrived), rate, len(ranks))
            else:
                shares = (self._sample_counts[rank] / samples for rank in ranks)
                target[...] = sum_of([array * share for array, share in zip(arrived, shares, strict=True)])
        self._version += 1
        self._over = self._stop
        return {rank: self._answer(rank) for rank in ranks}

    def _answer(self, rank: int) -> Answer:
        """With the newest version."""
        self._given[rank] = self._version
        return Answer({KEPT: self._counts(), "over": self._over, "dropped": self._dropped[rank]}, self._model.arrays)

    def _counts(self) -> dict[str, int]:
        return {"version": self._version, "batches": self._num_batches}

    def state(self) -> dict[str, Any]:
        # Without the gradients that wait for others.
        return {SHOWN: self._model.arrays, **self._counts(), "steps": self._steps.state()}


class BackupTrainer(HubTrainer):
    """A round sends one gradient and gets the newest model: a late worker at once, the others when N - b gradients
    are there.

    BatchNorm's statistics become the mean over the workers that counted, weighed by their samples.
    """

    def __init__(self, context: Context, settings: Settings) -> None:
        super().__init__(context, settings)
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
