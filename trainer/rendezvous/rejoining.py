"""Takes the place of a lost worker in MXNet's cluster.

MXNet's scheduler accepts one replacement of a lost process in its life, and aborts at a second one (ps-lite's van.cc).
So it is not asked. The other processes keep trying to connect to the address of a lost worker, and identify a worker by
its id alone. A new process on the same host listens at that address, and discards what was sent to the lost worker.
Then it tells its own MXNet, in the scheduler's place, its id and the addresses of the others. In the other processes
nothing changes: the servers answer the new process, and the scheduler receives its heartbeats. For this the module
speaks as much of ZeroMQ's protocol (ZMTP 3.0) and ps-lite's (meta.proto) as it needs.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, MutableMapping, Sequence

from trainer.coordinator import state_server_path  # noqa: F401  (the imports below need it)
from trainer.rendezvous import acknowledged, addresses
from trainer.rendezvous.cluster import node_id
from utils import PeerLost, SetupError

# isort: split
from server.messages import Member

PATIENCE_S = 60.0  # within which the others must connect
QUIET_S = 0.5  # without a message, after which no more are expected
PAUSE_S = 0.02
LONGEST_FRAME = 1 << 16  # bytes
_OWN_HOST = "127.0.0.1"
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_COMMAND, _LONG = 4, 2  # flags of a frame
_ADD_NODE = 2  # a command of ps-lite
_ROLES = {"server": 0, "worker": 1, "scheduler": 2}  # likewise
_TELLER = b"ps0"  # an identity that no process of the job has
_TO_NAME = b"Identity"


def take_place(
    members: Sequence[Member],
    me: Member,
    environment: MutableMapping[str, str],
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Prepares this process: the kvstore that it creates next becomes the worker `me` of the running cluster.

    Args:
        members: all processes, each role in the order of its ranks; one of the workers is `me`.
        me: this process, with the rank and the address of the lost worker.
        environment: the variables that MXNet reads.
        wait: sleeps for a number of seconds; raises an error if the job ends.

    Raises:
        SetupError: this process cannot listen at that address, or the processes connect over Unix sockets.
        PeerLost: another process does not connect with it.
    """
    if environment.get("DMLC_LOCAL", "0") != "0":
        raise SetupError("DMLC_LOCAL=1: a lost worker comes back only over TCP; unset it in every process of the job")
    of_role = {role: [each for each in members if each.role == role] for role in _ROLES}
    nodes = [(each, node_id(each.role, of_role[each.role].index(each))) for each in members]
    nodes = [(each, number) for each, number in nodes if each is me or each.role != me.role]
    others = {b"ps%d" % number: other for other, number in nodes if other is not me}
    _drain(me, others, wait)
    scheduler = _Sink(addresses.listen_anywhere(_OWN_HOST))  # receives what MXNet sends to a scheduler at its start
    environment["DMLC_PS_ROOT_URI"], environment["DMLC_PS_ROOT_PORT"] = _OWN_HOST, str(scheduler.port)
    told = _number(1, _ADD_NODE) + b"".join(_text(2, _node(each, number, each is me)) for each, number in nodes)
    frame = _frame(0, _text(3, told))
    threading.Thread(target=_tell, args=(me, frame), name="rejoining", daemon=True).start()


def _drain(me: Member, others: dict[bytes, Member], wait: Callable[[float], None] = time.sleep) -> None:
    """Discards what the others send to the lost worker, until they are quiet and all its old connections have ended."""
    end = time.monotonic() + PATIENCE_S
    sink = _Sink(addresses.listen(me.address, me.port, "the lost worker, or another process, still listens there"))
    places = [other.place for other in others.values()]
    try:
        while (missing := others.keys() - sink.heard.keys()) or not sink.is_quiet() or acknowledged.ends(places):
            if time.monotonic() > end:
                silent = ", ".join(others[name].called() for name in sorted(missing or others))
                raise PeerLost(f"{silent} does not connect with this worker at {me.place}: is a port closed there?")
            wait(PAUSE_S)
    finally:
        sink.close()


class _Sink:
    """Accepts ZeroMQ's connections, and discards what arrives. `heard` is when each process last connected or sent a
    message, by its ZeroMQ identity such as b"ps8"."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._connections: list[socket.socket] = []
        self.port: int = listener.getsockname()[1]
        self.heard: dict[bytes, float] = {}
        threading.Thread(target=self._accept, name="rejoining", daemon=True).start()

    def is_quiet(self) -> bool:
        return time.monotonic() - max(self.heard.values(), default=0.0) > QUIET_S

    def close(self) -> None:
        """When this returns, another socket can listen at the port."""
        for each in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits there
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                threading.Thread(target=self._read, args=(connection,), name="rejoining", daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, EOFError):
            name = _shake_hands(connection, b"ROUTER").rpartition(_TO_NAME)[2][4:]
            self.heard[name] = time.monotonic()
            while connection.recv(LONGEST_FRAME):
                self.heard[name] = time.monotonic()
        self._connections.remove(connection)


def _tell(me: Member, frame: bytes) -> None:
    """Sends the frame to this process's MXNet as soon as that listens."""
    while True:
        with contextlib.suppress(OSError, EOFError), socket.create_connection((me.address, me.port)) as connection:
            _shake_hands(connection, b"DEALER", _TELLER)
            connection.sendall(frame)
            connection.recv(1)  # until the process ends: MXNet sends nothing here
            return
        time.sleep(PAUSE_S)


# ----------------------------------------------------------------------------------------------------------- ZeroMQ


def _shake_hands(connection: socket.socket, kind: bytes, name: bytes = b"") -> bytes:
    """Returns the other side's properties; the last one is its identity."""
    connection.sendall(_GREETING)
    _exactly(connection, len(_GREETING))
    properties = ((b"Socket-Type", kind), (_TO_NAME, name))
    body = b"".join(bytes([len(key)]) + key + struct.pack(">I", len(value)) + value for key, value in properties)
    connection.sendall(_frame(_COMMAND, b"\x05READY" + body))
    return _read_frame(connection)


def _frame(flags: int, body: bytes) -> bytes:
    return struct.pack(">BQ", flags | _LONG, len(body)) + body if len(body) > 255 else bytes([flags, len(body)]) + body


def _read_frame(connection: socket.socket) -> bytes:
    (flags,) = _exactly(connection, 1)
    length = int.from_bytes(_exactly(connection, 8 if flags & _LONG else 1), "big")
    if length > LONGEST_FRAME:
        raise EOFError
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        if not (part := connection.recv(count - len(parts))):
            raise EOFError
        parts += part
    return bytes(parts)


# ------------------------------------------------------------------------------------------------- protobuf, ps-lite


def _node(member: Member, number: int, is_recovery: bool) -> bytes:
    """A process as ps-lite describes it (PBNode)."""
    place = _text(3, member.address.encode()) + _number(4, member.port)
    return _number(1, _ROLES[member.role]) + _number(2, number) + place + _number(5, is_recovery)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])
