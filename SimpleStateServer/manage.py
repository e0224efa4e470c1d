#!/usr/bin/env python
"""Starts the state server: `python manage.py serve 0.0.0.0:10010`, or as published `runserver 0.0.0.0:10010`.

One process: the state tables live in its memory.
"""

import os
import sys
from pathlib import Path

try:
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line
except ModuleNotFoundError as missing:
    print(f"error: {sys.executable} has no package {missing.name}: run it with .venv/bin/python", file=sys.stderr)
    sys.exit(2)


def main() -> None:
    """Runs Django's command line with this project's settings, from whatever folder it is called."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "SimpleStateServer.settings")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as problem:  # what a user has set: a line says it, a trace would hide it
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
