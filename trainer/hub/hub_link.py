"""A worker's connection to the hub: it meets the others there, asks the server part, and comes back after a loss of the
connection. hub.py lists the messages."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from algorithms import TransportKind
from config import CONTINUE, Config
from esync.clock import RealClock
from esync.protocol import Message, NoAnswer
from trainer.hub.frames import bytes_of
from trainer.hub.server_link import ServerLink
from trainer.hub.server_part import ANEW, KEPT, SHARED, WANTS_STOP, Answer, Arrays, shaped
from trainer.hub.shared_memory import SharedMemory
from trainer.hub.sums import HubSums
from trainer.hub.wire import BEAT_S, CONNECT_S, RETRY_S, Wire, how_lost
from trainer.membership import Change, changes_in
from trainer.rendezvous import addresses
from trainer.rendezvous.cluster import ClusterSpec
from trainer.rendezvous.joining import Joining, Start
from trainer.rendezvous.rendezvous_client import HINT, LAST_GATHER, end_process
from trainer.rendezvous.rendezvous_info import RendezvousInfo, Training
from trainer.transport.protocol import ByteCounter
from utils import EXIT_BUG, PROCESS, JobOver, PeerLost

COME_BACK_S = 120.0  # for the hub to be started again
_JOB = "hub"  # the name of the one job that a hub has


class HubLink(ServerLink, ByteCounter):
    """This worker's Exchange; comes back after a loss of the connection, where the job survives."""

    def __init__(self, cluster: ClusterSpec, config: Config, end: Callable[[str, int], Any] = end_process) -> None:
        # Where the others wait for it in each round, its loss is noticed sooner (Hub._most_silent_s).
        beat_s = BEAT_S / 4 if config.algorithm.transport is TransportKind.SUM else BEAT_S
        ServerLink.__init__(self, cluster, config.mode, beat_s, end)
        ByteCounter.__init__(self)
        self._config = config
        self.num_workers = cluster.num_workers
        self.rank = -1
        self.push_s = self.pull_s = 0.0
        self.changes: dict[int, Change] = {}
        self._job_began: float | None = None  # on this process's clock, where this worker came to a job at work
        self._trains_since = 0.0
        self.start: Start  # this worker's place
        self._join: Message = {}  # the last one
        self._gathered: dict[str, list[Any]] = {}
        self._about: Message = {}
        self._held: Callable[[], Arrays] = tuple  # the newest model here
        self._kept: Message = {}
        self._version = -1  # of the newest model here
        self._spare: Arrays = ()
        self._memory: SharedMemory | None = None  # with the hub
        self._is_back = False  # connected again since the last answer
        self._instance = ""  # of the hub that has answered last
        self.training = Training()

    # ------------------------------------------------------------------------------------------------- to meet

    def joining(self, wire: Wire, message: Message) -> Message:
        self._join = {**message, "port": addresses.chosen_port() or 0}
        return self._join

    def begin_training(self, start: Start) -> None:
        """This worker has its place; from here on a thread watches the connection."""
        self.start, self.rank = start, start.rank
        if (changes := self._joined.get("changes")) is not None:  # the others train already
            self.changes, self._job_began = changes_in(changes), time.monotonic() - self._joined["age_s"]
        self.watch()

    def gather(self, label: str, value: Any) -> list[Any]:
        values: list[Any] = super().gather(label, value)
        self._gathered[label] = values
        self._trains_since = time.monotonic()
        return values

    def job_age_s(self) -> float | None:
        return None if self._job_began is None else time.monotonic() - self._job_began

    # ----------------------------------------------------------------------------------------------- as Exchange

    def begin(self, about: Message, model: Arrays, held: Callable[[], Arrays]) -> Answer:
        self._about, self._held = about, held
        sent = model if self.rank == 0 and self._job_began is None else ()
        with self._reading, self._or_end():
            self._instance = self._connected_wire().instance
            self._connected_wire().send({"begin": about}, sent)
            self.count_pushed(sent)
            return self._answer(self._next("answer"), ())

    def ask(self, message: Message, arrays: Arrays, wants_stop: Callable[[], object], repeats: bool = False) -> Answer:
        begin = time.monotonic()
        has_told = False

        def on_tick() -> None:
            nonlocal has_told
            if not has_told and wants_stop():
                has_told = True
                self._connected_wire().send({"wish": {WANTS_STOP: True}})

        with self._reading:
            try:
                if self._is_back and not repeats:  # the connection was lost since the last answer
                    return self._begin_again()
                self._is_back = False
                if self._memory is not None and arrays:
                    np.concatenate([array.reshape(-1) for array in arrays], out=self._memory.upload(self.rank))
                    self._connected_wire().send({"ask": message, SHARED: True})
                else:
                    self._connected_wire().send({"ask": message}, arrays)
                self.count_pushed(arrays)
                said = self._next("answer", on_tick)
                came = time.monotonic()
                answer = self._answer(said, self._spare_like(arrays) if repeats and SHARED not in said else arrays)
            except (EOFError, OSError) as error:
                self._come_back(error)
                return self.ask(message, arrays, wants_stop, repeats)
        self.pull_s = time.monotonic() - came
        self.push_s = max(0.0, came - begin - said["waited_s"])
        return answer

    def tell(self, message: Message, arrays: Arrays = ()) -> None:
        # Not before this worker is back where another thread comes back. The next question notices a loss.
        with self._reading:
            self._tell({"tell": message}, arrays)

    # ------------------------------------------------------------------------------------------------- inside

    def drop(self) -> None:
        super().drop()
        self._memory = None

    def _obey(self, said: Message) -> None:
        if "lost" in said:
            self.changes = {**self.changes, said["lost"]: Change(said["serial"], is_lost=True)}
            logging.warning("warning: %s; the others go on without it", said["why"])
        elif "back" in said:
            self.changes = {**self.changes, said["back"]: Change(said["serial"])}
            logging.info("%s is back", said["who"])
        elif "memory" in said:
            self._memory = SharedMemory.found(said["memory"])
        elif "send" in said:
            self._connected_wire().send({"model": {**self._about, KEPT: self._kept}}, self._held())
        else:
            super()._obey(said)

    def _spare_like(self, arrays: Arrays) -> Arrays:
        """Memory for an answer to a message that may have to be sent again; kept, since new memory takes time."""
        if [array.shape for array in self._spare] != [array.shape for array in arrays]:
            self._spare = [np.empty_like(array) for array in arrays]
        return self._spare

    def _answer(self, said: Message, sent: Arrays) -> Answer:
        """Reads the arrays of an answer, into those that were sent where they have the same shapes. In shared memory
        they stay, and hold until the next question."""
        shapes = [tuple(shape) for shape in said["shapes"]]
        if SHARED in said and self._memory is not None:
            shapes = [array.shape for array in sent]
            arrays = shaped(self._memory.slots[said[SHARED]], shapes)
        else:
            fits = shapes == [array.shape for array in sent] and all(array.flags.c_contiguous for array in sent)
            arrays = list(sent) if fits else [np.empty(shape, np.float32) for shape in shapes]
            wire = self._connected_wire()
            for array in arrays if shapes else ():
                wire.fill(bytes_of(array))
        message = said["answer"]
        self._kept = message.get(KEPT, self._kept)
        if not shapes:
            return Answer(message)
        self.count_pulled(arrays)
        self._version = said["version"]
        return Answer(message, arrays)

    def _come_back(self, error: Exception) -> None:
        """Connects again, until the hub takes this worker back, where the job survives. Raises JobError."""
        self.drop()
        if self._config.on_worker_death != CONTINUE or LAST_GATHER not in self._gathered:
            raise PeerLost(how_lost(self._name, error))
        logging.warning("warning: %s; this worker waits for it", how_lost(self._name, error))
        give_up = time.monotonic() + COME_BACK_S
        again = {
            **{"job": self.start.id, "rank": self.rank, "version": self._version, "changes": [*self.changes.items()]},
            **{"members": msgspec.to_builtins(self.start.members), "gathered": self._gathered},
            "age_s": time.monotonic() - (self._job_began or self._trains_since),
        }
        while True:
            try:
                self._wire = Wire(self._cluster, CONNECT_S, self._config.mode)
                self._wire.send({"join": self._join, "again": again})
                said = self._next("again", self._beat)
                self.changes = {**self.changes, **changes_in(said["changes"])}
            except (NoAnswer, EOFError, OSError) as failure:
                self.drop()
                if self._is_over or time.monotonic() > give_up:
                    raise PeerLost(f"{how_lost(self._name, error)}, and no other one is there: {failure}") from None
                time.sleep(RETRY_S)
            else:
                self._is_back = True
                logging.info("this worker is back at the hub")
                return

    def _begin_again(self) -> Answer:
        """The first answer after a return. The upload before it may be lost."""
        try:
            self._connected_wire().send({"begin": self._about})
            answer = self._answer(self._next("answer"), ())
        except (EOFError, OSError) as error:
            self._come_back(error)
            return self._begin_again()
        self._is_back = False
        is_anew, self._instance = self._connected_wire().instance != self._instance, self._connected_wire().instance
        return Answer({**answer.message, **({ANEW: True} if is_anew else {})}, answer.arrays)

    def on_beat(self, awake: float) -> None:
        if why := self.training.standing(max(awake, self._trains_since)):
            self.leave(f"its training stands: {why}")
            self._end(f"the training of worker {self.rank} stands: {why}", EXIT_BUG)


