"""How a process describes itself, and how the set-ups of several differ, in words. Pure functions."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.rendezvous.cluster import ROLES
from utils import SetupError, printable

# Keys of a set-up whose values are hashes.
DATA, PROGRAM, JOB, FROZEN = "the data", "the program's files", "--job", "the frozen weights"
MOST_NAMES = 5  # in one sentence
LONGEST_NAME, LONGEST_VALUE = 255, 10_000  # characters, of what a process says of itself
ADVICE = {
    DATA: "get the same files on every host (scripts/get_data.sh); give generators in data() a seed",
    FROZEN: "let network() give them the same values on every host",
    PROGRAM: "bring the same version of this program to every host",
    JOB: "bring the same job file, and the modules that it imports from its folder, to every host",
}
_ADVICE_ON_FLAGS = "start all processes with the same flags and the same variables of MXNet"


@dataclass(frozen=True)
class ProcessInfo:
    """One process of a job, as the others know it."""

    role: str  # one of ROLES
    host: str
    device: str  # of a worker; else empty
    address: str  # at which MXNet will listen
    port: int
    token: str = ""  # its answer there before MXNet listens
    interface: str = ""  # DMLC_INTERFACE, which chose the address
    setup: Mapping[str, str] = dataclasses.field(default_factory=dict)  # flag or other key -> value

    @classmethod
    def from_message(cls, fields: Any) -> ProcessInfo:
        """Reads the description in a message.

        Raises:
            SetupError: it is none.
        """
        try:
            process = cls(**fields)
        except TypeError as error:
            raise SetupError(f"this process sent an unreadable description ({error}): {fields!r:.200}") from None
        texts = [process.host, process.device, process.address, process.token, process.interface]
        if not (
            process.role in ROLES
            and type(process.port) is int
            and 0 < process.port < 65536
            and isinstance(process.setup, dict)
            and are_texts([*texts, *process.setup], LONGEST_NAME)
            and are_texts(process.setup.values())
        ):
            raise SetupError(
                f"this process sent a wrong description: {fields!r:.200}; names have at most {LONGEST_NAME} printable "
                f"characters; {ADVICE[PROGRAM]}"
            )
        return process

    def name(self, rank: int | None = None) -> str:
        """For messages: with the rank once that is known."""
        if self.role == "scheduler":
            return f"the scheduler on host {self.host} ({self.address})"
        place = f"{self.device} on host {self.host}" if self.device else f"host {self.host}"
        if rank is None:
            return f"{self.role} {'on ' if not self.device else ''}{place} ({self.address})"
        return f"{self.role} {rank} ({place}, {self.address})"


def are_texts(values: Iterable[Any], longest: int = LONGEST_VALUE) -> bool:
    """Whether values that came as JSON are all strings of printable characters, with so many at most."""
    return all(isinstance(value, str) and value == printable(value, longest) for value in values)


def differences(processes: Sequence[ProcessInfo]) -> dict[str, str]:
    """Flags and other keys in which processes differ, each with a sentence that names the processes and all values.

    A process without a value for a flag (a server without a batch size) does not count there.
    """
    values: dict[str, dict[str, list[ProcessInfo]]] = defaultdict(lambda: defaultdict(list))
    for process in processes:
        for key, value in process.setup.items():
            values[key][value].append(process)
    return {key: _sentence(key, holders) for key, holders in values.items() if len(holders) > 1}


def _sentence(key: str, holders: Mapping[str, Sequence[ProcessInfo]]) -> str:
    """Such as "worker gpu0 on host b (10.0.0.3) has -b 32, the others -b 64"."""
    *odd, most = sorted(holders, key=lambda value: len(holders[value]))
    parts = [f"{_have(holders[value])} {key} {value}" for value in odd]
    if len(holders[most]) > len(holders[odd[-1]]):
        parts.append(f"the others {key} {most}")
    else:  # no majority
        parts.append(f"{_have(holders[most])} {key} {most}")
    return ", ".join(parts)


def _have(processes: Sequence[ProcessInfo]) -> str:
    return f"{join_names([each.name() for each in processes])} {'has' if len(processes) == 1 else 'have'}"


def join_names(names: Sequence[str]) -> str:
    """Joins names by commas; of more than MOST_NAMES the first."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def verdict(processes: Sequence[ProcessInfo]) -> str:
    """The one line that ends every process of a job whose set-ups differ; empty if they agree."""
    found = differences(processes)
    if not found:
        return ""
    advice = sorted({ADVICE.get(key, _ADVICE_ON_FLAGS) for key in found})
    return f"the set-ups of this job's processes differ: {'; '.join(found.values())}; {', and '.join(advice)}"


def size_differs(processes: Sequence[ProcessInfo]) -> bool:
    """Whether the processes expect different numbers of them: such a job can never be complete."""
    return not {"DMLC_NUM_SERVER", "DMLC_NUM_WORKER"}.isdisjoint(differences(processes))


def missing(processes: Iterable[ProcessInfo], plain: int, num_servers: int, num_workers: int) -> str:
    """The missing processes, in words; empty if the job is complete.

    Args:
        plain: number of connected plain MXNet programs, whose role is unknown.
    """
    roles = [process.role for process in processes]
    lacking = {
        "server": max(0, num_servers - roles.count("server")),
        "worker": max(0, num_workers - roles.count("worker")),
    }
    total = sum(lacking.values())
    if total <= plain:
        return ""
    of = " and ".join(f"{count} {role}(s)" for role, count in lacking.items() if count)
    return f"{total - plain} of {of}" if plain else of
