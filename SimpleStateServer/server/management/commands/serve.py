"""`manage.py serve [ADDRESS:]PORT`: the state server for real, under granian, a production WSGI server.

One process and many threads: the job's state lives in this process, so there are never two.

Why granian: its event loops are written in Rust and hold no Python lock, so with many workers that never pause it
answers more queries a second than waitress or cheroot, with the shortest tail. What speaks against it is that a client
that sends half a body and stops holds a thread. So there are many threads: spare ones for strangers, and one for every
fourth worker. Hosts that vanish are found by TCP keep-alive probes. waitress suffers from no half body, but falls
behind already with 64 clients that never pause.
"""

from __future__ import annotations

import io
import os
import resource
import signal
import socket
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from django.conf import settings
from django.core.management.base import BaseCommand

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication

DEFAULT_ADDRESS = "127.0.0.1"
DEFAULT_PORT = 10010
DEFAULT_WORKERS = 256
MAX_WORKERS = 100_000

SPARE_THREADS = 64
CONNECTIONS_PER_WORKER = 20  # a worker that does not wait for answers keeps up to 16, and reconnects at times
SPARE_CONNECTIONS = 256
SPARE_FILES = 64  # that this process has open besides its connections
BACKLOG = 1024  # connections that wait to be accepted: a whole cluster may start at the same moment

# A peer that vanishes without a word, such as a host that loses its power, is found after 50 s.
PROBES = {socket.TCP_KEEPIDLE: 20, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}

EXIT_OK = 0
EXIT_SETUP = 2


class Command(BaseCommand):
    """Serves until SIGTERM or SIGINT."""

    help = "Runs the state server under granian: one process, many threads, kept connections."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Takes the address as runserver does."""
        parser.add_argument(
            "addrport",
            nargs="?",
            default=f"{DEFAULT_ADDRESS}:{DEFAULT_PORT}",
            metavar="[ADDRESS:]PORT",
            help="where to listen; port 0: a free one, which is printed (%(default)s)",
        )
        parser.add_argument(
            "--workers-expected",
            type=int,
            default=DEFAULT_WORKERS,
            metavar="N",
            help="workers of a job; threads and connections follow from it (%(default)s)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Listens, says so, and serves."""
        _end_at_signals()
        workers: int = options["workers_expected"]
        if not 1 <= workers <= MAX_WORKERS:
            _fail(f"--workers-expected is {workers}; give a whole number from 1 to {MAX_WORKERS}")
        listener = listen(*split_address(options["addrport"]))
        serve(listener, threads(workers), connections(workers))


def threads(workers: int) -> int:
    """How many requests are worked on at a time, those included whose body does not arrive."""
    return SPARE_THREADS + workers // 4


def connections(workers: int) -> int:
    """How many connections may be open; more wait until one ends. Raises this process's limit of files as needed."""
    wanted = SPARE_CONNECTIONS + CONNECTIONS_PER_WORKER * workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = max(soft, min(wanted + SPARE_FILES, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return min(wanted, allowed - SPARE_FILES)


def split_address(text: str) -> tuple[str, int]:
    """Address and port of `[ADDRESS:]PORT`; an IPv6 address stands in brackets, as in a URL."""
    address, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        _fail(f"the address is {text!r}; give [ADDRESS:]PORT, a port from 0 to 65535, such as 0.0.0.0:{DEFAULT_PORT}")
    return address.removeprefix("[").removesuffix("]") or DEFAULT_ADDRESS, int(port)


def listen(address: str, port: int) -> socket.socket:
    """A listening socket; ends the process where there cannot be one.

    granian would open its own, with SO_REUSEPORT: then a second state server on the same port would not fail, and
    each of the two would get some of the workers.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        # Accepted connections inherit these.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Head and body of an answer may leave apart; the second must not wait for the client's delayed ACK (40 ms).
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option, value in PROBES.items():
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the connections of a server before may linger
        listener.bind(place)
        listener.listen(BACKLOG)
    except OSError as problem:
        _fail(f"cannot listen on {address} port {port}: {problem.strerror}; choose another with STATE_SERVER_PORT")
    return listener


def in_turns(application: WSGIApplication) -> WSGIApplication:
    """Lets many requests wait for their bodies, and one compute.

    Python runs one thread at a time. A hundred that all want to are passed the right to run among each other, which
    costs more than the requests: with turns 32 clients get about half as many queries a second again.
    """
    turn = threading.Lock()

    def answer(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        length = environ.get("CONTENT_LENGTH") or "0"
        if length.isascii() and length.isdigit() and int(length) <= settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            # A body that has ended too soon is shorter than it says; the views refuse it.
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(length)))
        with turn:
            return application(environ, start_response)

    return answer


def serve(listener: socket.socket, threads: int, connections: int) -> None:
    """Answers requests until a signal comes."""
    try:
        from granian._granian import SocketHolder
        from granian.constants import HTTPModes, Interfaces
        from granian.log import LogLevels
        from granian.server.mt import MTServer
    except ModuleNotFoundError:
        _fail("granian is missing: install requirements.txt, or use 'manage.py runserver' for a few workers")
    from SimpleStateServer.wsgi import application

    class OneProcessServer(MTServer):
        """granian's server of threads.

        Its server of processes would be a second process here, which outlives a killed first one. granian offers this
        one for Pythons without a global lock, and its WSGI part does the same on all others.
        """

        def _check_gil(self) -> None:
            pass

        def _init_shared_socket(self) -> None:
            self._shd = SocketHolder(listener.fileno(), False, BACKLOG)

    server = OneProcessServer(
        "SimpleStateServer.wsgi:application",
        interface=Interfaces.WSGI,
        http=HTTPModes.http1,
        workers=1,
        blocking_threads=threads,
        backpressure=connections,
        # Its errors go where the server's own log goes.
        log_level=LogLevels.error,
        log_dictconfig={"formatters": {}, "handlers": {}, "loggers": {"_granian": {}}},
    )
    server.on_startup(_end_at_signals)  # granian has set its own handlers by then
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
    print(f"state server at {url} | {threads} threads, {connections} connections | Ctrl-C ends it", flush=True)
    server.serve(target_loader=lambda: in_turns(application), wrap_loader=False)


def _end_at_signals() -> None:
    """SIGTERM and SIGINT end the process at once: nothing is kept, and a worker sends an unanswered message again."""

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        os._exit(EXIT_OK)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def _fail(text: str) -> NoReturn:
    print(f"error: {text}", file=sys.stderr)
    sys.exit(EXIT_SETUP)
