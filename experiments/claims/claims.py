"""The claims of README.md, results/README.md and results/published.md: read from results/claims.toml, recomputed from
raw data, and told.

A claim is a sentence, or a row of a table, whose numbers stand in `numbers`, each with the measure that recomputes it
and the measure's arguments. A source is a folder of raw data under results/.
"""

import dataclasses
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from experiments.claims.measures import FORMS, RESULTS, Found, Lines, Number
from experiments.reproduction import published
from utils import SetupError

FILE = RESULTS / "claims.toml"
REPRODUCED, BY_CONSTRUCTION, NOT_ATTEMPTED = "reproduced", "by construction", "not attempted"
VERDICTS = (REPRODUCED, "direction", BY_CONSTRUCTION, "contradicted", NOT_ATTEMPTED)
REPRODUCED_WITHIN = 0.2  # of a published number
REAL = "real"
KINDS = ("virtual", REAL, "counted")
WIDTH = 120  # of a page's lines


@dataclass(frozen=True, kw_only=True)
class Told:
    """A number of a claim.

    Attributes:
        of: the measure that recomputes it; empty where nothing was measured.
        source: the name of the Source that the measure reads.
        arguments: of the measure.
        published: the name of the figure beside it, in experiments/reproduction/published.py; empty for most.
        verdict: of VERDICTS, on that figure.
        note: the reason for that verdict.
    """

    number: Number
    of: str = ""
    source: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    published: str = ""
    verdict: str = ""
    note: str = ""

    def __format__(self, form: str) -> str:
        """Form `against`: the published figure, the number and the verdict; else the number."""
        if form != "against":
            return str(self.number)
        here = f" → {self.number}" if self.of else ""
        return f"{published.figures()[self.published]}{here}: {self.verdict}{f', {self.note}' if self.note else ''}"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Raw data.

    Attributes:
        raw: the folder under results/; empty where nothing was measured.
        form: of FORMS.
        kind: of KINDS.
        command: makes all of it again into the folder $OUT, where the raw lines have no command each.
    """

    raw: str
    form: str
    kind: str
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence or a row of a table. Its fields are the keys of the file.

    Attributes:
        part: of a page.
        text: with a placeholder for each number, such as {0}, {0:against} or {0.number.low}.
        head: of the table that begins with it.
        minutes, disk_mb: the cost of making it again.
    """

    name: str
    part: str
    text: str
    head: str = ""
    numbers: Sequence[Told] = ()
    minutes: float = 0
    disk_mb: float = 0

    def sentence(self) -> str:
        return self.text.format(*self.numbers)

    @property
    def measured(self) -> list[Told]:
        """The numbers that are recomputed."""
        return [told for told in self.numbers if told.of]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a page that is made of claims: a list or a table, with a row for each."""

    page: str
    row: str


@dataclass(frozen=True)
class Claims:
    """The content of the file."""

    parts: Mapping[str, Part]
    sources: Mapping[str, Source]
    claims: Sequence[Claim]

    def named(self, name: str) -> Claim:
        """
        Raises:
            SetupError: no claim has that name.
        """
        found = next((claim for claim in self.claims if claim.name == name), None)
        if found is None:
            raise SetupError(f"there is no claim {name!r}; scripts/reproduce.sh --list shows all")
        return found

    def has_runs(self, claim: Claim) -> bool:
        """Whether it can be made again: a source has a command, or its numbers are of single runs."""
        its = [(told, self.sources[told.source]) for told in claim.measured]
        return any(source.command or recompute(told, source.form, lines_of(source)).lines for told, source in its)

    def told(self, part: str) -> str:
        """A part of a page as Markdown."""
        lines: list[str] = []
        for claim in (claim for claim in self.claims if claim.part == part):
            row = self.parts[part].row.format(text=claim.sentence(), name=claim.name)
            if claim.head:
                lines += [*([""] if lines else []), claim.head, "|" + " --- |" * (claim.head.count("|") - 1)]
            is_cells = row.startswith("|")
            lines += [row] if is_cells else textwrap.wrap(row, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        return "\n".join(lines)


def read(file: Path = FILE) -> Claims:
    """Reads claims. Raises SetupError if the file cannot be read, or a claim is wrong; the message names it."""
    try:
        content = tomllib.loads(file.read_text())
        parts = {name: Part(**part) for name, part in content["parts"].items()}
        sources = {name: Source(**source) for name, source in content["sources"].items()}
        rows = list(content["claims"])
    except OSError as error:
        raise SetupError(f"{file} cannot be read: {error.strerror}") from None
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise SetupError(f"{file} holds no claims: {error!r}") from None
    claims = []
    for row in rows:
        try:
            claims.append(_checked(_claim(row), parts, sources))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            name = row.get("name") if isinstance(row, dict) else row
            raise SetupError(f"{file}, claim {name!r}: {error!r}") from None
    return Claims(parts, sources, claims)


def _checked(claim: Claim, parts: Mapping[str, Part], sources: Mapping[str, Source]) -> Claim:
    """
    Raises:
        ValueError: it names an unknown source, figure or verdict.
    """
    parts[claim.part].row.format(text=claim.sentence(), name=claim.name)
    for told in claim.numbers:
        if told.of and (told.source not in sources or sources[told.source].form not in FORMS):
            raise ValueError(f"{told.of} is of the source {told.source!r}, which is unknown, or of an unknown form")
        if not told.of and (told.arguments or told.number != Number() or not told.published):
            raise ValueError("a number without a measure `of` needs the published figure that it would stand beside")
        if told.published and (told.published not in published.figures() or told.verdict not in VERDICTS):
            raise ValueError(f"no published figure is {told.published!r}, or no verdict {told.verdict!r}")
    return claim


def _claim(row: Mapping[str, Any]) -> Claim:
    own = {key: value for key, value in row.items() if key not in ("numbers", "source")}
    told = []
    for number in row.get("numbers", ()):
        arguments = {"source": row.get("source", ""), **number}
        said = {name: arguments.pop(name) for name in _names(Number) if name in arguments}
        fixed = {name: arguments.pop(name) for name in _names(Told) if name in arguments}
        told.append(Told(number=Number(**said), arguments=arguments, **fixed))
    return Claim(numbers=told, **own)


def _names(of: type) -> list[str]:
    return [each.name for each in dataclasses.fields(of)]


# ------------------------------------------------------------------------------------------------- recomputing


@lru_cache(maxsize=16)
def lines_of(source: Source, results: Path = RESULTS) -> Lines:
    """The raw lines of a source. Raises OSError or SetupError if they cannot be read."""
    return FORMS[source.form].read(results / source.raw)


def recompute(told: Told, form: str, lines: Lines) -> Found:
    """
    Raises:
        SetupError: there is no such measure, or the lines have no run of it.
    """
    measure = FORMS[form].measures.get(told.of)
    if measure is None:
        raise SetupError(
            f"no function recomputes {told.of!r} from {form}; choose from {', '.join(FORMS[form].measures)}"
        )
    try:
        return measure(lines, **told.arguments)
    except (ArithmeticError, IndexError, LookupError, StopIteration, TypeError, ValueError) as error:
        raise SetupError(f"{told.of} {dict(told.arguments)} cannot be computed: {error!r}") from None
