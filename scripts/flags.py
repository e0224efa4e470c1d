"""Writes the table of main.py's flags in docs/flags.md from config.py: `.venv/bin/python -m scripts.flags`."""

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

from argparse import SUPPRESS
from collections.abc import Iterator
from pathlib import Path

from algorithms import DISTRIBUTED_FLAGS, STATE_SERVER_FLAGS, SUM_FLAGS, titles_of
from config import AMONG_WORKERS, FIELDS, names_of, one_of
from flag_parser import FlagParser

PAGE = Path(__file__).resolve().parents[1] / "docs" / "flags.md"
HEAD = ("| flag | default | algorithms | same on all | meaning |", "| --- | --- | --- | --- | --- |")


def table() -> list[str]:
    """A row a flag, in the order of --help."""
    shown = (name for name, field in FIELDS.items() if field.metadata["arguments"]["help"] != SUPPRESS)
    return [*HEAD, *map(_row, shown)]


def _row(field: str) -> str:
    about = FIELDS[field].metadata
    names = " ".join(f"`{name}`" for name in names_of(field))
    cells = (
        names,
        _default(field),
        _algorithms(field),
        "no" if about["of_host"] else "yes",
        ". ".join(_meaning(field)),
    )
    return "| " + " | ".join(cells).replace("  ", " ") + " |"


def _default(field: str) -> str:
    default = FIELDS[field].default
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _algorithms(field: str) -> str:
    if field in DISTRIBUTED_FLAGS:
        return "all but standalone"
    if field in STATE_SERVER_FLAGS:
        return f"those with a state server, and all with `--page 1` or `--exchange {one_of(AMONG_WORKERS)}`"
    if field in SUM_FLAGS:
        return "those that sum over all workers"
    return ", ".join(titles_of(field)) or "all"


def _meaning(field: str) -> Iterator[str]:
    about = FIELDS[field].metadata
    yield about["arguments"]["help"].replace("*", r"\*")
    if choices := about["arguments"].get("choices"):
        yield "One of " + ", ".join(choices)
    if about["needs"]:
        other, value = about["needs"]
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
