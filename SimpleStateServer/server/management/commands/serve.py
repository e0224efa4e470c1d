"""`manage.py serve [ADDRESS:]PORT`: the state server for real, in one event loop (server/serving/)."""

import ipaddress
import os
import resource
import socket
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, NoReturn

from django.apps import apps
from django.conf import settings
from django.core.management.base import BaseCommand

from server.rendezvous.journal import Journal
from server.serving import ConnectionLimits

DEFAULT_ADDRESS = "127.0.0.1"
DEFAULT_PORT = 10010
_ROOT = Path(__file__).resolve().parents[4]
# Of servers that are started by hand; where pip has installed this, below the folder in which it is started.
JOURNALS = (_ROOT if (_ROOT / "VERSION").exists() else Path()) / "logs" / ".journal"

# A peer that vanishes without a word, such as a host that loses its power, is found after 50 s.
PROBES = {socket.TCP_KEEPIDLE: 20, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}

EXIT_SETUP = 2
SPARE_FILES = 64  # open files besides the connections
LEAST_CONNECTIONS = 16  # a worker keeps up to so many
_VARIABLES = "STATE_SERVER_HOST and STATE_SERVER_PORT"

_DEFAULTS = ConnectionLimits()
# flag, field of ConnectionLimits, type, least, help
_FLAGS = (
    ("--max-connections", "connections", int, 1, "connections open at a time; beyond, the longest silent one closes"),
    ("--max-connections-per-address", "connections_per_address", int, 1, "likewise, of one address"),
    ("--request-timeout", "request_s", float, 0.1, "seconds in which a request must have arrived"),
    ("--idle-timeout", "idle_s", float, 1, "seconds without a request after which a connection is closed"),
)


class Command(BaseCommand):
    """Serves until SIGTERM or SIGINT."""

    help = "Runs the state server in one event loop, with bounds on what strangers may take of it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.print_usage = lambda file=None: None  # type: ignore[method-assign]  # an error is one line
        parser.add_argument(
            "addrport",
            nargs="?",
            default=f"{DEFAULT_ADDRESS}:{DEFAULT_PORT}",
            metavar="[ADDRESS:]PORT",
            help="where to listen; port 0: a free one, which is printed (%(default)s)",
        )
        parser.add_argument("--page-file", type=Path, help="at its end the server writes its page there, as one file")
        parser.add_argument(
            "--journal",
            type=Path,
            metavar="DIR",
            help="what this server has to know of jobs that survive lost workers, should it be restarted "
            "(logs/.journal/PORT)",
        )
        parser.add_argument(
            "--begin-anew",
            action="store_true",
            help="sets aside what the journal has of jobs: all of their workers have ended, and others begin anew",
        )
        for flag, field, kind, _, text in _FLAGS:
            default = getattr(_DEFAULTS, field)
            parser.add_argument(flag, dest=field, type=kind, default=default, metavar="N", help=f"{text} (%(default)g)")

    def handle(self, *args: Any, **options: Any) -> None:
        for flag, field, _, least, _ in _FLAGS:
            if not options[field] >= least:
                _fail(f"{flag} is {options[field]:g}; give {least} or more")
        address, port = split_address(options["addrport"])
        listener = listen(address, port)
        settings.ALLOWED_HOSTS.append(address)
        wanted = options["connections"]
        of_flags = {field: options[field] for _, field, *_ in _FLAGS}
        limits = ConnectionLimits(**of_flags | {"connections": allowed_connections(wanted)})
        if limits.connections < (least := min(wanted, LEAST_CONNECTIONS)):
            _fail(f"{least} connections need {least + SPARE_FILES} open files: raise the limit of them (ulimit -Hn)")
        if limits.connections < wanted:
            print(f"this process may have {limits.connections} connections open, not {wanted} (ulimit -n)", flush=True)
        try:
            import uvloop

            from server.serving.loop import serve
        except ModuleNotFoundError as missing:
            _fail(f"{missing.name} is missing: install requirements.txt")
        launcher, *_ = os.environ.get("ESYNC_PROCESS", "").split("-")
        host, port = listener.getsockname()[:2]
        journal = Journal(options["journal"] or JOURNALS / str(port), launcher, options["begin_anew"])
        apps.get_app_config("server").handlers.rendezvous.journal = journal
        url = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
        line = f"state server at {url} | up to {limits.connections} connections | Ctrl-C ends it"
        lines = "\n".join(filter(None, (warning(host), line)))
        uvloop.run(serve(listener, limits, lambda: print(lines, flush=True), options["page_file"]))


def warning(host: str) -> str:
    """A line for the user where other machines reach a server without a token; else empty."""
    if settings.STATE_SERVER_TOKEN or ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        return ""
    return f"warning: every program that reaches {host} can disturb jobs here: set ESYNC_TOKEN here and for the workers"


def split_address(text: str) -> tuple[str, int]:
    """Address and port of `[ADDRESS:]PORT`; an IPv6 address stands in brackets, as in a URL."""
    address, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        _fail(f"the address is {text!r}; give [ADDRESS:]PORT ({_VARIABLES}), such as 0.0.0.0:{DEFAULT_PORT}")
    return address.removeprefix("[").removesuffix("]") or DEFAULT_ADDRESS, int(port)


def listen(address: str, port: int) -> socket.socket:
    """A listening socket; ends the process where there cannot be one."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        # Accepted connections inherit these.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option, value in PROBES.items():
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the connections of a server before may linger
        listener.bind(place)
    except UnicodeError:  # of a name that no host can have
        _fail(f"{address!r} is no address; give one of this host's, such as {DEFAULT_ADDRESS} or 0.0.0.0")
    except OSError as problem:
        _fail(f"cannot listen on {address!r} port {port}: {problem.strerror}; choose another with {_VARIABLES}")
    return listener


def allowed_connections(wanted: int) -> int:
    """How many connections this process can have open, after raising its limit of open files; may be negative."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < target:
        soft = target if hard == resource.RLIM_INFINITY else min(target, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, soft - SPARE_FILES)


def _fail(text: str) -> NoReturn:
    print(f"error: {text}", file=sys.stderr)
    sys.exit(EXIT_SETUP)
