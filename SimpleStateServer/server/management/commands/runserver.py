"""`manage.py runserver [ADDRESS:]PORT`, as published: `serve`, which also takes the flags of Django's `runserver`."""

from argparse import ArgumentParser
from typing import Any

from server.management.commands import serve


class Command(serve.Command):
    """Serves until SIGTERM or SIGINT."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        for flag in ("--noreload", "--nothreading"):
            parser.add_argument(flag, action="store_true", help="as always: nothing is reloaded, and there is one loop")
        parser.add_argument("-6", "--ipv6", action="store_true", help="without an ADDRESS at ::1")

    def handle(self, *args: Any, **options: Any) -> None:
        address, port = serve.split_address(options["addrport"])
        if options["ipv6"] and address == serve.DEFAULT_ADDRESS:
            options["addrport"] = f"[::1]:{port}"
        super().handle(*args, **options)
