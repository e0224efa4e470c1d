"""Quorum merge, after Decoupled DiLoCo (Douillard et al., "Decoupled DiLoCo", 2026, arXiv:2604.21428): no worker waits
for another, and the updates of K workers are enough for a new global model.

Worker k takes H local steps and uploads delta_k = x_k - base_k. The server adds up worker k's uploads since the last
merge, from the first of which on it is in: D_k, of S_k samples in T_k steps. At an upload with K workers or more in, it
merges if all are, if this one was in before, or after --grace seconds (SimpleStateServer/server/policies/quorum.py):

    Delta = sum_k weight_k * D_k / sum_k weight_k over those that are in, weight_k = S_k * (S_k / T_k)
    v <- beta * v + Delta;  w <- w + eps * (Delta + beta * v)

What comes later counts in the next merge, with its own weight. The answer to an upload has w, if that is new to the
worker. The worker goes on from w, else from its own x_k: that is its next base_k.

Two differences from the paper: whole models travel, not fragments, and the mean is a plain weighted one. An update is
weighted by N * n_k / n, as in the other modes. BatchNorm's statistics are the weighted mean of the workers' own,
without momentum.
"""

from algorithm_row import RELEASE, Algorithm, FixedRounds, OuterSteps, end_of_head
from flag_parser import Flag
from flag_values import at_least, seconds_or_auto
from utils import SetupError


class Settings(FixedRounds, OuterSteps):
    """The flags of the quorum merge."""

    quorum: int = Flag(0, at_least(0)).means(
        "number K of workers, up to the number N of workers, whose updates are enough for a new global model; later "
        "ones count in the one after that (0: more than half of the workers)"
    )
    grace: float | str = Flag("auto", seconds_or_auto, metavar="SECONDS").means(
        "seconds from the quorum to the new global model, in which further workers are waited for; auto: until one "
        "uploads again, since it takes no new model before"
    )

    def check(self, num_workers: int | None) -> None:
        if num_workers is not None and self.quorum > num_workers:
            raise SetupError(
                f"--quorum {self.quorum} is more than the {num_workers} worker(s) of this job, so no model would be "
                f"merged: give a number from 1 to {num_workers}, or 0 for more than half of them"
            )


ROW = Algorithm(
    name="decoupled",
    title="Quorum merge",
    paper="Douillard et al., 2026, arXiv:2604.21428",
    settings=Settings,
    trainer="DecoupledTrainer",
    server="QuorumServer",
    tuned=(("outer_momentum", 0.9), ("global_lr", 0.7)),  # as in the paper
    rule="quorum",
    page_only=True,
    waits=False,
    events=(RELEASE,),
    stem="Decoupled",
)
end_of_head(globals())

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer.algorithms.outer_momentum import OuterMomentum
from trainer.algorithms.server_policies import Action, Decision, UploadReport, merging
from trainer.algorithms.wbsp import ReleasingServer, WBSPTrainer
from trainer.context import Context
from trainer.hub.server_part import Arrays, Served, in_shapes
from trainer.steps import pieces


