"""A process's side of the rendezvous at the scheduler, before MXNet connects the processes and during the job.

MXNet alone waits for ever, in silence, where a process is missing, a port is closed or a peer has died, and trains on
where flags differ. So every process first connects to the scheduler's published address, where `rendezvous_server.py`
listens, and JOINs (joining.py) until START tells it the port of MXNet's own scheduler. What a process sends after the
greeting (wire.py), and what it gets:

    {"join": JOIN, as at the state server}      {"response": RESPONSE}; from time to time {"warning": ...}
    {"freed": true}: MXNet's scheduler may listen; from the scheduler, after its START and before that of the others
    {"beat": ...}                               {"complete": bool}, each second: whether MXNet has connected all
    {"rank": ...}, of a worker that MXNet has connected with all
    {"gather": label, "value": ...}             {"gathered": values of all workers by rank}
    {"left": why; empty: its job is done}
    {"failed": why}, before it joins
                                                {"end": why, "code": ...}: end with this line and exit code
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, NoReturn

from esync.clock import RealClock
from esync.protocol import Message
from server.messages import Member
from trainer.collectives.connecting import Acceptor, unanswered
from trainer.hub.server_link import ServerLink
from trainer.hub.wire import BEAT_S, RETRY_S, SILENT_S, PlainScheduler, Wire, log, tell_failure
from trainer.rendezvous import addresses
from trainer.rendezvous.cluster import WORKER, ClusterSpec
from trainer.rendezvous.joining import Joining
from trainer.runtime.environment import compared
from utils import EXIT_OK, EXIT_PEER_LOST, SetupError, fail, printable

JOB = "mxnet"  # the name of the one job that a scheduler has
# Label of the last values that all workers gather before they train: from then on a hub lets the job go on without a
# lost worker, where the flags say so.
LAST_GATHER = "loads"
ALL_DONE = "all workers are done"
TRY_S = 5.0  # one try to connect with another process
TEST_EVERY_S = 5.0  # between two connections to the same port during the job
# What a reminder adds, with the address of the server at which the processes meet
HINT = (
    ". Check that the missing ones run, have DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT of {}, and that no firewall closes "
    "that port"
)
_FREE_PORT = "set PORT to a free one, another for each process of this host, or correct DMLC_INTERFACE"


class JobSession(ServerLink):
    """A process's part in a job on MXNet's kvstore."""

    def __init__(
        self,
        cluster: ClusterSpec,
        environment: MutableMapping[str, str],  # has and gets the variables that MXNet reads
        start_timeout_s: float,  # for MXNet to connect all; 0: for ever
        end: Callable[[str, int], Any],  # called in a thread, with a line and an exit code
        on_complete: Callable[[], None],  # called once MXNet has connected all
    ) -> None:
        super().__init__(cluster, "", BEAT_S / 4, end)
        self._environment, self._on_complete = environment, on_complete
        self._place: Message = {}  # address and port at which MXNet will listen, once they are known
        self._acceptor: Acceptor | None = None  # answers calls there until then
        self._servers: Sequence[Member] = ()
        self._job = (
            f"a job of 1 scheduler ({self.address}), {cluster.num_servers} server(s) and {cluster.num_workers} "
            "worker(s)"
        )
        self._is_complete = False
        late = f"{self._job} was not complete after {start_timeout_s:g} s: see the others' logs"
        self._start_timer = threading.Timer(start_timeout_s, self._give_up, (late,))
        self._start_timer.daemon = True

    # ------------------------------------------------------------------------------------------- until the job begins

    def joining(self, wire: Wire, message: Message) -> Message:
        """Listens, where this process does not yet; JOIN tells where."""
        try:
            if self._acceptor is None:
                if self._cluster.role == "scheduler":
                    here = socket.gethostbyname(self._cluster.root_uri)
                else:
                    here = addresses.own_address(wire.own_address, self._environment)
                listener = addresses.listen(here, addresses.chosen_port(self._environment), _FREE_PORT)
                self._acceptor = Acceptor(listener, message["sender"])
                self._place = {"address": here, "port": self._acceptor.port}
        except SetupError as error:
            who = f"{self._cluster.role} on host {socket.gethostname()}"
            tell_failure(self._cluster, f"{who} ended before the job began: {error}")
            raise
        return {**message, **self._place}

    def free_port(self) -> None:
        """From here on MXNet may listen."""
        if self._acceptor is not None:
            self._acceptor.close()

    def begin(self, members: Sequence[Member]) -> None:
        """These processes are there, and MXNet connects them. Without members the scheduler is a plain MXNet program,
        and no other process is known."""
        if self._start_timer.interval:
            self._start_timer.start()
        if self._wire is None:
            gone = f"the scheduler at {self.address}: it is gone, or its network is down"
            self._watch_port(self._cluster.root_uri, self._cluster.root_port, gone)
            if self._cluster.role != WORKER:
                self._note_complete()  # a plain MXNet scheduler does not send it
            return
        self._servers, here = [member for member in members if member.role == "server"], self._place["address"]
        self._environment["DMLC_PS_ROOT_PORT"] = next(str(each.port) for each in members if each.role == "scheduler")
        if self._cluster.role == "scheduler":
            self._wire.send({"freed": True})
            self._environment["DMLC_PS_ROOT_URI"] = here  # MXNet's scheduler cannot listen at a host's name
        else:
            self._environment.update({"DMLC_NODE_HOST": here, "PORT": str(self._place["port"])})
        self.watch()

    # ------------------------------------------------------------------------------------------------- during the job

    def tell_rank(self, rank: int) -> None:
        """Tells the rank that MXNet has given this worker, with which it has connected it."""
        if not self._has_begun:
            self._note_complete()
        self._tell({"rank": rank})
        for server in self._servers:
            self._watch_port(server.address, server.port, f"{server.called()}: the network between them is cut")

    def gather(self, label: str, value: Any) -> Any:
        """As Gather, after `tell_rank`. None where a plain MXNet program takes part."""
        return super().gather(label, value) if self._has_begun else None

    def _give_up(self, text: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._tell({"left": printable(text)})  # else the others would take it for a crash
            self._end(text, EXIT_PEER_LOST)

    def _obey(self, said: Message) -> None:
        if "warning" in said:
            log.warning("%s", said["warning"])
        elif said.get("complete"):
            self._note_complete()
        super()._obey(said)

    def _note_complete(self) -> None:
        if not self._is_complete:
            self._is_complete = True
            self._start_timer.cancel()
            log.info("%s is complete", self._job)
            self._on_complete()

    def _watch_port(self, address: str, port: int, what: str) -> None:
        """Ends this process where it cannot reach another one's port at MXNet any more. A scheduler of this program
        tells itself that it, or a process that has closed its port, is gone."""
        only_cuts = self._has_begun

        def watch() -> None:
            while _is_reached(address, port, only_cuts):
                time.sleep(TEST_EVERY_S)
            self._give_up(f"no connection for {SILENT_S:g} s with {what}")

        threading.Thread(target=watch, name="reach", daemon=True).start()


def _is_reached(address: str, port: int, or_refuses: bool = False) -> bool:
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
    environment: MutableMapping[str, str] = os.environ,
    end: Callable[[str, int], Any] = end_process,
    on_complete: Callable[[], None] = lambda: None,
) -> JobSession:
    """Returns when all processes of the job are connected, agree and reach each other.

    Sets the variables that MXNet reads: the port of its scheduler, and this process's own address and port.

    Args:
        device: of a worker; else empty.
        setup: what must be the same in all processes, beside MXNet's variables: flag or other key -> value.
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
        "setup": {**setup, **compared(environment), **numbers},
    }
    session = JobSession(cluster, environment, start_timeout_s, end, on_complete)
    joining = Joining(
        session, RealClock(), JOB, about, lambda other: unanswered((other.address, other.port), other.name, TRY_S),
        "the scheduler", HINT.format(session.address),
    )  # fmt: skip
    members: Sequence[Member] = ()
    try:
        members = joining.wait(start_timeout_s).members
    except PlainScheduler:
        why = "is a plain MXNet program: the set-ups of the workers cannot be compared"
        log.warning("the scheduler at %s %s", session.address, why)
    except Exception:
        session.drop()  # the others wait for it to end
        raise
    finally:
        session.free_port()
    session.begin(members)
    return session
