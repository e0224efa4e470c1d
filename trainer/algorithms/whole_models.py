"""Whole models over MXNet's kvstore (dist_async): the server applies an upload as a whole, or not at all yet.

The kvstore handles each array alone and promises no order among keys: if the server applied arrays as they arrive, a
worker could read half an update. So every worker has keys of its own: a gradient buffer, and one small array for
commands. It pushes all arrays of an upload together. The server acts when all are there, in whatever order they come,
before it acknowledges the last one. Its answer is the worker's status vector, which the worker pulls from the key of
its commands.

So an upload is two exchanges: a push of everything, and a pull of the status vector. A worker that expects a model
pulls it in the second one. The kvstore answers at once, so a worker that waits for others polls its status vector.

All keys must lie on one server (`one_server` in algorithms.py): two servers have no common order of uploads.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.algorithms.server_optimizer import ServerOptimizer
from trainer.array_tree import from_text, to_text
from trainer.clock import Clock, RealClock
from trainer.membership import tells_loss
from trainer.nan_guard import first_not_finite
from trainer.recovering import Writes
from trainer.trainer import Trainer
from trainer.transport.protocol import SharedArrays

# Commands of a worker.
UPLOAD = 1  # together with the arrays of the gradient buffer; all others act alone
WANT_STOP = 2  # a worker that waits wants all to stop
SAVE = 3  # rank 0: write a checkpoint of this round
CHANGE = 4  # the worker of this rank is lost or back: the number of the change (context.Peers); every worker says so
BAD_UPLOAD = -1  # never sent: the server's code for an upload that is not finite
SHOWN = "shown"  # a checkpoint's name for the arrays that all workers see
TEXT_SIZE = 120  # characters of a reason in a status vector; a longer one is cut


@dataclass(frozen=True)
class Keys:
    """The order of the keys: first the arrays that all workers see, then those of each worker."""

    num_arrays: int  # of the model, which is also what all workers see and what a gradient buffer holds
    num_workers: int

    def buffer(self, rank: int) -> int:
        """First key of a worker's gradient buffer."""
        return self.num_arrays + rank * (self.num_arrays + 1)

    def command(self, rank: int) -> int:
        """Key of a worker's commands and status vector, after its gradient buffer."""
        return self.buffer(rank) + self.num_arrays

    def owner(self, key: int) -> tuple[int, int]:
        """Rank of the worker that has this key, and the key's position among that worker's."""
        return divmod(key - self.num_arrays, self.num_arrays + 1)


def text_to_numbers(text: str) -> list[float]:
    """Encodes a text as the end of a status vector."""
    codes = text.encode("ascii", "replace")[:TEXT_SIZE]
    return [*map(float, codes), *[0.0] * (TEXT_SIZE - len(codes))]


def text_of(numbers: np.ndarray) -> str:
    """Decodes the text at the end of a status vector."""
    return bytes(int(code) for code in numbers[-TEXT_SIZE:] if code).decode("ascii")


