"""Writes the table of main.py's flags in docs/flags.md: `.venv/bin/python -m scripts.flags`."""

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

from argparse import SUPPRESS
from collections.abc import Iterator
from pathlib import Path

from config import FIELDS, names_of, one_of, titles_of
from flag_parser import FlagParser

PAGE = Path(__file__).resolve().parents[1] / "docs" / "flags.md"
HEAD = ("| flag | default | algorithms | same on all | meaning |", "| --- | --- | --- | --- | --- |")


def table() -> list[str]:
    """A row a flag, in the order of --help."""
    shown = (name for name, field in FIELDS.items() if field.help != SUPPRESS)
    return [*HEAD, *map(_row, shown)]


def _row(field: str) -> str:
    its = FIELDS[field]
    cells = (
        " ".join(f"`{name}`" for name in names_of(field)),
        " ".join(map(str, its.default)) if isinstance(its.default, tuple) else str(its.default),
        its.counts_in.words if its.counts_in else ", ".join(titles_of(field)) or "all",
        "no" if its.of_host else "yes",
        ". ".join(_meaning(field)),
    )
    return "| " + " | ".join(cells).replace("  ", " ") + " |"


def _meaning(field: str) -> Iterator[str]:
    its = FIELDS[field]
    yield its.help.replace("*", r"\*")
    if choices := its.arguments.get("choices"):
        yield "One of " + ", ".join(choices)
    if its.needs:
        other, value = its.needs
        yield f"Counts with `{names_of(other)[0]} {one_of(value) if isinstance(value, tuple) else value}` only"


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
