"""The connection of a process to the scheduler (rendezvous_client.py lists the messages), until MXNet listens."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from esync.protocol import Message, NoAnswer, Reply, Timeouts
from trainer.collectives.connecting import Acceptor
from trainer.hub.wire import CONNECT_S, Wire, error_of_end, log
from trainer.rendezvous import addresses
from trainer.rendezvous.cluster import ClusterSpec
from utils import SetupError, printable

_FREE_PORT = "set PORT to a free one, another for each process of this host, or correct DMLC_INTERFACE"


class SchedulerLink:
    """A connection to the scheduler, as a Link until the job begins."""

    round_trip_s = 0.0

    def __init__(self, cluster: ClusterSpec, environment: Mapping[str, str]) -> None:
        self._cluster, self._environment = cluster, environment
        self._here = ""  # the address at which MXNet will listen
        self._acceptor: Acceptor | None = None  # answers calls there until then
        self.address = f"{cluster.root_uri}:{cluster.root_port}"
        self.wire: Wire | None = None

    def close(self) -> None:
        if self.wire is not None:
            self.wire.close()
        self.wire = None

    def free_port(self) -> None:
        """From here on MXNet may listen."""
        if self._acceptor is not None:
            self._acceptor.close()

    def send(self, message: Message, timeouts: Timeouts) -> Reply:
        """As Link, for JOIN, which also tells where this process listens, and LEFT. Raises PlainScheduler where no
        scheduler of this program is there; SetupError or PeerLost where the job ends, or this process cannot listen."""
        try:
            if self.wire is None:
                self.wire = Wire(self._cluster, min(CONNECT_S, timeouts.answer_s))
            if message["msg_type"] != "JOIN":
                self.wire.send({"left": message["cause"]})
                return Reply(200, {})
            self.wire.send({"join": {**message, **self._listens(self.wire, message)}})
            while "response" not in (said := self.wire.receive()[0]):
                if "end" in said:
                    raise error_of_end(said)
                if "warning" in said:
                    log.warning("%s", said["warning"])
            return Reply(200, said["response"])
        except EOFError:
            why = "it went away before the job was complete"
        except OSError as error:  # keep-alive got no answer, or there is no route any more
            why = f"the connection broke: {error.strerror or error}"
        self.close()
        log.warning("the scheduler at %s: %s; trying again", self.address, why)
        raise NoAnswer(why)

    def _listens(self, wire: Wire, join: Message) -> Message:
        """Listens, where this process does not yet."""
        try:
            if self._acceptor is None:
                if self._cluster.role == "scheduler":
                    self._here = socket.gethostbyname(self._cluster.root_uri)
                else:
                    self._here = addresses.own_address(wire.own_address, self._environment)
                listener = addresses.listen(self._here, addresses.chosen_port(self._environment), _FREE_PORT)
                self._acceptor = Acceptor(listener, join["sender"])
        except SetupError as error:
            who = f"{self._cluster.role} on host {socket.gethostname()}"
            wire.send({"failed": printable(f"{who} ended before the job began: {error}")})
            raise
        return {"address": self._here, "port": self._acceptor.port}
