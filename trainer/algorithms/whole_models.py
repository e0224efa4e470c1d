"""Whole models over MXNet's kvstore (dist_async): what a worker uploads counts at once, as a whole, or not yet at all.

The kvstore knows only arrays, each on its own, and promises no order among keys: a server that applied them as they
arrive would show a worker a model of which one half is older than the other. So every worker has keys of its own: a
gradient buffer, and one small array that takes commands. All of an upload is pushed in one go; whichever of its arrays
comes last, the server acts when all are there, before it acknowledges that one. What the worker must know then is its
status vector, which it pulls from the key of its commands.

So an upload is two exchanges: a push of everything, and a pull of the status vector. Where the worker expects a model
to be there, it pulls that in the same exchange. The kvstore answers at once, so whoever has to wait for others pulls
its status vector again and again.

All keys must lie on one server (`one_server` in algorithms.py): two have no common order of uploads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.array_tree import from_text, to_text
from trainer.clock import Clock, RealClock
from trainer.engine import mx
from trainer.finite import first_not_finite
from trainer.recovering import ServerCheckpoints, Writes
from trainer.transport.protocol import SharedArrays, Transport
from utils import die_on_error

# Commands. UPLOAD belongs to a gradient buffer; all others act alone. WANT_STOP is of a worker that waits.
UPLOAD, WANT_STOP = 1, 2
SAVE = 3  # rank 0's: write a checkpoint, of the round that is said
LOST = 4  # the worker of the rank that is said is lost, and the others go on: each of them says so
BAD_UPLOAD = -1  # what an upload becomes that is not finite; nobody sends it
SHOWN = "shown"  # of a checkpoint: what all workers see
TEXT_SIZE = 120  # characters of a reason in a status vector; a longer one is cut


@dataclass(frozen=True)
class Keys:
    """Which key is what: first the arrays that all workers see, then those of each worker.

    Attributes:
        num_shown: arrays that all workers can pull.
        num_sent: arrays in a worker's gradient buffer.
    """

    num_shown: int
    num_sent: int
    num_workers: int

    def buffer(self, rank: int) -> int:
        """First key of a worker's gradient buffer."""
        return self.num_shown + rank * (self.num_sent + 1)

    def command(self, rank: int) -> int:
        """Key of a worker's commands, and of its status vector: the one behind its gradient buffer."""
        return self.buffer(rank) + self.num_sent

    def owner(self, key: int) -> tuple[int, int]:
        """Rank of the worker whose key it is, and the key's position among that worker's."""
        return divmod(key - self.num_shown, self.num_sent + 1)


def text_to_numbers(text: str) -> list[float]:
    """A text as the end of a status vector."""
    codes = text.encode("ascii", "replace")[:TEXT_SIZE]
    return [*map(float, codes), *[0.0] * (TEXT_SIZE - len(codes))]


def text_of(numbers: np.ndarray) -> str:
    """The text at the end of a status vector."""
    return bytes(int(code) for code in numbers[-TEXT_SIZE:] if code).decode("ascii")


class WholeModelOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]
    """The server's side. Runs in the parameter server's process; a subclass says what uploads and commands do.

    Attributes:
        shown: the arrays that all workers see, by key. To be changed in place, and waited for, in `act` only.
        buffers: by rank, the gradient buffer's arrays by position. In `act` of an upload they hold it; what they hold
            afterwards, only that worker can pull.
        clock: of the process that this runs in; on its way there it has none.
        looks_at_uploads: whether they are finite.
        lost: ranks without which the others go on; of these nothing counts any more.
    """

    def __init__(self, keys: Keys) -> None:
        super().__init__()
        self.keys = keys
        self.shown: dict[int, mx.nd.NDArray] = {}
        self.buffers: list[dict[int, mx.nd.NDArray]] = [{} for _ in range(keys.num_workers)]
        self.clock: Clock | None = None
        self.looks_at_uploads = False
        self.lost: set[int] = set()
        self.writer: Writes | None = None  # of checkpoints
        self._saved = ""  # as text: what `begin` goes on from
        self._arrived: list[set[int]] = [set() for _ in range(keys.num_workers)]  # positions, of what comes next
        self._commands: dict[int, list[float]] = {}  # by rank, the latest
        self._status_vectors: dict[int, mx.nd.NDArray] = {}  # by rank, as they are stored
        self._has_begun = False

    def begin(self) -> None:
        """Called once, before the first command, when all that is shown is there."""
        raise NotImplementedError

    def act(self, rank: int, code: int, values: Sequence[float]) -> Iterable[int]:
        """Does what a worker's command says; returns the ranks of all workers whose status has changed.

        Who has not come yet gets its status with its own first command.

        Args:
            code: UPLOAD, BAD_UPLOAD where it is not finite, so that nothing of it may count, or one of the subclass's
                own.
            values: what the command says beside it.
        """
        raise NotImplementedError

    def go_on_without(self, rank: int) -> Iterable[int]:
        """A worker is lost; returns the ranks of all workers whose status has changed."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """What a subclass needs to go on, beside what is shown: plain values, and arrays of numpy."""
        raise NotImplementedError

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint; called where it is made, before it is sent. What is shown, rank 0 defines."""
        self._saved = to_text({name: value for name, value in saved.items() if name != SHOWN})

    def take_saved(self) -> Mapping[str, Any]:
        """What `begin` goes on from, beside what is shown; empty where the job begins."""
        saved, self._saved = self._saved, ""
        return from_text(saved) if saved else {}

    def status(self, rank: int) -> list[float]:
        """A worker's status vector: always as long, and long enough for a command."""
        raise NotImplementedError

    def now(self) -> float:
        """Seconds on this process's clock."""
        if self.clock is None:
            self.clock = RealClock()
        return self.clock.now()

    def create_state(self, index: int, weight: mx.nd.NDArray) -> None:
        """All state is the optimizer's own."""

    def update(self, index: int, weight: mx.nd.NDArray, grad: mx.nd.NDArray, state: None) -> None:
        """Called by the server when something was pushed. `weight` is the stored value, the same array every time.

        `grad` lies in a network buffer that is freed when this returns: nothing may still read it then.
        """
        with die_on_error(f"the update of key {index} failed"):
            if index < self.keys.num_shown:
                self.shown[index] = weight  # a push only shows which array it is
                return
            rank, position = self.keys.owner(index)
            if position < self.keys.num_sent:
                grad.copyto(weight)
                weight.wait_to_read()
                self.buffers[rank][position] = weight
            else:
                self._commands[rank] = grad.asnumpy().tolist()
                self._status_vectors[rank] = weight
            self._arrived[rank].add(position)
            self._act_if_complete(rank)

    def _act_if_complete(self, rank: int) -> None:
        arrived = self._arrived[rank]
        if self.keys.num_sent not in arrived:  # the command
            return
        code, *values = self._commands[rank]
        if code == UPLOAD and len(arrived) <= self.keys.num_sent:
            return
        arrived.clear()
        if not self._has_begun:
            self._has_begun = True
            self.begin()
        if code == SAVE and self.writer is not None:
            shown = [self.shown[position].asnumpy() for position in range(self.keys.num_shown)]
            self.writer.write(round(values[0]), {SHOWN: shown, **self.state()})
            return
        if code == UPLOAD and self.looks_at_uploads and first_not_finite([*self.buffers[rank].values()]) is not None:
            logging.warning("warning: an upload of worker %d is not finite and does not count", rank)
            code = BAD_UPLOAD
        changes: Iterable[int] = (rank,)
        if code == LOST and (gone := round(values[0])) not in self.lost:
            self.lost.add(gone)
            changes = (rank, *self.go_on_without(gone))
        elif code != LOST and rank not in self.lost:  # one that was frozen may have sent this before
            changes = self.act(rank, int(code), values)
        for changed in {*changes} & self._status_vectors.keys():
            vector = self._status_vectors[changed]
            vector[:] = np.array(self.status(changed), dtype=np.float32)
            vector.wait_to_read()


