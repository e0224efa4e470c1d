"""The state server's own code, for what runs in a trainer's process: this is the only module that reaches for it.

It lies in SimpleStateServer/, which is a project of its own and not on a trainer's path. What is taken from there knows
neither Django nor HTTP: the handlers behind the server's views, its messages, and its policies, which are pure.
"""

from __future__ import annotations

import sys
from pathlib import Path

_FOLDER = str(Path(__file__).resolve().parent.parent / "SimpleStateServer")
if _FOLDER not in sys.path:
    sys.path.append(_FOLDER)

from server import policies, wire  # noqa: E402
from server.answers import refused  # noqa: E402
from server.conflict import Conflict  # noqa: E402
from server.fields import BadMessage  # noqa: E402
from server.handlers import Handlers  # noqa: E402
from server.router import Router  # noqa: E402

__all__ = ["BadMessage", "Conflict", "Handlers", "Router", "policies", "refused", "wire"]
