"""A process's side of the rendezvous at the scheduler, before MXNet connects the processes and during the job.

MXNet alone waits for ever, in silence, where a process is missing, a port is closed or a peer has died, and trains on
where flags differ. So every process first connects to the scheduler's published address, where `rendezvous_server.py`
listens, and JOINs (joining.py) until START tells it the port of MXNet's own scheduler. The lines of JSON that a process
sends, and that it gets:

                                                {"welcome": true, "challenge": bytes, with a token}
    its own random bytes and the proof, raw     {"proof": ...}: both know the token (scheduler_link.proof)
    JOIN and LEFT, as at the state server       RESPONSE; from time to time {"warning": ...}
    {"freed": true}: MXNet's scheduler may listen; from the scheduler, after its START and before that of the others
    {"rank": ...}                               {"changes": [[rank, number], ...], "age": s}: of a job at work, to a
                                                worker that takes the place of a lost one (rejoining.py)
    {"gather": label, "value": ...}             {"gathered": label, "values": [...]}
    {"unreached": [places]}: they acknowledge nothing that this process sends
                                                {"end": why, "code": ...}: end with this line and exit code
                                                {"lost": rank, "number": ..., "why": ...}: a worker is lost, and the job
                                                goes on; {"back": rank, "number": ..., "who": ...}: a new one
                                                is in its place
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, MutableMapping
from typing import Any, NoReturn

from trainer.clock import RealClock
from trainer.collectives.connecting import unanswered
from trainer.rendezvous import rejoining
from trainer.rendezvous.acknowledged import Unacknowledged
from trainer.rendezvous.cluster import ClusterSpec
from trainer.rendezvous.joining import REMIND_EVERY_S, Joining
from trainer.rendezvous.scheduler_link import JOB, Lines, PlainScheduler, SchedulerLink, left, log
from utils import EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, SetupError, die_on_error, fail, printable

GONE = "is gone: it was killed or has crashed"
# Label of the last values that all workers gather before they train: from then on the server lets the job go on without
# a lost worker, where the flags say so.
LAST_GATHER = "loads"  # of the workers before they train
RENDEZVOUS_FAILED = "the rendezvous of the job's processes failed"
ALL_DONE = "all workers are done"
TRY_S = 5.0  # one try to connect with another process
_HINT = (
    ". Check that the missing ones run, have DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT of {}, and that no firewall closes "
    "that port"
)


class JobSession:
    """A process's connection to the rendezvous server during the job. Ends the process when another one is lost."""

    def __init__(
        self, lines: Lines | None, scheduler: str, end: Callable[[str, int], Any], places: Collection[str] = ()
    ) -> None:
        self._unacknowledged = Unacknowledged(places)
        self._unreached: list[str] = []
        self._lines = lines  # None where the scheduler is a plain MXNet program: then nothing here has an effect
        self._end = end  # called in a thread, with a line and an exit code
        self._scheduler = scheduler  # its address, for messages
        self._left = False
        self.changes: dict[int, int] = {}  # as context.Peers has them; of this worker, too, where it is back
        # Address and port of the processes that MXNet connects this one with
        self._job_began: float | None = None  # on this process's clock; None: this worker was there from the begin
        self._gathered: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        if lines is not None:
            threading.Thread(target=self._listen, name="rendezvous", daemon=True).start()

    def job_age_s(self) -> float | None:
        """As context.Peers has it, after the first `gather`."""
        return None if self._job_began is None else time.monotonic() - self._job_began

    def tell_rank(self, rank: int) -> None:
        """Tells the rank that MXNet gave this process, so that messages can name it."""
        self._send(rank=rank)

    def gather(self, label: str, value: Any) -> list[Any] | None:
        """As Gather, after `tell_rank`. None where a plain MXNet program takes part, or a connection broke."""
        return self._gathered.get() if self._send(gather=label, value=value) else None

    def watch(self, longest_s: float) -> None:
        """Tells, where that changes, which processes acknowledge nothing for so long. To be called every second."""
        found = self._unacknowledged.look(time.monotonic(), longest_s)
        if found != self._unreached and self._send(unreached=found):
            self._unreached = found

    def tell_error(self, text: str) -> None:
        """Tells why this process is about to end during the job."""
        self._send(**left(printable(text)))

    def leave(self, goes_on: bool = False) -> None:
        """Says good-bye: from here on processes leave because the job is done. With `goes_on` it is not done: the
        others count this worker as lost."""
        self._left, lines = True, self._lines  # the answer ends the listening thread
        if self._send(**left(goes_on=goes_on)) and lines is not None:
            lines.close()

    def _send(self, **message: Any) -> bool:
        """Whether it could be sent."""
        if self._lines is None:
            return False
        try:
            self._lines.send(**message)
        except OSError:  # the listening thread notices it too
            return False
        return True

    def _listen(self) -> None:
        with die_on_error(RENDEZVOUS_FAILED):
            lines = self._lines
            assert lines is not None
            try:
                while (message := lines.receive(None)) and not self._left:
                    self._handle(message)
            except SetupError as error:
                self._end(str(error), EXIT_SETUP)
            except EOFError:
                if not self._left:
                    self._end(f"the scheduler at {self._scheduler} {GONE}", EXIT_PEER_LOST)
            except OSError as error:
                if not self._left:  # perhaps the network alone: MXNet's heartbeats tell whether the process is lost
                    log.warning("the connection to the scheduler at %s broke (%s)", self._scheduler, error.strerror)
            self._lines = None
            self._gathered.put(None)

    def _handle(self, message: Mapping[str, Any]) -> None:
        if "gathered" in message:
            self._gathered.put(message["values"])
        elif "warning" in message:
            log.warning("%s", message["warning"])
        elif "changes" in message:
            self.changes, self._job_began = dict(message["changes"]), time.monotonic() - message["age"]
        elif "lost" in message:
            self.changes = {**self.changes, message["lost"]: message["number"]}
            log.warning("warning: %s; the others go on without it", message["why"])
        elif "back" in message:
            self.changes = {**self.changes, message["back"]: message["number"]}
            log.info("%s is back", message["who"])
        elif "end" in message:
            self._left = True
            self._end(message["end"], message["code"])


