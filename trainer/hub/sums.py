"""Sums over the workers on the hub, for SSGD, LB-BSP, local SGD and ESync: the server part, and the transport.

The hub has no model. A worker that comes to a job at work, or has missed a sum, gets the state of another one, and
takes part from then on. What a worker has sent before it was lost counts, with its weight; where an upload breaks off
in the middle, all others of that sum send theirs again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from algorithm_row import AlgorithmFlags
from config import Config
from trainer.hub.hub_trainer import Exchange
from trainer.hub.server_part import ENDED, STATE, Answer, Answers, Arrays, Message, Served, Sink, about, shaped
from utils import JobOver, PeerLost

NUMBER = "sum"  # in a message: how many sums the worker has had
AGAIN = "again"  # in an answer: an upload to this sum broke off, so all send theirs again
GIVES = "gives"  # in an answer: the worker is to tell its state before its next sum
OVER = "over"  # in an answer: no worker is left that has a state; whether they are done


class _Sum:
    """The sum of uploads, to which each is added as it comes, from its first number to its last."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], memory: Callable[[int], np.ndarray]) -> None:
        self._flat = memory(sum(map(math.prod, shapes)))
        self.arrays = shaped(self._flat, shapes)
        self._begun = 0  # numbers of the sum that some upload has reached; the others hold nothing yet

    def add(self, position: int, numbers: np.ndarray) -> None:
        """Adds numbers (n,) at this position."""
        end = position + numbers.size
        old = min(max(self._begun - position, 0), numbers.size)
        self._flat[position : position + old] += numbers[:old]
        self._flat[position + old : end] = numbers[old:]
        self._begun = max(self._begun, end)


class SumServer:
    """The sum of what has arrived. It is complete when all that take part have sent. It takes an upload piece by piece,
    so that none is held as a whole."""

    def __init__(self, job: Served, settings: AlgorithmFlags) -> None:
        self._initial: Arrays = job.model  # of all, until the first sum is complete
        self._there = set(range(job.num_workers))  # ranks of workers that take part
        self._behind: set[int] = set()  # ranks that wait for another one's state
        self._is_done = False  # the last of all has ended
        self._number = 0  # of complete sums
        self._arrived: set[int] = set()  # ranks of those in the sum
        self._sum: _Sum | None = None
        self._memory_of_sum, self._is_repeated = job.memory_of_sum, False
        self._uploads: dict[int, _Sum] = {}  # on their way, by rank, and what they are added to

    def act(self, rank: int, message: Message, arrays: Arrays) -> Answers:
        if ENDED in message:
            return self._without(rank, is_done=True)
        if STATE in message:
            return self._hand_over(message, arrays)
        if NUMBER not in message:
            return {}
        if message[NUMBER] > self._number:  # this hub was started again: others may have missed the last sum
            self._miss(self._arrived)
            self._number, self._arrived, self._sum = message[NUMBER], set(), None
        added_to = self._uploads.pop(rank, None)
        if message[NUMBER] < self._number:
            self._miss({rank})
            return self._completed()
        if added_to is not self._sum and added_to is not None:
            return {rank: Answer({AGAIN: True})}
        self._initial = self._initial if self._number == 0 else ()
        self._there.add(rank)
        if rank not in self._arrived:  # else its connection was lost, and it sends this again
            self._arrived.add(rank)
            if added_to is None:
                self._add(arrays)
        return self._completed()

    def into(self, rank: int, message: Message, shapes: Sequence[tuple[int, ...]]) -> Sink | None:
        """Called before the arrays of a message come: what takes them. Then `act` gets none. None: `act` gets them."""
        is_due = message.get(NUMBER) == self._number and rank in self._there - self._arrived - self._uploads.keys()
        if not is_due or not shapes:
            return None
        self._sum = self._sum or self._new_sum(shapes)
        self._uploads[rank] = self._sum
        return self._sum.add

    def broke_off(self, rank: int) -> Answers:
        """The connection was lost while arrays came into a sink."""
        added_to = self._uploads.pop(rank, None)
        if added_to is None or added_to is not self._sum:
            return {}
        answers = {each: Answer({AGAIN: True}) for each in self._arrived}
        self._arrived, self._sum, self._is_repeated = set(), None, True
        return answers

    def joined(self, rank: int) -> Answer | None:
        if self._initial and rank not in self._arrived:
            self._there.add(rank)
            return Answer({}, self._initial)
        if not self._there:
            return Answer({OVER: self._is_done})
        self._behind.add(rank)
        return None

    def lost(self, rank: int) -> Answers:
        return self._without(rank, is_done=False)

    def state(self) -> dict[str, Any]:
        """Workers have it all."""
        return {}

    def _without(self, rank: int, is_done: bool) -> Answers:
        answers = self.broke_off(rank)
        self._there.discard(rank)
        self._behind.discard(rank)
        if self._there:
            return answers | self._completed()
        behind, self._behind = self._behind, set()
        if self._initial:  # those of the first sum are all gone: it begins again
            self._arrived, self._sum, self._there = set(), None, behind
            return {each: Answer({}, self._initial) for each in behind}
        self._is_done = is_done
        return {each: Answer({OVER: is_done}) for each in behind}

    def _add(self, arrays: Arrays) -> None:
        """Adds an upload that has come as a whole."""
        self._sum = self._sum or self._new_sum([array.shape for array in arrays])
        position = 0
        for array in arrays:
            self._sum.add(position, array.reshape(-1))
            position += array.size

    def _new_sum(self, shapes: Sequence[tuple[int, ...]]) -> _Sum:
        # Uploads may still come into the memory of the sum that broke off.
        memory = Served.memory_of_sum if self._is_repeated else self._memory_of_sum
        self._is_repeated = False
        return _Sum(shapes, partial(memory, self._number))

    def _miss(self, ranks: set[int]) -> None:
        self._behind |= ranks
        self._there -= ranks

    def _completed(self) -> Answers:
        if not self._arrived or not self._there <= self._arrived:
            return {}
        giver = min(self._there) if self._behind and self._there else None
        total = self._sum.arrays if self._sum is not None else ()
        answers = {rank: Answer({GIVES: rank == giver}, total) for rank in self._arrived & self._there}
        self._number, self._arrived, self._sum, self._initial = self._number + 1, set(), None, ()
        return answers

    def _hand_over(self, message: Message, arrays: Arrays) -> Answers:
        if message[NUMBER] != self._number:  # its worker was lost since then
            return {}
        answers = {rank: Answer(message, arrays) for rank in self._behind}
        self._there |= self._behind
        self._behind = set()
        return answers


