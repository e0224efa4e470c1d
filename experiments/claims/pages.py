"""Writes the parts of README.md, results/README.md and results/published.md that are made of results/claims.toml, and
the figure of the latter.

.venv/bin/python -m experiments.claims.pages
"""

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

from collections.abc import Sequence
from pathlib import Path

from experiments import markdown
from experiments.claims import published_figure
from experiments.claims.claims import Claims, read
from experiments.claims.measures import RESULTS
from flag_parser import FlagParser
from report.figure_set import save_figures
from report.style import COLUMN, style
from scripts.launch.roles import ROOT
from summary import run_tool
from utils import write_atomically


def written(claims: Claims) -> dict[Path, str]:
    """The pages with their parts made anew.

    Raises:
        OSError: a page cannot be read.
        SetupError: it has no place for a part.
    """
    texts: dict[Path, str] = {}
    for name, part in claims.parts.items():
        page = ROOT / part.page
        texts[page] = markdown.updated(texts.get(page) or page.read_text(), f"claims: {name}", claims.told(name))
    return texts


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the pages; returns the exit code."""
    FlagParser("python -m experiments.claims.pages", doc=__doc__).parse_args(arguments)

    def write() -> None:
        claims = read()
        for page, text in written(claims).items():
            write_atomically(page, text.encode())
            print(page)
        with style(COLUMN):
            save_figures([("published", published_figure.compared(claims), published_figure.draw)], RESULTS, print)

    return run_tool(write)


if __name__ == "__main__":
    start.run(main)
