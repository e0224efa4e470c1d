"""The rounds of a worker, read from its log: files `iter-N.txt`, or lines of one file.

What is spoilt in a log is forgiven here alone. A round that cannot be read, or whose times cannot be, is named and left
out; of an impossible value of the metric only the value is. All others count.
"""

import bisect
import re
import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeGuard

import msgspec
from msgspec import UNSET, Meta, Struct, field

from esync.measure import ABANDONED, AGGREGATION_STAGES, COMPUTING_STAGES, EVALUATION, FORWARD_BACKWARD, LINES_FILE
from esync.metric import ACCURACY, Metric, logged_value
from utils import SetupError, parsed_json

FEW = 3  # warnings about the rounds of one device; more become one line
MOST = 10**15  # of a duration, a size or a count: far above those of any job, and exact as a float
MOST_ROUNDS = 10**9
EVALUATED = "evaluated"  # in the log of a round: the metric of earlier rounds' models that came in it

# A round and its stages may differ this much: the published program cuts seconds off. Milliseconds exceed it.
_TIMES, _MORE_S = 10, 10.0
_MUCH_LONGER = 300  # times the stages of all rounds
_ITER_FILE = re.compile(r"iter-([1-9]\d*)\.txt")

Warn = Callable[[str], None]
Seconds = Annotated[float, Meta(ge=0, le=MOST)]
Count = Annotated[int, Meta(ge=0, le=MOST)]


def is_quantity(value: Any) -> TypeGuard[float]:
    """Returns whether `value` can be a duration, a size or a share."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MOST


# -------------------------------------------------------------------------------------------------------- one round


class LoggedEvent(Struct):
    """An event in the log of a round."""

    kind: str  # of algorithms.EVENTS
    text: str


class _Evaluated(Struct, kw_only=True):
    """A log's entry that may have a value of the metric, as published or with the metric's name."""

    accuracy: Any = UNSET
    metric: Any = UNSET

    @property
    def logged(self) -> tuple[Metric, Any] | None:
        """The metric and its value, perhaps an impossible one; None where there is none."""
        both = {"accuracy": self.accuracy, "metric": self.metric}
        return logged_value({name: value for name, value in both.items() if value is not UNSET})


class EvaluatedLater(_Evaluated, kw_only=True):
    """An evaluation beside training, of the model after an earlier round."""

    round: int


class Round(_Evaluated, kw_only=True):
    """A round of a worker. The first fields are those of its log (docs/logs.md); the others are worked out of them. A
    summary lacks what has a default."""

    number: Annotated[int, Meta(ge=1, le=MOST_ROUNDS)] = field(default=1, name="num_iters")
    samples: Annotated[int, Meta(ge=0, le=10**12)] = field(name="num_samples")
    elapsed_s: Seconds = field(name="total_time")  # at its end, since this worker began to train
    # Seconds by stage of the local steps, and of the aggregation where it has an entry of its own
    steps: dict[Annotated[int, Meta(ge=0)], dict[str, Seconds]] = field(name="time", default_factory=dict)
    bytes_pushed: Count | None = None
    bytes_pulled: Count | None = None
    loss: float | None = None
    events: tuple[LoggedEvent, ...] = ()
    evaluated: tuple[EvaluatedLater, ...] = ()  # sound_rounds moves them to their rounds
    emulated_s: Seconds | None = None  # mean of its steps' emulated times
    missed: Count = 0  # rounds of the job before it in which this worker took no part
    steps_lost: Count | None = None  # dropped or to be done again; perhaps of earlier rounds
    bad_steps: Count | None = None  # skipped, since a number was not finite
    release: Any = None
    batches: Any = None

    where: str = ""  # file and line
    evaluation: Any = None  # (metric, value), where the model after it was evaluated
    entries: Count = 0  # of `steps`
    complete: Count = 0  # local steps
    begun: Count | None = None  # local steps, complete or abandoned
    lost: Count | None = None  # local steps: abandoned, skipped, dropped or to be done again
    computing_s: Seconds | None = None  # in COMPUTING_STAGES
    evaluation_s: Seconds = 0.0
    aggregation_s: Seconds = 0.0  # in the last entry
    stages_s: Seconds = 0.0

    def seconds(self, *stages: str) -> float:
        """Seconds in these stages of all entries."""
        return seconds_in(self.steps.values(), stages)


def seconds_in(entries: Iterable[Mapping[str, float]], stages: Sequence[str]) -> float:
    """Seconds in these stages of some entries of a round's `steps`."""
    return sum([times[stage] for times in entries for stage in stages if stage in times], start=0.0)


