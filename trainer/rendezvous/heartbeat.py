"""MXNet's heartbeats: they reveal a process that is frozen, or whose host or network is down.

A killed process closes its connection to the rendezvous server, which is noticed sooner (`rendezvous_client.py`).
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from trainer.rendezvous.cluster import ClusterSpec, node_id
from trainer.rendezvous.rendezvous_client import end_process
from trainer.rendezvous.rendezvous_server import RendezvousServer
from trainer.runtime.environment import INTERVAL, TIMEOUT
from trainer.runtime.library import library
from utils import EXIT_PEER_LOST, die_on_error

CHECKS_BEFORE_ALARM = 3  # a process that has just joined has no heartbeat yet
CHECK_EVERY_S = 1.0
SETTLED_S = 2.0  # ps-lite counts in whole seconds, from a moment before its start is known here
REMIND_EVERY_S = 15.0
# ps-lite crashes when asked anything before `run` has begun in the main thread, which is a matter of microseconds.
ENGINE_START_S = 2.0
SILENT = "it is frozen, or its host or network is down"

SCHEDULER, SERVERS, WORKERS = 1, 2, 4  # ps-lite's ids of groups

RoleRank = tuple[str, int]


class HeartbeatMonitor:
    """Notices that MXNet has connected the job's processes, and then those whose heartbeats stop.

    The scheduler hears the heartbeats of all processes, the others that of the scheduler. A context manager with a
    thread: the main thread is inside the kvstore and cannot be woken.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        start_timeout_s: float,
        store: Any = None,
        on_formed: Callable[[], None] = lambda: None,
        server: RendezvousServer | None = None,  # on the scheduler; it is told of silent processes
        # Called every second, with the seconds after which a process counts as silent
        watch: Callable[[float], None] = lambda longest_s: None,
    ) -> None:
        self._watch = watch
        self._cluster = cluster
        self._start_timeout_s = start_timeout_s
        self.store = store  # set later on a worker: it has none before the cluster is complete
        self._on_formed = on_formed
        self._server = server
        self._heard: set[RoleRank] = set()  # processes that have sent a heartbeat
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)

    def __enter__(self) -> HeartbeatMonitor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops the monitor: from here on processes leave because the job is done."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with die_on_error("the heartbeat monitor failed"):
            self._monitor()

    def _monitor(self) -> None:
        if not self._wait_for_start():
            return
        if int(os.environ[INTERVAL]) == 0:
            return  # the user switched heartbeats off: without them every process looks dead
        alarms = 0
        reported: set[RoleRank] = set()  # the job may continue without them
        begin = time.monotonic()
        while not self._ended.wait(CHECK_EVERY_S):
            self._watch(float(os.environ[TIMEOUT]))
            silent = self._dead(time.monotonic() - begin)
            reported.intersection_update(silent)  # a worker may come back
            dead = [process for process in silent if process not in reported]
            alarms = alarms + 1 if dead else 0
            if alarms < CHECKS_BEFORE_ALARM:
                continue
            if self._server is not None:
                self._server.declare_lost(dead, SILENT)
                reported.update(dead)
                alarms = 0
                continue
            address = f"{self._cluster.root_uri}:{self._cluster.root_port}"
            why = f"no sign of life from the scheduler at {address}: {SILENT}, or it lost another process"
            end_process(why, EXIT_PEER_LOST)

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
                why = f"{others} was not complete after {self._start_timeout_s:g} s: see the others' logs"
                end_process(why, EXIT_PEER_LOST)
            if now - reminded > REMIND_EVERY_S:
                logging.info("waiting for %s to be complete", others)
                reminded = now
        logging.info("%s is complete", others)
        self._on_formed()
        return True

    def _formed(self) -> bool:
        # With a negative time-out every process counts as dead, but only once the cluster is complete.
        return self.store is not None and self._count_dead(SCHEDULER | SERVERS | WORKERS, timeout_s=-1) > 0

    def _dead(self, age_s: float) -> list[RoleRank]:
        """Processes whose heartbeats have stopped, without plain MXNet programs that have never sent one."""
        if self._server is None:
            return [("scheduler", 0)] * self._count_dead(SCHEDULER)
        numbers = {"server": self._cluster.num_servers, "worker": self._cluster.num_workers}
        processes = [(role, rank) for role, number in numbers.items() for rank in range(number)]
        silent = [process for process in processes if self._count_dead(node_id(*process))]
        if age_s > int(os.environ[TIMEOUT]) + SETTLED_S:  # before that ps-lite takes all for alive
            self._heard |= set(processes) - set(silent)
        return [process for process in silent if process in self._heard or self._server.knows(process)]

    def _count_dead(self, node: int, timeout_s: int | None = None) -> int:
        if timeout_s is None:
            timeout_s = int(os.environ[TIMEOUT])
        count = ctypes.c_int()
        refused = library().MXKVStoreGetNumDeadNode(
            self.store.handle, ctypes.c_int(node), ctypes.byref(count), ctypes.c_int(timeout_s)
        )
        # A server leaves the cluster inside its main thread's `run`; from then on ps-lite knows no nodes.
        return 0 if refused else count.value
