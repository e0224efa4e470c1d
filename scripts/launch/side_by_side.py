"""Runs commands in parallel, a given number at once; a signal is passed on, and no further command starts."""

import logging
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from scripts.launch.stop_signals import StopSignals
from utils import EXIT_OK

POLL_S = 0.1
_KILLED = 128  # plus the signal's number: the exit code of a killed process


def run_side_by_side(commands: Mapping[str, Sequence[str]], at_once: int) -> int:
    """Runs all commands, by name, also after one has failed; returns the first exit code that is not 0, else 0.

    Each runs in a session of its own, so that it gets a signal only once, from here.
    """
    waiting, running, codes = list(commands.items()), dict[str, subprocess.Popen[bytes]](), dict[str, int]()
    passed_on = 0
    with StopSignals() as signals:
        try:
            while running or (waiting and not signals.first):
                while waiting and len(running) < at_once and not signals.first:
                    name, command = waiting.pop(0)
                    logging.info("%s begins, %d more to do", name, len(waiting))
                    running[name] = subprocess.Popen(command, start_new_session=True)
                for name in signals.names[passed_on:]:
                    passed_on += 1
                    for process in running.values():  # SIGHUP: the terminal is gone
                        process.send_signal(signal.SIGTERM if name == "SIGHUP" else signal.Signals[name])
                for name, process in list(running.items()):
                    if (code := process.poll()) is not None:
                        del running[name]
                        codes[name] = code if code >= 0 else _KILLED - code
                time.sleep(POLL_S)
        finally:
            for process in running.values():
                process.kill()
    if waiting:
        logging.info("stopped; %d run(s) not begun, which the same command does", len(waiting))
    for name, code in codes.items():
        if code != EXIT_OK:
            logging.error("%s ended with exit code %d", name, code)
    return next((code for code in codes.values() if code != EXIT_OK), EXIT_OK)