class HubSums:
    """One worker's transport, of TransportKind.SUM only, and its SummedArrays: there is one list of them."""

    largest = math.inf

    def __init__(self, exchange: Exchange, config: Config, gather: Callable[[str, Any], Any]) -> None:
        self._exchange, self._config, self._gather = exchange, config, gather
        self.rank, self.num_workers = exchange.rank, exchange.num_workers
        self.take_traffic = exchange.take_traffic
        self.gives = False  # this worker is to `give` its state
        self.taken: tuple[Message, Arrays] | None = None  # another one's state, in place of the last sum
        self._number = 0
        self._sent: Arrays = ()

    def sums(self, as_halves: bool = False) -> HubSums:
        return self

    def agree(self, numbers: Sequence[float]) -> list[float]:
        agreed: list[float] = self._gather("numbers", list(numbers) if self.rank == 0 else None)[0]
        return agreed

    def broadcast(self, arrays: Sequence[np.ndarray], exact: int = 0) -> None:
        """As SummedArrays; a worker that comes to a job at work has `taken` a state instead."""
        answer = self._exchange.begin(about(self._config, (), (), None), arrays, tuple)
        if not self._is_state(answer):
            for array, own in zip(arrays, answer.arrays, strict=True):
                array[...] = own
        self.take_traffic()  # only rounds count

    def begin_sum(self, arrays: Sequence[np.ndarray]) -> None:
        self._sent = arrays

    def finish_sum(self, arrays: Sequence[np.ndarray], timed: bool = False) -> float | None:
        answer = Answer({AGAIN: True})
        while AGAIN in answer.message:
            answer = self._exchange.ask({NUMBER: self._number}, self._sent, lambda: False, repeats=True)
        if self._is_state(answer):
            for array in arrays:
                array[...] = 0
        else:
            self._number += 1
            self.gives = answer.message[GIVES]
            for array, total in zip(arrays, answer.arrays, strict=True):
                array[...] = total
        return self._exchange.pull_s if timed else None

    def give(self, said: Message, state: Arrays) -> None:
        """Tells this worker's state to those that are behind."""
        self.gives = False
        self._exchange.tell({STATE: said, NUMBER: self._number}, state)

    def end(self) -> None:
        self._exchange.tell({ENDED: True})

    def _is_state(self, answer: Answer) -> bool:
        said = answer.message
        if OVER in said:
            raise JobOver("the job has ended") if said[OVER] else PeerLost("no worker is left that has the model")
        if STATE in said:
            self._number, self.taken = said[NUMBER], (said[STATE], answer.arrays)
        return STATE in said
