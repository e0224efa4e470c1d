"""The optimizer on the parameter server of the quorum merge (decoupled.py): an inbox for each worker, and the outer
optimiser. This module runs in the server's process."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from trainer.algorithms.inbox import Inbox, mean_of
from trainer.algorithms.outer_momentum import OuterMomentum
from trainer.algorithms.server_policies import Action, Decision, Policy, UploadReport, merging
from trainer.algorithms.wbsp_optimizer import WBSPOptimizer
from trainer.algorithms.whole_models import BAD_UPLOAD, Keys


class Merging(NamedTuple):
    """How the uploads become a global model."""

    quorum: int  # K; 0: more than half of the workers
    grace_s: float | None  # None: until a worker uploads again
    learning_rate: float  # eps of the outer optimiser
    momentum: float  # its beta


class DecoupledOptimizer(WBSPOptimizer):
    """WBSP's releases, of another model: the shadow is the merged one. In the policy's table one upload is one step."""

    def __init__(self, keys: Keys, num_weights: int, settings: Merging) -> None:
        """`num_weights` of the arrays are of weights; those behind them are BatchNorm's statistics."""
        super().__init__(keys)
        self._num_weights, self._settings = num_weights, settings
        self._outer = OuterMomentum(settings.momentum, nesterov=True)
        self._inboxes = [Inbox() for _ in range(keys.num_workers)]

    @property
    def policy(self) -> Policy:
        return merging(self._settings.quorum, self._settings.grace_s)

    def state(self) -> dict[str, Any]:
        inboxes = [{"samples": each.samples, "steps": each.steps, "arrays": each.arrays} for each in self._inboxes]
        return {**super().state(), "outer": self._outer.velocities, "inboxes": inboxes}

    def begin_with(self, saved: Mapping[str, Any]) -> None:
        super().begin_with(saved)
        self._outer.velocities = saved.get("outer", [])
        inboxes = saved.get("inboxes", ())
        if len(inboxes) != self.keys.num_workers:  # the ranks are other workers
            return
        for rank, (inbox, kept) in enumerate(zip(self._inboxes, inboxes, strict=True)):
            if kept["steps"]:
                self._policy.enter(rank, self._release + 1, self.now())
                inbox.add(kept["arrays"], self._num_weights, kept["samples"], kept["steps"])

    def act(self, rank: int, code: int, values: Sequence[float]) -> Iterable[int]:
        upload = UploadReport.read(values)
        decision = Decision(Action.TRAIN, "nothing of its upload counts")
        self._stop |= upload.wants_stop
        if code != BAD_UPLOAD and upload.samples:
            decision = self._take_in(rank, upload, self.now())
        if decision.action is Action.SYNC:
            self.publish()
        self.answer(rank, decision)
        return (rank,)

    def _take_in(self, rank: int, upload: UploadReport, now: float) -> Decision:
        """Adds an upload to the worker's inbox, and asks the policy."""
        inbox = self._inboxes[rank]
        if not inbox.steps:
            self._policy.enter(rank, self._release + 1, now)
        arrays = [self.buffers[rank][position] for position in range(self.keys.num_arrays)]
        inbox.add(arrays, self._num_weights, upload.samples, upload.steps)
        self._samples += upload.samples
        self._arrivals[rank] += 1
        self._policy.uploaded(rank, upload._replace(steps=1, step_s=upload.steps * upload.step_s), now)
        self._policy.exclude_silent(now)
        return self._policy.decide(rank, now)

    def publish(self) -> None:
        """w <- w + eps * (Delta + beta * v) with the mean of the inboxes; BatchNorm's statistics are their mean."""
        means = mean_of(self._inboxes)
        weights = self._shadow[: self._num_weights]
        self._outer.step(weights, means[: self._num_weights], self._settings.learning_rate)
        for statistics, mean in zip(self._shadow[self._num_weights :], means[self._num_weights :], strict=True):
            statistics[:] = mean
        for inbox in self._inboxes:
            inbox.clear()
        super().publish()