@contextlib.contextmanager
def join(cluster: ClusterSpec, config: Config, setup: Mapping[str, str]) -> Iterator[RendezvousInfo]:
    """Joins the others as a worker, once all are there and agree; tells the hub how this worker leaves. `setup` is what
    must be the same on all workers, flag or other key -> value. Raises SetupError where the set-ups differ, PeerLost
    where the job was not complete in time, JobOver where it has ended."""
    link = HubLink(cluster, config)
    device = {"host": socket.gethostname(), "device": config.device}
    launched = os.environ.get(PROCESS, "").partition(" ")[0]
    where = f"{link.address}, which is the hub's address in mode {config.mode}"
    joining = Joining(
        link, RealClock(), _JOB, {"num_workers": cluster.num_workers, "device": device, "setup": setup},
        server="the hub", hint=HINT.format(where), launched=launched,
    )  # fmt: skip
    link.begin_training(joining.wait(config.start_timeout))
    try:
        sums = HubSums(link, config, link.gather) if config.algorithm.transport is TransportKind.SUM else None
        yield RendezvousInfo(
            sums, link.gather, link.start.places, hub=link, changes=lambda: link.changes, job_age_s=link.job_age_s,
            training=link.training,
        )  # fmt: skip
    except JobOver:
        link.leave(goes_on=True)
        raise
    except Exception as error:
        link.leave(why=str(error) or type(error).__name__)
        raise
    link.leave()
