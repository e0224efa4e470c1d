"""What a worker's checkpoint holds, and how a worker resumes it: model, steps, samples, batches, logs."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from algorithms import TransportKind
from esync.measure import Measure, drop_after
from esync.progress import FIRST, Point, Progress, Total
from trainer.membership import Begin, How
from trainer.run_logs.rounds import Round, iter_files, logged_rounds, sound_rounds
from trainer.steps import Seen
from trainer.trainer import Trainer
from utils import SetupError


def state_of(trainer: Trainer) -> dict[str, Any]:
    """All that a worker needs at the end of a round to do the next as if it had never stopped."""
    return {
        "rounds": trainer.rounds,
        "elapsed_s": trainer.measure.elapsed_s,
        "seen": [trainer.seen.of_all, trainer.seen.own],
        "accuracy": trainer.progress.newest,  # of whatever metric
        "batches": trainer.context.task.batches.state(),
        "partition": dict(trainer.membership.partition_sha256),
        "model": trainer.parameters.model(),
        "steps": trainer.stepper.state(),
        "sample_counts": list(trainer.membership.sample_counts),
        "own": trainer.own_state(),
        "workers": sorted({*trainer.membership.places, *_workers_before(trainer)}),
        "there": list(trainer.membership.places),
    }


def _resumed(trainer: Trainer) -> Mapping[str, Any]:
    """The checkpoint that was chosen; empty where there is none."""
    manager = trainer.context.run.checkpoints
    return (manager.resumed if manager is not None else None) or {}


def _workers_before(trainer: Trainer) -> list[str]:
    """The workers that took part before the job was resumed, where the checkpoint has them."""
    return list(_resumed(trainer).get("workers", ()))


def about_run(trainer: Trainer) -> dict[str, Any]:
    """Entries of a resumed job's run.json: summary.py counts workers that are no longer there, too."""
    state = _resumed(trainer)
    if not state:
        return {}
    in_step = trainer.context.config.algorithm.transport is TransportKind.SUM
    return {"workers_before": _workers_before(trainer), "resumed_after": state["rounds"] if in_step else None}


def restore(trainer: Trainer) -> None:
    """Sets `trainer.begin`, and resumes from the checkpoint that was chosen, where there is one."""
    state, checkpoints = _resumed(trainer), trainer.context.run.checkpoints
    resumes = checkpoints is not None and checkpoints.goes_on
    trainer.begin = Begin(How.RESUMED if resumes else How.NEW, state.get("rounds", 0), state.get("elapsed_s", 0.0))
    if (age_s := trainer.context.peers.job_age_s()) is not None:
        trainer.begin = dataclasses.replace(trainer.begin, how=How.JOINS, elapsed_s=age_s)
    if not state:
        return
    trainer.rounds = state["rounds"]
    trainer.seen = Seen(*state["seen"])
    trainer.progress.newest = state["accuracy"]
    if state.get("partition", trainer.membership.partition_sha256) == trainer.membership.partition_sha256:
        trainer.context.task.batches.restore(state["batches"])
    else:
        logging.info("this worker has other samples than before: its batches begin anew")
    if [array.shape for array in state["model"]] != [array.shape for array in trainer.parameters.model()]:
        raise SetupError("--resume: the checkpoint is of a network with other parameters; start without --resume")
    trainer.parameters.replace(state["model"])
    trainer.stepper.restore(state["steps"])
    trainer.restore_own(state["own"])


def open_measure(trainer: Trainer, folder: Path) -> Measure:
    """Opens a worker's log, and completes `trainer.begin`. A resumed job keeps the earlier rounds but those that are
    done again; a worker that joins a job at work keeps its own, if any. The rounds count in the worker's progress."""
    begin, survives = trainer.begin, trainer.context.config.survives
    if begin.how is not How.NEW:
        logged, again = logged_rounds(folder, logging.warning), {}
        if begin.how is How.RESUMED:
            again = {number: logged.pop(number) for number in [*logged] if number > trainer.rounds}
        kept = sound_rounds(folder, logged, logging.warning)
        undone = sound_rounds(folder, again, lambda text: None)
        if again:
            _drop_after(folder, trainer.rounds)
        last = max([0, *logged])
        if begin.how is How.JOINS and not survives:  # else the others have told the rounds
            trainer.rounds = max(trainer.rounds, last)
        elapsed_s = begin.elapsed_s
        if begin.how is How.RESUMED:
            elapsed_s = max([elapsed_s, *(one.elapsed_s for one in [*kept, *undone])])
        misses = begin.how is How.JOINS or survives or _was_away(trainer)
        lost = sum(one.entries for one in undone)
        begin = Begin(begin.how, trainer.rounds, elapsed_s, trainer.rounds - last if misses else 0, lost)
        resume_progress(trainer.progress, kept)
        if (board := trainer.context.run.board) is not None:
            board.resume(kept, elapsed_s)
        if survives and begin.how is How.RESUMED and not elapsed_s:  # no worker had a checkpoint
            begin = Begin()
        trainer.begin = begin
    return Measure(folder, trainer.clock.now, begin.rounds, begin.elapsed_s, as_lines=trainer.context.run.logs_lines)


def is_new(trainer: Trainer) -> bool:
    """Whether this worker has not taken part in the job before: it begins, or resumes from a checkpoint of others.
    Where ranks may have changed, its own checkpoint does not tell."""
    if trainer.begin.how is not How.RESUMED:
        return trainer.begin.how is How.NEW
    places, before = trainer.membership.places, _workers_before(trainer)
    if places and before:
        return places[trainer.membership.rank] not in before
    checkpoints = trainer.context.run.checkpoints
    return checkpoints is not None and checkpoints.is_from_another


def _was_away(trainer: Trainer) -> bool:
    """Whether this worker did not take part in the round of the checkpoint."""
    there, places = _resumed(trainer).get("there", ()), trainer.membership.places
    return bool(there and places) and places[trainer.membership.rank] not in there


def _drop_after(folder: Path, rounds: int) -> None:
    for number, path in iter_files(folder).items():
        if number > rounds:
            path.unlink()
    drop_after(folder, rounds)


def resume_progress(progress: Progress, rounds: Sequence[Round]) -> None:
    """A worker resumes the job of which it has logged these rounds."""
    progress.total = total_of(rounds)
    progress.first_losses = [abs(one.loss) for one in rounds if one.number <= FIRST and one.loss is not None]
    progress.earlier = [
        Point(one.number, one.elapsed_s, one.evaluation[1])
        for one in rounds
        if one.evaluation is not None and one.evaluation[0] == progress.metric
    ]


def total_of(rounds: Sequence[Round]) -> Total:
    """The complete steps of some rounds."""
    return Total(
        sum(one.complete - (one.bad_steps or 0) for one in rounds),
        sum(one.samples for one in rounds),
        sum(one.computing_s or 0.0 for one in rounds),
    )
