"""The page of a study, FOLDER/README.md: its tables are written anew from the raw data beside it."""

from __future__ import annotations

from pathlib import Path

from report import pages
from utils import write_atomically

TABLES = "tables"  # the mark of most


def put(folder: Path, part: str, what: str = TABLES) -> None:
    """Writes the part between its marks; a folder without a page stays without one.

    Raises:
        SetupError: the page has no such marks.
    """
    page = folder / "README.md"
    if page.exists():
        write_atomically(page, pages.updated(page.read_text(), what, part).encode())
