"""main.py as a user calls it with a mistake: one line of error. Not a test itself."""

import contextlib
import functools
import socket
import sys
import threading

from cluster_processes import free_ports, ran
from few_images import on_few_images

from utils import EXIT_SETUP

ENDLESS = ["-c", "1", "-n", "lenet", "-e", "1000", *on_few_images()]


def run_main(tmp_path, *flags, **environment):
    return ran(sys.executable, "main.py", "-ld", tmp_path, *flags, **environment)


def worker_environment():
    (port,) = free_ports(1)
    return {
        "DMLC_ROLE": "worker",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": "1",
    }


@functools.cache
def port_that_hangs_up() -> str:
    """Where a scheduler reads a few bytes and ends the connection: a process that fails does not wait for one."""
    listener = socket.create_server(("127.0.0.1", 0))

    def hang_up():
        while True:
            caller, _ = listener.accept()
            with caller, contextlib.suppress(OSError):
                caller.recv(64)

    threading.Thread(target=hang_up, daemon=True).start()
    return str(listener.getsockname()[1])


def assert_one_error_line(finished, *words, code=EXIT_SETUP):
    """Checks that a process ended with one line on stderr, and what is in it."""
    assert finished.returncode == code, finished.stdout + finished.stderr
    lines = finished.stderr.strip().splitlines()
    assert len(lines) == 1, finished.stderr
    (line,) = lines
    assert "error: " in line
    for word in words:
        assert word in line
