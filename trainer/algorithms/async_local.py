"""Asynchronous local SGD with dynamic local updates and delayed Nesterov momentum (Liu et al., "Asynchronous local-SGD
training for language modeling", 2024, arXiv:2401.09135). Worker k takes H_k local steps from the global model w that it
has, and uploads delta_k = w_k - w. The server applies it at once (outer_momentum.py) and answers with its w, from
which the worker goes on. No worker waits for another.

Dynamic local updates (DyLU): H_k = max(1, floor(H * v_k / max v)), v_k = 1 / (seconds of a local step), so that the
uploads of all workers come about as often. The server decides, from the times of the uploads. As long as a worker's
time is not known, in its first round, it takes one step. Without DyLU it takes H steps in each round.

An update is weighed by N * n_k / n, as in the other modes. BatchNorm's statistics take no part in the momentum: each
upload moves them by its difference over N.
"""

from algorithm_row import Algorithm, FixedRounds, OuterSteps, end_of_head
from flag_parser import Flag
from flag_values import zero_or_one


class Settings(FixedRounds, OuterSteps):
    """The flags of asynchronous local SGD."""

    dylu: int = Flag(1, zero_or_one).means(
        "1 gives each worker local steps in proportion to its speed, --sync-every for the fastest (dynamic local "
        "updates), and one in its first round; 0: --sync-every for all"
    )
    delay_momentum: int = Flag(1, zero_or_one).means(
        "1 applies the outer momentum after as many updates as there are workers, and of each update the part "
        "-gl / workers (delayed Nesterov); 0: momentum and the whole -gl in each update"
    )


ROW = Algorithm(
    name="async-local",
    title="Async local SGD",
    paper="Liu et al., 2024, arXiv:2401.09135",
    settings=Settings,
    trainer="AsyncLocalTrainer",
    server="AsyncLocalServer",
    tuned=(("outer_momentum", 0.9), ("global_lr", 0.5)),
    waits=False,
    stem="AsyncLocal",
)
end_of_head(globals())

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from esync.measure import GLOBAL_AGGREGATE
from trainer.algorithms.outer_momentum import DelayedNesterov
from trainer.algorithms.server_policies import UploadReport
from trainer.context import Context
from trainer.hub.hub_trainer import HubTrainer
from trainer.hub.server_part import BAD, KEPT, SHOWN, WANTS_STOP, Answer, Answers, Arrays, Message, Served
from trainer.network import Batch


def dynamic_steps(most: int, rank: int, times_s: Sequence[float]) -> int:
    """H_k = max(1, floor(H * v_k / max v)) of a worker; `most` is H. `times_s`: seconds of a local step, by rank;
    infinite: not known, or the worker is lost."""
    own_s = times_s[rank]
    if math.isinf(own_s):
        return 1
    share = min(times_s) / own_s if own_s else 1.0  # v_k / max v
    return max(1, math.floor(most * share * (1 + 1e-6)))  # times are not exact: 0.1 / 0.3 is a third


class AsyncLocalServer:
    """Applies each upload to the global model, and answers with that, in the upload's own arrays."""

    keeps_uploads = False

    def __init__(self, job: Served, settings: Settings) -> None:
        saved, times_s = job.saved, job.saved.get("times_s", ())
        self._settings, self._job = settings, job
        self._model, self._weights = job.model, job.model[: job.num_weights]
        outer = saved.get("outer", {})
        self._outer = DelayedNesterov(settings.global_lr, settings.outer_momentum, self._weights, outer)
        # By rank, of a local step; infinite: not known, or the worker is lost. Of a checkpoint ranks may be others'.
        self._times_s = list(times_s) if len(times_s) == job.num_workers else [math.inf] * job.num_workers
        self._samples, self._stop = saved.get("samples", 0), False  # of all uploads; all stop
        self._there = set(range(job.num_workers))  # ranks of workers that are not lost

    def act(self, rank: int, message: Message, arrays: Arrays) -> Answers:
        self._stop |= message[WANTS_STOP]
        if not arrays:  # its answer is on its way
            return {}
        report, num_weights = UploadReport(*message["report"]), self._job.num_weights
        self._times_s[rank] = report.step_s
        if BAD not in message and report.samples:
            self._samples += report.samples
            num_workers = len(self._there)
            # The period P is the number of workers, or 1.
            self._outer.apply(self._weights, arrays[:num_weights], num_workers if self._settings.delay_momentum else 1)
            for statistics, update in zip(self._model[num_weights:], arrays[num_weights:], strict=True):
                statistics += update / num_workers
        for array, target in zip(self._model, arrays, strict=True):
            target[...] = array
        return {rank: self._answer(rank, arrays)}

    def joined(self, rank: int) -> Answer:
        self._there.add(rank)
        return self._answer(rank, [array.copy() for array in self._model])

    def lost(self, rank: int) -> Answers:
        self._there.discard(rank)
        self._times_s[rank] = math.inf
        return {}

    def _answer(self, rank: int, model: Arrays) -> Answer:
        most = self._settings.sync_every
        steps = dynamic_steps(most, rank, self._times_s) if self._settings.dylu else most  # of the worker's next round
        return Answer({KEPT: {"samples": self._samples}, "stop": self._stop, "local_steps": steps}, model)

    def state(self) -> dict[str, Any]:
        by_rank = {"times_s": [*self._times_s]}
        return {SHOWN: self._model, "samples": self._samples, **by_rank, "outer": self._outer.state()}


class AsyncLocalTrainer(HubTrainer):
    """A round is H_k local steps, and one upload with its answer."""

    rounds_in_step = False

    def __init__(self, context: Context, settings: Settings) -> None:
        super().__init__(context, settings)
        self._base: Arrays = []  # the local model at the begin of the round

    def broadcast(self) -> None:
        said = self.begin_at_hub()
        self._base, self.local_steps = self.parameters.copied(), said["local_steps"]
        self.seen.of_all = max(self.seen.of_all, said[KEPT]["samples"])  # it may have taken the place of a lost worker

    def local_step(self, batch: Batch) -> bool:
        return self.whole_step(batch)

    def synchronize(self, wants_stop: bool) -> bool:
        self.measure.enter(GLOBAL_AGGREGATE)
        weight = self.membership.weight
        update = [(own - before) * weight for own, before in zip(self.parameters.model(), self._base, strict=True)]
        samples = self.samples
        if not self.update_is_good(update):
            update, samples = [np.zeros_like(array) for array in update], 0
        report = UploadReport(self.steps, samples, self.step_s, 0.0)
        said, model = self.ask({"report": report, WANTS_STOP: wants_stop}, update)
        self.parameters.replace(model)
        self._base, self.local_steps = self.parameters.copied(), said["local_steps"]
        self.seen.update(said[KEPT]["samples"], samples)
        return bool(said["stop"])

    def newest_model(self) -> Arrays:
        return self._base
