"""The connections among the workers of one generation: exchanges travel over one set, signs of life over another."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from trainer.collectives.connecting import TEST, Acceptor, connect
from trainer.collectives.mesh import MeshGroup
from trainer.collectives.schedules import ScheduleMaker
from trainer.rendezvous.failure_detector import FailureDetector
from trainer.rendezvous.joining import Start
from trainer.rendezvous.silence import Silence

LEAVING_S = 60.0  # for the last exchange, in which workers that end are not lost


class TcpConnections:
    """Connects a worker with the others of one generation; raises JobError where not all of them could be reached.

    `group` is what the workers do together. `interrupt()` ends all exchanges, also those that another thread or another
    worker waits for. `heard()` returns the ranks that FailureDetector.heard does. `stop_watching()` reports losses no
    more; the others see that this worker has left."""

    def __init__(
        self,
        acceptor: Acceptor,  # of other workers' calls; the caller's
        algorithm: ScheduleMaker,  # of the sums
        connect_s: float,  # until all are connected
        silence: Silence,  # after which a worker is reported
        continues: bool,  # after a loss the others are watched
        start: Start,
        names: Sequence[str],  # of all workers by rank, for messages
        report: Callable[[Sequence[int], str], object],  # as generations.Report
        on_idle: Callable[[float], object] = lambda since: None,  # as the detector calls it
    ) -> None:
        places = [(member.address, member.port) for member in start.members]
        all_connected = functools.partial(
            connect, start.rank, places, acceptor, start.secret, connect_s, names, start.calls
        )
        self._mesh = all_connected()
        self._mesh.patience_s = connect_s
        self.group = MeshGroup(self._mesh, algorithm)
        try:
            self.group.all_gather(TEST)  # when all have the first connections, a second one is known as such
            alive = all_connected()
        except BaseException:
            self._mesh.close()
            raise
        self._mesh.patience_s = None  # all wait for the slowest: from here on the detector notices losses
        self._detector = FailureDetector(alive.connections, self._mesh, report, silence, continues, on_idle)
        self._mesh.on_error = (lambda: report((), "")) if continues else self._detector.report_before_close
        self.interrupt, self.heard = self._mesh.interrupt, self._detector.heard
        self.stop_watching = self._detector.close

    def let_leave(self) -> None:
        """From here on a worker that ends is not lost."""
        self._mesh.patience_s = LEAVING_S
        self._detector.let_leave()

    def close(self) -> None:
        self._detector.close()
        self._mesh.on_error = lambda: None  # the report leads back to this object
        self._mesh.close()
