"""A worker's connection to the hub: it meets the others there, asks the server part, and comes back after a loss of the
connection. hub.py lists the messages."""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from config import CONTINUE, Config
from trainer import version
from trainer.clock import RealClock
from trainer.coordinator.protocol import Message, NoAnswer, Reply, Timeouts
from trainer.hub.connections import BEAT_S, SILENT_S, local_name, set_up
from trainer.hub.frames import LENGTH, NotAFrame, bytes_of, length_in, outgoing, read
from trainer.hub.server_part import ANEW, KEPT, WANTS_STOP, Answer, Arrays
from trainer.rendezvous import addresses
from trainer.rendezvous.cluster import ClusterSpec
from trainer.rendezvous.config_check import PROGRAM
from trainer.rendezvous.joining import Joining, Start
from trainer.rendezvous.rendezvous_client import GONE, LAST_GATHER, end_process
from trainer.rendezvous.rendezvous_info import RendezvousInfo, Training
from trainer.rendezvous.scheduler_link import HELLO_AT_HUB, RETRY_S, SAME_TOKEN, TELL_S, error_of_end, own_token, proof
from trainer.transport.counter import ByteCounter
from utils import (
    EXIT_BUG,
    JobError,
    JobOver,
    PeerLost,
    SetupError,
    die_on_error,
    printable,
)

TICK_S = 0.25  # between two looks at a worker's wish to stop, while it waits
CONNECT_S = 5.0
COME_BACK_S = 120.0  # for the hub to be started again
_JOB = "hub"  # the name of the one job that a hub has
_HINT = (
    ". Check that the missing ones run, and have DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT of {}, which is the server's "
    "address in mode {}, and that no firewall closes that port"
)


class HubGone(OSError):
    """The hub is silent. The text says how."""


def _check(heard: float, what: str = "no sign of life") -> None:
    """Raises HubGone where the hub is silent for too long."""
    if time.monotonic() - heard > SILENT_S:
        raise HubGone(f"{what} for {SILENT_S:g} s: it is frozen, or its host or network is down") from None


class _Wire:
    """One connection: frames out and in."""

    def __init__(self, cluster: ClusterSpec, mode: str, timeout_s: float) -> None:
        """Raises NoAnswer where the hub is not there, SetupError where something else is, or another token."""
        self._address = f"{cluster.root_uri}:{cluster.root_port}"
        self._sending = threading.Lock()
        self.heard = time.monotonic()
        self._socket = _connected(cluster, timeout_s)
        try:
            set_up(self._socket)
            self._socket.settimeout(timeout_s)
            self._socket.sendall(HELLO_AT_HUB)
            first, _ = self.receive()
            token, nonce = own_token(), secrets.token_hex(16)
            challenge = str(first.get("challenge", "")).encode()
            self.send({"nonce": nonce, "proof": proof(token, b"worker", challenge, nonce.encode()).hex()})
            said, _ = self.receive()
        except NotAFrame as error:
            self.close()
            raise SetupError(
                f"what listens at {self._address} is no hub of mode {mode}: {error}. In this mode the server is the "
                f"hub: start scripts/server.sh -m {mode} there, and no scheduler"
            ) from None
        except (EOFError, OSError) as error:
            self.close()
            raise NoAnswer(f"the connection was closed at once ({str(error) or 'no answer'})") from None
        if "end" in said:
            self.close()
            raise SetupError(str(said["end"]))
        expected = proof(token, b"hub", challenge, nonce.encode()).hex()
        if (token or challenge) and not hmac.compare_digest(str(said.get("proof", "")), expected):
            self.close()
            raise SetupError(f"the hub at {self._address} has another ESYNC_TOKEN, or none: {SAME_TOKEN}")
        self.instance = str(first["welcome"])  # of the hub's process
        self._socket.settimeout(TICK_S)

    @property
    def is_sending(self) -> bool:
        return self._sending.locked()

    def send(self, message: Message, arrays: Arrays = ()) -> None:
        """Raises OSError where the connection is lost, or nothing goes out for long."""
        with self._sending:
            for piece in outgoing(message, arrays):
                view, since = memoryview(piece), time.monotonic()
                while view:
                    try:
                        count = self._socket.send(view)
                    except TimeoutError as error:
                        if error.errno is not None:
                            raise
                        _check(since, "it takes nothing of a message")
                        continue
                    view, since = view[count:], time.monotonic()

    def receive(self, on_tick: Callable[[], object] = lambda: None) -> tuple[Message, list[tuple[int, ...]]]:
        """The next message, and the shapes of the arrays that follow. `on_tick` is called while none comes. Raises
        EOFError or OSError where the connection is lost, or the hub is silent; NotAFrame."""
        head = bytearray(LENGTH.size)
        self.fill(memoryview(head), on_tick)
        text = bytearray(length_in(head))
        self.fill(memoryview(text))
        return read(text)

    def fill(self, view: memoryview, on_tick: Callable[[], object] = lambda: None) -> None:
        while view:
            before = time.monotonic()
            try:
                count = self._socket.recv_into(view)
            except TimeoutError as error:
                if error.errno is not None:
                    raise
                if time.monotonic() - before > SILENT_S / 2:
                    self.heard = time.monotonic()  # this process was frozen
                _check(self.heard)
                on_tick()
                continue
            if not count:
                raise EOFError
            self.heard = time.monotonic()
            view = view[count:]

    def has_news(self) -> bool:
        """Whether something can be read now. Raises EOFError where another thread has closed the connection."""
        poll = select.poll()
        try:
            poll.register(self._socket, select.POLLIN)
        except ValueError:
            raise EOFError from None
        return bool(poll.poll(0))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _connected(cluster: ClusterSpec, timeout_s: float) -> socket.socket:
    """A connection to the hub: on its own host over a Unix socket."""
    try:
        host = socket.gethostbyname(cluster.root_uri)
        if addresses.is_own(host):
            local = socket.socket(socket.AF_UNIX)
            try:
                local.settimeout(timeout_s)
                local.connect(local_name(host, cluster.root_port))
            except OSError:
                local.close()
            else:
                return local
        found = socket.create_connection((host, cluster.root_port), timeout_s)
    except ConnectionRefusedError as error:
        raise NoAnswer(f"{error.strerror}: it is not started yet, or DMLC_PS_ROOT_PORT is wrong") from None
    except (OSError, UnicodeError) as error:
        what = "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", "no name of a host")
        why = "a wrong DMLC_PS_ROOT_URI, a host that is down, or a firewall that closes the port"
        raise NoAnswer(f"{what}: {why}") from None
    if found.getsockname() == found.getpeername():  # where no process listens, it can by chance lead to itself
        found.close()
        raise NoAnswer("nothing listens there yet")
    return found


