"""WBSP, worker-busy synchronous parallel (Yang et al., "Worker-busy synchronous parallel", Parallel Computing 121,
2024, 103092): nobody waits. After every local step a worker uploads its update u, w_shadow <- w_shadow + u / N; when
the slowest worker has uploaded, w <- w_shadow is released, and every worker takes w for its own weights after its next
upload. So all workers take the same models.

Which worker is the slowest is measured: each asks the state server after an upload, and it releases if it is told SYNC.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from algorithms import RELEASE
from trainer.base import Trainer
from trainer.clock import Task
from trainer.context import Context
from trainer.coordinator.job import begin_job
from trainer.engine import mx
from trainer.parameters import wait_for
from trainer.smoothing import Smoothed
from trainer.whole_models import Keys, ModelKeeper, ModelLink
from utils import GLOBAL_AGGREGATE

UPLOADED, PUBLISH = 1, 2  # commands; UPLOADED also says whether the worker wants all to stop


@dataclass(frozen=True)
class Board:
    """What the server tells the workers."""

    release: int  # number of the latest; the initial model is release 0
    stop: bool
    uploads: tuple[int, ...]  # by rank, how many of a worker's uploads are in the release

    @classmethod
    def read(cls, numbers: np.ndarray) -> Board:
        """Reads the board's numbers."""
        release, stop, *uploads = numbers.astype(int).tolist()
        return cls(release, bool(stop), tuple(uploads))

    @staticmethod
    def size(num_workers: int) -> int:
        """How many numbers there are."""
        return 2 + max(1, num_workers)  # a command needs three


class WBSPKeeper(ModelKeeper):
    """The server's side: collects in a shadow, shows it at a release. At each release the model that is shown is the
    initial one plus the sum of all uploads over N."""

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys, Board.size(keys.num_workers))
        self._shadow: list[mx.nd.NDArray] = []
        self._release, self._stop, self._uploads = 0, False, [0] * keys.num_workers

    def command(self, values: np.ndarray) -> None:
        """UPLOADED adds an inbox to the shadow, PUBLISH shows the shadow."""
        code, rank = int(values[0]), int(values[1])
        if not self._shadow:
            self._shadow = [self.shown[position].copy() for position in range(self.keys.num_shown)]
        if code == UPLOADED:
            for position, array in enumerate(self._shadow):
                array += self.inboxes[rank][position] / self.keys.num_workers
            wait_for(self._shadow)
            self._uploads[rank] += 1
            self._stop |= bool(values[2])
            self.board[1] = self._stop
        else:
            for position, array in enumerate(self._shadow):
                array.copyto(self.shown[position])
            wait_for(self.shown.values())
            self._release += 1
            self.board[:] = [self._release, self._stop, *self._uploads]


@dataclass(frozen=True)
class Uploaded:
    """What came back from an upload."""

    model: list[mx.nd.NDArray] | None  # a release that this worker does not have yet; nobody else holds these arrays
    board: Board
    traffic: dict[str, int]


