"""Writes the parts of README.md and results/README.md that are made of results/claims.toml.

    .venv/bin/python -m scripts.claims

And makes a claim again, for scripts/reproduce.sh: runs what it was computed from and sets its numbers beside the kept.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import study_run
from report import pages
from report.claims import Claim, Claims, lines_of, read, recompute
from report.comparison import RunLine
from report.measures import FORMS, Number
from scripts import reproduction_run
from scripts.roles import ROOT
from scripts.simulated import Simulations
from utils import SetupError, write_atomically

Say = Callable[[str], None]
CLOSE = 0.1  # a number without an interval is the same within this share of it


def written(claims: Claims) -> dict[Path, str]:
    """The pages with their parts made anew.

    Raises:
        SetupError: a page has no place for a part.
    """
    texts: dict[Path, str] = {}
    for name, part in claims.parts.items():
        page = ROOT / part.page
        texts[page] = pages.updated(texts.get(page) or page.read_text(), f"claims: {name}", claims.told(name))
    return texts


def listed(claims: Claims) -> list[str]:
    """A line a claim: name, minutes, megabytes of disk, what it says."""
    lines = [f"{'claim':24} {'minutes':>7} {'MB':>5}  what it says"]
    for claim in claims.claims:
        runs = any(claims.sources[told.source].form != "none" for told in claim.measured)
        cost = f"{claim.minutes:7g} {claim.disk_mb:5g}" if runs else f"{'-':>7} {'-':>5}"
        lines.append(f"{claim.name:24} {cost}  {plain(claim)}")
    return lines


def plain(claim: Claim) -> str:
    """What it says, without Markdown."""
    text = claim.sentence().removesuffix(f" | `{claim.name}`")
    return text.replace("**", "").replace("`", "").replace(" | ", "; ")


class Again:
    """Makes claims again."""

    def __init__(self, claims: Claims, simulations: Simulations, work: Path, at_once: int, say: Say) -> None:
        """
        Args:
            work: where commands of whole sources leave their raw data.
            at_once: runs side by side.
        """
        self._claims, self._simulations, self._work, self._at_once, self._say = claims, simulations, work, at_once, say
        self._bytes = 0

    def make(self, claim: Claim) -> bool:
        """Runs it, says its numbers then and now; returns whether all agree.

        Raises:
            SetupError: nothing of it can be run, or a run has failed.
            KeyboardInterrupt: it was stopped.
        """
        self._say(plain(claim))
        begin, self._bytes = time.monotonic(), 0
        sources = dict.fromkeys(told.source for told in claim.measured)
        if not any(self._claims.sources[name].form != "none" for name in sources):
            raise SetupError(f"{claim.name}: nothing was run for it, so there is nothing to run again")
        made = {name: self._lines(claim, name) for name in sources}
        agreed = True
        for told in claim.measured:
            now = recompute(told, self._claims.sources[told.source].form, made[told.source]).number
            same = agree(told.number, now)
            agreed &= same
            which = " ".join(str(each) for each in told.arguments.values())
            self._say(f"  {told.of} {which}: then {told.number}; now {now}: {'agrees' if same else 'DIFFERS'}")
        cost = f"{(time.monotonic() - begin) / 60:.1f} min, {self._bytes / 1e6:.0f} MB"
        self._say(f"{claim.name}: {'agrees' if agreed else 'differs'}; took {cost}")
        return agreed

    def _lines(self, claim: Claim, name: str) -> Any:
        """The raw lines of a source, with those of the claim made anew."""
        source = self._claims.sources[name]
        if source.command:
            out = self._work / name
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir(parents=True)
            self._say(source.command.strip())
            subprocess.run(["bash", "-euc", source.command], cwd=ROOT, env={**os.environ, "OUT": str(out)}, check=True)
            self._bytes += size_of(out)
            return FORMS[source.form].read(out)
        lines = lines_of(source)
        needed = {
            line.key: line
            for told in claim.measured
            if told.source == name
            for line in recompute(told, source.form, lines).lines
        }
        if not needed:
            self._say(f"  counted over all kept runs of results/{source.raw}; its README.md has the command of those")
            return lines
        self._say(f"  {len(needed)} runs of {name}, {self._at_once} side by side")
        with ThreadPoolExecutor(self._at_once) as pool:
            anew: Mapping[Any, Any] = dict(zip(needed, pool.map(self._run, needed.values()), strict=True))
        return [anew.get(line.key, line) for line in lines]

    def _run(self, line: Any) -> Any:
        """A raw line made anew by its command."""
        ended = self._simulations.do(line.command, study_run.folder_of(line))
        if ended is None:
            raise KeyboardInterrupt
        anew = study_run.result(line, ended) if isinstance(line, RunLine) else reproduction_run.result(line, ended)
        if anew is None:
            raise KeyboardInterrupt
        if anew.failed:
            raise SetupError(f"{' '.join(line.command)}: {anew.failed}")
        self._bytes += size_of(ended.base)
        shutil.rmtree(ended.base, ignore_errors=True)
        return anew


def size_of(folder: Path) -> int:
    """Bytes of all files in it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def agree(then: Number, now: Number) -> bool:
    """Whether a number is within the kept interval, or near the kept number where it has none."""
    if str(then) == str(now):
        return True
    try:
        value, kept = float(now.number), float(then.number)
        low, high = (float(each) for each in then.interval.split(" to ")) if then.interval else (kept, kept)
    except ValueError:
        return False
    return min(low, kept * (1 - CLOSE)) <= value <= max(high, kept * (1 + CLOSE))


def main() -> None:
    """Writes the pages."""
    for page, text in written(read()).items():
        write_atomically(page, text.encode())
        print(page)


if __name__ == "__main__":
    main()
