"""A worker's reasons to stop. The ranks agree whether the job stops (loop.py)."""

import logging
import os
import signal
import threading
from dataclasses import dataclass

from trainer.metric import ACCURACY, Metric
from utils import EXIT_FORCED, REACHED

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # mpiexec passes on the last, and kills after others


class SignalWatch:
    """Waits for STOP_SIGNALS in a thread of its own.

    A SIGTERM or SIGUSR1 that was ignored before stays ignored: Slurm sends SIGTERM to every process of a job, and the
    launcher, which gets it too, tells the workers by SIGINT. SIGINT always counts: a shell's `&` ignores it.

    Python runs signal handlers only in the main thread, which can be inside the kvstore for long, and a blocked signal
    cannot interrupt a system call of MXNet. Create it in the main thread, before any other thread starts.
    """

    def __init__(self, on_first: str) -> None:
        """`on_first` is the log line of the first signal."""
        self.requested = False
        self._patient = False
        self.on_first = on_first
        self._awaited = [number for number in STOP_SIGNALS if number == signal.SIGINT or not _is_ignored(number)]
        signal.pthread_sigmask(signal.SIG_BLOCK, self._awaited)
        threading.Thread(target=self._wait, name="signals", daemon=True).start()

    def be_patient(self) -> None:
        """From now on the job ends cleanly at the first signal; before, the first signal ends the process."""
        self._patient = True

    def _wait(self) -> None:
        while True:
            name = signal.Signals(signal.sigwait(self._awaited)).name
            if self.requested or not self._patient:
                logging.warning("%s: stopped at once", name)
                os._exit(EXIT_FORCED)
            self.requested = True
            logging.warning("%s: %s; once more to stop at once", name, self.on_first)


def _is_ignored(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN


@dataclass(frozen=True)
class Limits:
    """When a job ends by itself; 0, and a target of None: no limit."""

    max_rounds: int = 0
    max_seconds: float = 0.0
    target: float | None = None  # of the metric
    metric: Metric = ACCURACY
    evaluations: int = 1  # in a row, whose mean is to be at the target

    def rounds_done(self, rounds: int) -> str:
        """The reason in words if the limit of rounds is reached, else an empty string."""
        return f"{rounds} rounds done" if self.max_rounds and rounds >= self.max_rounds else ""

    def reached(self, elapsed_s: float, value: float | None) -> str:
        """The reason in words if time or the metric's value has reached its limit, else an empty string. `value` is the
        mean of the last `evaluations`; None while there are fewer."""
        if self.target is not None and value is not None and self.metric.reached(value, self.target):
            return f"test {self.metric.name} {self.metric.text(value)} {REACHED} {self.target}"
        if self.max_seconds and elapsed_s >= self.max_seconds:
            return f"{elapsed_s:.1f} s of {self.max_seconds:g} s passed"
        return ""
