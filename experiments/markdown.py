"""Markdown tables, and the parts of a page that a command writes anew, between two comments that name them."""

from pathlib import Path

from report import tables
from utils import SetupError, write_atomically

table = tables.markdown
TABLES = "tables"  # the part of a study's page


def marks(what: str) -> tuple[str, str]:
    """The comments before and behind a part."""
    return f"<!-- {what} -->", f"<!-- end of {what} -->"


def updated(text: str, what: str, part: str) -> str:
    """The page with another part between its marks. Raises SetupError if they are not there."""
    begin, end = marks(what)
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise SetupError(f"the page has no place for it: add the lines {begin} and {end} to it")
    return f"{before}{begin}\n\n{part}\n\n{end}{after}"


def write(page: Path, part: str, what: str = TABLES) -> None:
    """Writes a part anew; a page that does not exist gets a title and the part.

    Raises:
        SetupError: the page has no place for it.
    """
    text = page.read_text() if page.exists() else f"# {page.parent.name}\n\n" + "\n".join(marks(what)) + "\n"
    write_atomically(page, updated(text, what, part).encode())
