"""experiments/study/search.py and fair_study.py: the trials of a row, and the runs that follow from them."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulate
from algorithms import ENTRIES
from experiments.study import comparison, fair_study
from experiments.study.comparison import REPORT, TUNING, Workload
from experiments.study.search import FASTEST, STEP_SIZE, Parameter, Trial, first_trials, next_beyond, parameters
from scripts import run_lines

SIZE = Parameter(STEP_SIZE, 1e-4, 1e-2, is_whole=False)
HALF = Workload("half", "iid", "mlp")


@given(st.sampled_from(sorted(ENTRIES)), st.integers(2, 12), st.sampled_from([2, 6, 12]))
def test_the_trials_of_a_row_are_always_the_same_and_cover_the_ranges(entry, workers, trials):
    searched = [SIZE, *parameters(entry, workers)]
    found = first_trials(searched, (0, 0.9), trials)
    assert found == first_trials(searched, (0, 0.9), trials)
    for momentum in (0, 0.9):
        of = [trial for trial in found if trial.momentum == momentum]
        assert len(of) == trials // 2
        sizes = sorted(trial.values[STEP_SIZE] for trial in of)
        apart = 100 ** (2 / trials)
        assert all(later / earlier == pytest.approx(apart, rel=0.02) for earlier, later in itertools.pairwise(sizes))
        for its in searched:
            assert all(its.low * 0.99 <= trial.values[its.name] <= its.high * 1.01 for trial in of)


def test_a_step_size_goes_as_far_with_momentum():
    assert Trial(0.9, {STEP_SIZE: 0.002}).step_size == 0.0002


def test_one_trial_is_made_beyond_an_end_until_the_best_has_no_such_value():
    k = Parameter(FASTEST, 1, 4, 1, 4, is_even=True)
    tried = [Trial(0, {STEP_SIZE: size, FASTEST: 2 + place}) for place, size in enumerate((0.001, 0.004))]
    tried.append(Trial(0.9, {STEP_SIZE: 0.1, FASTEST: 4}))  # with another momentum, so it is no end
    first = next_beyond([SIZE, k], tried, tried[1])
    assert first == Trial(0, {STEP_SIZE: 0.008, FASTEST: 3})
    tried.append(first)  # it was slower
    second = next_beyond([SIZE, k], tried, tried[1])
    assert second == Trial(0, {STEP_SIZE: 0.004, FASTEST: 4})
    tried.append(second)
    assert next_beyond([SIZE, k], tried, tried[1]) is None
    assert next_beyond([k], tried, second) is None  # there is no fifth machine
    further = next_beyond([SIZE, k], tried, second)  # 0.008 was tried on other machines only
    assert further is None or further.values == {STEP_SIZE: 0.008, FASTEST: 4}


def rows(*arguments):
    return fair_study.parse(["--clusters", "half", *arguments])[1]


def test_a_row_has_its_trials_each_shorter_than_the_best_and_then_reports_the_best_with_other_seeds():
    plan = rows("--entries", "fastest-outer", "--trials", "4", "--seeds", "2")
    tasks, line, done = plan.tasks(HALF, "fastest-outer"), None, []
    seconds = iter([60.0, 45.0, math.inf, 45.0] + [math.inf] * fair_study.MOST_BEYOND)
    try:
        while True:
            task = tasks.send(line)
            done.append(task)
            reached = next(seconds) if task.phase == TUNING else math.inf
            curve = [(at, 0.9 if at >= reached - 3 else 0.1) for at in map(float, range(2, 150, 2))]
            line = task.line(command=task.command, validation=curve if task.phase == TUNING else ())
    except StopIteration:
        pass
    trials, reports = [each for each in done if each.phase == TUNING], [each for each in done if each.phase == REPORT]
    assert len(trials) in range(5, 5 + fair_study.MOST_BEYOND)
    limits = [float(run_lines.value_in(task.command, "max_seconds")) for task in trials]
    assert limits[0] == 150 and limits[1] < limits[0] and set(limits[2:]) == {limits[2]} and limits[2] < limits[1]
    assert [(task.seed, task.parameters, task.step_size) for task in reports] == [
        (seed, trials[1].parameters, trials[1].step_size) for seed in (100, 101)
    ]
    assert all("--validation" in task.command for task in trials)
    for task in done:
        _, (run,) = simulate.parse(task.command[1:])
        assert len(run.job.rows) == task.parameters[FASTEST]
        assert run.job.config.sync_every == task.parameters["sync_every"]
        assert run.job.config.target_evaluations == 3
        assert comparison.RunLine(**dataclasses.asdict(task.line(command=task.command))).parameters == task.parameters


@pytest.mark.parametrize("cluster", ["half", "paper", "wbsp-h1"])
def test_the_command_of_every_row_is_one_that_simulate_takes(cluster):
    for split in ("iid", "by-class"):
        plan = rows("--clusters", cluster, "--splits", split)
        for workload, entry in plan.rows:
            task = next(plan.tasks(workload, entry))
            _, (run,) = simulate.parse(task.command[1:])
            assert run.job.entry == entry
    assert plan.hours() > 0


def test_rows_that_are_other_rows_by_construction_are_left_out():
    assert "esync-outer-aware" in fair_study.entries_of("mixed-links")
    assert not {"esync-outer-aware", "lb-bsp", "without-slow", "local"} & set(fair_study.entries_of("half"))
    assert "lb-bsp" in fair_study.entries_of("nine-ways-per-sample")


def test_what_is_there_is_not_made_again(tmp_path, caplog):
    caplog.set_level("INFO")
    shorter = ["--folder", str(tmp_path), "--entries", "alone,sync", "--trials", "2", "--seeds", "1"]
    plan = fair_study.parse([*shorter, "--target", "0.3", "--validation", "59900", "--epochs", "0.02", "--jobs", "2"])[
        1
    ]
    study = fair_study.Study(plan, fair_study.Processes(tmp_path / "logs"), 2, math.inf, any_version=False)
    task = next(plan.tasks(HALF, "alone"))
    line = task.line(command=task.command, validation=[(1.0, 0.5)], program=study._program)
    study._lines[line.key] = line
    assert study._there(task) is line
    assert study._there(dataclasses.replace(task, command=[*task.command, "-b", "32"])) is None
    study._lines[line.key] = dataclasses.replace(line, program="another")
    assert study._there(task) is None
    study.any_version = True
    assert study._there(task).program == "another"
    study._lines[line.key] = dataclasses.replace(line, failed="disk full")
    assert study._there(task) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--range", "0.1", "0.01"], "must be less"),
        (["--trials", "5"], "no multiple of the number of --momenta, 2"),
        (["--entries", "sgd"], "sgd"),
    ],
)
def test_bad_values_are_refused(arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        fair_study.parse(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