class ModelLink:
    """A worker's side. Only one thread may use it at a time; it waits for its own arrays and for nothing else.

    Counts its traffic like the shared arrays that it is made of.
    """

    def __init__(
        self,
        transport: Transport,
        keys: Keys,
        on_link: Callable[[], None],
        lost: Callable[[], frozenset[int]] = frozenset,
    ) -> None:
        """
        Args:
            lost: ranks without which the others go on: the server is told of them.
            on_link: called for each upload and each pull of a model: an emulated slow link makes them longer. Other
                commands and status vectors, which are small, are not delayed.
        """
        self._transport = transport
        self._keys = keys
        self._shown = transport.arrays()
        self._buffer = transport.arrays(keys.buffer(transport.rank))
        self._command = transport.arrays(keys.command(transport.rank))
        self._on_link = on_link
        self._status_size = 0
        self._came = (False, False)  # with the last two uploads
        self._sending: list[mx.nd.NDArray] = []
        self._stop_told = False
        self._lost = lost
        self._lost_told: set[int] = set()

    def define(
        self,
        optimizer: WholeModelOptimizer,
        shown: Sequence[mx.nd.NDArray],
        checkpoints: ServerCheckpoints | None = None,
    ) -> None:
        """Gives the server its optimizer and all keys; every rank calls it, once.

        Args:
            shown: the model, whose shapes a gradient buffer has, and what else is shown. Rank 0's values count, or
                those of the checkpoint that it goes on from; afterwards every rank's model holds them.
            checkpoints: of the server.
        """
        if checkpoints is not None:
            optimizer.writer = checkpoints.for_server()
            if checkpoints.of_server is not None:
                optimizer.restore(checkpoints.of_server)
                for array, saved in zip(shown, checkpoints.of_server[SHOWN], strict=True):
                    array[:] = saved.reshape(array.shape)
        model = shown[: self._keys.num_sent]
        vectors = [mx.nd.array(optimizer.status(rank)) for rank in range(self._keys.num_workers)]
        self._status_size = vectors[0].size
        if self._transport.rank == 0:
            self._transport.set_optimizer(optimizer)
        empty = [mx.nd.zeros(array.shape) for array in model]
        self._shown.define([*shown, *(array for vector in vectors for array in (*empty, vector))])
        if self._transport.rank == 0:
            registration = [mx.nd.zeros(array.shape) for array in shown]
            self._shown.push(registration)
            self._shown.wait_until_arrived(registration)
        self._transport.barrier()
        self.pull(model)
        self.take_traffic()  # the rounds' traffic is what is asked for

    def begin_to_upload(self, arrays: Sequence[mx.nd.NDArray]) -> None:
        """Sends each array to this worker's gradient buffer as soon as it is computed.

        The kvstore pushes out of the arrays themselves: nobody may write to them before `upload` has returned.
        """
        self._tell_lost()
        self._sending = [array.as_in_context(mx.cpu()) for array in arrays]
        self._buffer.push(self._sending)

    def upload(self, about: Sequence[float]) -> None:
        """Sends what belongs to the arrays, and waits until the server has acted on all of it.

        Args:
            about: whether this worker wants all to stop, and whatever else the server is to know.
        """
        self._on_link()
        self._stop_told |= bool(about[0])
        command = self._begin_command(UPLOAD, *about)
        self._buffer.wait_until_arrived(self._sending)
        self._command.wait_until_arrived(command)

    @property
    def expects_model(self) -> bool:
        """Whether to pull a model along with the status vector: it was there with the last two uploads.

        One that is not there is a download for nothing; one that is not expected costs an exchange more.
        """
        return all(self._came)

    def note(self, model_came: bool) -> None:
        """Whether there was a model as soon as the last upload was there."""
        self._came = (self._came[1], model_came)

    def command(self, *numbers: float) -> np.ndarray:
        """Has another command done; returns the status vector as it is then or later."""
        self._command.wait_until_arrived(self._begin_command(*numbers))
        return self.status()

    def _tell_lost(self) -> None:
        for rank in sorted(self._lost() - self._lost_told):
            self._lost_told.add(rank)
            self.command(LOST, rank)

    def _begin_command(self, *numbers: float) -> list[mx.nd.NDArray]:
        said = np.zeros(self._status_size, dtype=np.float32)
        said[: len(numbers)] = numbers
        command = [mx.nd.array(said)]
        self._command.push(command)
        return command

    def status(self) -> np.ndarray:
        """This worker's status vector."""
        return self._status_with(None, ())

    def look(self, stop_request: Callable[[], object]) -> np.ndarray:
        """This worker's status vector, while it waits for others. Since that may last, a stop request that comes
        meanwhile is told, once.

        Args:
            stop_request: what it returns is true where this worker wants all to stop.
        """
        self._tell_lost()
        if self._stop_told or not stop_request():
            return self.status()
        self._stop_told = True
        return self.command(WANT_STOP)

    def status_and_pull(self, arrays: Sequence[mx.nd.NDArray]) -> np.ndarray:
        """As `status` and `pull`, in one exchange."""
        self._on_link()
        return self._status_with(self._shown, arrays)

    def status_and_answer(self) -> tuple[np.ndarray, list[mx.nd.NDArray]]:
        """As `status` and `answer`, in one exchange."""
        self._on_link()
        return self._status_with(self._buffer, self._sending), self._sending

    def _status_with(self, shared: SharedArrays | None, arrays: Sequence[mx.nd.NDArray]) -> np.ndarray:
        vector = [mx.nd.empty((self._status_size,))]
        self._command.pull(vector)
        if shared is not None:
            shared.pull(arrays)
            shared.wait(arrays)
        self._command.wait(vector)
        return vector[0].asnumpy()

    def pull(self, arrays: Sequence[mx.nd.NDArray], first: int = 0) -> None:
        """Replaces the arrays by those that all see, from key `first` on. Others' uploads may come between two."""
        self._on_link()
        self._shown.pull(arrays, first)
        self._shown.wait(arrays)

    def answer(self) -> list[mx.nd.NDArray]:
        """What the server has left in this worker's gradient buffer, in the arrays that were sent."""
        self._on_link()
        self._buffer.pull(self._sending)
        self._buffer.wait(self._sending)
        return self._sending

    def take_traffic(self) -> dict[str, int]:
        """Bytes pushed and pulled since the last call, under their names in the round logs."""
        parts = [part.take_traffic() for part in (self._shown, self._buffer, self._command)]
        return {name: sum(part[name] for part in parts) for name in parts[0]}
