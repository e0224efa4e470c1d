"""A process's connection to the server at which its job meets: to the hub (hub_link.py), or to the scheduler of MXNet's
kvstore (rendezvous_client.py)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from esync.protocol import Message, NoAnswer, Reply, Timeouts
from trainer.hub.server_part import Arrays
from trainer.hub.wire import CONNECT_S, SILENT_S, Wire, error_of_end, how_lost, log, server_name
from trainer.rendezvous.cluster import ClusterSpec
from utils import JobError, PeerLost, die_on_error, printable


class ServerLink:
    """The Link of a process's Joining. Once the job has begun, a thread shows that this process lives, and obeys what
    the server tells; it ends the process where the job ends."""

    round_trip_s = 0.0

    def __init__(self, cluster: ClusterSpec, mode: str, beat_s: float, end: Callable[[str, int], Any]) -> None:
        """`mode` is the hub's. `end` is called with a line and an exit code."""
        self._cluster, self._mode, self._beat_s, self._end = cluster, mode, beat_s, end
        self.address = f"{cluster.root_uri}:{cluster.root_port}"
        self._name = server_name(cluster)
        self._wire: Wire | None = None
        self._joined: Message = {}  # the newest answer to JOIN, with what came beside it
        self._reading = threading.RLock()  # held by the thread that reads, or connects again
        self._has_begun = self._is_over = False

    def send(self, message: Message, timeouts: Timeouts) -> Reply:
        """As Link, for JOIN. That this process waits no more is told by the end of its connection."""
        if message["msg_type"] != "JOIN":
            return Reply(200, {})
        try:
            if self._wire is None:
                self._wire = Wire(self._cluster, min(CONNECT_S, timeouts.answer_s), self._mode)
            self._wire.send({"join": self.joining(self._wire, message)})
            said = self._next("response")
        except EOFError:
            why = "it went away before the job was complete"
        except OSError as error:  # keep-alive got no answer, or there is no route any more
            why = f"the connection broke: {error.strerror or error}"
        else:
            self._joined = said
            return Reply(200, said["response"])
        self.drop()
        log.warning("%s: %s; trying again", self._name, why)
        raise NoAnswer(why)

    def joining(self, wire: Wire, message: Message) -> Message:
        """JOIN, with what this process adds to it. Raises SetupError where it cannot take part."""
        return message

    def watch(self) -> None:
        """The job has begun: a thread looks after the connection from here on."""
        self._has_begun = True
        threading.Thread(target=self._watch, name="server link", daemon=True).start()

    def gather(self, label: str, value: Any) -> Any:
        """As Gather."""
        with self._reading, self._or_end():
            self._connected_wire().send({"gather": label, "value": value})
            return self._next("gathered")["gathered"]

    def leave(self, why: str = "", goes_on: bool = False) -> None:
        """This process takes no part any more. `why`: its own error; empty: its job is done, or `goes_on` without
        it."""
        self._is_over = True
        self._tell({"left": printable(why), "goes_on": goes_on})
        self.drop()

    def _tell(self, message: Message, arrays: Arrays = ()) -> None:
        """The thread that watches notices a loss of the connection."""
        wire = self._wire
        if wire is not None:
            with contextlib.suppress(OSError):
                wire.send(message, arrays)

    def _connected_wire(self) -> Wire:
        if self._wire is None:
            raise EOFError
        return self._wire

    def drop(self) -> None:
        """Closes the connection."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def _next(self, key: str, on_tick: Callable[[], object] = lambda: None) -> Message:
        """The next message with this key; obeys others before it."""
        while True:
            said, shapes = self._connected_wire().receive(on_tick)
            if key in said:
                return {**said, "shapes": shapes}
            self._obey(said)

    @contextlib.contextmanager
    def _or_end(self) -> Iterator[None]:
        """A loss of the connection ends the job."""
        try:
            yield
        except (EOFError, OSError) as error:
            raise PeerLost(how_lost(self._name, error)) from None

    def _obey(self, said: Message) -> None:
        """Acts on a message; raises JobError where it ends this process."""
        if "end" in said and not self._is_over:
            if self._has_begun:
                self._is_over = True
                self._end(said["end"], said["code"])
            raise error_of_end(said)

    def _come_back(self, error: Exception) -> None:
        """The connection is lost; connects again where the job survives that, else raises JobError."""
        raise PeerLost(how_lost(self._name, error)) from None

    def _watch(self) -> None:
        awake = time.monotonic()
        with die_on_error(f"the connection to {self._name} failed"):
            while not self._is_over:
                before = time.monotonic()
                time.sleep(self._beat_s)
                if time.monotonic() - before > SILENT_S / 2:
                    awake = time.monotonic()  # this process was frozen
                    with contextlib.suppress(EOFError):
                        self._connected_wire().heard = awake
                self.on_beat(awake)
                self._beat()
                if self._reading.acquire(blocking=False):
                    try:
                        self._look()
                    except JobError as error:
                        if not self._is_over:
                            self._is_over = True
                            self._end(str(error), error.exit_code)
                    finally:
                        self._reading.release()

    def on_beat(self, awake: float) -> None:
        """Called again and again during the job; `awake`: since when this process was not frozen."""

    def _beat(self) -> None:
        """Shows that this process lives, where no message does."""
        wire = self._wire
        if wire is not None and not wire.is_sending:
            self._tell({"beat": 0})

    def _look(self) -> None:
        """Reads what has come."""
        try:
            wire = self._connected_wire()
            while wire.has_news():
                self._obey(wire.receive()[0])
            wire.check(wire.heard)
        except (EOFError, OSError) as error:
            if not self._is_over:
                self._come_back(error)
