"""Runs the loop: one process, one thread, all connections."""

import asyncio
import email.utils
import gc
import logging
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from django.apps import apps

from server.serving import ConnectionLimits
from server.serving.connections import Connection, Connections
from server.views import answer, last_page

BACKLOG = 4096  # connections that wait to be accepted: a whole cluster may start at the same moment
ACCEPTED_A_TURN = 64
SWEEP_S = 0.5
OPEN_PAGE_S = 2.0  # in which an open page asks at least once, and gets what is no older than the question
GARBAGE_THRESHOLDS = (10_000, 20, 1_000)  # the last: full collections a hundred times as rare as usual

log = logging.getLogger(__name__)


async def serve(
    listener: socket.socket, limits: ConnectionLimits, ready: Callable[[], None], page_file: Path | None = None
) -> None:
    """Answers requests until SIGTERM, unless it is ignored, or SIGINT. Workers send unanswered messages again. `ready`
    is called once connections are accepted; `page_file` is written at the end, when an open page is told that the jobs
    have ended."""
    # The modules loaded by now stay, and a job's state has no cycles: a full garbage collection would stop the loop for
    # more than a second at 100,000 workers.
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        if number != signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:  # see SignalWatch
            loop.add_signal_handler(number, over.set)
    connections = Connections(limits, apps.get_app_config("server").traffic, answer)
    listener.setblocking(False)
    listener.listen(BACKLOG)
    loop.add_reader(listener, _accept, listener, connections, loop)
    ready()
    sweeping = loop.create_task(_sweep(connections, loop))
    await over.wait()
    if page_file is not None:
        await _part(page_file)
    sweeping.cancel()
    loop.remove_reader(listener)
    for connection in connections:
        connection.close()


async def _part(page_file: Path) -> None:
    """Writes the page; an open one gets the time to ask once more."""
    app = apps.get_app_config("server")
    app.handlers.jobs.cut_off(time.monotonic())
    try:
        if page := last_page():
            page_file.write_bytes(page)
    except OSError as problem:
        log.error("error: the page cannot be written to %s: %s", page_file, problem.strerror)
    if time.monotonic() - app.watched_at < OPEN_PAGE_S:
        await asyncio.sleep(OPEN_PAGE_S)


def _accept(listener: socket.socket, connections: Connections, loop: asyncio.AbstractEventLoop) -> None:
    """Accepts waiting connections. uvloop's own server accepts one a turn: on a busy server, 200 waited for 2 s."""
    for _ in range(ACCEPTED_A_TURN):
        try:
            client, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as problem:  # no file descriptor is left, say
            log.error("cannot accept a connection: %s", problem)
            connections.close_one("no room")
            loop.remove_reader(listener)  # closing takes a moment, and a retry at once would use all the time
            loop.call_later(SWEEP_S, loop.add_reader, listener, _accept, listener, connections, loop)
            return
        client.setblocking(False)
        task = loop.create_task(loop.connect_accepted_socket(lambda: Connection(connections, loop), client))
        connections.accepting.add(task)
        task.add_done_callback(connections.accepting.discard)


async def _sweep(connections: Connections, loop: asyncio.AbstractEventLoop) -> None:
    """Closes overdue connections, and updates the date."""
    while True:
        connections.date = email.utils.formatdate(time.time(), usegmt=True)
        now = loop.time()
        for connection in connections:
            if why := connection.overdue(now):
                connections.close(connection, why)
        await asyncio.sleep(SWEEP_S)
