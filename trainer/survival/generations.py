"""The workers of a job that survives, generation after generation: who is lost is left out, and others come to it.

A generation is one set of workers, connected with each other. It breaks with the first of them that is lost, or where
all of them agree to pause, so that somebody can come or go. Then each comes back to the state server
(SimpleStateServer/server/membership.py), which tells all who are left where the next one is. All of that goes on in
threads of its own, also while this worker computes a long step. The training thread hears of it when a sum fails, and
takes its new place when it comes to the next one (recovery.py).
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Sequence

from trainer.collectives.connecting import NotThere, connect
from trainer.collectives.group import MeshGroup
from trainer.collectives.schedules import ScheduleMaker
from trainer.collectives.tcp import PATIENCE_S, TcpMesh
from trainer.rendezvous.failure_detector import FailureDetector
from trainer.rendezvous.joining import Joining, Start
from utils import JobError, die_on_error

ASK_EVERY_S = 1.0  # whether somebody waits to take part


class Generation:
    """One set of workers.

    Attributes:
        start: rank of this worker, and who the others are.
        group: what they do together; None where they could not be connected.
        lost: ranks of those that this worker has seen to be gone.
    """

    def __init__(self, start: Start) -> None:
        self.start = start
        self.group: MeshGroup | None = None
        self.mesh: TcpMesh | None = None
        self.watch: FailureDetector | None = None
        self.lost: set[int] = set()
        self.is_broken = False
        self.is_over = False  # the next one has started
        self.names = [member.called(rank) for rank, member in enumerate(start.members)]

    @property
    def number(self) -> int:
        """How many times workers of this job have started."""
        return self.start.generation

    def close(self) -> None:
        """Nobody exchanges anything in it any more."""
        if self.watch is not None:
            self.watch.close()
        if self.mesh is not None:
            self.mesh.close()


class Generations:
    """One worker's place in the generations of a job.

    Attributes:
        taken: the generation in which the training thread is.
        somebody_waits: to take part, as rank 0 has heard.
    """

    taken: Generation

    def __init__(
        self, joining: Joining, listener: socket.socket, algorithm: ScheduleMaker, fault_timeout_s: float
    ) -> None:
        """
        Args:
            joining: the way to the state server.
            listener: at which other workers find this one; it stays open, and is the caller's.
            algorithm: of the sums.
            fault_timeout_s: after so long without a sign of life a worker counts as lost.
        """
        self._joining = joining
        self._listener = listener
        self._algorithm = algorithm
        self._fault_timeout_s = fault_timeout_s
        self._changed = threading.Condition()
        self._newest: Generation | None = None  # None: none has formed since the last one broke
        self._failure: Exception | None = None  # for which this worker can take part no more
        self._is_over = False
        self.somebody_waits = False

    def begin(self, start: Start) -> Generation:
        """The first one that this worker takes part in; otherwise as `take`."""
        self.taken = self._connected(start)
        if self.taken.group is None:
            self._form(self.taken)
            return self.take()
        with self._changed:
            self._newest = None if self.taken.is_broken else self.taken
        return self.taken

    @property
    def is_broken(self) -> bool:
        """Whether nothing can be exchanged any more where the training thread is."""
        return self.taken.is_broken

    def take(self) -> Generation:
        """Takes this worker's place in the next generation, once it has formed.

        Raises:
            JobError: this worker can take part no more.
        """
        before = self.taken
        with self._changed:
            while self._newest is None:
                if self._failure is not None:
                    raise self._failure
                self._changed.wait()
            self.taken = self._newest
        before.close()
        return self.taken

    def pause(self) -> None:
        """Leaves the generation, as all have agreed to do: it breaks without a loss."""
        self._break(self.taken, (), "")

    def leave(self, cause: str = "") -> None:
        """Takes part no more.

        Args:
            cause: the error of its own for which it does.
        """
        with self._changed:
            self._is_over = True
            newest = self._newest
        self._joining.leave(cause=cause)
        if newest is not None:
            newest.close()

    def let_leave(self) -> None:
        """From here on others may end without being lost."""
        if self.taken.watch is not None:
            self.taken.watch.let_leave()

    # ------------------------------------------------------------------------------------------ beside the training

    def _break(self, generation: Generation, lost: Sequence[int], why: str) -> None:
        """It is over, or one more of its workers is gone. Any thread may say so, any number of times."""
        with self._changed:
            if self._is_over or generation.is_over:
                return
            for rank in lost:
                logging.warning("warning: %s is gone: %s", generation.names[rank], why or "it was killed or crashed")
            generation.lost.update(lost)
            if generation.is_broken:
                return
            generation.is_broken = True
            if self._newest is generation:
                self._newest = None
        if generation.mesh is not None:
            generation.mesh.interrupt()
        threading.Thread(target=self._form, args=(generation,), name="next generation", daemon=True).start()

    def _form(self, before: Generation) -> None:
        """Comes back to the state server, until there is a generation in which this worker is connected."""
        made, failure = before, None
        with die_on_error("the next generation of workers cannot be formed"):
            try:
                made = self._after(before)
                while made.group is None:
                    made = self._after(made)
            except JobError as error:
                failure = error
        with self._changed:
            self._failure = failure
            if failure is None and not made.is_broken:
                self._newest = made
            self._changed.notify_all()

    def _after(self, before: Generation) -> Generation:
        """Comes back from a generation that broke; the one after it, whose workers may be connected or not."""
        start = self._joining.come_back(before.start, lambda: sorted(before.lost))
        before.is_over = True
        made = self._connected(start)
        if before.watch is not None:  # until here others had to see that this worker is alive
            before.watch.close()
        return made

    def _connected(self, start: Start) -> Generation:
        """A generation whose workers exchange over one set of connections, and give signs of life over another.

        Where they could not all be reached it has no group.
        """
        made = Generation(start)
        self.somebody_waits = False
        places = [(member.address, member.port) for member in start.members]
        timeout_s = self._fault_timeout_s

        def connected() -> TcpMesh:
            return connect(start.rank, places, self._listener, start.secret, timeout_s, made.names, all_listen=True)

        try:
            made.mesh = connected()
            made.mesh.patience_s = timeout_s
            group = MeshGroup(made.mesh, self._algorithm)
            group.all_gather(b"")  # nobody waits for another's first connection any more: a second one is known as such
            alive = connected()
        except JobError as error:
            logging.warning("warning: generation %d could not be connected: %s", made.number, error)
            made.lost.update(error.ranks if isinstance(error, NotThere) else ())
            made.close()
            return made
        made.group = group
        made.mesh.patience_s = PATIENCE_S  # all wait for the slowest: from here on it is the watch that notices
        made.watch = FailureDetector(
            alive.connections, lambda lost, why: self._break(made, lost, why), self._fault_timeout_s, continues=True
        )
        made.mesh.on_error = lambda: self._break(made, (), "")
        logging.info("generation %d: rank %d of %d", made.number, start.rank, len(start.members))
        if start.rank == 0:
            threading.Thread(target=self._ask, args=(made,), name="who waits", daemon=True).start()
        return made

    def _ask(self, generation: Generation) -> None:
        """Whether somebody waits to take part, as long as the generation lasts."""
        with die_on_error("the question whether somebody waits failed"):
            while not generation.is_broken and not self._is_over:
                if self._joining.beat(generation.start):
                    self.somebody_waits = True
                with self._changed:
                    self._changed.wait(ASK_EVERY_S)
