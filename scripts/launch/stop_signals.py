"""The signals that ask a launcher to stop."""

from __future__ import annotations

import contextlib
import signal
import time
from types import FrameType

SAME_SIGNAL_S = 1.0  # `timeout` and some shells deliver one Ctrl-C twice

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals(contextlib.ExitStack):
    """Notes the signals that arrive in the `with` block, in the main thread, and does nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self._arrived: list[tuple[float, str]] = []

    def __enter__(self) -> StopSignals:
        for number in _STOP_SIGNALS:
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # by nohup
                self.callback(signal.signal, number, signal.signal(number, self._note))
        return self

    @property
    def names(self) -> list[str]:
        """Of all that have arrived, in order."""
        return [name for _, name in self._arrived]

    @property
    def first(self) -> str:
        """The name of the first; empty if none has arrived."""
        return self._arrived[0][1] if self._arrived else ""

    @property
    def is_repeated(self) -> bool:
        """Whether a second one has arrived, later than a duplicate of the first."""
        return any(at > self._arrived[0][0] + SAME_SIGNAL_S for at, _ in self._arrived)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append((time.monotonic(), signal.Signals(number).name))
