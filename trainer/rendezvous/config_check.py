"""The comparison of set-ups, which is the state server's (SimpleStateServer/server/setups.py), where the trainer and
the launchers can import it."""

from __future__ import annotations

from server.setups import DATA, FROZEN, JOB, PROGRAM, differences, join_names, verdict

__all__ = ["DATA", "FROZEN", "JOB", "PROGRAM", "differences", "join_names", "verdict"]
