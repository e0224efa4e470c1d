"""The workers of a job without a parameter server, generation after generation: where the job survives, lost workers
are left out, and new ones come to it.

A generation is one set of workers, connected with each other. It breaks with the first worker that is lost, or where
all of them agree to pause so that a worker can come or go. Then each comes back to the state server
(SimpleStateServer/server/rendezvous/membership.py), which tells all that are left where the next one is. That happens
beside the training thread, also during a long step. The training thread notices when a sum fails, and takes its new
place when it comes to the next one (recovery.py). failure_detector.py connects the workers of a generation.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
from collections.abc import Callable, Sequence

from esync.clock import Clock
from trainer.collectives.mesh import Group
from trainer.rendezvous.failure_detector import TcpConnections
from trainer.rendezvous.joining import Joining, Start
from utils import JobError, PeerLost, die_on_error

ASK_EVERY_S = 1.0  # whether a worker waits to take part
OTHERS_ASK_EVERY_S = 5.0  # workers other than rank 0, which may be cut off from the state server
FORMED_S = 10.0  # for the next generation, before a worker that is to stop gives it up


# Called with the ranks whose connections have ended, with none where an exchange has failed, or with those of silent
# workers, which may be alive, and why.
Report = Callable[[Sequence[int], str], object]
# Connects with the workers that have started, by these names; raises JobError if it cannot.
Connect = Callable[[Start, Sequence[str], Report], TcpConnections]


class Generation:
    """One set of workers."""

    def __init__(self, start: Start) -> None:
        self.start = start  # this worker's rank, and the members
        self.connections: TcpConnections | None = None  # None where they could not be connected
        # Ranks that this worker has seen to be gone; of silent ones tests tell (joining.py)
        self.lost: set[int] = set()
        self.is_broken = False  # exchanges fail
        self.is_over = False  # the next one has started
        self.newcomer_waits = False  # a worker waits to take part, as this one has heard from the state server
        self.names = [member.called(rank) for rank, member in enumerate(start.members)]

    @property
    def number(self) -> int:
        """How many times workers of this job have started."""
        return self.start.generation

    @property
    def group(self) -> Group:
        assert self.connections is not None
        return self.connections.group

    def close(self) -> None:
        if self.connections is not None:
            self.connections.close()


def in_daemon_thread(work: Callable[[], None], name: str) -> None:
    """Starts work that may outlast the training; an error in it ends the process."""

    def run() -> None:
        with die_on_error(f"{name}: failed"):
            work()

    threading.Thread(target=run, name=name, daemon=True).start()


class Generations:
    """One worker's place in the generations of a job; the training thread is in the one that is `taken`."""

    taken: Generation

    def __init__(
        self,
        joining: Joining,  # asks the state server
        connect: Connect,
        clock: Clock,
        start: Callable[[Callable[[], None], str], object] = in_daemon_thread,  # begins work beside the training
        # Called with the first loss, as Report, with all names before; returns why the job ends. None: it survives
        end: Callable[[Sequence[str], Sequence[int], str], str] | None = None,
    ) -> None:
        self.joining = joining
        self._connect = connect
        self._clock = clock
        self._start, self._end = start, end
        self._lock = clock.lock()
        self._formed = clock.event()  # set as soon as there is a newest generation, or a failure
        self._newest: Generation | None = None  # None: none has formed since the last one broke
        self._failure: Exception | None = None  # for which this worker can take part no more
        self._is_over = False
        self.ending = ""  # why the job ends, once it does for a loss

    def begin(self, start: Start) -> Generation:
        """The first generation that this worker takes part in; raises JobError where it can take part in none."""
        self.taken = self._connected(start)
        if self.taken.connections is None:
            self._form(self.taken)
            return self.take()
        with self._lock:
            if not self.taken.is_broken:
                self._newest = self.taken
        return self.taken

    def take(self, wants_end: Callable[[], str] = lambda: "") -> Generation:
        """Takes this worker's place in the next generation, once it has formed; raises JobError where it can take part
        no more, PeerLost where it `wants_end` meanwhile, for a reason in words."""
        before = self.taken
        while True:
            with self._lock:
                if self._newest is not None:
                    self.taken = self._newest
                    break
                if self._failure is not None:
                    raise self._failure
                formed = self._formed
            patience_s = FORMED_S
            while not formed.wait(patience_s):
                if why := wants_end():
                    raise PeerLost(f"{why}, and other workers were waited for")
                patience_s = ASK_EVERY_S
        before.close()
        with contextlib.suppress(AttributeError):  # of a C library that has no such call
            ctypes.CDLL(None).malloc_trim(0)  # else its memory would stay in the pools of its threads
        return self.taken

    def pause(self) -> None:
        """Leaves the generation, as all have agreed to do: it breaks without a loss."""
        self._break(self.taken, (), "")

    def leave(self, cause: str = "") -> None:
        """Takes part no more. `cause` is this worker's own error, where it leaves for one."""
        with self._lock:
            self._is_over = True
            newest = self._newest
        self.joining.leave(cause=cause)
        if newest is not None:
            newest.close()

    def let_leave(self) -> None:
        """From here on others may end without being lost."""
        if self.taken.connections is not None:
            self.taken.connections.let_leave()

    def end_together(self, barrier: Callable[[], None]) -> None:
        barrier()  # up to here one that falls silent is lost
        self.let_leave()  # the first to leave the next one closes its connections, while others may still be in it
        barrier()

    # ------------------------------------------------------------------------------------------ beside the training

    def _break(self, generation: Generation, lost: Sequence[int], why: str) -> None:
        """The generation is over, or one more of its workers is gone. Any thread may call it, any number of times."""
        if self._end is not None:
            if not self._is_over:
                self.ending = self._end(generation.names, lost, why)
                generation.is_broken = True
                if generation.connections is not None:
                    generation.connections.interrupt()  # the training thread saves its model
            return
        with self._lock:
            if self._is_over or generation.is_over:
                return
            how = why or f"it was killed{', or goes on without this worker' if generation.is_broken else ' or crashed'}"
            for rank in lost:
                logging.warning("warning: %s is gone: %s", generation.names[rank], how)
            generation.lost.update(() if why else lost)
            if generation.is_broken:
                return
            generation.is_broken = True
            if self._newest is generation:
                self._newest, self._formed = None, self._clock.event()
        if generation.connections is not None:
            generation.connections.interrupt()
        self._start(lambda: self._form(generation), "next generation")

    def _form(self, before: Generation) -> None:
        """Comes back to the state server, until there is a generation in which this worker is connected."""
        made, failure = before, None
        try:
            made = self._after(before)
            while made.connections is None:
                made = self._after(made)
        except JobError as error:
            failure = error
        with self._lock:
            self._failure = failure
            if failure is None and not made.is_broken:
                self._newest = made
            if failure is not None or self._newest is not None:
                self._formed.set()

    def _after(self, before: Generation) -> Generation:
        """Comes back from a generation that broke; the one after it, whose workers may be connected or not."""
        # 32 workers that tested all pairs took a second of both cores, in which others missed some of them
        heard = before.connections.heard if before.connections is not None else tuple
        start = self.joining.come_back(before.start, lambda: sorted(before.lost), heard)
        before.is_over = True
        made = self._connected(start)
        if before.connections is not None:  # until here others had to see that this worker is alive
            before.connections.stop_watching()
        if before is not self.taken:  # it broke before the training thread took it
            before.close()
        return made

    def _connected(self, start: Start) -> Generation:
        """A generation; without connections where not all of its workers could be reached."""
        made = Generation(start)
        try:
            made.connections = self._connect(start, made.names, lambda lost, why: self._break(made, lost, why))
        except JobError as error:
            if self._end is not None:
                raise
            logging.warning("warning: generation %d could not be connected: %s", made.number, error)
            return made
        if made.is_broken:  # before there was anything to interrupt
            made.connections.interrupt()
        if self._end is None:
            logging.info("generation %d: rank %d of %d", made.number, start.rank, len(start.members))
            self._start(lambda: self._ask(made), "newcomers")
        return made

    def _ask(self, generation: Generation) -> None:
        """Asks whether a worker waits to take part, as long as the generation lasts."""
        while not generation.is_broken and not self._is_over:
            call = self.joining.beat(generation.start)
            if call == "REGROUP":
                self._break(generation, (), "")
            generation.newcomer_waits |= call == "PAUSE"
            self._clock.sleep(OTHERS_ASK_EVERY_S if generation.start.rank else ASK_EVERY_S)
