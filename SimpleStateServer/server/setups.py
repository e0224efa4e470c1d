"""How the set-ups of a job's processes differ, in words: pure functions, whichever way the processes meet."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

# Keys of a set-up whose values are hashes.
DATA, PROGRAM, JOB, FROZEN = "the data", "the program's files", "--job", "the frozen weights"
MOST_NAMES = 5  # in one sentence
_ADVICE = {
    DATA: "get the same files on every host (scripts/get_data.sh); give generators in data() a seed",
    FROZEN: "let network() give them the same values on every host",
    PROGRAM: "bring the same version of this program to every host",
    JOB: "bring the same job file, and the modules that it imports from its folder, to every host",
}
_ADVICE_ON_FLAGS = "start all processes with the same flags and the same variables of MXNet"

Setup = Mapping[str, str]  # flag or other key -> value


def differences(processes: Iterable[tuple[str, Setup]]) -> dict[str, str]:
    """Flags and other keys in which processes differ, each with a sentence that names the processes and all values.

    A process without a value for a flag (a server without a batch size) does not count there. `processes`: each one's
    name and set-up.
    """
    values: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, setup in processes:
        for key, value in setup.items():
            values[key][value].append(name)
    return {key: _sentence(key, holders) for key, holders in values.items() if len(holders) > 1}


def _sentence(key: str, holders: Mapping[str, Sequence[str]]) -> str:
    """Such as "worker (gpu0 on host b, 10.0.0.3:4711) has -b 32, the others -b 64"."""
    *odd, most = sorted(holders, key=lambda value: len(holders[value]))
    are_more = len(holders[most]) > len(holders[odd[-1]])
    who = {value: _have(holders[value]) for value in odd} | {most: "the others" if are_more else _have(holders[most])}
    return ", ".join(f"{each} {key} {value}" for value, each in who.items())


def _have(names: Sequence[str]) -> str:
    return f"{join_names(names)} {'has' if len(names) == 1 else 'have'}"


def join_names(names: Sequence[str]) -> str:
    """Joins names by commas; of more than MOST_NAMES the first."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def verdict(found: Mapping[str, str]) -> str:
    """The one line that ends every process of a job with these differences; empty where there are none."""
    if not found:
        return ""
    advice = sorted({_ADVICE.get(key, _ADVICE_ON_FLAGS) for key in found})
    return f"the set-ups of this job's processes differ: {'; '.join(found.values())}; {', and '.join(advice)}"
