"""Puts SimpleStateServer/, a project of its own, on sys.path: the server parts on the hub use its policies,
and a virtual cluster runs its handlers in its own process.

    from trainer.coordinator import state_server_path  # noqa: F401  (the imports below need it)

    # isort: split
    from server.policies import POLICIES

The modules that are imported from there need no Django.
"""

import sys
from pathlib import Path

_FOLDER = str(Path(__file__).resolve().parents[2] / "SimpleStateServer")
if _FOLDER not in sys.path:
    sys.path.append(_FOLDER)
