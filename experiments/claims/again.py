"""Makes a claim again, for scripts/reproduce.sh: runs what it was computed from, and compares the numbers."""

import math
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.claims.claims import REAL, Claim, Claims, Source, lines_of, recompute
from experiments.claims.measures import FORMS, Number
from experiments.reproduction import reproduction
from experiments.study.comparison import RunLine, measured
from report.statistics import NOT_REACHED
from scripts import run_lines
from scripts.run_lines import Run
from scripts.run_process import Processes, make, size_of
from trainer import version
from utils import SetupError

NEAR = 0.1  # within this share a number without an interval agrees with the one on the page
ROUNDING = 0.02  # of the ends of an interval
REAL_AT_ONCE = 3  # real jobs side by side, as those of the pages were made


def listed(claims: Claims) -> list[str]:
    """A line a claim: name, minutes, megabytes of disk, text."""
    lines = [f"{'claim':24} {'minutes':>7} {'MB':>5}  what it says"]
    for claim in claims.claims:
        cost = f"{claim.minutes:7g} {claim.disk_mb:5g}" if claims.has_runs(claim) else f"{'-':>7} {'-':>5}"
        lines.append(f"{claim.name:24} {cost}  {plain(claim)}")
    return lines


def plain(claim: Claim) -> str:
    """Its text without Markdown."""
    text = claim.sentence().removesuffix(f" | `{claim.name}`")
    return text.replace("**", "").replace("`", "").replace(" | ", "; ")


class Again:
    """Makes claims again.

    Args:
        work: holds the new raw lines of each claim, and the output of sources' commands.
        at_once: runs side by side in virtual time.
    """

    def __init__(
        self, claims: Claims, processes: Processes, work: Path, at_once: int, say: Callable[[str], None]
    ) -> None:
        self._claims, self._processes, self._work, self._at_once, self._say = claims, processes, work, at_once, say

    def make(self, claim: Claim) -> bool:
        """Runs it, says its numbers then and now; returns whether all agree.

        Raises:
            SetupError: a run has failed.
            KeyboardInterrupt: it was stopped; finished runs stay.
        """
        self._say(plain(claim))
        begin, logs_before = time.monotonic(), self._processes.log_bytes
        made = {name: self._lines(claim, name) for name in dict.fromkeys(told.source for told in claim.measured)}
        agreed = True
        for told in claim.measured:
            now = recompute(told, self._claims.sources[told.source].form, made[told.source]).number
            same = agree(told.number, now)
            agreed &= same
            which = " ".join(str(each) for each in told.arguments.values())
            self._say(f"  {told.of} {which}: then {told.number}; now {now}: {'agrees' if same else 'DIFFERS'}")
        outputs = [self._work / claim.name / name for name in made if self._claims.sources[name].command]
        size = self._processes.log_bytes - logs_before + sum(map(size_of, outputs))
        cost = f"{(time.monotonic() - begin) / 60:.1f} min, {size / 1e6:.0f} MB"
        self._say(f"{claim.name}: {'agrees' if agreed else 'differs'}; took {cost}")
        return agreed

    def _lines(self, claim: Claim, name: str) -> Any:
        """The raw lines of a source, with those of the claim made anew."""
        source, folder = self._claims.sources[name], self._work / claim.name / name
        if source.command:
            return self._by_command(source, folder)
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
        folder.mkdir(parents=True, exist_ok=True)
        there = FORMS[source.form].read(folder) if (folder / run_lines.RUNS_FILE).exists() else []
        anew = {line.key: line for line in there if line.key in needed and line.program == version.files_hash()}
        self._say(f"  {len(needed)} runs of {name}, {len(anew)} of them done already, {at_once} side by side")
        to_do = [line for key, line in needed.items() if key not in anew]
        for _, line in run_lines.made(to_do, self._run, at_once, folder):
            anew[line.key] = line
            self._say(f"  {len(anew)} of {len(needed)}: {line.entry}, seed {line.seed}")
        return [anew.get(line.key, line) for line in lines]

    def _by_command(self, source: Source, out: Path) -> Any:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        self._say(source.command.strip())
        code = self._processes.shell(source.command, {"OUT": str(out)})
        if self._processes.stopped:
            raise KeyboardInterrupt
        if code:
            raise SetupError(f"the command above ended with exit code {code}; its files are in {out}")
        return FORMS[source.form].read(out)

    def _run(self, line: Any) -> Run:
        """A raw line made anew by its command."""
        measure: Any = measured if isinstance(line, RunLine) else reproduction.measured
        anew: Run | None = make(self._processes, run_lines.unmade(line), measure)
        if anew is None:
            raise KeyboardInterrupt
        if anew.failed:
            raise SetupError(f"{' '.join(line.command)}: {anew.failed}")
        return anew


def agree(then: Number, now: Number) -> bool:
    """Whether a new number lies within the interval of the one on the page, but for rounding; without one, near each
    part of it. The number of runs that reached the target may differ by one."""
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
