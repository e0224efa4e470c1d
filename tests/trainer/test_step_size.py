"""What the user is told of the step size: what it is of the mean loss, and that nothing is learnt with it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import tiny_data

import simulate
from algorithms import ALGORITHMS
from trainer.command_line import parse
from trainer.simulation import virtual_cluster
from trainer.step_size import FIRST, FirstSteps, describe


def config(*flags: str):
    return parse(["-c", "1", *flags])


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            ["-m", "sync", "-l", "0.1"],
            "step size: -l 0.1 of the loss summed over 64 samples, which is 6.4 of the mean loss",
        ),
        (
            ["-m", "wbsp", "-b", "8", "-l", "9"],
            "step size: -ll 0.001 of the loss summed over 8 samples, which is 0.008 of the mean loss",
        ),
        (["-m", "esync", "--optimizer", "adam"], "step size: -ll 0.001 is adam's, whatever the batch size"),
        (
            ["-m", "esync", "--optimizer", "adam", "--outer-momentum", "0.9", "-gl", "0.7"],
            "step size: -ll 0.001 is adam's, whatever the batch size; the outer optimiser makes a round's steps up to "
            "7 times as long: try a step as much smaller",
        ),
        (
            ["-m", "local", "-l", "0.01", "--lr-schedule", "warmup:9"],
            "step size: -l 0.01 of the loss summed over 64 samples, which is 0.64 of the mean loss, times "
            "--lr-schedule warmup:9",
        ),
        (
            ["-m", "sync-switch", "-l", "0.004", "--train-steps", "1", "2", "--phase-batch-size", "64", "32"],
            "step size by phase: BSP 0.004 of the loss summed over 64 samples, which is 0.256 of the mean loss; "
            "ASP 0.001 of the loss summed over 32 samples, which is 0.032 of the mean loss",
        ),
        (
            ["-m", "sync-switch", "--switch-order", "0", "--train-steps", "1", "--phase-lr", "0.5"],
            "step size by phase: ASP 0.5 of the loss summed over 64 samples, which is 32 of the mean loss",
        ),
    ],
)
def test_the_step_size_is_told_as_one_of_the_mean_loss_with_the_flag_that_counts(flags, line):
    assert describe(config(*flags), num_workers=4) == line


@pytest.mark.parametrize("mode", ALGORITHMS)
def test_every_mode_has_a_step_size_to_tell(mode):
    assert "0.064 of the mean loss" in describe(config("-m", mode), num_workers=1)


def warnings(losses, *flags: str, steps: int = 1, classes: int = 10) -> list[str]:
    first = FirstSteps(config("-m", "local", *flags), classes)
    found = (first.warning(steps, 64 * number, loss) for number, loss in enumerate(losses, start=1))
    return [text for text in found if text]


def test_a_loss_that_stays_above_that_of_a_guess_is_warned_of_once_with_what_to_try():
    (text,) = warnings([2.4] * 500, "-l", "0.1")
    assert text == (
        "after 100 steps the loss is 2.400, and 2.303 is that of a guess at 10 classes: nothing is learnt so far. "
        "Try a smaller step size than -l 0.1 (default: 0.001)"
    )
    (text,) = warnings([2.4] * 500, "-l", "1e-06")
    assert "Try another step size than -l 1e-06" in text


@pytest.mark.parametrize(
    "losses",
    [
        [9.0] * 50 + [1.0] * 450,  # a bad start that was made up for
        [2.4] * (FIRST - 1),  # a run too short to tell
        [None] * 500,  # bad steps have a warning of their own
        [0.5] * 100 + [9.0] * 400,  # what comes later
    ],
    ids=["falls", "short", "skipped", "later"],
)
def test_nothing_is_said_where_that_would_be_too_early_or_wrong(losses):
    assert warnings(losses) == []


def test_rounds_of_many_steps_count_as_such_and_steps_of_a_warm_up_do_not_count():
    assert "after 120 steps" in warnings([2.4] * 3, steps=40)[0]
    assert warnings([2.4] * 10 + [0.5] * 200, "--lr-schedule", "warmup:640") == []
    assert len(warnings([2.4] * 200, "--lr-schedule", "warmup:640")) == 1
    assert warnings([2.4] * 200, classes=0) == []  # -n none guesses nothing


def test_small_batches_are_judged_once_they_are_a_thousand_samples():
    assert warnings([2.4] * 900, "-b", "1") == []
    (text,) = warnings([2.4] * 1100, "-b", "1")
    assert "after 1000 steps the loss is 2.400" in text


def test_a_worker_with_classes_of_its_own_is_not_judged_by_these():
    """LB-BSP's slow worker had a loss of 6.8 while the job learnt."""
    first = FirstSteps(config("-m", "lb-bsp", "-s", "1"), 10)
    assert not any(first.warning(1, 64 * number, 6.8) for number in range(1, 300))


@pytest.mark.parametrize("mode", ["local", "esync", "async"])
def test_a_job_says_what_its_step_size_is_and_each_worker_that_nothing_is_learnt(tmp_path: Path, mode, caplog):
    tiny_data.write_mnist(tmp_path / "data" / "mnist")

    def lines(rate: str) -> list[str]:
        caplog.clear()
        data = ["-dd", str(tmp_path / "data"), "--dataset", "mnist", "-n", "mlp", "-b", "8", "--eval-seconds", "99"]
        rates = ["-l" if mode != "esync" else "-ll", rate]
        limits = ["--max-seconds", "15", "--workers", "0.1,0.12", "--log-base", str(tmp_path / "logs")]
        with caplog.at_level(logging.INFO):
            virtual_cluster.VirtualRun(simulate.parse(["-m", mode, *data, *rates, *limits])[1][0].job).run()
        assert sum("of the mean loss" in line for line in caplog.messages) == 1
        return [line for line in caplog.messages if "nothing is learnt" in line]

    workers = 1 if mode == "local" else 2
    assert lines("0.001") == []
    assert [line.split(":")[0] for line in lines("50")] == ["warning"] * workers
