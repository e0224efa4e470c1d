"""Which lines of a job's logs the user sees, and which process wrote each."""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from scripts.launch.process import Kind, RunningProcess

_LOG_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d )[a-z]+[\w .-]* \| ")
# Also the values of the metric, whichever worker evaluates.
_EVALUATION = r"\bround \d+, \d+ step\(s\), [\d.]+ s, (?:loss [^,]+, )?(?!loss )[^,]+ -?\d"
WORTH_SHOWING = re.compile(rf"\berror\b|\bwarning\b|Error:|{_EVALUATION}", re.IGNORECASE)


class Forwarder:
    """Prints what processes write: all lines of one worker; of the others the important lines, each once. An error is
    printed once, also where another process repeats it within a longer line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: set[str] = set()
        self._errors: set[str] = set()

    def forward(self, processes: Sequence[RunningProcess]) -> None:
        # Workers find most mistakes, and the others repeat them.
        for process in sorted(processes, key=lambda process: process.role.kind is not Kind.WORKER):
            role, lines = process.role, process.new_lines()
            is_elsewhere = bool(role.host) and role.kind is Kind.WORKER  # on this machine its name has the rank
            rank = str(process.status.get("rank", "")) if is_elsewhere else ""
            show_all = role.show_all or rank == "0"
            is_waiting = is_elsewhere and not rank  # its lines say what it waits for
            for line in lines:
                when, text = parse_log_line(line)
                matters = WORTH_SHOWING.search(text)
                is_known = self.has_told(text) or (text in self._said and (matters or not show_all))
                if (show_all or is_waiting or matters) and not is_known:
                    self._said.add(text)
                    self._errors |= {*_mistake(text)}
                    self._say(f"{when}{role.name}{rank and f' rank {rank}'} | {text}")

    def has_told(self, text: str) -> bool:
        """Whether the error in a line is known to the user."""
        return any(mistake in told or told in mistake for mistake in _mistake(text) for told in self._errors)


def _mistake(text: str) -> list[str]:
    return [mistake for mistake in text.partition("error: ")[2:] if mistake]


def parse_log_line(line: str) -> tuple[str, str]:
    """Date and time (may be empty) and text of a line of a log; utils.setup_logging writes the role between them."""
    logged = _LOG_LINE.match(line)
    return (logged[1], line[logged.end() :]) if logged else ("", line)


@contextlib.contextmanager
def unhurried(say: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Says lines in a thread of its own, all of them before the end: a console that is not read, such as a stopped
    terminal, must not keep the launcher from its processes."""
    with ThreadPoolExecutor(1, "console") as thread:

        def later(line: str) -> None:
            thread.submit(say, line)

        yield later


def console(line: str) -> None:
    """Prints a line. A console that is gone (a closed terminal, `| head`) must not end the job."""
    try:
        print(line, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
