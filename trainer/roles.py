"""Processes of a job: the scheduler's and the server's whole life, a worker's way into the cluster, and the watch that
ends each of them when another is gone (the kvstore alone would wait for ever, in silence)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from config import Cluster
from trainer.stop import SignalWatch
from utils import EXIT_BUG, EXIT_PEER_LOST, SetupError, fail

# ps-lite sends heartbeats and tells the dead only with an interval set. A process counts as dead after the time-out.
INTERVAL, TIMEOUT = "PS_HEARTBEAT_INTERVAL", "PS_HEARTBEAT_TIMEOUT"
HEARTBEAT = {INTERVAL: "1", TIMEOUT: "6"}
CHECKS_BEFORE_ALARM = 3  # a process that has just joined has no heartbeat yet
CHECK_EVERY_S = 1.0
REMIND_EVERY_S = 15.0
# ps-lite crashes when asked anything before `run` has begun in the main thread, which is a matter of microseconds.
ENGINE_START_S = 2.0

# ps-lite's ids: groups are bits, processes count from 8 in steps of 2.
SCHEDULER, SERVERS, WORKERS = 1, 2, 4


def prepare_environment() -> None:
    """Sets what ps-lite reads from the environment, before MXNet is imported; the user's own settings win.

    Raises:
        SetupError: a setting is no whole number of seconds.
    """
    for name, value in HEARTBEAT.items():
        text = os.environ.setdefault(name, value)
        if not (text.isascii() and text.isdigit()):
            raise SetupError(f"{name}={text!r} is not a whole number of seconds (0 for {INTERVAL}: no heartbeats)")


def check_address(cluster: Cluster) -> None:
    """Makes sure that the scheduler's address and the network card can exist.

    Raises:
        SetupError: the name does not resolve, or there is no such card.
    """
    try:
        socket.getaddrinfo(cluster.root_uri, cluster.root_port)
    except OSError as error:
        raise SetupError(f"DMLC_PS_ROOT_URI={cluster.root_uri!r} cannot be resolved ({error.strerror})") from None
    card, cards = os.environ.get("DMLC_INTERFACE"), [name for _, name in socket.if_nameindex()]
    if card and card not in cards:
        raise SetupError(f"DMLC_INTERFACE={card!r} is no network card of this host; choose from {', '.join(cards)}")


@contextlib.contextmanager
def _role_hidden() -> Iterator[None]:
    """Hides DMLC_ROLE while MXNet is imported: its import would become the role, with half of MXNet loaded."""
    role = os.environ.pop("DMLC_ROLE")
    try:
        yield
    finally:
        os.environ["DMLC_ROLE"] = role


def serve(cluster: Cluster, start_timeout_s: float) -> None:
    """Runs the scheduler or a parameter server until the workers are done.

    Raises:
        SetupError: the scheduler's port cannot be had, or this MXNet has no distributed kvstore.
    """
    prepare_environment()
    check_address(cluster)
    if cluster.role == "scheduler":
        _check_port(cluster)
    signals = SignalWatch(on_first="the job ends when its workers do")
    with _role_hidden():
        from trainer.engine import check_kvstore, has_kvstore, mx
    check_kvstore(has_kvstore())
    from mxnet.kvstore.kvstore_server import KVStoreServer

    class Server(KVStoreServer):  # type: ignore[misc]
        """MXNet's server loop, except that an error in a command of a worker ends the process.

        MXNet prints such an error, tells the worker that all is well and goes on with weights that never move.
        """

        def _controller(self) -> Callable[[int, str, Any], None]:
            command = super()._controller()

            def controller(head: int, body: str, _: Any) -> None:
                with die_on_error("a worker's command failed"):
                    command(head, body, _)

            return controller

    store = mx.kv.create("dist")
    watch = Watch(cluster, start_timeout_s, store, on_formed=signals.be_patient)
    with watch:
        Server(store).run()
    logging.info("all workers are done")


@contextlib.contextmanager
def die_on_error(what: str) -> Iterator[None]:
    """Ends the process on an error in a callback, where an exception would be printed and forgotten."""
    try:
        yield
    except BaseException:
        logging.exception(what)
        fail(what)
        os._exit(EXIT_BUG)


def _check_port(cluster: Cluster) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", cluster.root_port))
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had ({error.strerror})"
            raise SetupError(
                f"port {cluster.root_port} {why}: set DMLC_PS_ROOT_PORT to a free one in every process of the job"
            ) from None


@contextlib.contextmanager
def joined(cluster: Cluster, store_type: str, start_timeout_s: float) -> Iterator[Any]:
    """Joins the cluster as a worker and yields the kvstore once all processes of the job are there.

    Leaving the block waits until every worker has come to its end. After an exception nobody is waited for: the
    process has to leave by os._exit, since the kvstore's own way out waits for workers that wait for this one.
    """
    from trainer.engine import mx

    watch = Watch(cluster, start_timeout_s)
    with watch:
        store = mx.kv.create(store_type)
        watch.store = store  # the cluster is complete
        yield store
        mx.nd.waitall()
        store._barrier()
    # Freed here and not at interpreter exit, where ps-lite's threads would outlive what they use. Freeing is the last
    # word of this worker in the cluster; nothing is behind the handle afterwards, and `__del__` frees nothing.
    mx.base.check_call(mx.base._LIB.MXKVStoreFree(store.handle))
    store.handle = None


class Watch:
    """Tells what a process waits for at the start, and ends it when its peers are gone.

    The scheduler hears from everyone, so it notices any death, names it and leaves; the others hear from the scheduler
    and leave after it. It runs in a thread of its own while its `with` block does: the main thread is inside the
    kvstore and cannot be woken.
    """

    def __init__(
        self,
        cluster: Cluster,
        start_timeout_s: float,
        store: Any = None,
        on_formed: Callable[[], None] = lambda: None,
    ) -> None:
        self._cluster = cluster
        self._start_timeout_s = start_timeout_s
        self.store = store  # a worker has none before the cluster is complete
        self._on_formed = on_formed
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops watching: from here on processes leave because the job is done."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with die_on_error("the watch over the other processes failed"):
            self._watch()

    def _watch(self) -> None:
        if not self._wait_for_start():
            return
        if int(os.environ[INTERVAL]) == 0:
            return  # the user switched heartbeats off: without them everybody looks dead
        alarms = 0
        while not self._ended.wait(CHECK_EVERY_S):
            dead = self._dead()
            alarms = alarms + 1 if dead else 0
            if alarms >= CHECKS_BEFORE_ALARM:
                self._leave(f"no sign of life from {', '.join(dead)}: it was killed, or its host or network is down")

    def _wait_for_start(self) -> bool:
        cluster, begin, reminded = self._cluster, time.monotonic(), time.monotonic()
        if self.store is not None and self._ended.wait(ENGINE_START_S):
            return False
        others = (
            f"a job of 1 scheduler ({cluster.root_uri}:{cluster.root_port}), "
            f"{cluster.num_servers} server(s) and {cluster.num_workers} worker(s)"
        )
        while not self._formed():
            if self._ended.wait(0.2):
                return False
            now = time.monotonic()
            if self._start_timeout_s and now - begin > self._start_timeout_s:
                self._leave(f"{others} was not complete after {self._start_timeout_s:g} s: see the others' logs")
            if now - reminded > REMIND_EVERY_S:
                logging.info("waiting for %s to be complete", others)
                reminded = now
        logging.info("%s is complete", others)
        self._on_formed()
        return True

    def _formed(self) -> bool:
        # With a negative time-out everybody counts as dead, but only once the cluster is complete.
        return self.store is not None and self._count_dead(SCHEDULER | SERVERS | WORKERS, timeout_s=-1) > 0

    def _dead(self) -> list[str]:
        if self._cluster.role != "scheduler":
            address = f"the scheduler at {self._cluster.root_uri}:{self._cluster.root_port}"
            return [f"{address} (or from a process that it lost: see its log)"] * self._count_dead(SCHEDULER)
        names = {8 + 2 * index: f"server {index}" for index in range(self._cluster.num_servers)}
        names |= {9 + 2 * rank: f"worker {rank}" for rank in range(self._cluster.num_workers)}
        return [name for node, name in names.items() if self._count_dead(node)]

    def _count_dead(self, node: int, timeout_s: int | None = None) -> int:
        from trainer.engine import mx

        if timeout_s is None:
            timeout_s = int(os.environ[TIMEOUT])
        count = ctypes.c_int()
        refused = mx.base._LIB.MXKVStoreGetNumDeadNode(
            self.store.handle, ctypes.c_int(node), ctypes.byref(count), ctypes.c_int(timeout_s)
        )
        # A server leaves the cluster inside its main thread's `run`; from then on ps-lite knows no nodes.
        return 0 if refused else count.value

    @staticmethod
    def _leave(reason: str) -> None:
        fail(reason)
        os._exit(EXIT_PEER_LOST)