def of_log(text: str | bytes) -> Round:
    """A round by its log. Raises msgspec.DecodeError if it is none."""
    return _worked_out(_DECODER.decode(text))


def of_record(record: Mapping[str, Any]) -> Round:
    """A round by what its log will have. Raises msgspec.ValidationError if it is none."""
    return _worked_out(msgspec.convert(record, Round, strict=False))


_DECODER = msgspec.json.Decoder(Round)


def _worked_out(one: Round) -> Round:
    if any(before > after for before, after in pairwise(one.steps)):
        one.steps = dict(sorted(one.steps.items()))
    entries = [*one.steps.values()]
    abandoned = sum([ABANDONED in times for times in entries])
    one.evaluation = one.logged
    one.entries = len(entries)
    one.complete = sum([FORWARD_BACKWARD in times for times in entries])
    one.begun = sum([FORWARD_BACKWARD in times or ABANDONED in times for times in entries])
    one.lost = abandoned + (one.steps_lost or 0) + (one.bad_steps or 0)
    one.computing_s = one.seconds(*COMPUTING_STAGES)
    one.evaluation_s = one.seconds(EVALUATION)
    one.aggregation_s = seconds_in(entries[-1:], AGGREGATION_STAGES)
    one.stages_s = sum([seconds for times in entries for seconds in times.values()], start=0.0)
    return one


# ---------------------------------------------------------------------------------------------------------- reading


