"""The hub and its workers in the memory of one process, in virtual time: it calls the server part itself.

A message takes the time of its arrays on the network, up and down; what the server part does takes none.
"""

import math
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from config import Config
from trainer.hub import server_part
from trainer.hub.server_part import JOB, SAVE, WANTS_STOP, Answer, Answers, Arrays, Message, Served, ServerPart
from trainer.simulation.network import Direction, WorkerLink
from trainer.simulation.virtual_clock import VirtualClock
from trainer.survival.checkpoint_manager import HubCheckpoints
from trainer.transport.protocol import ByteCounter, num_bytes


def own(answer: Answer) -> Answer:
    """Its worker's, who may change the arrays."""
    return Answer(answer.message, [array.copy() for array in answer.arrays])


class VirtualHub:
    """What all workers share."""

    def __init__(
        self,
        clock: VirtualClock,
        config: Config,
        links: Sequence[WorkerLink],  # of the workers, by rank
        bytes_per_s: float = math.inf,  # of the hub's own link, in each direction
        size_of: Callable[[np.ndarray], int] = num_bytes,  # bytes of an array in a transfer
    ) -> None:
        self.clock, self.size_of, self.num_workers = clock, size_of, len(links)
        self.up, self.down = Direction(clock, links, bytes_per_s), Direction(clock, links, bytes_per_s)
        self.answers: Answers = {}  # that no worker has taken yet
        self._config = config
        self._checks = config.max_bad_steps > 0 and bool(config.algorithm.server)  # a worker checks what it sums
        self._writer: HubCheckpoints | None = None
        self._known: dict[str, Any] = {}  # what rank 0 has told, by label
        self.num_begun = 0  # workers; none trains before all have
        self.part: ServerPart
        self.name = secrets.token_hex(8)

    def begin(self, about: Message, model: Arrays) -> None:
        self._writer = HubCheckpoints(about["checkpoints"]) if about["checkpoints"] else None
        saved = self._writer.resumed() if self._writer is not None else {}
        shown, kept = server_part.shown_and_kept(saved, [array.copy() for array in model])
        decays, counts = about["decays"], about["sample_counts"]
        job = Served(self._config, self.num_workers, decays, counts, shown, kept, self.clock.now)
        self.part = server_part.serve(job)

    def act(self, rank: int, message: Message, arrays: Arrays) -> None:
        answers = self.part.act(rank, server_part.marked(rank, message, arrays, self._checks), arrays)
        self.answers |= {each: own(answer) for each, answer in answers.items()}
        self.clock.changed()  # those that wait look whether they want to stop, too

    def gather(self, label: str, mine: Any) -> list[Any]:
        """As Gather, of what rank 0 alone has to tell: others give None."""
        if mine is not None:
            self._known[label] = mine
            self.clock.changed()
        self.clock.wait_until(lambda: label in self._known)
        return [self._known[label]]

    def save(self, round_: int) -> None:
        if self._writer is not None:
            self._writer.write(round_, self.part.state())


class VirtualExchange(ByteCounter):
    """One worker's Exchange with a VirtualHub."""

    def __init__(self, hub: VirtualHub, rank: int) -> None:
        super().__init__(hub.size_of)
        self._hub, self.rank, self.num_workers = hub, rank, hub.num_workers
        self.push_s = self.pull_s = 0.0

    def begin(self, about: Message, model: Arrays, held: Callable[[], Arrays]) -> Answer:
        hub = self._hub
        if self.rank == 0:
            hub.up.transfer(0, self.count_pushed(model))
            hub.begin(about, model)
        hub.num_begun += 1
        if hub.num_begun == hub.num_workers:  # else N workers would wake N times
            hub.clock.changed()
        hub.clock.wait_until(lambda: hub.num_begun == hub.num_workers)
        answer = hub.part.joined(self.rank)
        assert answer is not None  # all begin together
        return self._taken(own(Answer({**answer.message, JOB: hub.name}, answer.arrays)))

    def ask(self, message: Message, arrays: Arrays, wants_stop: Callable[[], object], repeats: bool = False) -> Answer:
        hub, rank, begin = self._hub, self.rank, self._hub.clock.now()
        hub.up.transfer(rank, self.count_pushed(arrays))
        self.push_s = hub.clock.now() - begin
        hub.act(rank, message, [array.copy() for array in arrays])
        told = False

        def is_answered() -> bool:
            nonlocal told
            if rank not in hub.answers and not told and wants_stop():
                told = True
                hub.act(rank, {WANTS_STOP: True}, ())
            return rank in hub.answers

        hub.clock.wait_until(is_answered)
        return self._taken(hub.answers.pop(rank))

    def tell(self, message: Message, arrays: Arrays = ()) -> None:
        if SAVE in message:
            self._hub.save(message[SAVE])
        else:
            self._hub.act(self.rank, message, arrays)

    def _taken(self, answer: Answer) -> Answer:
        begin = self._hub.clock.now()
        if answer.arrays:
            self._hub.down.transfer(self.rank, self.count_pulled(answer.arrays))
        self.pull_s = self._hub.clock.now() - begin
        return answer
