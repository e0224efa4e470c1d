"""WBSP, worker-busy synchronous parallel (Yang et al., "Worker-busy synchronous parallel", Parallel Computing 121,
2024, 103092): no worker waits. After every local step a worker uploads its update u, w_shadow <- w_shadow + u / N; when
the slowest worker has uploaded, the server releases w <- w_shadow, and every worker takes w after its next upload. So
all workers take the same models. An upload contains the worker's times, from which the server finds the slowest worker
(wbsp_optimizer.py).
"""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from algorithms import RELEASE
from trainer.algorithms.buckets import Buckets
from trainer.algorithms.server_policies import UploadReport
from trainer.algorithms.wbsp_optimizer import WBSPOptimizer, WBSPStatus
from trainer.algorithms.whole_models import SAVE, Keys, ModelLink
from trainer.clock import Task
from trainer.context import Context
from trainer.coordinator.job import announce_job
from trainer.coordinator.smoothing import Smoothed
from trainer.passes import Batch
from trainer.run_logs.measure import GLOBAL_AGGREGATE
from trainer.trainer import Trainer


@dataclass(frozen=True)
class UploadResult:
    """The server's answer to an upload."""

    model: list[np.ndarray] | None  # a new release, in arrays of its own; None: there is none
    status: WBSPStatus
    traffic: dict[str, int]
    samples: int  # of the upload


class UploadTraffic:
    """Bytes of the uploads that ended in this round."""

    def __init__(self) -> None:
        self._bytes = Counter(bytes_pushed=0, bytes_pulled=0)

    def add(self, traffic: Mapping[str, int]) -> None:
        self._bytes.update(traffic)

    def take_traffic(self) -> dict[str, int]:
        taken, self._bytes = self._bytes, Counter(bytes_pushed=0, bytes_pulled=0)
        return dict(taken)


