"""A new process in the place of a lost worker: what MXNet hears from it, over real connections."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import sys
import threading
import time

import pytest
from cluster_processes import free_ports

from trainer.coordinator import state_server_path  # noqa: F401  (the imports below need it)
from trainer.rendezvous import rejoining
from trainer.runtime import zmq_guard
from trainer.runtime.library import library
from utils import PeerLost

# isort: split
from server.messages import Member

STALE = b"an answer to the lost worker"
ROUTER, RECEIVE_TIMEOUT = 6, 27  # of zmq_socket and zmq_setsockopt


def members_at(ports: list[int]) -> list[Member]:
    roles = ("scheduler", "server", "server", "worker", "worker")
    return [Member(f"p{port}", "127.0.0.1", port, "a", "", role) for port, role in zip(ports, roles, strict=True)]


def keeps_calling(port: int, name: bytes, stop: threading.Event) -> None:
    """As ZeroMQ does, with what it could not send yet."""
    while not stop.is_set():
        try:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                rejoining._shake_hands(connection, b"DEALER", name)
                connection.sendall(rejoining._frame(0, STALE * 99))
                connection.recv(1)
        except (OSError, EOFError):
            time.sleep(0.01)


def test_what_was_for_the_lost_one_is_thrown_away_and_mxnet_hears_its_own_id_and_of_the_others(monkeypatch) -> None:
    monkeypatch.setattr(rejoining, "QUIET_S", 0.1)
    members = members_at(free_ports(5))
    *others, _, me = members
    stop, environment = threading.Event(), dict[str, str]()
    for name in (b"ps1", b"ps8", b"ps10"):
        threading.Thread(target=keeps_calling, args=(me.port, name, stop), daemon=True).start()
    rejoining.take_place(members, me, environment)
    stop.set()
    assert environment["DMLC_PS_ROOT_URI"] == "127.0.0.1"
    with socket.create_connection(("127.0.0.1", int(environment["DMLC_PS_ROOT_PORT"]))) as scheduler:
        rejoining._shake_hands(scheduler, b"DEALER")
        scheduler.sendall(rejoining._frame(0, b"ADD_NODE"))  # no answer is needed
    with socket.create_server(("127.0.0.1", me.port)) as mxnet:
        found: list[bytes] = []
        while not found:
            connection, _ = mxnet.accept()  # of those above one may call once more
            if rejoining._TELLER in rejoining._shake_hands(connection, b"ROUTER"):
                found.append(rejoining._read_frame(connection))
    # PBMeta.control: ADD_NODE, and the nodes: role, id, host, port, is_recovery.
    ids = {"scheduler": [1], "server": [8, 10], "worker": [9, 11]}
    nodes = [(each, ids[each.role].pop(0)) for each in members]
    expected = b"".join(
        rejoining._text(2, b"\x08%c\x10%c\x1a\x09127.0.0.1\x20%b\x28%c" % (
            {"server": 0, "worker": 1, "scheduler": 2}[each.role], number, rejoining._varint(each.port), each is me
        ))
        for each, number in nodes
        if each in (*others, me)
    )  # fmt: skip
    assert found == [rejoining._text(3, b"\x08\x02" + expected)]
    assert rejoining._varint(300) == b"\xac\x02"


def test_the_place_is_taken_once_nothing_more_comes_and_the_end_of_the_lost_one_is_known(monkeypatch) -> None:
    monkeypatch.setattr(rejoining, "QUIET_S", 0.4)
    unknown = iter([True] * 3)
    monkeypatch.setattr(rejoining.acknowledged, "ends", lambda places: next(unknown, False))
    (port,) = free_ports(1)
    sent: list[float] = []

    def call() -> None:
        while not sent:
            with contextlib.suppress(ConnectionError, EOFError), socket.create_connection(("127.0.0.1", port)) as to_it:
                rejoining._shake_hands(to_it, b"DEALER", b"ps8")
                while len(sent) < 10:
                    sent.append(time.monotonic())
                    to_it.sendall(rejoining._frame(0, STALE))
                    time.sleep(0.02)

    threading.Thread(target=call, daemon=True).start()
    server, me = (Member(name, "127.0.0.1", port, "a", "", name) for name in ("server", "worker"))
    rejoining._drain(me, {b"ps8": server})
    assert len(sent) == 10 and time.monotonic() - sent[-1] >= 0.4
    assert next(unknown, None) is None


def test_a_new_worker_is_heard_though_the_connection_of_the_lost_one_has_not_ended() -> None:
    zmq, bind = library(), zmq_guard.install()
    assert bind is not None
    zmq.zmq_ctx_new.restype = zmq.zmq_socket.restype = ctypes.c_void_p
    context = ctypes.c_void_p(zmq.zmq_ctx_new())
    router = ctypes.c_void_p(zmq.zmq_socket(context, ROUTER))
    zmq.zmq_setsockopt(router, RECEIVE_TIMEOUT, (5000).to_bytes(4, sys.byteorder), 4)
    (port,) = free_ports(1)
    assert bind(router, b"tcp://127.0.0.1:%d" % port) == 0

    def heard() -> bytes:
        buffer = ctypes.create_string_buffer(99)
        size = zmq.zmq_recv(router, buffer, len(buffer), 0)
        return buffer.raw[: max(0, size)]

    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
    for number, connection in enumerate(connections):
        rejoining._shake_hands(connection, b"DEALER", b"ps9")
        connection.sendall(rejoining._frame(0, b"%d" % number))
        assert (heard(), heard()) == (b"ps9", b"%d" % number)
    for connection in connections:
        connection.close()
    zmq.zmq_close(router)
    zmq.zmq_ctx_destroy(context)


def test_a_server_that_does_not_call_is_named(monkeypatch) -> None:
    monkeypatch.setattr(rejoining, "PATIENCE_S", 0.1)
    members = members_at(free_ports(5))
    with pytest.raises(PeerLost, match=r"scheduler .*, server .*, server .* does not connect with this worker at 127"):
        rejoining.take_place(members, members[-1], {})