def end_process(text: str, code: int) -> NoReturn:
    """Ends this process with one line, from any thread."""
    if code == EXIT_OK:
        log.info("%s", text)
    else:
        fail(text)
    os._exit(code)


def join(
    cluster: ClusterSpec,
    device: str,
    setup: Mapping[str, str],
    start_timeout_s: float,
    remind_every_s: float = REMIND_EVERY_S,
    environment: MutableMapping[str, str] = os.environ,
    end: Callable[[str, int], Any] = end_process,
) -> JobSession:
    """Returns when all processes of the job are connected, agree and reach each other; in a job at work, when this one
    has the place of a lost worker.

    Sets the variables that MXNet reads: the port of its scheduler, and this process's own address and port.

    Args:
        device: of a worker; else empty.
        setup: what must be the same in all processes: flag or other key -> value.
        start_timeout_s: 0: for ever.
        end: called in a thread when another process is lost during the job.

    Raises:
        SetupError: set-ups differ, or a port cannot be reached; every process gets the same message.
        PeerLost: the job was not complete in time.
        JobOver: the job has ended.
    """
    numbers = {"DMLC_NUM_SERVER": str(cluster.num_servers), "DMLC_NUM_WORKER": str(cluster.num_workers)}
    about = {
        "num_servers": cluster.num_servers,
        "num_workers": cluster.num_workers,
        "role": cluster.role,
        "device": {"host": socket.gethostname(), "device": device},
        "interface": environment.get("DMLC_INTERFACE", ""),
        "setup": {**setup, **numbers},
    }
    link = SchedulerLink(cluster, environment)
    joining = Joining(
        link, RealClock(), JOB, about, lambda other: unanswered((other.address, other.port), other.name, TRY_S),
        "the scheduler", _HINT.format(link.address), remind_every_s,
    )  # fmt: skip
    try:
        start = joining.wait(start_timeout_s)
        members = start.members
        (me,) = (member for member in members if member.name == joining.name)
        if start.generation > 1:
            link.free_port()
            rejoining.take_place(members, me, environment, link.wait)
    except PlainScheduler:
        why = "is a plain MXNet program: the set-ups of the workers cannot be compared"
        log.warning("the scheduler at %s %s", link.address, why)
        return JobSession(None, link.address, end)
    except Exception:
        link.close()  # the others wait for it to end
        raise
    finally:
        link.free_port()
    assert link.lines is not None
    (scheduler,) = (member for member in members if member.role == "scheduler")
    if start.generation == 1:
        environment["DMLC_PS_ROOT_PORT"] = str(scheduler.port)
    if me is scheduler:
        link.lines.send(freed=True)
        environment["DMLC_PS_ROOT_URI"] = me.address  # MXNet's scheduler cannot listen at a host's name
    else:
        environment.update({"DMLC_NODE_HOST": me.address, "PORT": str(me.port)})
    places = [member.place for member in members if member.role != me.role]
    return JobSession(link.lines, link.address, end, places)
