"""Parts of a Markdown page that a command writes anew, between two comments that name them. Pure functions."""

from __future__ import annotations

import re

from utils import SetupError


def marks(what: str) -> tuple[str, str]:
    """What stands before and behind the part of a page that is written anew."""
    return f"<!-- {what} -->", f"<!-- end of {what} -->"


def updated(text: str, what: str, part: str) -> str:
    """The page with another part between its marks.

    Raises:
        SetupError: they are not there.
    """
    begin, end = marks(what)
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise SetupError(f"the page has no place for it: add the lines {begin} and {end} to it")
    return f"{before}{begin}\n\n{part}\n\n{end}{after}"


def parts(text: str, kind: str) -> list[str]:
    """The names that stand behind `kind` in a page's marks, in order: FOLDER of `<!-- comparison FOLDER -->`."""
    return re.findall(rf"^<!-- {re.escape(kind)} (\S+) -->$", text, re.MULTILINE)
