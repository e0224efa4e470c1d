"""Writes the parts of README.md and results/README.md that are made of results/claims.toml.

    .venv/bin/python -m experiments.claims.pages

And makes a claim again, for scripts/reproduce.sh: runs what it was computed from and sets its numbers beside the kept.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from experiments import pages, run_lines
from experiments.claims.claims import REAL, Claim, Claims, Source, lines_of, read, recompute
from experiments.claims.measures import FORMS, Number
from experiments.reproduction import reproduction_run
from experiments.simulated import Simulations
from experiments.study import study_run
from experiments.study.comparison import RunLine
from report.statistics import NOT_REACHED
from scripts.launch.roles import ROOT
from summary import run_tool
from trainer import version
from utils import SetupError, write_atomically

Say = Callable[[str], None]
NEAR = 0.1  # a number without an interval is the kept one again within this share of it
ROUNDING = 0.02  # of the ends of an interval
REAL_AT_ONCE = 3  # real jobs side by side, as their runs were made


def written(claims: Claims) -> dict[Path, str]:
    """The pages with their parts made anew.

    Raises:
        SetupError: a page has no place for a part.
    """
    texts: dict[Path, str] = {}
    for name, part in claims.parts.items():
        page = ROOT / part.page
        try:
            text = texts.get(page) or page.read_text()
        except OSError as error:
            raise SetupError(f"{page} cannot be read: {error.strerror}") from None
        texts[page] = pages.updated(text, f"claims: {name}", claims.told(name))
    return texts


def listed(claims: Claims) -> list[str]:
    """A line a claim: name, minutes, megabytes of disk, what it says."""
    lines = [f"{'claim':24} {'minutes':>7} {'MB':>5}  what it says"]
    for claim in claims.claims:
        cost = f"{claim.minutes:7g} {claim.disk_mb:5g}" if claims.has_runs(claim) else f"{'-':>7} {'-':>5}"
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
            work: where the raw lines of a claim are kept, as far as they are made, and what commands of sources leave.
            at_once: runs side by side in virtual time.
        """
        self._claims, self._simulations, self._work, self._at_once, self._say = claims, simulations, work, at_once, say
        self._bytes = 0

    def check(self, claim: Claim) -> None:
        """
        Raises:
            SetupError: nothing of it can be run.
        """
        if not self._claims.has_runs(claim):
            raise SetupError(f"{claim.name}: nothing was run for it alone, so there is nothing to run again")

    def make(self, claim: Claim) -> bool:
        """Runs it, says its numbers then and now; returns whether all agree.

        Raises:
            SetupError: a run has failed.
            KeyboardInterrupt: it was stopped; what is done is kept.
        """
        self._say(plain(claim))
        begin, self._bytes = time.monotonic(), 0
        made = {name: self._lines(claim, name) for name in dict.fromkeys(told.source for told in claim.measured)}
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
            return self._by_command(source, self._work / claim.name / name)
        lines = lines_of(source)
        needed = {
            line.key: line
            for told in claim.measured
            if told.source == name
            for line in recompute(told, source.form, lines).lines
        }
        if not needed:
            return lines  # counted over all of them
        at_once = min(self._at_once, REAL_AT_ONCE) if source.kind == REAL else self._at_once
        folder = self._work / claim.name / name
        anew = {line.key: line for line in self._done(folder, source) if line.key in needed}
        self._say(f"  {len(needed)} runs of {name}, {len(anew)} of them done already, {at_once} side by side")
        with ThreadPoolExecutor(at_once) as pool:
            futures = [pool.submit(self._run, line) for key, line in needed.items() if key not in anew]
            for future in as_completed(futures):
                line = future.result()
                run_lines.append(folder, line)
                anew[line.key] = line
                self._say(f"  {len(anew)} of {len(needed)}: {line.entry}, seed {line.seed}")
        return [anew.get(line.key, line) for line in lines]

    def _done(self, folder: Path, source: Source) -> list[Any]:
        """What this version of the program has made of a claim already."""
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / run_lines.RUNS_FILE).exists():
            return []
        return [line for line in FORMS[source.form].read(folder) if line.program == version.files_hash()]

    def _by_command(self, source: Source, out: Path) -> Any:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        self._say(source.command.strip())
        code = self._simulations.shell(source.command, {"OUT": str(out)})
        if self._simulations.stopped:
            raise KeyboardInterrupt
        if code:
            raise SetupError(f"the command above ended with exit code {code}; what it has left is in {out}")
        self._bytes += size_of(out)
        return FORMS[source.form].read(out)

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
    """Whether a number is the kept one again: within its interval, but for rounding; without one, near each part of it.
    One run more or less may have reached the target."""
    if then.n != now.n or abs(_reached(then) - _reached(now)) > 1:
        return False
    if then.interval and now.number != NOT_REACHED:
        low, high = (math.inf if end == NOT_REACHED else float(end) for end in (then.low, then.high))
        return low * (1 - ROUNDING) <= float(now.number) <= high * (1 + ROUNDING)
    parts = [re.findall(r"\d+\.?\d*", number.number) for number in (then, now)]
    return len(parts[0]) == len(parts[1]) and all(
        math.isclose(float(one), float(other), rel_tol=NEAR, abs_tol=0.01) for one, other in zip(*parts, strict=True)
    )


def _reached(number: Number) -> int:
    return number.n if number.reached is None else number.reached


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the pages; returns the exit code."""
    argparse.ArgumentParser(
        prog="python -m experiments.claims.pages",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(arguments)

    def write() -> None:
        for page, text in written(read()).items():
            write_atomically(page, text.encode())
            print(page)

    return run_tool(write)


if __name__ == "__main__":
    sys.exit(main())
