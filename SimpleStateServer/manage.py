#!/usr/bin/env python
"""Starts the state server: `python manage.py runserver 0.0.0.0:10010`.

One process, many threads: the state table lives in this process's memory, so never start it with several processes.
"""

import os
import sys
from pathlib import Path

from django.core.management import execute_from_command_line


def main() -> None:
    """Runs Django's command line with this project's settings, from whatever folder it is called."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "SimpleStateServer.settings")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
