"""The first messages of a server with threads, all at once: msgspec reads a class's definition without a lock."""

from __future__ import annotations

import subprocess
import sys

import pytest
from state_server_process import SERVER_FOLDER

PROGRAM = """
import sys, threading
sys.setswitchinterval(1e-6)
from server import published, wire
query = b'{"msg_type": "QUERY", "sender": "worker-0", "receiver": "state-server", "job": "a", "status": {"rank": 0}}'
together = threading.Barrier(8)
def ask(number):
    together.wait()
    for _ in range(3):
        try:
            wire.parse(query, {"journal"}) if number % 2 else published.init({"num_workers": "2"}, "a", {"x"}, "x")
        except wire.BadMessage:
            pass
threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.parametrize("turn", range(8))  # unprepared, one process in six crashed
def test_threads_that_read_the_first_messages_at_once_do_not_crash(turn: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=SERVER_FOLDER, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
