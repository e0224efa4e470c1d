"""What a search says to its user: rows, as text, JSON and a figure, and the command to type."""

from __future__ import annotations

import logging
import math
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from algorithms import ENTRIES, Workers
from config import AUTO, HUB, KVSTORE, LEARNING_RATES, names_of
from flag_parser import FlagParser
from report.figure_set import save_figures
from report.figures import band
from report.style import style
from report.tables import aligned
from scripts.advice.candidates import IN_A_ROW, Advised, Candidate, words_of
from scripts.advice.search import AHEAD, EQUAL, LAW_SD, LEAST_SD, LOG_SD, Entrant, Search
from utils import SetupError, write_json

MOST_ROWS = 8
FOUR_OF_FIVE = 1.28  # standard deviations on each side
LINES = ("-", "--", ":", "-.")  # of the numbers of machines of a family
ENDS = (  # fields of Config that say when a run ends or is evaluated: the search sets them
    *("max_rounds", "max_seconds", "target", "target_accuracy", "target_evaluations", "eval_seconds", "eval_duration"),
    *LEARNING_RATES,
)
LONGER = 3.0  # times the seconds that are expected, until the run that is advised ends without the target


@dataclass(frozen=True)
class Row:
    """A candidate; four of five runs are expected between `low_s` and `high_s`."""

    candidate: Candidate
    step: float  # size
    seconds: float  # infinite: it has not reached the target after `low_s`
    low_s: float
    high_s: float
    runs: int  # to the target; 0: predicted by the law

    @property
    def entrant(self) -> Entrant:
        return Entrant(self.candidate, self.step)

    @property
    def how(self) -> str:
        if self.runs:
            return f"{self.runs} run{'s' * (self.runs > 1)}"
        return "predicted" if self.seconds < math.inf else "tried"


def row_of(search: Search, candidate: Candidate) -> Row | None:
    """None where nothing is known of its family."""
    logs = [*search.logs_of(candidate).values()]
    step = search.step_of(candidate)
    expected_s = search.expected_s(candidate)
    if expected_s == math.inf:
        tried_s = [each.run.seconds for each in search.tried if each.candidate == candidate]
        tried_s += [curve[-1][0] for curve in search.curves.get(candidate, ())]
        return Row(candidate, step, math.inf, max(tried_s), math.inf, 0) if tried_s else None
    sd = max(LEAST_SD, statistics.stdev(logs)) if len(logs) > 2 else LOG_SD
    sd = math.hypot(sd, sd / len(logs) ** 0.5) if logs else math.hypot(LOG_SD, LOG_SD, LAW_SD)
    low_s, high_s = (expected_s * math.exp(sign * FOUR_OF_FIVE * sd) for sign in (-1, 1))
    return Row(candidate, step, expected_s, low_s, high_s, len(logs))


def equals(search: Search, rows: Sequence[Row]) -> list[Row]:
    """The soonest of these rows, which have run, and those that are no more than noise behind it; that with the fewest
    machines first."""
    races, best = search.races, rows[0]
    found = [best]
    for row in rows[1:]:
        gaps = [b - a for a, b in zip(races.get(best.entrant, ()), races.get(row.entrant, ()), strict=False)]
        sd = max(LEAST_SD, statistics.stdev(gaps)) if len(gaps) > 1 else math.hypot(LOG_SD, LOG_SD)
        is_noise = math.log(row.seconds / best.seconds) <= AHEAD * sd / max(1, len(gaps)) ** 0.5
        if is_noise and row.seconds <= EQUAL * best.seconds:
            found.append(row)
    return sorted(found, key=lambda row: (row.candidate.k, row.seconds))


def machines(candidate: Candidate, advised: Advised) -> str:
    """Such as `the 4 fastest of 8 machines (0, 1, 2, 4)`."""
    k, rows, of, names = candidate.k, candidate.rows, len(advised.machines.workers), advised.names
    shown = ", ".join(names[each] if names else str(each) for each in rows)
    if k == 1:
        return f"machine {shown} alone"
    return f"all {of} machines" if k == of else f"the {k} fastest of {of} machines ({shown})"


def table(rows: Sequence[Row]) -> list[str]:
    """As text."""
    cells = []
    for row in rows:
        its = row.candidate
        is_known = row.seconds < math.inf
        cells.append({
            "machines": str(its.k), "algorithm": its.family.entry, "local steps": f"{its.steps:.1f}",
            "step size": f"{row.step:.2g}", "samples/s": f"{its.samples_per_s:.0f}",
            "1000 samples": f"{its.samples_per_s * row.seconds / 1000:.0f}" if is_known else "",
            "seconds": f"{row.seconds:.3g}" if is_known else f"> {row.low_s:.3g}",
            "low": f"{row.low_s:.3g}" if is_known else "", "high": f"{row.high_s:.3g}" if is_known else "",
            "": row.how,
        })  # fmt: skip
    return aligned([[*cells[0]], *([*each.values()] for each in cells)])


