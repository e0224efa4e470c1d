"""A process's side of the rendezvous at the scheduler, before MXNet connects the processes and during the job.

MXNet alone waits for ever, in silence, where a process is missing, a port is closed or a peer has died, and trains on
where flags differ. So every process first connects to the scheduler's published address, where `rendezvous_server.py`
listens, and JOINs (joining.py) until START tells it the port of MXNet's own scheduler. What a process sends after the
greeting (wire.py), and what it gets:

    {"join": JOIN, as at the state server}      {"response": RESPONSE}; from time to time {"warning": ...}
    {"freed": true}: MXNet's scheduler may listen; from the scheduler, after its START and before that of the others
    {"beat": ...}, each second                  {"complete": bool}, each second: whether MXNet has connected all
    {"rank": ...}, of a worker that MXNet has connected with all
    {"gather": label, "value": ...}             {"gathered": label, "values": [...]}
    {"left": why; empty: its job is done}
    {"failed": why}, before it joins
                                                {"end": why, "code": ...}: end with this line and exit code
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, NoReturn

from esync.clock import RealClock
from trainer.collectives.connecting import unanswered
from trainer.hub.server_part import Message
from trainer.hub.wire import BEAT_S, RETRY_S, SILENT_S, PlainScheduler, Wire, how_lost, log
from trainer.rendezvous.cluster import WORKER, ClusterSpec
from trainer.rendezvous.joining import REMIND_EVERY_S, Joining
from trainer.rendezvous.scheduler_link import SchedulerLink
from utils import EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, SetupError, die_on_error, fail, printable

# isort: split
from server.messages import Member

JOB = "mxnet"  # the name of the one job that a scheduler has
# Label of the last values that all workers gather before they train: from then on a hub lets the job go on without a
# lost worker, where the flags say so.
LAST_GATHER = "loads"
RENDEZVOUS_FAILED = "the rendezvous of the job's processes failed"
ALL_DONE = "all workers are done"
TRY_S = 5.0  # one try to connect with another process
TEST_EVERY_S = 5.0  # between two connections to the same port during the job
_HINT = (
    ". Check that the missing ones run, have DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT of {}, and that no firewall closes "
    "that port"
)


class JobSession:
    """A process's connection to the rendezvous server during the job. Ends the process when another one is lost."""

    def __init__(
        self,
        wire: Wire | None,  # None where the scheduler is a plain MXNet program: then no other process is known
        cluster: ClusterSpec,
        start_timeout_s: float,  # for MXNet to connect all; 0: for ever
        end: Callable[[str, int], Any],  # called in a thread, with a line and an exit code
        on_complete: Callable[[], None],  # called once MXNet has connected all
        servers: Sequence[Member] = (),
    ) -> None:
        self._wire, self._end, self._on_complete, self._servers = wire, end, on_complete, servers
        self._scheduler = f"the scheduler at {cluster.root_uri}:{cluster.root_port}"
        self._left = False
        self._gathered: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self._job = (
            f"a job of 1 scheduler ({cluster.root_uri}:{cluster.root_port}), {cluster.num_servers} server(s) and "
            f"{cluster.num_workers} worker(s)"
        )
        self._is_complete = False
        late = f"{self._job} was not complete after {start_timeout_s:g} s: see the others' logs"
        self._start_timer = threading.Timer(start_timeout_s, self._finish, (late, EXIT_PEER_LOST))
        self._start_timer.daemon = True
        if start_timeout_s:
            self._start_timer.start()
        if wire is not None:
            threading.Thread(target=self._listen, args=(wire,), name="rendezvous", daemon=True).start()
            return
        self._watch_port(cluster.root_uri, cluster.root_port, f"{self._scheduler}: it is gone, or its network is down")
        if cluster.role != WORKER:
            self._note_complete()  # a plain MXNet scheduler does not send it

    def tell_rank(self, rank: int) -> None:
        """Tells the rank that MXNet has given this worker, with which it has connected it."""
        if not self._send({"rank": rank}):
            self._note_complete()
        for server in self._servers:
            self._watch_port(server.address, server.port, f"{server.called()}: the network between them is cut")

    def gather(self, label: str, value: Any) -> list[Any] | None:
        """As Gather, after `tell_rank`. None where a plain MXNet program takes part, or a connection broke."""
        return self._gathered.get() if self._send({"gather": label, "value": value}) else None

    def tell_error(self, text: str) -> None:
        """Tells why this process is about to end during the job."""
        self._send({"left": printable(text)})

    def leave(self) -> None:
        """Says good-bye: from here on processes leave because the job is done."""
        self._left, wire = True, self._wire
        if self._send({"left": ""}) and wire is not None:
            wire.close()

    def _send(self, message: Message) -> bool:
        """Whether it could be sent."""
        if self._wire is None:
            return False
        try:
            self._wire.send(message)
        except OSError:  # the listening thread notices it too
            return False
        return True

    def _finish(self, text: str, code: int) -> None:
        if not self._left:
            self._left = True
            self._end(text, code)

    def _listen(self, wire: Wire) -> None:
        """Acts on what the scheduler says, and shows it each second that this process lives."""
        told = time.monotonic()

        def beat() -> None:
            nonlocal told
            if time.monotonic() - told >= BEAT_S and not self._left:
                told = time.monotonic()
                wire.send({"beat": 0})

        with die_on_error(RENDEZVOUS_FAILED):
            try:
                while not self._left:
                    self._handle(wire.receive(beat)[0])
                    beat()
            except SetupError as error:
                self._finish(str(error), EXIT_SETUP)
            except (EOFError, OSError) as error:
                self._finish(how_lost(self._scheduler, error), EXIT_PEER_LOST)
            self._wire = None
            self._gathered.put(None)

    def _handle(self, message: Mapping[str, Any]) -> None:
        if "gathered" in message:
            self._gathered.put(message["values"])
        elif "warning" in message:
            log.warning("%s", message["warning"])
        elif "end" in message:
            self._finish(message["end"], message["code"])
        elif message.get("complete"):
            self._note_complete()

    def _note_complete(self) -> None:
        if not self._is_complete:
            self._is_complete = True
            self._start_timer.cancel()
            log.info("%s is complete", self._job)
            self._on_complete()

    def _watch_port(self, address: str, port: int, what: str) -> None:
        """Ends this process where it cannot reach another one's port at MXNet any more. A scheduler of this program
        tells itself that it, or a process that has closed its port, is gone."""
        only_cuts = self._wire is not None

        def watch() -> None:
            while _is_reached(address, port, only_cuts):
                time.sleep(TEST_EVERY_S)
            text = f"no connection for {SILENT_S:g} s with {what}"
            if not self._left:
                self.tell_error(text)
                self._finish(text, EXIT_PEER_LOST)

        threading.Thread(target=watch, name="reach", daemon=True).start()