class WholeModelOptimizer(ServerOptimizer):
    """Runs in the parameter server's process; a subclass defines the effect of uploads and commands."""

    def __init__(self, keys: Keys) -> None:
        super().__init__()
        self.keys = keys
        # The arrays that all workers see, by key. Mutate only inside `act`, in place.
        self.shown: dict[int, np.ndarray] = {}
        # By rank, the gradient buffer's arrays by position. They hold the upload when `act` is called; only that worker
        # pulls what `act` leaves there.
        self.buffers: list[dict[int, np.ndarray]] = [{} for _ in range(keys.num_workers)]
        self.clock: Clock | None = None  # of this process; None until the optimizer is there
        self.checks_uploads = False  # drops uploads that are not finite
        self.lost: set[int] = set()  # ranks of lost workers; their commands have no effect
        self._changes = [0] * keys.num_workers  # by rank, the number of the last one
        self.writer: Writes | None = None  # of checkpoints
        self._saved = ""  # text of a checkpoint to resume
        self._arrived: list[set[int]] = [
            set() for _ in range(keys.num_workers)
        ]  # by rank, positions of the next upload
        self._commands: dict[int, list[float]] = {}  # by rank, the newest
        self._status_vectors: dict[int, np.ndarray] = {}  # by rank, the stored arrays
        self._has_begun = False

    def begin(self) -> None:
        """Called once, before the first command, when `shown` is complete."""
        raise NotImplementedError

    def act(self, rank: int, code: int, values: Sequence[float]) -> Iterable[int]:
        """Executes a worker's command; returns the ranks of all workers whose status has changed.

        A worker that has sent nothing yet gets its status with its first command. `code`: UPLOAD; BAD_UPLOAD if the
        upload is not finite and must not be applied; or WANT_STOP. `values`: the command's other numbers.
        """
        raise NotImplementedError

    def remove_worker(self, rank: int) -> Iterable[int]:
        """Continues without a lost worker; returns the ranks of all workers whose status has changed."""
        raise NotImplementedError

    def add_worker(self, rank: int) -> None:
        """Counts a worker again that was lost: it has the newest model, and may have sent part of an upload before."""

    def state(self) -> dict[str, Any]:
        """The subclass's state for a checkpoint, in addition to `shown`: plain values and numpy arrays."""
        raise NotImplementedError

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Resumes a checkpoint; called before the optimizer is sent. Rank 0 defines `shown`."""
        self._saved = to_text({name: value for name, value in saved.items() if name != SHOWN})

    def take_saved(self) -> Mapping[str, Any]:
        """The checkpoint that `begin` resumes, without `shown`; empty in a new job."""
        saved, self._saved = self._saved, ""
        return from_text(saved) if saved else {}

    def status(self, rank: int) -> list[float]:
        """A worker's status vector; of constant length, and at least as long as a command."""
        raise NotImplementedError

    def now(self) -> float:
        """Seconds on this process's clock."""
        if self.clock is None:
            self.clock = RealClock()
        return self.clock.now()

    def pushed(self, key: int, value: np.ndarray, array: np.ndarray) -> None:
        if key < self.keys.num_arrays:
            self.shown[key] = value  # rank 0's push at the begin makes the array known
            return
        rank, position = self.keys.owner(key)
        if position < self.keys.num_arrays:
            value[:] = array
            self.buffers[rank][position] = value
        else:
            self._commands[rank] = array.tolist()
            self._status_vectors[rank] = value
        self._arrived[rank].add(position)
        self._act_if_complete(rank)

    def _act_if_complete(self, rank: int) -> None:
        arrived = self._arrived[rank]
        if self.keys.num_arrays not in arrived:  # the command
            return
        code, *values = self._commands[rank]
        if code == UPLOAD and len(arrived) <= self.keys.num_arrays:
            return
        arrived.clear()
        if not self._has_begun:
            self._has_begun = True
            self.begin()
        if code == SAVE and self.writer is not None:
            shown = [self.shown[position] for position in range(self.keys.num_arrays)]
            self.writer.write(round(values[0]), {SHOWN: shown, **self.state()})
            return
        if code == UPLOAD and self.checks_uploads and first_not_finite([*self.buffers[rank].values()]) is not None:
            logging.warning("warning: an upload of worker %d is not finite and does not count", rank)
            code = BAD_UPLOAD
        changes: Iterable[int] = (rank,)
        if code == CHANGE:
            changes = (rank, *self._note_change(*map(round, values[:2])))
        elif rank not in self.lost:  # a lost worker may only have been frozen, and still sends
            changes = self.act(rank, int(code), values)
        for changed in {*changes} & self._status_vectors.keys():
            self._status_vectors[changed][:] = self.status(changed)

    def _note_change(self, rank: int, number: int) -> set[int]:
        """A worker is lost, or back; news of its loss may come late, or not at all. Returns as `remove_worker`."""
        changed: set[int] = set()
        if number <= self._changes[rank]:
            return changed
        self._changes[rank] = number
        if rank not in self.lost:
            self.lost.add(rank)
            changed.update(self.remove_worker(rank))
        if not tells_loss(number):
            self.lost.discard(rank)
            self.add_worker(rank)
            changed.add(rank)
        return changed


