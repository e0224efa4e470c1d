"""Writes the table of main.py's flags in docs/flags.md: `.venv/bin/python -m scripts.flags`."""

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import re
from argparse import SUPPRESS
from pathlib import Path

from config import FIELDS, names_of, titles_of
from flag_parser import FlagParser

PAGE = Path(__file__).resolve().parents[1] / "docs" / "flags.md"
HEAD = ("| flag, default | meaning |", "| --- | --- |")
BY_LAUNCHERS = "set by the launchers"  # help of flags that no user gives
LONG_ASIDE = r" \((?:[^() ]+ ){4,}[^() ]+\)"  # in brackets, of five words and more
END_OF_CLAUSE = r"[;:.] (?![^(]*\))"  # outside brackets


def table() -> list[str]:
    """A row a flag, in the order of --help, with the first clause of its help."""
    shown = (name for name, field in FIELDS.items() if field.help != SUPPRESS and BY_LAUNCHERS not in field.help)
    return [*HEAD, *map(_row, shown)]


def _row(field: str) -> str:
    its = FIELDS[field]
    default = " ".join(map(str, its.default)) if isinstance(its.default, tuple) else str(its.default)
    where = its.counts_in.words if its.counts_in else ", ".join(titles_of(field))
    names = " ".join(f"`{name}`" for name in names_of(field)) + (r"\*" if its.of_host else "")
    cells = (f"{names} {default}".strip(), (f"*{where}*: " if where else "") + _meaning(field))
    return "| " + " | ".join(cells) + " |"


def _meaning(field: str) -> str:
    its = FIELDS[field]
    first, *others = re.split(END_OF_CLAUSE, re.sub(LONG_ASIDE, "", its.help))
    if len(first.split()) <= 4 and others:  # a value or a name, whose meaning follows
        first += f": {others[0]}"
    choices = its.arguments.get("choices")
    return first.replace("*", r"\*") + (f". One of {', '.join(choices)}" if choices else "")


def updated(page: str) -> str:
    """The page with its table replaced."""
    before, rest = page.split(HEAD[0], 1)
    _, *after = rest.split("\n\n", 1)  # a table ends with the first empty line
    return before + "\n".join(table()) + "\n" + "".join(f"\n{text}" for text in after)


def main() -> None:
    """Writes the table."""
    FlagParser(prog="python -m scripts.flags", description=__doc__).parse_args()
    PAGE.write_text(updated(PAGE.read_text()))


if __name__ == "__main__":
    start.run(main)