class WBSPTrainer(Trainer):
    """A round is one local step, and an upload of all steps that were not uploaded yet.

    With overlap (PCC, parallel communication and computation) a second thread uploads while this one trains, and its
    result is applied after the running step; an upload may contain several steps. The two threads share no array: an
    update is computed into new arrays and handed over, and a release is pulled into the same arrays and handed back.
    During training only this thread uses the weights, and only the other one the kvstore. Without overlap this thread
    waits for each upload.
    """

    rounds_in_step = False
    packs_apart = False  # whether BatchNorm's statistics have buckets of their own

    def __init__(self, context: Context, learning_rate: float, overlap: bool) -> None:
        super().__init__(context)
        apart = len(self.parameters.statistics()) if self.packs_apart else 0
        self._buckets = Buckets(self.parameters.model(), apart)
        self._keys = Keys(len(self._buckets), self.membership.num_workers)
        self._link = ModelLink(self, self._keys)
        self._learning_rate = learning_rate
        self._state = context.state  # for its page only
        self._overlap = overlap
        self._upload_task: Task[UploadResult] | None = None
        # Models in buckets: the newest release here; the local model less those steps that no upload has yet.
        self._released: list[np.ndarray] = []
        self._base: list[np.ndarray] = []
        self._pending_steps = self._pending_samples = 0
        self._pending_stop = False
        self._round_to_save = 0  # of the server's next checkpoint; 0: none is due
        self._release = 0  # number of the newest release here
        self._stop = False  # the answer to the last upload says that all stop
        self.exchange = self._traffic = UploadTraffic()
        self._events: list[dict[str, str]] = []
        # Used by the communication thread only:
        self._pull_s = 0.0  # seconds that the pull of the last release took
        self._transmission = Smoothed()
        self._steps_since = 0  # local steps uploaded since that release

    def broadcast(self) -> None:
        announce_job(self.context, self.progress, self.resumes)
        self._released = self._base = self._packed_model()
        self._link.define(self.optimizer(self._keys), self._released)
        self.parameters.replace(self._buckets.unpack(self._released))
        status = WBSPStatus.read(self._link.status())
        self._release = status.release
        self.seen.of_all = max(self.seen.of_all, status.samples)  # this worker may replace a lost one
        self._state.tell(self._release + 1, 0, self.step_s, 0.0)

    def optimizer(self, keys: Keys) -> WBSPOptimizer:
        """For the parameter server."""
        return WBSPOptimizer(keys)

    def save_server(self) -> None:
        self._round_to_save = self.rounds  # the communication thread asks for it after the next upload

    def local_step(self, batch: Batch) -> bool:
        is_complete = self.whole_step(batch, self._learning_rate)
        self._pending_samples += 0 if self.step_is_bad else self.step_samples
        return is_complete

    def synchronize(self, wants_stop: bool) -> bool:
        """Applies an upload's result and begins the next upload; with overlap it waits for neither."""
        self.measure.enter(GLOBAL_AGGREGATE)
        self._pending_steps += self.steps
        self._pending_stop |= wants_stop
        if self._upload_task is None or self._upload_task.done():
            self._finish_upload()
            self._begin_upload()
        if not self._overlap:
            self._finish_upload()
        return self._stop

    @contextlib.contextmanager
    def global_model(self) -> Iterator[None]:
        """The newest release in place of the local model."""
        own = [array.copy() for array in self.parameters.model()]
        self.parameters.replace(self._buckets.unpack(self._released))
        yield
        self.parameters.replace(own)

    def notes(self) -> dict[str, Any]:
        events, self._events = self._events, []
        return {"release": self._release} | ({"events": events} if events else {})

    def end(self) -> None:
        self._finish_upload()
        if self._pending_steps:
            self._begin_upload()
            self._finish_upload()
        if self._round_to_save:
            self._link.command(SAVE, self._round_to_save)
        self._state.leave()

    # ------------------------------------------------------------------------------------- the training thread

    def _begin_upload(self) -> None:
        """Begins to upload the difference between the local model and its base."""
        model = self._packed_model()
        update = self.update_of(model, self._base)
        if not self.update_is_good(update, self._buckets.unpack):  # the worker returns to the newest release
            model, self._pending_samples = self._released, 0
            self.parameters.replace(self._buckets.unpack(model))
            update = [np.zeros_like(array) for array in model]
        self._base = model
        report = UploadReport(
            self._pending_stop,
            self._pending_steps,
            self._pending_samples,
            self.step_s,
            self._transmission.value,
        )
        self._pending_steps = self._pending_samples = 0
        save, self._round_to_save = self._round_to_save, 0
        self._upload_task = self.clock.start(lambda: self._upload(update, report, save), "communication")

    def update_of(self, model: list[np.ndarray], base: list[np.ndarray]) -> list[np.ndarray]:
        """The update to upload; like `model` and `base` it is in buckets."""
        return [(own - before) * self.membership.weight for own, before in zip(model, base, strict=True)]

    def _finish_upload(self) -> None:
        """Waits for the running upload, if any, and takes its release.

        The difference between model and base, the steps since the hand-over, stays in the model.
        """
        if self._upload_task is None:
            return
        uploaded = self._upload_task.result()
        self._upload_task = None
        self._stop = uploaded.status.stop
        self._traffic.add(uploaded.traffic)
        self.seen.update(uploaded.status.samples, uploaded.samples)
        if uploaded.model is None:
            return
        trio = zip(uploaded.model, self._packed_model(), self._base, strict=True)
        self.parameters.replace(self._buckets.unpack([release + (own - before) for release, own, before in trio]))
        self._released = self._base = uploaded.model
        self._release = uploaded.status.release
        self._events.append({"kind": RELEASE.name, "text": f"release {self._release}"})

    def _packed_model(self) -> list[np.ndarray]:
        return self._buckets.pack(self.parameters.model())

    # -------------------------------------------------------------------------------- the communication thread

    def _upload(self, update: list[np.ndarray], report: UploadReport, save: int) -> UploadResult:
        """Uploads, and pulls a new release: along with the status if one is expected, else in a further exchange.
        `save` is the round of a checkpoint that the server is to write; 0: none."""
        begin = self.clock.now()
        self._link.begin_to_upload(update)
        self._link.upload(report)
        push_s = self.clock.now() - begin
        if save:
            self._link.command(SAVE, save)
        begin = self.clock.now()
        model = None
        if self._link.expects_model:
            numbers, model = self._link.status_and_answer()
            status = WBSPStatus.read(numbers)
        else:
            status = WBSPStatus.read(self._link.status())
        if status.is_new:
            if model is None:
                begin = self.clock.now()
                model = self._link.answer()
            self._pull_s = self.clock.now() - begin
        # The pull counts too: a worker whose pull takes longer than the others' steps is the slowest.
        self._transmission.add(push_s + self._pull_s)
        self._link.note(status.is_new)
        self._steps_since = 0 if status.is_new else self._steps_since + report.steps
        self._state.tell(
            status.release + 1,
            self._steps_since,
            report.step_s,
            self._transmission.value,
            ("SYNC" if status.released else "TRAIN", status.reason),
        )
        if not status.is_new:
            return UploadResult(None, status, self._link.take_traffic(), report.samples)
        assert model is not None
        return UploadResult(model, status, self._link.take_traffic(), report.samples)


def build(context: Context) -> WBSPTrainer:
    """From the flags."""
    return WBSPTrainer(context, context.config.local_lr, bool(context.config.wbsp_overlap))