class HubLink(ByteCounter):
    """This worker's Exchange, and the Link of its Joining. Ends the process where the job ends."""

    round_trip_s = 0.0

    def __init__(self, cluster: ClusterSpec, config: Config, end: Callable[[str, int], Any] = end_process) -> None:
        super().__init__()
        self._cluster, self._config, self._end = cluster, config, end
        self.address = f"{cluster.root_uri}:{cluster.root_port}"
        self.num_workers = cluster.num_workers
        self.rank = -1
        self.push_s = self.pull_s = 0.0
        self.changes: dict[int, int] = {}  # as context.Peers has them
        self._job_began: float | None = None  # on this process's clock, where this worker came to a job at work
        self._trains_since = 0.0
        self._wire: _Wire | None = None
        self._reading = threading.Lock()  # held by the thread that reads, or connects again
        self.start: Start  # this worker's place
        self._join: Message = {}  # the last one
        self._job = ""
        self._gathered: dict[str, list[Any]] = {}
        self._about: Message = {}
        self._held: Callable[[], Arrays] = tuple  # the newest model here
        self._kept: Message = {}
        self._version = -1  # of the newest model here
        self._is_over = False
        self._is_back = False  # connected again since the last answer
        self._instance = ""  # of the hub that has answered last
        self.training = Training()

    # ------------------------------------------------------------------------------------------------- to meet

    def send(self, message: Message, timeouts: Timeouts) -> Reply:
        """As Link, for JOIN and LEFT."""
        try:
            if self._wire is None:
                self._wire = _Wire(self._cluster, self._config.mode, min(CONNECT_S, timeouts.answer_s))
            if message["msg_type"] != "JOIN":
                if cause := message.get("cause"):
                    self._wire.send({"failed": cause})
                return Reply(200, {})
            self._join = {**message, "port": addresses.chosen_port() or 0}
            self._wire.send({"join": self._join})
            said = self._next("response", lambda: None)
        except (EOFError, OSError) as error:
            self._drop()
            raise NoAnswer(
                f"the connection broke: {str(error) or 'it went away before the job was complete'}"
            ) from None
        if "changes" in said:
            self.changes, self._job_began = dict(said["changes"]), time.monotonic() - said["age_s"]
        return Reply(200, said["response"])

    def begin_training(self, start: Start) -> None:
        """This worker has its place; from here on a thread watches the connection."""
        self.start, self.rank, self._job = start, start.rank, start.id
        threading.Thread(target=self._watch, name="hub", daemon=True).start()

    def gather(self, label: str, value: Any) -> list[Any]:
        """As Gather."""
        with self._reading, self._or_end():
            self._connected_wire().send({"gather": label, "value": value})
            values: list[Any] = self._next("gathered", lambda: None)["gathered"]
        self._gathered[label] = values
        self._trains_since = time.monotonic()
        return values

    def job_age_s(self) -> float | None:
        return None if self._job_began is None else time.monotonic() - self._job_began

    # ----------------------------------------------------------------------------------------------- as Exchange

    def begin(self, about: Message, model: Arrays, held: Callable[[], Arrays]) -> Answer:
        self._about, self._held = about, held
        sent = model if self.rank == 0 and self._job_began is None else ()
        with self._reading, self._or_end():
            self._instance = self._connected_wire().instance
            self._connected_wire().send({"begin": about}, sent)
            self.count_pushed(sent)
            return self._answer(self._next("answer", lambda: None), ())

    def ask(self, message: Message, arrays: Arrays, wants_stop: Callable[[], object]) -> Answer:
        begin = time.monotonic()
        has_told = False

        def on_tick() -> None:
            nonlocal has_told
            if not has_told and wants_stop():
                has_told = True
                self._connected_wire().send({"wish": {WANTS_STOP: True}})

        with self._reading:
            try:
                if self._is_back:  # the thread that watches has noticed the loss
                    return self._begin_again()
                self._connected_wire().send({"ask": message}, arrays)
                self.count_pushed(arrays)
                said = self._next("answer", on_tick)
                came = time.monotonic()
                answer = self._answer(said, arrays)
            except (EOFError, OSError) as error:
                self._come_back(error)
                return self._begin_again()
        self.pull_s = time.monotonic() - came
        self.push_s = max(0.0, came - begin - said["waited_s"])
        return answer

    def tell(self, message: Message) -> None:
        with contextlib.suppress(OSError):  # the next question notices it
            if self._wire is not None:
                self._wire.send({"tell": message})

    def leave(self, why: str = "", goes_on: bool = False) -> None:
        """This worker takes no part any more. `why`: its own error; empty: its job is done, or `goes_on` without it."""
        self._is_over = True
        with contextlib.suppress(OSError):
            if self._wire is not None:
                self._wire.send({"left": printable(why), "goes_on": goes_on})
        self._drop()

    # ------------------------------------------------------------------------------------------------- inside

    def _connected_wire(self) -> _Wire:
        if self._wire is None:
            raise EOFError
        return self._wire

    def _drop(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def _next(self, key: str, on_tick: Callable[[], object]) -> Message:
        """The next message with this key; obeys others before it."""
        while True:
            said, shapes = self._connected_wire().receive(on_tick)
            if key in said:
                return {**said, "shapes": shapes}
            self._obey(said)

    @contextlib.contextmanager
    def _or_end(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            raise PeerLost(self._gone(error)) from None

    def _gone(self, error: Exception) -> str:
        return (
            f"the hub at {self.address}: {error}" if isinstance(error, HubGone) else f"the hub at {self.address} {GONE}"
        )

    def _obey(self, said: Message) -> None:
        if "lost" in said:
            self.changes = {**self.changes, said["lost"]: said["number"]}
            logging.warning("warning: %s; the others go on without it", said["why"])
        elif "back" in said:
            self.changes = {**self.changes, said["back"]: said["number"]}
            logging.info("%s is back", said["who"])
        elif "send" in said:
            self._connected_wire().send({"model": {**self._about, KEPT: self._kept}}, self._held())
        elif "end" in said and not self._is_over:
            if self.rank >= 0:
                self._is_over = True
                self._end(said["end"], said["code"])
            raise error_of_end(said)

    def _answer(self, said: Message, sent: Arrays) -> Answer:
        """Reads the arrays of an answer, into those that were sent where they have the same shapes."""
        shapes = [tuple(shape) for shape in said["shapes"]]
        fits = shapes == [array.shape for array in sent] and all(array.flags.c_contiguous for array in sent)
        arrays = list(sent) if fits else [np.empty(shape, np.float32) for shape in shapes]
        wire = self._connected_wire()
        for array in arrays if shapes else ():
            wire.fill(bytes_of(array))
        message = said["answer"]
        self._kept = message.get(KEPT, self._kept)
        if not shapes:
            return Answer(message)
        self.count_pulled(arrays)
        self._version = said["version"]
        return Answer(message, arrays)

    def _come_back(self, error: Exception) -> None:
        """Connects again, until the hub takes this worker back, where the job survives. Raises JobError."""
        self._drop()
        if self._config.on_worker_death != CONTINUE or LAST_GATHER not in self._gathered:
            raise PeerLost(self._gone(error))
        logging.warning("warning: %s; this worker waits for it", self._gone(error))
        give_up = time.monotonic() + COME_BACK_S
        again = {
            **{"job": self._job, "rank": self.rank, "version": self._version, "changes": [*self.changes.items()]},
            **{"members": msgspec.to_builtins(self.start.members), "gathered": self._gathered},
            "age_s": time.monotonic() - (self._job_began or self._trains_since),
        }
        while True:
            try:
                self._wire = _Wire(self._cluster, self._config.mode, CONNECT_S)
                self._wire.send({"join": self._join, "again": again})
                said = self._next("again", self._beat)
                self.changes = {**self.changes, **dict(said["changes"])}
            except (NoAnswer, EOFError, OSError) as failure:
                self._drop()
                if self._is_over or time.monotonic() > give_up:
                    raise PeerLost(f"{self._gone(error)}, and no other one is there: {failure}") from None
                time.sleep(RETRY_S)
            else:
                self._is_back = True
                logging.info("this worker is back at the hub")
                return

    def _begin_again(self) -> Answer:
        """The first answer after a return. The upload before it may be lost."""
        try:
            self._connected_wire().send({"begin": self._about})
            answer = self._answer(self._next("answer", lambda: None), ())
        except (EOFError, OSError) as error:
            self._come_back(error)
            return self._begin_again()
        self._is_back = False
        is_anew, self._instance = self._connected_wire().instance != self._instance, self._connected_wire().instance
        return Answer({**answer.message, **({ANEW: True} if is_anew else {})}, answer.arrays)

    def _watch(self) -> None:
        """Shows the hub that this worker lives, and obeys what the hub tells while the training thread computes."""
        awake = time.monotonic()
        with die_on_error("the connection to the hub failed"):
            while not self._is_over:
                before = time.monotonic()
                time.sleep(BEAT_S)
                if time.monotonic() - before > SILENT_S / 2:
                    awake = time.monotonic()  # this process was frozen
                    if self._wire is not None:
                        self._wire.heard = awake
                if why := self.training.standing(max(awake, self._trains_since)):
                    self.leave(f"its training stands: {why}")
                    self._end(f"the training of worker {self.rank} stands: {why}", EXIT_BUG)
                self._beat()
                if self._reading.acquire(blocking=False):
                    try:
                        self._look()
                    except JobError as error:
                        if not self._is_over:
                            self._end(str(error), error.exit_code)
                    finally:
                        self._reading.release()

    def _beat(self) -> None:
        wire = self._wire
        if wire is not None and not wire.is_sending:
            with contextlib.suppress(OSError):
                wire.send({"beat": 0})

    def _look(self) -> None:
        """Reads what has come."""
        try:
            wire = self._connected_wire()
            while wire.has_news():
                self._obey(wire.receive()[0])
            _check(wire.heard)
        except (EOFError, OSError) as error:
            if not self._is_over:
                self._come_back(error)


def tell_failure(cluster: ClusterSpec, mode: str, why: str) -> None:
    """Tells the other processes, which would wait for this one, that it ends; without a hub it gives up soon."""
    until = time.monotonic() + TELL_S
    while time.monotonic() < until:
        with contextlib.suppress(NoAnswer, SetupError, OSError):
            wire = _Wire(cluster, mode, TELL_S)
            wire.send({"failed": printable(why)})
            wire.close()
            return
        time.sleep(RETRY_S)


@contextlib.contextmanager
def join(cluster: ClusterSpec, config: Config, setup: Mapping[str, str]) -> Iterator[RendezvousInfo]:
    """Joins the others as a worker, once all are there and agree; tells the hub how this worker leaves. `setup` is what
    must be the same on all workers, flag or other key -> value. Raises SetupError where the set-ups differ, PeerLost
    where the job was not complete in time, JobOver where it has ended."""
    link = HubLink(cluster, config)
    device = {"host": socket.gethostname(), "device": config.device}
    whole = {**setup, PROGRAM: version.files_hash()}
    launched = os.environ.get("ESYNC_PROCESS", "").partition(" ")[0]
    joining = Joining(
        link, RealClock(), _JOB, {"num_workers": cluster.num_workers, "device": device, "setup": whole},
        server="the hub", hint=_HINT.format(link.address, config.mode), launched=launched,
    )  # fmt: skip
    link.begin_training(joining.wait(config.start_timeout))
    start = link.start
    members = [{"rank": rank, "host": each.host, "device": each.device} for rank, each in enumerate(start.members)]
    try:
        yield RendezvousInfo(
            None, link.gather, members, hub=link, changes=lambda: link.changes, job_age_s=link.job_age_s,
            training=link.training,
        )  # fmt: skip
    except JobOver:
        link.leave(goes_on=True)
        raise
    except Exception as error:
        link.leave(why=str(error) or type(error).__name__)
        raise
    link.leave()