class WBSPTrainer(Trainer):
    """A round is one local step, and an upload of all that was not uploaded yet.

    With overlap (PCC, parallel communication and computation) a second thread uploads while this one trains on, and
    what it brings back is taken after the step that runs then; an upload may carry several steps. The two threads share
    no array: an update is computed into new arrays before they are handed over, and a release is pulled into new arrays
    that are handed over when they are complete. Only the training thread touches weights, and only the other one the
    kvstore, once training has begun. Without overlap the same is done, and waited for.
    """

    rounds_in_step = False

    def __init__(self, context: Context, learning_rate: float, overlap: bool) -> None:
        """
        Args:
            learning_rate: of the local steps.
        """
        super().__init__(context)
        num_arrays, num_workers = len(self.parameters.model()), self.membership.num_workers
        self._keys = Keys(num_arrays, num_arrays, num_workers)
        self._link = ModelLink(context.shared, self._keys, Board.size(num_workers), self.wait_for_slow_link)
        self._learning_rate = learning_rate
        self._state = context.state  # says who releases
        self._overlap = overlap
        self._under_way: Task[Uploaded] | None = None
        self._released: list[mx.nd.NDArray] = []  # the global model as this worker knows it
        self._base: list[mx.nd.NDArray] = []  # its own model without what was not handed over yet
        self._steps_to_hand_over = 0
        self._stop_to_hand_over = False
        self._board = Board(0, False, ())  # as the last upload brought it
        self._traffic = Counter(bytes_pushed=0, bytes_pulled=0)
        self._events: list[dict[str, str]] = []
        # Of whichever thread communicates:
        self._pulled_release = 0
        self._pull_s = 0.0  # that it took
        self._transmission = Smoothed()
        self._steps_since = 0  # local steps that were uploaded since then
        self._accuracy_to_tell: float | None = None  # to the state server

    def broadcast(self) -> None:
        """The initial model is release 0."""
        begin_job(self.context, self.progress)
        model = self.parameters.model()
        self._link.define(WBSPKeeper(self._keys), model)
        self.parameters.take_back(model)
        self._released = self._base = [array.copy() for array in model]
        self._state.report(1, self.step_s, 0.0, None)

    def local_step(self, images: mx.nd.NDArray, labels: mx.nd.NDArray) -> bool:
        """A whole SGD step on this worker's own weights."""
        return self.whole_sgd_step(images, labels, self._learning_rate)

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
        return self._board.stop

    @contextlib.contextmanager
    def global_model(self) -> Iterator[None]:
        """The latest release stands in for this worker's own model."""
        own = [array.copy() for array in self.parameters.model()]
        self.parameters.replace(self._released)
        yield
        self.parameters.replace(own)

    def notes(self) -> dict[str, Any]:
        """The release that this worker knows, and those that it took in this round."""
        events, self._events = self._events, []
        return {"release": self._board.release} | ({"events": events} if events else {})

    def take_traffic(self) -> dict[str, int]:
        """Of the uploads that were taken in this round."""
        traffic, self._traffic = self._traffic, Counter(bytes_pushed=0, bytes_pulled=0)
        return dict(traffic)

    def evaluation_begins(self) -> None:
        """Nobody waits for it, but this worker uploads nothing meanwhile."""
        self._state.tell_doing()

    def end(self) -> None:
        """Uploads what was not uploaded yet, and takes leave."""
        self._take()
        if self._steps_to_hand_over:
            self._hand_over()
            self._take()
        accuracy = self.take_accuracy()
        self._state.leave(self._accuracy_to_tell if accuracy is None else accuracy)

    # --------------------------------------------------------------------------------- of the training thread

    def _hand_over(self) -> None:
        """Begins to upload the difference between this worker's model and its base."""
        model = self.parameters.model()
        update = [(own - before) * self.membership.weight for own, before in zip(model, self._base, strict=True)]
        self._base = [array.copy() for array in model]
        steps, self._steps_to_hand_over = self._steps_to_hand_over, 0
        arguments = (update, steps, self.step_s, self._stop_to_hand_over, self.take_accuracy())
        self._under_way = self.clock.start(lambda: self._upload(*arguments), "communication")

    def _take(self) -> None:
        """Waits for the upload under way, if there is one, and takes a release that it brought.

        Steps that were taken since the update was handed over are kept: they lie between model and base.
        """
        if self._under_way is None:
            return
        uploaded = self._under_way.result()
        self._under_way = None
        self._board = uploaded.board
        self._traffic.update(uploaded.traffic)
        if uploaded.model is None:
            return
        pairs = zip(uploaded.model, self.parameters.model(), self._base, strict=True)
        self.parameters.replace([release + (own - before) for release, own, before in pairs])
        self._released = self._base = uploaded.model
        self._events.append({"kind": RELEASE.name, "text": f"release {self._board.release}"})

    # -------------------------------------------------------------------------- of the thread that communicates

    def _upload(
        self, update: list[mx.nd.NDArray], steps: int, step_s: float, wants_stop: bool, accuracy: float | None
    ) -> Uploaded:
        """Uploads, releases if this worker is the slowest, and pulls a release that is new to it."""
        begin = self.clock.now()
        self._link.wait_until_sent(self._link.begin_to_send(update))
        # The way back counts as well: who needs longer for that than others for a step is the slowest.
        self._transmission.add(self.clock.now() - begin + self._pull_s)
        transmission_s = self._transmission.value
        board = Board.read(self._link.command(UPLOADED, wants_stop))
        self._steps_since += steps
        self._accuracy_to_tell = self._accuracy_to_tell if accuracy is None else accuracy
        if self._state.query(self._pulled_release + 1, self._steps_since, step_s, transmission_s):
            board = Board.read(self._link.command(PUBLISH))
        if board.release == self._pulled_release:
            return Uploaded(None, board, self._link.take_traffic())
        begin = self.clock.now()
        model, board = self._pull(update, board)
        self._pull_s = self.clock.now() - begin
        # Several releases may have come since the last pull; the state server lets WBSP's rounds skip.
        self._pulled_release, self._steps_since = board.release, 0
        self._state.report(self._pulled_release + 1, step_s, transmission_s, self._accuracy_to_tell)
        self._accuracy_to_tell = None
        return Uploaded(model, board, self._link.take_traffic())

    def _pull(self, like: Sequence[mx.nd.NDArray], board: Board) -> tuple[list[mx.nd.NDArray], Board]:
        """One whole release: pulls again where another one came meanwhile."""
        model = [mx.nd.empty(array.shape, ctx=array.context) for array in like]
        while True:
            self._link.pull(model)
            after = Board.read(self._link.read_board())
            if after.release == board.release:
                return model, after
            board = after


def build(context: Context) -> WBSPTrainer:
    """From the flags."""
    return WBSPTrainer(context, context.config.local_lr, bool(context.config.wbsp_overlap))
