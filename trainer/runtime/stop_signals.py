"""The signals that ask a worker to stop. The ranks agree whether the job stops (loop.py)."""

import logging
import os
import signal
import threading

from utils import EXIT_FORCED

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
        ignored = [number for number in STOP_SIGNALS if signal.getsignal(number) is signal.SIG_IGN]
        self._awaited = [number for number in STOP_SIGNALS if number == signal.SIGINT or number not in ignored]
        signal.pthread_sigmask(signal.SIG_BLOCK, self._awaited)
        # A process that a job file forks can be ended, as by multiprocessing when this one ends.
        os.register_at_fork(after_in_child=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, self._awaited))
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
