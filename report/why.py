"""Why a job was slow, in words: where its workers' time went, what would have been otherwise, who held it up. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from report.job_logs import WorkerLog
from report.measured import Speed, shares
from report.tables import aligned

WORTH_TELLING = 1.05  # a gain in samples/s below this is none


@dataclass(frozen=True)
class Row:
    """A line of the table of what-ifs.

    Attributes:
        gain: in samples/s over the job as it was.
        target: the time to the target accuracy, in words.
    """

    name: str
    samples_s: float
    gain: float | None
    target: str


def time_table(logs: Sequence[WorkerLog], speeds: Sequence[Speed]) -> str:
    """Where the time of each worker went, in shares of it; milliseconds of a step and how much its times differ."""
    rows = [["worker", "samples/s", "steps", "ms a step", "spread", "computing", "exchange and wait", "questions",
             "evaluation", "given up", "other"]]  # fmt: skip
    for rank, (log, speed) in enumerate(zip(logs, speeds, strict=True)):
        its, samples = shares(log), sum(record["num_samples"] for record in log.rounds)
        parts = (its.computing_s, its.exchange_s, its.questions_s, its.evaluation_s, its.abandoned_s, its.other_s)
        rows.append(
            [
                f"{rank} {log.place}",
                f"{samples / log.elapsed_s:.1f}",
                str(speed.steps),
                f"{1e3 * speed.mean_step_s:.1f}",
                f"{speed.spread:.0%}",
                *(f"{part / log.elapsed_s:.1%}" for part in parts),
            ]
        )
    slow = [
        f"worker {rank} was slower for a while: {_whiles(speed)}" for rank, speed in enumerate(speeds) if speed.slow
    ]
    return "\n".join([*aligned(rows), *slow])


def _whiles(speed: Speed) -> str:
    parts = [
        f"{1e3 * each.extra_s:.0f} ms a step more from {each.start_s:.0f} s to {each.start_s + each.duration_s:.0f} s"
        for each in speed.slow
    ]
    return ", ".join(parts)


def what_if_table(rows: Sequence[Row], target: str) -> str:
    """What was measured, what the simulation of it gives, and each change."""
    cells = [["", "samples/s", "times", target]]
    for row in rows:
        gain = "" if row.gain is None else f"{row.gain:.2f}"
        cells.append([row.name, f"{row.samples_s:.1f}", gain, row.target])
    return "\n".join(aligned(cells))


@dataclass(frozen=True)
class Gains:
    """How many times the samples/s each change would give.

    Attributes:
        without: by the ranks of who is left out.
        evaluation: None where nobody evaluated.
    """

    without: Mapping[tuple[int, ...], float]
    network: float
    no_straggler: float
    evaluation: float | None


def verdict(gains: Gains, speeds: Sequence[Speed], median: int, evaluation_s: float) -> str:
    """One sentence: who or what held the job up."""
    usual = speeds[median]
    found: list[tuple[float, str]] = []
    for ranks, gain in gains.without.items():
        steps = ", ".join(f"{speeds[rank].mean_step_s:.3g} s" for rank in ranks)
        found.append(
            (
                gain,
                f"{_workers(ranks)} held the others up: with steps of {steps}, where the median worker's take "
                f"{usual.mean_step_s:.3g} s; without, the job would do {gain:.2f} times the samples/s",
            )
        )
    longest_s = max(speed.exchange_s for speed in speeds)
    found.append(
        (
            gains.network,
            f"the network held the job up: an exchange takes {longest_s:.3g} s, the median worker's step "
            f"{usual.mean_step_s:.3g} s; an ideal one would give {gains.network:.2f} times the samples/s",
        )
    )
    if gains.evaluation is not None:
        found.append(
            (
                gains.evaluation,
                f"evaluations of {evaluation_s:.3g} s each held the job up: in no time, they would give "
                f"{gains.evaluation:.2f} times the samples/s",
            )
        )
    gain, text = max(found)
    if gain >= WORTH_TELLING:
        return _sentence(text)
    if gains.no_straggler >= WORTH_TELLING:
        return (
            "Nobody and nothing held the job up, but there are slow workers: if none were slower than the median one, "
            f"it would do {gains.no_straggler:.2f} times the samples/s."
        )
    return f"Nobody and nothing held the job up: no change would give {WORTH_TELLING - 1:.0%} more samples/s."


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _workers(ranks: Sequence[int]) -> str:
    return f"worker{'s' * (len(ranks) > 1)} {' and '.join(map(str, ranks))}"
