"""`manage.py runserver`, as published: `serve` by another name, which takes the flags of Django's own server too."""

from argparse import SUPPRESS, ArgumentParser

from server.management.commands import serve


class Command(serve.Command):
    """Serves until SIGTERM or SIGINT."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        for flags in (("--noreload",), ("--nothreading",), ("--ipv6", "-6"), ("--nostatic",), ("--insecure",)):
            parser.add_argument(*flags, action="store_true", help=SUPPRESS)  # without effect here