def _is_reached(address: str, port: int, or_refuses: bool) -> bool:
    """Whether a port takes a connection, or its host refuses one, within SILENT_S."""
    end = time.monotonic() + SILENT_S
    while (left_s := end - time.monotonic()) > 0:
        try:
            socket.create_connection((address, port), left_s).close()
        except OSError as error:
            if or_refuses and isinstance(error, ConnectionError):
                return True
            time.sleep(RETRY_S)
        else:
            return True
    return False


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
    on_complete: Callable[[], None] = lambda: None,
) -> JobSession:
    """Returns when all processes of the job are connected, agree and reach each other.

    Sets the variables that MXNet reads: the port of its scheduler, and this process's own address and port.

    Args:
        device: of a worker; else empty.
        setup: what must be the same in all processes: flag or other key -> value.
        start_timeout_s: 0: for ever.
        end: called in a thread when another process is lost during the job, or MXNet does not connect all in time.
        on_complete: called in a thread once MXNet has connected all.

    Raises:
        SetupError: set-ups differ, or a port cannot be reached; every process gets the same message.
        PeerLost: the job was not complete in time.
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
        members = joining.wait(start_timeout_s).members
        (me,) = (member for member in members if member.name == joining.name)
    except PlainScheduler:
        why = "is a plain MXNet program: the set-ups of the workers cannot be compared"
        log.warning("the scheduler at %s %s", link.address, why)
        return JobSession(None, cluster, start_timeout_s, end, on_complete)
    except Exception:
        link.close()  # the others wait for it to end
        raise
    finally:
        link.free_port()
    assert link.wire is not None
    (scheduler,) = (member for member in members if member.role == "scheduler")
    environment["DMLC_PS_ROOT_PORT"] = str(scheduler.port)
    if me is scheduler:
        link.wire.send({"freed": True})
        environment["DMLC_PS_ROOT_URI"] = me.address  # MXNet's scheduler cannot listen at a host's name
    else:
        environment.update({"DMLC_NODE_HOST": me.address, "PORT": str(me.port)})
    servers = [member for member in members if member.role == "server"]
    return JobSession(link.wire, cluster, start_timeout_s, end, on_complete, servers)