def iter_files(folder: Path) -> dict[int, Path]:
    """The round logs of one device's folder by round number, in ascending order."""
    found = ((_ITER_FILE.fullmatch(path.name), path) for path in folder.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def round_files(folder: Path) -> list[Path]:
    """The files of one device's folder that hold its rounds, in both forms."""
    lines = folder / LINES_FILE
    return [*iter_files(folder).values(), *([lines] if lines.exists() else [])]


def read_rounds(folder: Path, warn: Warn) -> list[Round]:
    """The sound rounds that `Measure` or the published program wrote into one device's folder, in order. Warns of gaps
    in the numbers, and of what is left out."""
    return sound_rounds(folder, logged_rounds(folder, warn), warn)


def logged_rounds(folder: Path, warn: Warn, keeps_steps: bool = True) -> dict[int, Round | str]:
    """All rounds in one device's folder, in both forms, by number in ascending order; in place of one that cannot be
    read why. Without `steps` the memory does not grow with these."""
    files, found = iter_files(folder), _logged_lines(folder / LINES_FILE, warn, keeps_steps)
    if files and found:
        warn(f"{folder} holds rounds in {LINES_FILE} and in iter-N.txt; each is read once")
    for number, path in files.items():
        found[number] = _logged_file(path, number, keeps_steps)
    return dict(sorted(found.items()))


def _logged_file(path: Path, number: int, keeps_steps: bool) -> Round | str:
    if number > MOST_ROUNDS:
        return f"{path} is not a round log (no job has so many rounds)"
    try:
        one = _read(path.read_bytes(), str(path), keeps_steps)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    if isinstance(one, Round):
        one.number = number
    return one


def _logged_lines(path: Path, warn: Warn, keeps_steps: bool) -> dict[int, Round | str]:
    """The lines of LINES_FILE by round; an unreadable line gets the next number."""
    found: dict[int, Round | str] = {}
    number, twice = 0, []
    try:
        with path.open("rb", buffering=1 << 18) as file:
            for line_number, line in enumerate(_lines(file), start=1):
                where = f"{path}, line {line_number}"
                one = _read(line.removesuffix(b"\n"), where, keeps_steps)
                number = one.number if isinstance(one, Round) else number + 1
                if isinstance(one, Round) and isinstance(found.get(number), Round):
                    twice.append(f"{where}: round {number} is there once more, and the last counts")
                found[number] = one
    except FileNotFoundError:
        return {}
    except OSError as error:
        warn(f"{path} cannot be read: {error.strerror}; left out")
        return {}
    _tell(twice, f"{path}: {len(twice)} lines are of rounds that are there already", warn)
    return found


def _lines(file: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the lines of bytes.splitlines, one at a time; each may have the end of a line."""
    for line in file:
        yield from line.splitlines() if b"\r" in line else [line]


def _read(content: bytes, where: str, keeps_steps: bool) -> Round | str:
    """A round, or why it cannot be read."""
    try:
        one = of_log(content)
    except (msgspec.MsgspecError, ValueError, RecursionError):  # perhaps for a NaN, which Python's JSON may have
        try:
            one = _worked_out(msgspec.convert(parsed_json(content, where), Round, str_keys=True))
        except SetupError as error:
            return str(error)
        except (msgspec.MsgspecError, ValueError) as error:
            return f"{where} is not a round log ({error})"
    one.where = where
    if not keeps_steps:
        one.steps = {}
    return one


# ---------------------------------------------------------------------------------------------------- what is sound


def sound_rounds(folder: Path, logged: Mapping[int, Round | str], warn: Warn) -> list[Round]:
    """The rounds whose numbers can be. Of an impossible value of the metric only the value is left out, as is one of
    another metric than the last."""
    numbers = [number for number in logged if number <= MOST_ROUNDS]
    missing = max(numbers, default=0) - len(numbers) - _missed(logged)
    if missing > 0:
        first = next(number for number in range(1, MOST_ROUNDS) if number not in logged)
        warn(f"{folder}: {missing} round(s) missing, the first is round {first}")
    rounds = [one for one in logged.values() if isinstance(one, Round)]
    impossible = impossible_times(rounds)
    faults = [
        f"{one if isinstance(one, str) else f'{one.where}: {impossible[number]}'}; round {number} left out"
        for number, one in logged.items()
        if isinstance(one, str) or number in impossible
    ]
    _tell(faults, f"{folder}: {len(faults)} of {len(logged)} rounds left out", warn)
    sound = [one for one in rounds if one.number not in impossible]
    took_s, longest_s = sum(one.stages_s for one in sound), max((one.elapsed_s for one in sound), default=0.0)
    if took_s and longest_s > _MUCH_LONGER * took_s:
        warn(
            f"{folder}: total_time is {longest_s:.6g} s at the end, and the stages of all rounds take {took_s:.6g} s: "
            "write both in seconds if it is in milliseconds; or its clock has jumped"
        )
    by_number = {one.number: one for one in sound}
    for one in rounds:
        for later in one.evaluated:
            if later.round in by_number and later.logged is not None:
                by_number[later.round].evaluation = later.logged
        one.evaluated = ()
    _keep_values_of_one_metric(folder, sound, warn)
    return sound


def rounds_lost(logged: Mapping[int, Round | str], sound: Sequence[Round]) -> int:
    """Rounds in which a worker took part and which are not among its `sound` ones."""
    last = max((number for number in logged if number <= MOST_ROUNDS), default=0)
    return last - len(sound) - _missed(logged)


def _missed(logged: Mapping[int, Round | str]) -> int:
    return sum(one.missed for number, one in logged.items() if isinstance(one, Round) and one.missed < number)


def _keep_values_of_one_metric(folder: Path, rounds: Sequence[Round], warn: Warn) -> None:
    said = [one for one in rounds if one.evaluation or one.metric is not UNSET]
    metric = next((one.evaluation[0] for one in reversed(said) if one.evaluation), ACCURACY)
    values = [one.evaluation[1] for one in said if one.evaluation and one.evaluation[0] == metric]
    faults, texts = iter(value_faults(values, metric)), []
    for one in said:
        its, value = one.evaluation or (None, one.metric)
        if its is None:
            fault = "no metric with its name and direction"
        else:
            fault = next(faults) if its == metric else f"of the metric {its.name}, and the last is {metric.name}"
        if fault:
            name = its.name if its else "metric"
            texts.append(f"{one.where}: {name} {reprlib.repr(value)} after {one.elapsed_s} s is {fault}; left out")
            one.evaluation = None
    _tell(texts, f"{folder}: {len(texts)} of {len(said)} {metric.plural} left out", warn)


def value_faults(values: Sequence[Any], metric: Metric) -> list[str]:
    """Returns for each of a worker's values of the metric why it cannot be; an empty text where it can."""
    above = sum(is_quantity(value) and 1 < value <= 100 for value in values) if metric.is_accuracy else 0
    if above > 1 and 2 * above > len(values):
        return ["in percent, as are most of them: write shares from 0 to 1"] * len(values)
    return [metric.fault(value) for value in values]


def impossible_times(rounds: Sequence[Round]) -> dict[int, str]:
    """Returns the rounds whose times cannot be, by number, with the reason. `rounds` are in ascending order.

    A time contradicts those of other rounds: as few rounds as possible are left out, a single time that is far too
    large, not all that follow. Of sets of equal size the later one counts. Where the time has run back, all count until
    it is later than before. Or the stages of a round are longer than the round.
    """
    times = [one.elapsed_s for one in rounds]
    in_order = _longest_ascending(times)
    found: dict[int, str] = {}
    last, ran_back, before_s = -1, False, 0.0  # the last place in order
    for place, (one, elapsed_s) in enumerate(zip(rounds, times, strict=True)):
        if place in in_order and not (ran_back and elapsed_s == times[last]):
            last, ran_back = place, False
            if one.stages_s > _TIMES * (elapsed_s - before_s) + _MORE_S:
                found[one.number] = (
                    f"its stages take {one.stages_s:.6g} s, in a round of {elapsed_s - before_s:.6g} s: are they "
                    "milliseconds?"
                )
            before_s = elapsed_s
        elif last >= 0 and elapsed_s <= times[last]:
            ran_back = True
            found[one.number] = (
                f"total_time is {elapsed_s:.6g} s, after {times[last]:.6g} s in round {rounds[last].number}"
            )
        else:
            found[one.number] = f"total_time is {elapsed_s:.6g} s, and rounds after it end earlier"
    return found


def _longest_ascending(times: Sequence[float]) -> Collection[int]:
    """Places of the longest subsequence of `times` that does not descend; of several the earliest places. By patience
    sorting from the end, which keeps for each length the subsequence with the greatest beginning."""
    if all(before <= after for before, after in pairwise(times)):
        return range(len(times))
    begins: list[int] = []
    greatest: list[float] = []  # negated, so that they ascend
    after: dict[int, int] = {}
    for place in range(len(times) - 1, -1, -1):
        length = bisect.bisect_right(greatest, -times[place])
        if length:
            after[place] = begins[length - 1]
        begins[length : length + 1] = [place]
        greatest[length : length + 1] = [-times[place]]
    place, found = begins[-1], {begins[-1]}
    while place in after:
        place = after[place]
        found.add(place)
    return found


def _tell(faults: Sequence[str], of_many: str, warn: Warn) -> None:
    """Warns of each of few faults; of many in one line, with the first. `of_many` begins that line."""
    if len(faults) <= FEW:
        for fault in faults:
            warn(fault)
    else:
        warn(f"{of_many}; the first: {faults[0]}")
