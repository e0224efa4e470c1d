"""The training side: one loop (loop.py) and a few hooks for each algorithm (trainer.py).

Importing this package imports nothing else, and puts SimpleStateServer/, a project of its own, on sys.path: the server
parts on the hub use its policies, the rendezvous its messages and comparisons, and a virtual cluster runs its handlers
in its own process. The modules that are imported from there (`server`) need no Django.
"""

import sys
from pathlib import Path

_STATE_SERVER = str(Path(__file__).resolve().parents[1] / "SimpleStateServer")
if _STATE_SERVER not in sys.path:
    sys.path.append(_STATE_SERVER)
