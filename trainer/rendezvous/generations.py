"""The workers of a job that survives lost workers, generation after generation: lost ones are left out, and new ones
come to it.

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
from dataclasses import dataclass, field
from functools import partial

from esync.clock import Clock, Event
from trainer.rendezvous.failure_detector import TcpConnections
from trainer.rendezvous.joining import Joining, Start
from utils import JobError, PeerLost, die_on_error

ASK_EVERY_S = 1.0  # whether a worker waits to take part
OTHERS_ASK_EVERY_S = 5.0  # workers other than rank 0, which may be cut off from the state server
FORMED_S = 10.0  # for the next generation, before a worker that is to stop gives it up


@dataclass(eq=False)
class Generation:
    """One set of workers, connected with each other."""

    start: Start  # this worker's rank, and the members
    connections: TcpConnections
    is_followed: Event  # `next` is there
    next: Generation | JobError = field(init=False)  # or why this worker can take part no more
    lost: set[int] = field(default_factory=set)  # ranks seen to be gone; of silent ones tests tell (joining.py)
    is_broken: bool = False  # exchanges fail
    newcomer_waits: bool = False  # a worker waits to take part, as this one has heard from the state server


def in_daemon_thread(work: Callable[[], None], name: str) -> None:
    """Starts work that may outlast the training; an error in it ends the process."""
    threading.Thread(target=die_on_error(f"{name}: failed")(work), name=name, daemon=True).start()


def end_together(connections: TcpConnections, barrier: Callable[[], None]) -> None:
    """Called by all workers of a generation once they are done."""
    barrier()  # up to here one that falls silent is lost
    connections.let_leave()  # the first to leave the next one closes its connections, while others may still be in it
    barrier()


class Generations:
    """One worker's place in the generations of a job; the training thread is in the one that is `taken`. Raises
    JobError where this worker can take part in none."""

    def __init__(
        self,
        joining: Joining,  # asks the state server
        connect: Callable[[Start], TcpConnections],  # with the workers that have started; raises JobError if it fails
        clock: Clock,
        first: Start,
        begin: Callable[[Callable[[], None], str], object] = in_daemon_thread,  # begins work beside the training
    ) -> None:
        self.joining = joining
        self._connect, self._clock, self._begin = connect, clock, begin
        self._lock = clock.lock()
        self._is_over = False
        self.taken = self._connected(first)

    def take(self, wants_end: Callable[[], str] = lambda: "") -> Generation:
        """Takes this worker's place in the next generation, once it has formed; raises JobError where it can take part
        no more, PeerLost where it `wants_end` meanwhile, for a reason in words."""
        before, newest, patience_s = self.taken, self.taken, FORMED_S
        while newest.is_broken:
            if newest.is_followed.wait(patience_s):
                if isinstance(newest.next, JobError):
                    raise newest.next
                newest = newest.next
            elif why := wants_end():
                raise PeerLost(f"{why}, and other workers were waited for")
            else:
                patience_s = ASK_EVERY_S
        self.taken = newest
        before.connections.close()
        with contextlib.suppress(AttributeError):  # of a C library that has no such call
            ctypes.CDLL(None).malloc_trim(0)  # else its memory would stay in the pools of its threads
        return newest

    def pause(self) -> None:
        """Leaves the generation, as all have agreed to do: it breaks without a loss."""
        self._break(self.taken, (), "")

    def leave(self, cause: str = "") -> None:
        """Takes part no more. `cause` is this worker's own error, where it leaves for one."""
        self._is_over = True
        self.joining.leave(cause=cause)
        self._newest.connections.close()

    # ------------------------------------------------------------------------------------------ beside the training

    def _break(self, generation: Generation, lost: Sequence[int], why: str) -> None:
        """The generation is over, or one more of its workers is gone. Any thread may call it, any number of times."""
        with self._lock:
            if self._is_over:
                return
            how = why or f"it was killed{', or goes on without this worker' if generation.is_broken else ' or crashed'}"
            for rank in lost:
                logging.warning("warning: %s is gone: %s", generation.start.names[rank], how)
            generation.lost.update(() if why else lost)
            if generation.is_broken:
                return
            generation.is_broken = True
        generation.connections.interrupt()
        self._begin(lambda: self._form(generation), "next generation")

    def _form(self, before: Generation) -> None:
        """Comes back to the state server, until there is a generation in which this worker is connected."""
        try:
            # 32 workers that tested all pairs took a second of both cores, in which others missed some of them
            heard = before.connections.heard
            start = self.joining.wait(0.0, before.start, lambda: sorted(before.lost), heard)
            before.connections.let_leave()  # the others end their connections in turn
            before.next = self._connected(start)
            before.connections.stop_watching()  # until here others had to see that this worker is alive
            if before is not self.taken:  # it broke before the training thread took it
                before.connections.close()
        except JobError as error:
            before.next = error
        before.is_followed.set()

    def _connected(self, start: Start) -> Generation:
        """The generation that starts or, where not all of its workers are reached, the next one in which they are."""
        while True:
            try:
                connections = self._connect(start)
                break
            except JobError as error:
                logging.warning("warning: generation %d could not be connected: %s", start.generation, error)
                start = self.joining.wait(0.0, start)
        made = Generation(start, connections, self._clock.event())
        connections.watch(partial(self._break, made))
        self._newest = made
        logging.info("generation %d: rank %d of %d", start.generation, start.rank, len(start.members))
        self._begin(lambda: self._ask(made), "newcomers")
        return made

    def _ask(self, generation: Generation) -> None:
        """Asks whether a worker waits to take part, as long as the generation lasts."""
        while not generation.is_broken and not self._is_over:
            call = self.joining.beat(generation.start)
            if call == "REGROUP":
                self._break(generation, (), "")
            generation.newcomer_waits |= call == "PAUSE"
            self._clock.sleep(OTHERS_ASK_EVERY_S if generation.start.rank else ASK_EVERY_S)