class ModelLink:
    """A worker's connection to WholeModelOptimizer. Only one thread may use it at a time; it waits for its own arrays
    only.
    """

    def __init__(self, trainer: Trainer, keys: Keys) -> None:
        self._trainer = trainer
        self._transport = transport = trainer.context.shared
        self._keys = keys
        self._shown = transport.arrays()
        self._buffer = transport.arrays(keys.buffer(transport.rank))
        self._command = transport.arrays(keys.command(transport.rank))
        # To emulate a slow link. Commands and status vectors are small and not delayed.
        self._on_link = trainer.emulation.wait_for_link
        self._status_size = 0
        self._came = (False, False)  # whether a model came with each of the last two uploads
        self._sending: list[np.ndarray] = []
        self._stop_told = False
        self._changes_told: dict[int, int] = {}

    def define(self, optimizer: WholeModelOptimizer, model: Sequence[np.ndarray]) -> None:
        """Gives the server its optimizer and all keys; every rank calls it once.

        `model`: the arrays that all workers see; a gradient buffer has their shapes. Rank 0's values count, or those of
        its checkpoint; afterwards every rank's arrays hold them.
        """
        optimizer.checks_uploads = self._trainer.checks.are_on
        if (checkpoints := self._trainer.context.run.checkpoints) is not None:
            optimizer.writer = checkpoints.for_server()
            if checkpoints.of_server is not None:
                optimizer.restore(checkpoints.of_server)
                for array, saved in zip(model, checkpoints.of_server[SHOWN], strict=True):
                    array[:] = saved.reshape(array.shape)
        vectors = [np.array(optimizer.status(rank), np.float32) for rank in range(self._keys.num_workers)]
        self._status_size = vectors[0].size
        if self._transport.rank == 0:
            self._transport.set_optimizer(optimizer)
        empty = [np.zeros_like(array) for array in model]
        self._shown.define([*model, *(array for vector in vectors for array in (*empty, vector))])
        if self._transport.rank == 0:
            self._shown.push(empty)
            self._shown.wait_until_arrived(empty)
        self._transport.barrier()
        self._tell_changes()  # of this worker, where it is back
        self.pull(model)
        self.take_traffic()  # only rounds count

    def begin_to_upload(self, arrays: Sequence[np.ndarray]) -> None:
        """Sends each array to this worker's gradient buffer. The kvstore reads the arrays themselves, so they must not
        be written to before `upload` has returned."""
        self._tell_changes()
        self._sending = list(arrays)
        self._buffer.push(self._sending)

    def upload(self, about: Sequence[float]) -> None:
        """Sends the command of an upload, and waits until the server has acted on it. The first number of `about` says
        whether this worker wants all to stop."""
        self._on_link()
        self._stop_told |= bool(about[0])
        command = self._begin_command(UPLOAD, *about)
        self._buffer.wait_until_arrived(self._sending)
        self._command.wait_until_arrived(command)

    @property
    def expects_model(self) -> bool:
        """Whether to pull a model along with the status vector: there was one with the last two uploads. A pull without
        a new model is a wasted download; an unexpected model costs one more exchange."""
        return all(self._came)

    def note(self, model_came: bool) -> None:
        """Notes whether the server had a model when the last upload had arrived."""
        self._came = (self._came[1], model_came)

    def command(self, *numbers: float) -> np.ndarray:
        """Sends another command; returns the status vector after it."""
        self._command.wait_until_arrived(self._begin_command(*numbers))
        return self.status()

    def _tell_changes(self) -> None:
        for change in self._trainer.context.peers.changes().items() - self._changes_told.items():
            self._changes_told.update([change])
            self.command(CHANGE, *change)

    def _begin_command(self, *numbers: float) -> list[np.ndarray]:
        padded = np.zeros(self._status_size, dtype=np.float32)
        padded[: len(numbers)] = numbers
        command = [padded]
        self._command.push(command)
        return command

    def status(self) -> np.ndarray:
        return self._status_with(None, ())

    def poll(self, stop_request: Callable[[], object]) -> np.ndarray:
        """This worker's status vector while it waits for others; tells the server a new stop request, once."""
        self._tell_changes()
        if self._stop_told or not stop_request():
            return self.status()
        self._stop_told = True
        return self.command(WANT_STOP)

    def status_and_pull(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """`status` and `pull` in one exchange."""
        self._on_link()
        return self._status_with(self._shown, arrays)

    def status_and_answer(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """`status` and `answer` in one exchange."""
        self._on_link()
        return self._status_with(self._buffer, self._sending), self._sending

    def _status_with(self, shared: SharedArrays | None, arrays: Sequence[np.ndarray]) -> np.ndarray:
        vector = [np.empty(self._status_size, np.float32)]
        self._command.pull(vector)
        if shared is not None:
            shared.pull(arrays)
            shared.wait(arrays)
        self._command.wait(vector)
        return vector[0]

    def pull(self, arrays: Sequence[np.ndarray]) -> None:
        """Copies the arrays that all workers see; another upload may change some meanwhile."""
        self._on_link()
        self._shown.pull(arrays)
        self._shown.wait(arrays)

    def answer(self) -> list[np.ndarray]:
        """The content of this worker's gradient buffer, in the arrays that were sent."""
        self._on_link()
        self._buffer.pull(self._sending)
        self._buffer.wait(self._sending)
        return self._sending

    def take_traffic(self) -> dict[str, int]:
        """Bytes pushed and pulled since the last call, under their names in the round logs."""
        parts = [part.take_traffic() for part in (self._shown, self._buffer, self._command)]
        return {name: sum(part[name] for part in parts) for name in parts[0]}
