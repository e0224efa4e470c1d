"""Whether a state server answers. Standard library only; nothing here waits for it."""

import errno
import math
import socket
import time

ASK_EVERY_S = 1.0
FROZEN_S = 10.0  # for an answer, which comes within milliseconds
FIRST_S = 0.02  # likewise for the first one, since the job waits for it
_QUESTION = b"GET /healthz HTTP/1.1\r\nHost: state-server\r\nConnection: close\r\n\r\n"


class Health:
    """Asks a state server's /healthz. A call reads the answer to an earlier question, asks where that is due, and
    returns whether the server is up: it has answered, and the last question is not open for FROZEN_S."""

    def __init__(self, address: str, port: int) -> None:
        self.place = (address, port)
        self._question: socket.socket | None = None
        self._asked_at = -math.inf
        self._is_up = self._is_sent = False

    def __call__(self) -> bool:
        now = time.monotonic()
        if self._question is not None:
            self._read(self._question)
        if self._question is not None and now - self._asked_at > FROZEN_S:
            self.end(is_up=False)
        if self._question is None and now - self._asked_at >= self._is_up * ASK_EVERY_S:
            self._ask(now)
        return self._is_up

    def end(self, is_up: bool) -> None:
        """Ends the open question, if any, with what is known of the server now."""
        if self._question is not None:
            self._question.close()
        self._question, self._is_up = None, is_up

    def _ask(self, now: float) -> None:
        self._question = socket.socket(socket.AF_INET6 if ":" in self.place[0] else socket.AF_INET)
        self._question.settimeout(0.0 if self._is_up else FIRST_S)
        self._asked_at, self._is_sent = now, False
        if self._question.connect_ex(self.place) == errno.ECONNREFUSED:  # its process has ended
            self.end(is_up=False)
        else:
            self._read(self._question)

    def _read(self, question: socket.socket) -> None:
        try:
            if not self._is_sent:
                question.sendall(_QUESTION)
                self._is_sent = True
            self.end(is_up=question.recv(64).startswith(b"HTTP/1.1 200"))
        except (BlockingIOError, TimeoutError):  # not connected, or not answered yet
            pass
        except OSError:
            self.end(self._is_up)
