#!/usr/bin/env python
"""Starts the state server: `python manage.py serve 0.0.0.0:10010`, or as published `runserver 0.0.0.0:10010`.

One process: the state tables live in its memory.
"""

import _signal as signal  # type: ignore[import-not-found]  # as start.py
import os
import sys


def main() -> None:
    """Runs Django's command line with this project's settings, from whatever folder it is called."""
    if "serve" in sys.argv[:2] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # until the server handles it: no traceback
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # scripts/common.sh
    from pathlib import Path  # after that: it takes a while

    try:
        from django.core.exceptions import ImproperlyConfigured
        from django.core.management import execute_from_command_line
    except ModuleNotFoundError:
        told = f"there is no Django for {sys.executable}: .venv/bin/python has it, which scripts/setup.sh makes"
        print(f"error: {told}", file=sys.stderr)
        sys.exit(2)
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    os.environ["DJANGO_SETTINGS_MODULE"] = "SimpleStateServer.settings"  # whatever the caller has
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as problem:  # what a user has set: a line says it, a trace would hide it
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
