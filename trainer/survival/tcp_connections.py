"""The connections among the workers of one generation: exchanges travel over one set, signs of life over another."""

from __future__ import annotations

import functools
import socket
from collections.abc import Sequence

from trainer.collectives.connecting import connect
from trainer.collectives.group import MeshGroup
from trainer.collectives.schedules import ScheduleMaker
from trainer.collectives.tcp import PATIENCE_S
from trainer.rendezvous.failure_detector import FailureDetector
from trainer.rendezvous.joining import Start
from trainer.survival.generations import Report


class TcpConnections:
    """Connections of generations.py over TCP."""

    def __init__(
        self,
        listener: socket.socket,
        algorithm: ScheduleMaker,
        fault_timeout_s: float,
        start: Start,
        names: Sequence[str],
        report: Report,
    ) -> None:
        """
        Args:
            listener: at which other workers find this one; it stays open, and is the caller's.
            algorithm: of the sums.
            fault_timeout_s: a worker counts as lost after that time without a sign of life.
            names: of all workers by rank, for messages.

        Raises:
            JobError: not all workers could be reached; NotThere with the ranks of those that have ended.
        """
        places = [(member.address, member.port) for member in start.members]
        all_connected = functools.partial(
            connect, start.rank, places, listener, start.secret, fault_timeout_s, names, all_listen=True
        )
        self._mesh = all_connected()
        self._mesh.patience_s = fault_timeout_s
        self.group = MeshGroup(self._mesh, algorithm)
        try:
            self.group.all_gather(b"")  # when all have the first connections, a second one is known as such
            alive = all_connected()
        except BaseException:
            self._mesh.close()
            raise
        self._mesh.patience_s = PATIENCE_S  # all wait for the slowest: from here on the detector notices losses
        self._detector = FailureDetector(alive.connections, report, fault_timeout_s, continues=True)
        self._mesh.on_error = lambda: report((), "")
        self.interrupt = self._mesh.interrupt
        self.let_leave = self._detector.let_leave
        self.stop_watching = self._detector.close

    def close(self) -> None:
        self._detector.close()
        self._mesh.close()
