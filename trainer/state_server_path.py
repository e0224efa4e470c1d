"""Puts SimpleStateServer/, a project of its own, on sys.path: the optimizers on the parameter server decide by the
policies there, and a virtual cluster has the server's handlers in its process.

    from trainer import state_server_path  # noqa: F401  (the imports below need it)

    # isort: split
    from server.policies import POLICIES

What is imported from there needs neither Django nor anything else that is to be installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

_FOLDER = str(Path(__file__).resolve().parents[1] / "SimpleStateServer")
if _FOLDER not in sys.path:
    sys.path.append(_FOLDER)
