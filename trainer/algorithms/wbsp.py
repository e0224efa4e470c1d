"""WBSP, worker-busy synchronous parallel (Yang et al., "Worker-busy synchronous parallel", Parallel Computing 121,
2024, 103092): nobody waits. After every local step a worker uploads its update u, w_shadow <- w_shadow + u / N; when
the slowest worker has uploaded, w <- w_shadow is released, and every worker takes w for its own weights after its next
upload. So all workers take the same models.

Which worker is the slowest is measured: the times travel with the uploads, and the server releases with the upload of
the slowest (wbsp_optimizer.py).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from algorithms import RELEASE
from trainer.algorithms.buckets import Buckets
from trainer.algorithms.server_policies import Upload
from trainer.algorithms.wbsp_optimizer import Status, WBSPOptimizer
from trainer.algorithms.whole_models import SAVE, Keys, ModelLink
from trainer.clock import Task
from trainer.context import Context
from trainer.coordinator.job import announce_job
from trainer.coordinator.smoothing import Smoothed
from trainer.engine import mx
from trainer.run_logs.measure import GLOBAL_AGGREGATE
from trainer.trainer import Trainer


@dataclass(frozen=True)
class Uploaded:
    """What came back from an upload."""

    model: list[mx.nd.NDArray] | None  # a release that this worker does not have yet; nobody else holds these arrays
    status: Status
    traffic: dict[str, int]
    samples: int  # that the upload was of


class TakenTraffic:
    """Bytes of the uploads that were taken in this round."""

    def __init__(self) -> None:
        self._bytes = Counter(bytes_pushed=0, bytes_pulled=0)

    def add(self, traffic: Mapping[str, int]) -> None:
        self._bytes.update(traffic)

    def take_traffic(self) -> dict[str, int]:
        taken, self._bytes = self._bytes, Counter(bytes_pushed=0, bytes_pulled=0)
        return dict(taken)


class WBSPTrainer(Trainer):
    """A round is one local step, and an upload of all that was not uploaded yet.

    With overlap (PCC, parallel communication and computation) a second thread uploads while this one trains on, and
    what it brings back is taken after the step that runs then; an upload may carry several steps. The two threads share
    no array: an update is computed into new arrays before they are handed over, and a release is pulled into the same,
    which are handed back when they are complete. Only the training thread touches weights, and only the other one the
    kvstore, once training has begun. Without overlap the same is done, and waited for.
    """

    rounds_in_step = False

    def __init__(self, context: Context, learning_rate: float, overlap: bool) -> None:
        """
        Args:
            learning_rate: of the local steps.
        """
        super().__init__(context)
        self._buckets = Buckets(self.parameters.model())
        self._keys = Keys(len(self._buckets), len(self._buckets), self.membership.num_workers)
        self._link = ModelLink(context.shared, self._keys, self.emulation.wait_for_link, context.peers.lost)
        self._learning_rate = learning_rate
        self._state = context.state  # is told what its page shows
        self._overlap = overlap
        self._under_way: Task[Uploaded] | None = None
        # Models in buckets: the global one as this worker knows it, and its own without what was not handed over yet.
        self._released: list[mx.nd.NDArray] = []
        self._base: list[mx.nd.NDArray] = []
        self._steps_to_hand_over = self._samples_to_hand_over = 0
        self._stop_to_hand_over = False
        self._round_to_save = 0  # by the server; 0: none
        self._release = 0  # number of the latest that was taken
        self._stop = False  # all stop, as the last upload brought it
        self.exchange = self._traffic = TakenTraffic()
        self._events: list[dict[str, str]] = []
        # Of whichever thread communicates:
        self._pull_s = 0.0  # that the last release took
        self._transmission = Smoothed()
        self._steps_since = 0  # local steps that were uploaded since then

    def broadcast(self) -> None:
        """The initial model is release 0."""
        announce_job(self.context, self.progress, self.resumes)
        self._released = self._base = self._packed_model()
        optimizer = WBSPOptimizer(self._keys)
        optimizer.looks_at_uploads = self.checks.are_made
        self._link.define(optimizer, self._released, self.context.run.checkpoints)
        self.parameters.replace(self._buckets.unpack(self._released))
        if self.resumes:
            self._release = Status.read(self._link.status()).release
        self._state.tell(self._release + 1, 0, self.step_s, 0.0)

    def save_server(self) -> None:
        """Release and shadow, behind the next upload: the thread that communicates has it done."""
        self._round_to_save = self.rounds

    def local_step(self, images: mx.nd.NDArray, labels: mx.nd.NDArray) -> bool:
        """A whole SGD step on this worker's own weights."""
        is_complete = self.whole_step(images, labels, self._learning_rate)
        self._samples_to_hand_over += 0 if self.step_is_bad else labels.size
        return is_complete

    def synchronize(self, wants_stop: bool) -> bool:
        """Takes what an upload brought, and begins the next; with overlap it waits for neither."""
        self.measure.enter(GLOBAL_AGGREGATE)
        self._steps_to_hand_over += 1
        self._stop_to_hand_over |= wants_stop
        if self._under_way is None or self._under_way.done():
            self._take()
            self._hand_over()
        if not self._overlap:
            self._take()
        return self._stop

    @contextlib.contextmanager
    def global_model(self) -> Iterator[None]:
        """The latest release stands in for this worker's own model."""
        own = [array.copy() for array in self.parameters.model()]
        self.parameters.replace(self._buckets.unpack(self._released))
        yield
        self.parameters.replace(own)

    def notes(self) -> dict[str, Any]:
        """The release that this worker knows, and those that it took in this round."""
        events, self._events = self._events, []
        return {"release": self._release} | ({"events": events} if events else {})

    def end(self) -> None:
        """Uploads what was not uploaded yet, and takes leave."""
        self._take()
        if self._steps_to_hand_over:
            self._hand_over()
            self._take()
        if self._round_to_save:
            self._link.command(SAVE, self._round_to_save)
        self._state.leave(self.accuracy.take())

    # --------------------------------------------------------------------------------- of the training thread

    def _hand_over(self) -> None:
        """Begins to upload the difference between this worker's model and its base."""
        model = self._packed_model()
        update = [(own - before) * self.membership.weight for own, before in zip(model, self._base, strict=True)]
        if not self.update_is_good(update, self._buckets.unpack):  # on from the latest release
            model, self._samples_to_hand_over = self._released, 0
            self.parameters.replace(self._buckets.unpack(model))
            update = [mx.nd.zeros_like(array) for array in model]
        self._base = model
        about = Upload(
            self._stop_to_hand_over,
            self._steps_to_hand_over,
            self._samples_to_hand_over,
            self.step_s,
            self._transmission.value,
        )
        self._steps_to_hand_over = self._samples_to_hand_over = 0
        accuracy = self.accuracy.take()
        save, self._round_to_save = self._round_to_save, 0
        self._under_way = self.clock.start(lambda: self._upload(update, about, accuracy, save), "communication")

    def _take(self) -> None:
        """Waits for the upload under way, if there is one, and takes a release that it brought.

        Steps that were taken since the update was handed over are kept: they lie between model and base.
        """
        if self._under_way is None:
            return
        uploaded = self._under_way.result()
        self._under_way = None
        self._stop = uploaded.status.stop
        self._traffic.add(uploaded.traffic)
        self.seen.told(uploaded.status.samples, uploaded.samples)
        if uploaded.model is None:
            return
        trio = zip(uploaded.model, self._packed_model(), self._base, strict=True)
        self.parameters.replace(self._buckets.unpack([release + (own - before) for release, own, before in trio]))
        self._released = self._base = uploaded.model
        self._release = uploaded.status.release
        self._events.append({"kind": RELEASE.name, "text": f"release {self._release}"})

    def _packed_model(self) -> list[mx.nd.NDArray]:
        return self._buckets.pack(self.parameters.model())

    # -------------------------------------------------------------------------- of the thread that communicates

    def _upload(self, update: list[mx.nd.NDArray], about: Upload, accuracy: float | None, save: int) -> Uploaded:
        """Uploads, and pulls a release that is new to this worker: in one more exchange, or, where it expects one, in
        the exchange that says so.

        Args:
            save: round of the checkpoint that the server is to write; 0: none.
        """
        begin = self.clock.now()
        self._link.begin_to_upload(update)
        self._link.upload(about)
        push_s = self.clock.now() - begin
        if save:
            self._link.command(SAVE, save)
        begin = self.clock.now()
        model = None
        if self._link.expects_model:
            numbers, model = self._link.status_and_answer()
            status = Status.read(numbers)
        else:
            status = Status.read(self._link.status())
        if status.is_new:
            if model is None:
                begin = self.clock.now()
                model = self._link.answer()
            self._pull_s = self.clock.now() - begin
        # The way back counts as well: who needs longer for that than others for a step is the slowest.
        self._transmission.add(push_s + self._pull_s)
        self._link.note(status.is_new)
        self._steps_since = 0 if status.is_new else self._steps_since + about.steps
        self._state.tell(
            status.release + 1,
            self._steps_since,
            about.step_s,
            self._transmission.value,
            accuracy,
            ("SYNC" if status.released else "TRAIN", status.reason),
        )
        if not status.is_new:
            return Uploaded(None, status, self._link.take_traffic(), about.samples)
        assert model is not None
        here = [array.as_in_context(own.context) for array, own in zip(model, update, strict=True)]
        return Uploaded(here, status, self._link.take_traffic(), about.samples)


def build(context: Context) -> WBSPTrainer:
    """From the flags."""
    return WBSPTrainer(context, context.config.local_lr, bool(context.config.wbsp_overlap))
