"""Reads tables: CSV files as people and spreadsheets write them.

Columns are separated by commas, semicolons or tabs, as the first row shows; numbers may have decimal commas. The text
is UTF-8, or UTF-16 with a byte order mark. Empty rows, empty columns and comments, from a # on, do not count.
Column names are compared in lower case, with underscores for spaces.
"""

import codecs
import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from utils import SetupError

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_NO_COMMENT = re.compile(r'(?:"[^"]*"|[^#]|(?<=\S)#)*')
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


class Row(NamedTuple):
    """A row of a table."""

    file: str  # what it is, and its path
    number: int  # of the line, from 1
    text: str  # of the line
    cells: list[str]  # without spaces around them, and without empty ones at the end

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.file}, line {self.number}"

    def columns(self) -> list[str]:
        """The names of the columns, where this row is the header; those of empty columns are empty."""
        return ["_".join(cell.lower().split()) for cell in self.cells]

    def values(self, columns: Sequence[str]) -> dict[str, str]:
        """The cells by column; an empty one is an empty text. Raises SetupError if a cell is in no column."""
        names = [*columns, *[""] * (len(self.cells) - len(columns))]
        cells = [*self.cells, *[""] * (len(names) - len(self.cells))]
        if any(cell and not name for name, cell in zip(names, cells, strict=True)):
            raise SetupError(
                f"{self.where}: {self.text!r} has {len(self.cells)} values for {len(columns)} column(s), "
                f'{",".join(columns)}: put a value that has the separator in it into quotes ("...")'
            )
        return {name: cell for name, cell in zip(names, cells, strict=True) if name}


def rows(path: Path, what: str) -> list[Row]:
    """The rows of a table that are not empty. `what` is the kind of file, for messages. Raises SetupError if the file
    is missing, or is no table."""
    file = f"{what} {path}"
    try:
        content = path.read_bytes()
        text = content.decode("utf-16" if content.startswith(_UTF_16) else "utf-8-sig")
        if "\0" in text:
            raise UnicodeError
    except OSError as error:
        raise SetupError(f"{file} cannot be read: {error}") from None
    except UnicodeError:
        raise SetupError(f"{file} cannot be read: it is no text in UTF-8; save it as CSV in UTF-8") from None
    separator, found = "", []
    for number, line in enumerate(text.splitlines(), start=1):
        if number == 1 and (told := re.fullmatch("sep=(.)", line, re.IGNORECASE)):
            separator = told[1]
            continue
        said = _NO_COMMENT.match(line)
        if said is None or not said[0].strip():
            continue
        separator = separator or next((each for each in ";\t" if each in said[0]), ",")
        try:
            (row,) = csv.reader([said[0]], delimiter=separator, skipinitialspace=True, strict=True)
        except csv.Error as error:
            raise SetupError(f"{file}, line {number}: {line!r} is no line of a CSV file: {error}") from None
        cells = [cell.strip() for cell in row]
        while cells and not cells[-1]:
            cells.pop()
        if not cells or cells[0].startswith("#"):
            continue
        found.append(Row(file, number, line.strip(), [_with_point(cell, separator) for cell in cells]))
    return found


def _with_point(cell: str, separator: str) -> str:
    """A number with its decimal comma as a point; 1,000 may be a thousand where no semicolons show decimal commas."""
    if not _DECIMAL_COMMA.fullmatch(cell) or (separator != ";" and _THOUSANDS.fullmatch(cell)):
        return cell
    return cell.replace(",", ".")
