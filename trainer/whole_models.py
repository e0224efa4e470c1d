"""Whole models over MXNet's kvstore (dist_async): what a worker sends counts at once, as a whole, or not yet at all.

The kvstore knows only arrays, each on its own: a server that applied them as they arrive would show a worker a model of
which one half is older than the other, and release models with half of somebody's update. So every worker has an inbox
of keys of its own; when all of it has arrived, a command says so, and the server acts on whole inboxes. The server runs
one command at a time. The model that workers see changes in commands only. What they must know beside it stands on the
board, one small array under a key of its own.

All keys must lie on one server (`one_server` in algorithms.py): two have no common order of commands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.engine import mx
from trainer.parameters import Exchange, wait_for
from utils import die_on_error


@dataclass(frozen=True)
class Keys:
    """Which key is what: first the arrays that the workers see, then the board, then one inbox after the other.

    Attributes:
        num_shown: arrays that the workers can pull.
        num_sent: arrays in a worker's inbox.
    """

    num_shown: int
    num_sent: int
    num_workers: int

    @property
    def board(self) -> int:
        """The board's key."""
        return self.num_shown

    def inbox(self, rank: int) -> int:
        """First key of a worker's inbox."""
        return self.board + 1 + rank * self.num_sent

    def owner(self, key: int) -> tuple[int, int]:
        """Rank of the worker whose inbox the key is in, and its position there."""
        return divmod(key - self.inbox(0), self.num_sent)


class ModelKeeper(mx.optimizer.Optimizer):  # type: ignore[misc]
    """The server's side. Runs in the parameter server's process; a subclass says what the commands do.

    Attributes:
        shown: the arrays that the workers see, by key. To be changed in place, and waited for, in `command` only.
        inboxes: by rank, the arrays that have arrived, by position.
        board: numbers that the workers see, float32.
    """

    def __init__(self, keys: Keys, board_size: int) -> None:
        super().__init__()
        self.keys = keys
        self.shown: dict[int, mx.nd.NDArray] = {}
        self.inboxes: list[dict[int, mx.nd.NDArray]] = [{} for _ in range(keys.num_workers)]
        self.board = [0.0] * board_size  # a list: the way to the server is text, which numpy's pickles are not

    def command(self, values: np.ndarray) -> None:
        """What a worker wants done, as it pushed it: a code, its rank, and what the code needs."""
        raise NotImplementedError

    def create_state(self, index: int, weight: mx.nd.NDArray) -> None:
        """All state is the keeper's own."""

    def update(self, index: int, weight: mx.nd.NDArray, grad: mx.nd.NDArray, state: None) -> None:
        """Called by the server when something was pushed. `weight` is the stored value, the same array every time.

        `grad` lies in a network buffer that is freed when this returns: nothing may still read it then.
        """
        with die_on_error(f"the update of key {index} failed"):
            if index < self.keys.num_shown:
                self.shown[index] = weight  # a push only shows which array it is
            elif index == self.keys.board:
                self.command(grad.asnumpy())
                weight[:] = np.array(self.board, dtype=np.float32)
                weight.wait_to_read()
            else:
                rank, position = self.keys.owner(index)
                grad.copyto(weight)
                weight.wait_to_read()
                self.inboxes[rank][position] = weight


class ModelLink:
    """A worker's side. Only one thread may use it at a time; it waits for its own arrays and for nothing else.

    Counts its traffic like the Exchange that it is made of.
    """

    def __init__(self, store: Any, rank: int, keys: Keys, board_size: int, delay: Callable[[], float]) -> None:
        """
        Args:
            delay: seconds by which an emulated slow link makes a push of an inbox, or a pull of a model, longer that
                begins now. Commands and the board, which are small, are not delayed.
        """
        self._store = store
        self._rank = rank
        self._keys = keys
        self._shown = Exchange(store)
        self._board = Exchange(store, first_key=keys.board)
        self._inbox = Exchange(store, first_key=keys.inbox(rank))
        self._board_size = board_size
        self._delay = delay

    def define(self, keeper: ModelKeeper, shown: Sequence[mx.nd.NDArray]) -> None:
        """Gives the server its keeper and all keys; every rank calls it, once.

        Args:
            shown: the model, whose shapes an inbox has, and what else is shown. Rank 0's values count; afterwards every
                rank's model holds them.
        """
        model = shown[: self._keys.num_sent]
        if self._rank == 0:
            self._store.set_optimizer(keeper)
        empty = [mx.nd.zeros(array.shape) for array in model]
        self._shown.define([*shown, mx.nd.array(keeper.board), *empty * self._keys.num_workers])
        if self._rank == 0:
            self._push(self._shown, [mx.nd.zeros(array.shape) for array in shown])
        self._store._barrier()
        self.pull(model)
        self.take_traffic()  # the rounds' traffic is what is asked for

    def begin_to_send(self, arrays: Sequence[mx.nd.NDArray]) -> list[mx.nd.NDArray]:
        """Fills this worker's inbox with each array as soon as it is computed; returns what is to be waited for."""
        sending = [array.as_in_context(mx.cpu()) for array in arrays]
        self._inbox.push(sending)
        return sending

    def wait_until_sent(self, sending: Sequence[mx.nd.NDArray]) -> None:
        """Waits until all has arrived: what was sent counts from the command after that on.

        The kvstore pushes out of the arrays themselves, so nobody may write to them before that.
        """
        time.sleep(self._delay())
        _wait_until_acknowledged(sending)

    def command(self, code: int, *values: float) -> np.ndarray:
        """Has a command done, with this worker's rank; returns the board as it is then or later."""
        said = np.zeros(self._board_size, dtype=np.float32)
        said[: 2 + len(values)] = (code, self._rank, *values)
        self._push(self._board, [mx.nd.array(said)])
        return self.read_board()

    def read_board(self) -> np.ndarray:
        """The numbers on the board."""
        board = mx.nd.empty((self._board_size,))
        self._board.pull([board])
        return board.asnumpy()

    def pull(self, arrays: Sequence[mx.nd.NDArray], first: int = 0) -> None:
        """Replaces the arrays by those that the workers see, from key `first` on. Commands may come between two."""
        time.sleep(self._delay())
        self._shown.pull(arrays, first)
        wait_for(arrays)

    def take_traffic(self) -> dict[str, int]:
        """Bytes pushed and pulled since the last call, under their names in the round logs."""
        parts = [part.take_traffic() for part in (self._shown, self._board, self._inbox)]
        return {name: sum(part[name] for part in parts) for name in parts[0]}

    def _push(self, exchange: Exchange, arrays: Sequence[mx.nd.NDArray]) -> None:
        exchange.push(arrays)
        _wait_until_acknowledged(arrays)


def _wait_until_acknowledged(pushed: Sequence[mx.nd.NDArray]) -> None:
    """What is pushed may be written to when the server has acknowledged it."""
    for array in pushed:
        mx.base.check_call(mx.base._LIB.MXNDArrayWaitToWrite(array.handle))
