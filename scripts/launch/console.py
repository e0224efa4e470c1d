"""Which lines of a job's logs the user sees, and which process wrote each."""

import os
import re
import sys
from collections.abc import Callable, Sequence

from scripts.launch.process import Kind, Role, RunningProcess, last_lines
from utils import BEGINS

# The last ones are ssh's messages about a lost connection.
# Not `(TimeoutError); training goes on`.
_ERROR = re.compile(r"error(?!\))|exception|check failed|abort|not responding|closed by|broken pipe", re.IGNORECASE)
_ROUND = re.compile(r"round \d+, ")
_LOG_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d )[a-z]+[\w .-]* \| ")
_RANK = re.compile(r"[\d :-]+ worker (\d+)\b[\w .-]* \| ")
# Also the values of the metric, whichever worker evaluates.
_EVALUATION = r"\bround \d+, \d+ step\(s\), [\d.]+ s, (?:loss [^,]+, )?(?!loss )[^,]+ -?\d"
WORTH_SHOWING = re.compile(rf"\berror\b|\bwarning\b|Error:|{_EVALUATION}", re.IGNORECASE)


class Forwarder:
    """Prints what processes write: all lines of one worker; of the others the important lines, each once. An error is
    printed once, also where another process repeats it within a longer line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._ranks: dict[str, str] = {}  # name of a process on another host -> the rank that it reports
        self._said: set[str] = set()
        self._errors: set[str] = set()
        self.has_begun = False  # a worker has begun to train

    def forward(self, processes: Sequence[RunningProcess]) -> None:
        # Workers find most mistakes, and the others repeat them.
        for process in sorted(processes, key=lambda process: process.role.kind is not Kind.WORKER):
            role = process.role
            for line in process.new_lines():
                when, text = parse_log_line(line)
                rank = self._rank(role, line)
                self.has_begun |= text == BEGINS
                show_all = role.show_all or rank == "0"
                # On other hosts a worker has no rank at first; its lines say what it waits for.
                is_waiting = bool(role.host) and role.kind is Kind.WORKER and not rank
                matters = WORTH_SHOWING.search(text)
                is_known = self.has_told(text) or (text in self._said and (matters or not show_all))
                if (show_all or is_waiting or matters) and not is_known:
                    self._said.add(text)
                    self._errors |= {*_mistake(text)}
                    self._say(f"{when}{role.name}{rank and f' rank {rank}'} | {text}")

    def has_told(self, text: str) -> bool:
        """Whether the error in a line is known to the user."""
        return any(mistake in told or told in mistake for mistake in _mistake(text) for told in self._errors)

    def _rank(self, role: Role, line: str) -> str:
        """The rank that a worker on another host has reported; on this machine its name has the rank."""
        reported = _RANK.match(line)
        if reported and role.host and role.kind is Kind.WORKER:
            self._ranks[role.name] = reported[1]
        return self._ranks.get(role.name, "")


def _mistake(text: str) -> list[str]:
    return [mistake for mistake in text.partition("error: ")[2:] if mistake]


def parse_log_line(line: str) -> tuple[str, str]:
    """Date and time (may be empty) and text of a line of a log; utils.setup_logging writes the role between them."""
    logged = _LOG_LINE.match(line)
    return (logged[1], line[logged.end() :]) if logged else ("", line)


def last_error(role: Role) -> str:
    """The last line with an error in a process's log; empty if there is none."""
    return next((line.strip() for line in reversed(last_lines(role.log)) if _ERROR.search(line)), "")


def has_trained(role: Role) -> bool:
    """Whether a worker's log has a round."""
    return any(_ROUND.match(parse_log_line(line)[1]) for line in last_lines(role.log))


def has_ended_for(reason: str, role: Role) -> bool:
    """Whether a worker's log says that it ended for this reason."""
    return any(f": {reason}; " in line for line in last_lines(role.log))


def console(line: str) -> None:
    """Prints a line. A console that is gone (a closed terminal, `| head`) must not end the job."""
    try:
        print(line, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