def rows_of(search: Search) -> list[Row]:
    """At most MOST_ROWS, the soonest first: of each family the best one, then others."""
    known = [row for each in search.candidates if (row := row_of(search, each)) is not None]
    known.sort(key=lambda row: (row.seconds, -row.low_s, row.candidate.k))
    first: dict[str, Row] = {}
    for row in known:
        first.setdefault(row.candidate.family.entry, row)
    raced = [row for row in known if row.entrant in search.races]
    chosen = list(dict.fromkeys([*raced, *first.values(), *known]))[:MOST_ROWS]
    return sorted(chosen, key=known.index)


def as_json(search: Search, rows: Sequence[Row], named: Row, command: str) -> dict[str, object]:
    """The answer for programs."""

    def of_row(row: Row) -> dict[str, object]:
        its = row.candidate
        return {
            "mode": its.family.entry, "machines": list(its.rows), "local_steps": its.steps, "step_size": row.step,
            "samples_per_s": its.samples_per_s, "how": row.how,
            **({"seconds": row.seconds, "high_s": row.high_s} if row.seconds < math.inf else {}), "low_s": row.low_s,
        }  # fmt: skip

    return {
        "answer": of_row(named), "command": command, "rows": [of_row(row) for row in rows],
        "races": {each.name: [math.exp(log) for log in logs] for each, logs in search.races.items()},
        "shift": search.shift, "target_on_held_out": search.target, "cpu_s": search.used_s,
        "step_of_one": search.step_of_one, "every_steps": search.every,
    }  # fmt: skip


def draw(search: Search, figure: Figure, rows: Sequence[Row]) -> None:
    """Draws the curves of the rows that were tried, with bands where several seeds ran."""
    axes = figure.add_subplot()
    seen: dict[str, int] = {}
    for row in rows:
        entry, curves = row.candidate.family.entry, search.curves.get(row.candidate, ())
        its = band(curves) if curves else None
        if its is None:
            continue
        line = LINES[seen.get(entry, 0) % len(LINES)]
        seen[entry] = seen.get(entry, 0) + 1
        colour = ENTRIES[entry].look.colour
        (drawn,) = axes.plot(its.at, its.median, line, marker=".", color=colour, label=row.candidate.name)
        axes.fill_between(its.at, its.low, its.high, color=drawn.get_color(), alpha=0.2, linewidth=0)
    axes.axhline(search.target, color="grey", linewidth=0.8, label="target on these samples")
    axes.set_xlabel("seconds")
    axes.set_ylabel(f"{search.metric.name} on held-out samples, mean of three")
    axes.legend()


def tell(search: Search) -> None:
    """Prints what was found, and writes it where the user wants it. Raises SetupError where no candidate has reached
    the target, or a file cannot be written."""
    given, metric = search.advised.given, search.metric
    rows = rows_of(search)
    reached = [row for row in rows if row.runs]
    if not reached:
        raise SetupError(search.best_seen())
    named, *equal = equals(search, reached)
    print("\n".join(table(rows)), end="\n\n")
    entry, where = named.candidate.family.entry, machines(named.candidate, search.advised)
    print(
        f"{entry} ({ENTRIES[entry].title}) on {where} should hold {metric.name} {search.wanted:g} after "
        f"{named.seconds:.3g} s ({named.low_s:.3g} to {named.high_s:.3g} in four of five runs)"
        + (f"; as soon within noise: {', '.join(row.candidate.name for row in equal)}" if equal else "")
        + "."
    )
    command = command_of(search, named)
    print(command)
    if given.json:
        write_json(given.json, as_json(search, rows, named, command))
    if given.figure:
        with style():
            save_figures([(given.figure.stem, rows, partial(draw, search))], given.figure.parent, logging.info)


def command_of(search: Search, row: Row) -> str:
    """The command that trains so."""
    advised, its, replaced = search.advised, row.candidate, FlagParser(add_help=False)
    given = advised.given
    for field in ENDS:
        replaced.add_argument(*names_of(field), dest=field)
    flags = {
        names_of(its.family.field)[0]: f"{row.step:.2g}",
        "--target-accuracy" if given.target_accuracy else "--target": f"{search.wanted:g}",
        "--target-evaluations": str(IN_A_ROW),
        "--eval-seconds": f"{search.evaluation_s(its):.2g}",
        "--max-seconds": str(math.ceil(LONGER * row.seconds)),
    }
    mains = [*replaced.parse_known_args(advised.flags)[1], *(word for pair in flags.items() for word in pair)]
    is_default = its.k == len(advised.machines.workers) and ENTRIES[its.family.entry].workers is Workers.ALL
    number = () if is_default else its.family.words(its.k)
    whose = ["-m", its.family.entry, *number, *given.what]
    if given.hosts:
        places = words_of(("--hosts", given.hosts), ("--ssh", given.ssh), ("--without", ",".join(given.without)))
        places += ["--cluster", advised.cluster] if number or its.family.entry == "alone" else []
        config = advised.job(its.family.entry, its.family.words(its.k)).config
        # The hosts were measured with the hub, which takes less of their processors than the kvstore.
        mains += ["--exchange", HUB] if (config.transport, config.exchange) == (KVSTORE, AUTO) else []
        return shlex.join(["scripts/cluster.sh", *places, *whose, "--", *mains])
    return shlex.join([".venv/bin/python", "simulate.py", "--cluster", given.cluster, *whose, *mains])
