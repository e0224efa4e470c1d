"""`manage.py runserver` as published, made fit for workers that keep their connection and ask after every step."""

import socket
from argparse import ArgumentParser

from django.core.management.commands.runserver import Command as DjangoRunserver
from django.core.servers.basehttp import WSGIServer

from server.management.commands.serve import warning


class StateServerWSGIServer(WSGIServer):
    """Django's server, but answers leave at once and a whole cluster may connect at the same moment."""

    request_queue_size = 1024  # Django's 10 drops connections when 32 workers start together

    def server_bind(self) -> None:
        """Binds; accepted connections inherit that they do not hold back small writes.

        The server writes an answer's head and body separately. With Nagle's algorithm the second waits for the
        client's delayed ACK of the first: 40 ms on every query of a kept connection.
        """
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().server_bind()
        if line := warning(self.server_address[0]):
            print(line, flush=True)


class Command(DjangoRunserver):
    """Django's runserver with the port of the published state server."""

    default_port = "10010"
    server_cls = StateServerWSGIServer

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Django's flags without autoreload, which would lose the running jobs."""
        super().add_arguments(parser)
        parser.print_usage = lambda file=None: None  # type: ignore[method-assign]  # an error is one line
        parser.set_defaults(use_reloader=False)