class Inbox:
    """The uploads of one worker since the last merge."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.arrays: list[np.ndarray] = []  # D_k, the sum of the updates of the weights; then the newest statistics
        self.samples = self.steps = 0  # S_k, T_k: of all uploads

    def add(self, arrays: Sequence[np.ndarray], num_weights: int, samples: int, steps: int) -> None:
        """Takes the arrays of an upload of `samples` samples in `steps` steps; the first `num_weights` are of
        weights."""
        for total, new in zip(self.arrays[:num_weights], arrays, strict=False):
            total += new
        self.arrays = [*(self.arrays or arrays)[:num_weights], *arrays[num_weights:]]
        self.samples += samples
        self.steps += steps

    @property
    def weight(self) -> float:
        """Samples times samples a step; 0: it is empty."""
        return self.samples * (self.samples / self.steps) if self.steps else 0.0


def mean_of(inboxes: Sequence[Inbox]) -> list[np.ndarray]:
    """The weighted mean of the arrays, in the memory of one inbox; at least one is not empty."""
    full = [inbox for inbox in inboxes if inbox.weight]
    total = sum(inbox.weight for inbox in full)
    for arrays in zip(*(inbox.arrays for inbox in full), strict=True):
        for first, *others in pieces(*arrays):
            first *= full[0].weight / total
            for inbox, other in zip(full[1:], others, strict=True):
                first += inbox.weight / total * other
    return full[0].arrays


class QuorumServer(ReleasingServer):
    """Adds up each worker's uploads in its inbox. A release is a merge: a step of the outer optimiser on their mean. To
    the policy an upload is one step."""

    def __init__(self, job: Served, settings: Settings) -> None:
        saved, grace = job.saved, settings.grace
        self.policy = merging(settings.quorum, grace if isinstance(grace, float) else None)
        super().__init__(job)
        self._global_lr = settings.global_lr  # eps
        self._outer = OuterMomentum(settings.outer_momentum, nesterov=True)  # beta
        self._outer.velocities = in_shapes(saved.get("outer", ()), job.model[: job.num_weights])
        self._inboxes = [Inbox() for _ in range(job.num_workers)]
        inboxes = saved.get("inboxes", ())
        same = len(inboxes) == job.num_workers  # else ranks are of other workers
        for rank, kept in enumerate(inboxes if same else ()):
            if kept["steps"]:
                self.runner.enter(rank, self.number + 1, job.now())
                arrays = in_shapes(kept["arrays"], job.model)
                self._inboxes[rank].add(arrays, job.num_weights, kept["samples"], kept["steps"])

    def take_in(self, rank: int, report: UploadReport, update: Arrays, is_bad: bool) -> Decision:
        if is_bad or not report.samples:
            return Decision(Action.TRAIN, "nothing of its upload counts")
        inbox, now = self._inboxes[rank], self.job.now()
        if not inbox.steps:
            self.runner.enter(rank, self.number + 1, now)
        inbox.add(update, self.job.num_weights, report.samples, report.steps)
        self.samples += report.samples
        self.arrivals[rank] += 1
        self.runner.uploaded(rank, report._replace(steps=1, step_s=report.steps * report.step_s), now)
        self.runner.exclude_silent(now)
        return self.runner.decide(rank, now)

    def release(self) -> None:
        """w <- w + eps * (Delta + beta * v) with the mean of the inboxes; BatchNorm's statistics are their mean."""
        model, means, num_weights = self.model.to_change(), mean_of(self._inboxes), self.job.num_weights
        self._outer.step(model[:num_weights], means[:num_weights], self._global_lr)
        for statistics, mean in zip(model[num_weights:], means[num_weights:], strict=True):
            statistics[...] = mean
        for inbox in self._inboxes:
            inbox.clear()

    def state(self) -> dict[str, Any]:
        inboxes = [{"samples": each.samples, "steps": each.steps, "arrays": each.arrays} for each in self._inboxes]
        return {**super().state(), "outer": self._outer.velocities, "inboxes": inboxes}


class DecoupledTrainer(WBSPTrainer):
    """A worker of WBSP with rounds of H steps: it waits for its own upload and for the answer to that."""

    def __init__(self, context: Context, settings: Settings) -> None:
        super().__init__(context, settings)
        self.local_steps = settings.sync_every  # H

    def update_of(self, model: Arrays, base: Arrays) -> list[np.ndarray]:
        """Differences of weights, and the statistics as they are: a difference from old ones could make a variance
        negative."""
        num_weights = len(self.parameters.weights)
        # Copies: the answer is received into the arrays that were sent.
        statistics = [array.copy() for array in model[num_weights:]]
        return [*super().update_of(model, base)[:num_weights], *statistics]
