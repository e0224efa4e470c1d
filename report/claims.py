"""The claims of README.md and results/README.md: results/claims.toml read, recomputed from raw data, and told as text.

A claim is a sentence, or a row of a table, whose numbers stand in `numbers`, each with the measure that recomputes it
and the measure's arguments. A source is a file of raw runs under results/. Pure functions, but for what reads files.
"""

from __future__ import annotations

import dataclasses
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from report import published, statistics
from report.measures import FORMS, Found, Lines, Number
from utils import SetupError

RESULTS = Path(__file__).resolve().parents[1] / "results"
FILE = RESULTS / "claims.toml"
REPRODUCED, DIRECTION, BY_CONSTRUCTION, CONTRADICTED, NOT_ATTEMPTED = VERDICTS = (
    "reproduced",
    "direction",
    "by construction",
    "contradicted",
    "not attempted",
)
CLOSE = 0.2  # of a published number: within this share of it a number here has reproduced it
VIRTUAL, REAL, COUNTED = KINDS = "virtual", "real", "counted"
WIDTH = 120  # of a page's lines


@dataclass(frozen=True)
class Told:
    """A number of a claim, and how it is recomputed."""

    number: Number
    of: str
    source: str
    arguments: Mapping[str, Any]


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
        text: with a placeholder for each number: {0}, {0.number}, {0.low}, {0.high}, {0.reached}, {0.n}.
        minutes, disk_mb: that it takes to make it again.
        published: the name of a figure in report/published.py.
        verdict: of VERDICTS, on a published figure.
        note: why that verdict.
    """

    name: str
    part: str
    text: str
    numbers: Sequence[Told] = ()
    minutes: float = 0
    disk_mb: float = 0
    published: str = ""
    verdict: str = ""
    note: str = ""

    def sentence(self) -> str:
        """The text with its numbers."""
        return self.text.format(*(told.number for told in self.numbers))

    def row(self, form: str) -> str:
        """As its part shows it; of a published figure `{here}` is the first number."""
        note = self.note.format(*(told.number for told in self.numbers))
        shown = {
            "text": self.sentence(),
            "name": self.name,
            "published": published.figures().get(self.published, ""),
            "here": str(self.numbers[0].number) if self.numbers else statistics.NOT_REACHED,
            "n": self.numbers[0].number.n if self.numbers else "",
            "verdict": ": ".join(filter(None, (self.verdict, note))),
        }
        return form.format(**shown)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a page that is made of claims: a list, or a table where it has a head."""

    page: str
    row: str
    head: str = ""


@dataclass(frozen=True)
class Claims:
    """What the file holds."""

    parts: Mapping[str, Part]
    sources: Mapping[str, Source]
    claims: Sequence[Claim]

    def named(self, name: str) -> Claim:
        """
        Raises:
            SetupError: there is none of that name.
        """
        found = [claim for claim in self.claims if claim.name == name]
        if not found:
            raise SetupError(f"there is no claim {name!r}; scripts/reproduce.sh --list shows all")
        return found[0]

    def kinds(self, claim: Claim) -> list[str]:
        """Of KINDS, of its numbers."""
        return list(dict.fromkeys(self.sources[told.source].kind for told in claim.numbers))

    def told(self, part: str) -> str:
        """A part of a page as Markdown."""
        its = self.parts[part]
        rows = [claim.row(its.row) for claim in self.claims if claim.part == part]
        if its.head:
            return "\n".join([its.head, "|" + " --- |" * (its.head.count("|") - 1), *rows])
        return "\n".join(textwrap.fill(row, WIDTH, subsequent_indent="  ", break_on_hyphens=False) for row in rows)


def read(file: Path = FILE) -> Claims:
    """Reads claims.

    Raises:
        SetupError: the file is not there, or does not hold claims; the message names the claim.
    """
    try:
        content = tomllib.loads(file.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SetupError(f"{file} holds no claims: {error}") from None
    claims = []
    for row in content.get("claims", ()):
        try:
            claims.append(_claim(row))
        except (TypeError, KeyError, ValueError) as error:
            raise SetupError(f"{file}, claim {row.get('name')!r}: {error}") from None
    parts = {name: Part(**part) for name, part in content.get("parts", {}).items()}
    sources = {name: Source(**source) for name, source in content.get("sources", {}).items()}
    return Claims(parts, sources, claims)


def _claim(row: Mapping[str, Any]) -> Claim:
    own = {key: value for key, value in row.items() if key not in ("numbers", "source")}
    told = []
    for number in row.get("numbers", ()):
        arguments = dict(number)
        names = [each.name for each in dataclasses.fields(Number)]
        said = Number(**{name: arguments.pop(name) for name in names if name in arguments})
        of, source = arguments.pop("of"), arguments.pop("source", row.get("source"))
        told.append(Told(said, of, source, arguments))
    return Claim(numbers=told, **own)


# ------------------------------------------------------------------------------------------------- recomputing


def lines_of(source: Source, results: Path = RESULTS) -> Lines:
    """The raw lines of a source."""
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
    return measure(lines, **told.arguments)
