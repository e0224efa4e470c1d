"""The file of the trials of a search for a switch point, by which a search continues, and the same as text.

JSON: `settings` that all trials share, `trials` in the order in which they were run; accuracies are fractions (null:
the trial diverged), times in seconds. `within_margin` is the last search's verdict on the share (null: not all of its
trials have been run).
"""

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import utils
from experiments.switch_point.switch_search import (
    CHANGE,
    EVALUATIONS,
    Goal,
    Trial,
    bsp_share,
    means,
    phases,
    smallest_within,
    verdicts,
)
from trainer.run_logs.rounds import is_quantity
from utils import SetupError

_COLUMNS = ("BSP share", "BSP steps", "ASP steps", "seed", "accuracy", "converged", "seconds", "within margin")
_YES_NO = {True: "yes", False: "no", None: "-"}


def read(path: Path, settings: Mapping[str, Any]) -> list[Trial]:
    """The finished trials; none where there is no file.

    Raises:
        SetupError: the file is no table, or of other settings. The message says which.
    """
    if not path.exists():
        return []
    table = utils.read_json(path)
    try:
        there = dict(table["settings"])
        trials = [_trial(row) for row in table["trials"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SetupError(
            f"{path} is no table of trials ({type(error).__name__}: {error}): give another file with --table"
        ) from None
    here = json.loads(json.dumps(settings))  # tuples become lists
    names = [name for name in here | there if there.get(name) != here.get(name)]
    if names:
        both = [(name, json.dumps(there.get(name)), json.dumps(here.get(name))) for name in names]
        other = "; ".join(f"{name} {before} there, {now} now" for name, before, now in both)
        raise SetupError(
            f"the trials in {path} were done with other settings: {other}. "
            "Give the same again to go on, or another file with --table"
        )
    return trials


def _trial(row: Mapping[str, Any]) -> Trial:
    trial = Trial(**{field.name: row[field.name] for field in dataclasses.fields(Trial)})
    numbers = (trial.bsp_steps, trial.asp_steps, trial.seed, trial.accuracy or 0, trial.seconds)
    if not all(map(is_quantity, numbers)) or not isinstance(trial.converged, bool):
        raise ValueError(f"{dict(row)} holds something else than numbers from 0 on")
    if trial.accuracy is None and not trial.asp_steps:
        raise ValueError("BSP alone has no accuracy")
    return trial


def write(path: Path, settings: Mapping[str, Any], trials: Sequence[Trial], goal: Goal) -> None:
    """Writes the table atomically. Raises SetupError if it cannot be written."""
    is_within = verdicts(means(trials, goal.seeds), goal)
    rows = [
        {"bsp_share": trial.bsp_share, **vars(trial), "within_margin": is_within.get(trial.bsp_steps)}
        for trial in trials
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"folder {path.parent}: {error.strerror}; choose another file with --table") from None
    utils.write_json(path, {"settings": settings, "margin": goal.margin, "trials": rows})


# ------------------------------------------------------------------------------------------------------- as text


def text(trials: Collection[Trial], goal: Goal) -> str:
    """A table of all trials, by share and seed."""
    is_within = verdicts(means(trials, goal.seeds), goal)
    rows = [
        (
            f"{trial.bsp_share:.4f}",
            str(trial.bsp_steps),
            str(trial.asp_steps),
            str(trial.seed),
            "-" if trial.accuracy is None else f"{trial.accuracy:.4f}",
            "diverged" if trial.accuracy is None else _YES_NO[trial.converged],
            f"{trial.seconds:.1f}",
            _YES_NO[is_within.get(trial.bsp_steps)],
        )
        for trial in sorted(trials, key=lambda trial: (trial.bsp_steps, trial.seed))
    ]
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    return "\n".join("  ".join(map(str.rjust, row, widths)) for row in (_COLUMNS, *rows))


def trial_line(trial: Trial, trials: Collection[Trial], goal: Goal) -> str:
    """The result of a trial."""
    is_within = verdicts(means(trials, goal.seeds), goal).get(trial.bsp_steps)
    verdict = "" if is_within is None else f", {'within' if is_within else 'below'} the margin"
    came_to = "diverged"
    if trial.accuracy is not None:
        came_to = f"accuracy {trial.accuracy:.4f}{'' if trial.converged else ' (not converged)'}"
    return (
        f"share {trial.bsp_share:.4f} (BSP {trial.bsp_steps}, ASP {trial.asp_steps} steps), seed {trial.seed}: "
        f"{came_to} in {trial.seconds:.1f} s{verdict}"
    )


def result_lines(trials: Collection[Trial], goal: Goal) -> list[str]:
    """The answer of a search that has ended, and how far to trust it."""
    complete, best = means(trials, goal.seeds), smallest_within(trials, goal)
    assert best is not None, "BSP itself is within every margin"
    bsp = complete[goal.total_steps]
    judged = [trial for trial in trials if trial.seed in goal.seeds and trial.accuracy is not None]
    unsettled = sum(not trial.converged for trial in judged)
    order, steps = phases(best.bsp_steps, goal.total_steps)
    lines = [
        f"smallest share of BSP within {goal.margin:g} of BSP's accuracy: "
        f"{bsp_share(best.bsp_steps, goal.total_steps):.4f} "
        f"(--switch-order {order} --train-steps {' '.join(map(str, steps))}): "
        f"accuracy {best.accuracy:.4f}, BSP's {bsp.accuracy:.4f}; "
        f"{best.seconds:.1f} s, BSP's {bsp.seconds:.1f} s: {bsp.seconds / best.seconds:.2f}x as fast",
        f"of {len(complete)} share(s) tried, {len(goal.seeds)} run(s) each; accuracies differ from run to run: "
        "more --runs make it surer",
    ]
    if unsettled:
        lines.append(
            f"note: {unsettled} of {len(judged)} trial(s) had not converged ({EVALUATIONS} evaluations within "
            f"{CHANGE:g}) and count by the mean of their last {EVALUATIONS} evaluations, or of all if fewer: a "
            "lower -e makes more, more --total-steps let them converge"
        )
    is_within = verdicts(complete, goal)
    above = [steps for steps in sorted(complete) if steps > best.bsp_steps and not is_within[steps]]
    if above:
        shares = ", ".join(f"{bsp_share(steps, goal.total_steps):.4f}" for steps in above)
        lines.append(f"warning: the larger share(s) {shares} were below the margin, so chance decided here")
    return lines
