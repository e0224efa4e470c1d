"""experiments/study/study.py: which runs a comparison needs, and that it goes on where it was stopped."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math

import pytest
import tiny_data
from hypothesis import given
from hypothesis import strategies as st

import simulate
from experiments.study import comparison, study
from experiments.study.comparison import REPORT, TUNING, UNTUNED, Workload
from experiments.study.study_run import Task, measured
from scripts import run_lines
from scripts.run_process import Ended, result
from utils import DIVERGED, EXIT_BUG, EXIT_OK, SetupError

NINE = Workload("nine-ways", "by-class", "mlp")


def plan(*arguments):
    """A study without momentum, in which the first evaluation at a target counts."""
    first = ["--networks", "mlp", "--clusters", "nine-ways", "--splits", "by-class", "--momenta", "0"]
    return study.parse([*first, "--in-a-row", "1", *arguments])[1]


# -------------------------------------------------------------------------------------------------- what is to be done


@given(st.integers(0, 5), st.integers(1, 9))
def test_step_sizes_cover_their_range_and_are_always_the_same(number, trials):
    sizes = study.step_sizes(number, trials, 2e-4, 5e-2)
    assert sizes == study.step_sizes(number, trials, 2e-4, 5e-2) == sorted(sizes)
    assert all(2e-4 * 0.99 <= size <= 5e-2 * 1.01 for size in sizes)
    apart = 250 ** (1 / trials)
    assert all(later / earlier == pytest.approx(apart, rel=0.02) for earlier, later in itertools.pairwise(sizes))


def test_studies_have_step_sizes_of_their_own():
    assert len({size for number in range(3) for size in study.step_sizes(number, 5, 2e-4, 5e-2)}) == 15


def test_every_algorithm_gets_as_many_trials_with_the_same_step_sizes():
    tasks = list(plan("--entries", "esync,dcasgd", "--trials", "4").tuning(NINE))
    assert len(tasks) == 2 * 3 * 4
    of = {entry: [(task.study, task.trial, task.step_size) for task in tasks if task.entry == entry] for entry in
          ("esync", "dcasgd")}  # fmt: skip
    assert of["esync"] == of["dcasgd"]
    assert {(task.study, task.seed) for task in tasks} == {(0, 0), (1, 1), (2, 2)}


def test_momenta_are_tried_with_step_sizes_that_go_as_far():
    _, its = study.parse(["--entries", "esync,alone", "--trials", "2", "--studies", "1", "--networks", "mlp"])
    its = dataclasses.replace(its, workloads=[NINE])
    tasks = [task for task in its.tuning(NINE) if task.entry == "alone"]
    assert [(task.trial, task.momentum) for task in tasks] == [(0, 0), (1, 0), (2, 0.9), (3, 0.9)]
    plain, fast = tasks[:2], tasks[2:]
    assert [task.step_size for task in fast] == pytest.approx([task.step_size / 10 for task in plain], rel=0.01)
    assert its.runs == 2 * (4 + 5 + 5)
    trials = [task.line(validation=[(1.0, 0.5 + 0.01 * task.trial)], command=its.command(task)) for task in tasks]
    reported = next(iter(its.reporting(NINE, trials)))
    assert (reported.step_size, reported.momentum) == (tasks[3].step_size, 0.9)
    words = its.command(reported)
    assert words[words.index("--momentum") + 1] == "0.9"
    _, (run,) = simulate.parse(words[1:])
    assert run.job.config.momentum == 0.9
    assert comparison.Comparison(trials).is_at_an_end(trials[3])
    assert "--momentum" not in plan().command(Task(TUNING, NINE, "alone", 0, 0, 0, 0.1))


def test_each_momentum_can_have_step_sizes_and_a_folder_of_its_own():
    its = plan("--entries", "sync", "--trials", "2", "--studies", "1", "--momenta", "0,0.9", "--folder", "new").apart()
    assert [(part.folder.as_posix(), part.momenta) for part in its] == [
        ("new/momentum-0", (0.0,)), ("new/momentum-0.9", (0.9,)),
    ]  # fmt: skip
    assert [len(list(part.tuning(NINE))) for part in its] == [2, 2]


def test_a_trial_goes_on_where_the_mean_of_several_evaluations_is_to_be_at_the_target():
    its = plan("--entries", "sync", "--in-a-row", "3")
    first = next(its.tuning(NINE))
    assert "--target-accuracy" not in its.command(first)
    trial = first.line(validation=[(3.0, 0.9), (6.0, 0.8), (9.0, 0.8), (12.0, 0.8)], command=its.command(first))
    assert [trial.seconds_to(target) for target in (0.8, 0.83, 0.84)] == [9.0, 9.0, math.inf]
    assert dataclasses.replace(trial, in_a_row=1).seconds_to(0.84) == 3.0
    assert run_lines.unmade(trial).in_a_row == 3


def test_presets_of_the_fastest_leave_out_the_slow_machines_of_a_cluster():
    task = Task(REPORT, NINE, "fastest-outer", 0, 0, 0, 0.1)
    _, (three,) = simulate.parse(plan().command(task)[1:])
    assert three.job.rows == (0, 1, 2)
    _, (half,) = simulate.parse(plan().command(dataclasses.replace(task, workload=NINE._replace(cluster="half")))[1:])
    assert half.job.rows == (0, 1, 2, 3)


def test_the_seeds_of_the_report_are_others_than_those_of_the_trials():
    its = plan("--entries", "esync")
    trials = [task.line(validation=[(1.0, 0.5 + 0.01 * task.trial)]) for task in its.tuning(NINE)]
    tasks = list(its.reporting(NINE, trials))
    assert [task.seed for task in tasks] == [100, 101, 102, 103, 104]
    assert {task.step_size for task in tasks} == {task.step_size for task in its.tuning(NINE) if
                                                  (task.study, task.trial) == (1, 4)}  # fmt: skip
    assert [(task.phase, task.step_size) for task in its.without_tuning(NINE)] == [(UNTUNED, 0.001)] * 5


def test_step_sizes_can_be_those_that_another_cluster_s_trials_have_shown_to_be_best():
    its = plan("--entries", "esync", "--tuned-on", "nine-ways")
    other = NINE._replace(cluster="slow-link")
    trials = [task.line(validation=[(1.0, 0.5 + 0.01 * task.trial)]) for task in its.tuning(its.tuned(other))]
    assert {line.workload for line in trials} == {NINE}
    tasks = list(its.reporting(other, trials))
    assert [(task.workload, task.seed) for task in tasks] == [(other, seed) for seed in its.report_seeds]
    assert {task.step_size for task in tasks} == {trials[9].step_size}  # the best trial of the study in the middle
    assert plan("--entries", "esync").tuned(other) == other


def test_step_sizes_can_be_those_of_another_comparison_s_trials_whose_runs_were_shorter(tmp_path):
    trials = [
        task.line(validation=[(1.0, 0.5 + 0.01 * task.trial)])
        for task in plan("--entries", "esync", "--epochs", "3").tuning(NINE)
    ]
    for line in trials:
        run_lines.append(tmp_path, line)
    longer = ["--entries", "esync", "--epochs", "8", "--phases", "report", "--tuned-in", str(tmp_path)]
    its = plan("--folder", str(tmp_path / "longer"), *longer)
    done = study.Study(its, None, 1, 0.0, False, any_version=False)
    tasks = list(its.reporting(NINE, done._trials_of(NINE)))
    assert {(task.phase, task.step_size) for task in tasks} == {(REPORT, trials[9].step_size)}
    assert len(tasks) == 5
    with pytest.raises(SetupError, match=r"has no trials of esync on paper, by-class, mlp"):
        study.Study(plan(*longer, "--clusters", "paper"), None, 1, 0.0, False, any_version=False)
    run_lines.append(tmp_path, dataclasses.replace(trials[0], entry="sync"))
    with pytest.raises(SetupError, match=r"has 1 trials of sync on nine-ways, by-class, mlp: not yet all of them"):
        study.Study(plan(*longer, "--entries", "esync,sync"), None, 1, 0.0, False, any_version=False)


@pytest.mark.parametrize(("flags", "trial"), [([], 0), (["--target", "0.87"], 1)])
def test_the_step_sizes_are_those_whose_trials_came_first_to_the_target(flags, trial):
    its = plan("--entries", "esync", "--trials", "2", "--studies", "1", *flags)
    curves = [(1.0, 0.85), (9.0, 0.87)], [(2.0, 0.85), (8.0, 0.87)]
    trials = [task.line(validation=curves[task.trial]) for task in its.tuning(NINE)]
    assert {task.trial for task in its.reporting(NINE, trials)} == {trial}


def test_trials_go_on_to_the_target_that_chooses_the_step_sizes():
    its = plan("--target", "0.9")
    words = its.command(next(its.tuning(NINE)))
    assert words[words.index("--target-accuracy") + 1] == "0.9"


@pytest.mark.parametrize("entry", study.ALL_ENTRIES)
@pytest.mark.parametrize("phase", [TUNING, REPORT])
def test_simulate_takes_the_command_of_every_run(entry, phase):
    its = plan()
    _, (run,) = simulate.parse(its.command(Task(phase, NINE, entry, 0, 0, 7, 0.0123))[1:])
    config = run.job.config
    assert 0.0123 in (config.learning_rate, config.local_lr)
    assert (config.seed, config.network) == (7, "mlp")
    assert (config.validation, config.target_accuracy) == ((5000, 0.87) if phase == TUNING else (0, 0.0))
    assert config.max_seconds == 8 * 60000 / 64 * 0.04
    assert bool(config.split_by_class) == config.algorithm.is_distributed


def test_the_paper_s_cluster_sends_resnet_s_bytes():
    words = plan().command(Task(REPORT, Workload("paper", "iid", "mlp"), "sync", 0, 0, 0, 0.1))
    assert words[words.index("--model-bytes") + 1] == "4.47e+07"
    assert "-s" not in words


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--entries", "fast"], "'fast' is unknown; choose from esync"),
        (["--range", "0.1", "0.01"], "--range 0.1 0.01: the first must be less than the second"),
        (["--trials", "0"], "0 is out of range"),
        (
            ["--tuned-in", "there"],
            "--tuned-in there: the trials are that folder's; leave tuning out of --phases",
        ),
    ],
)
def test_what_is_no_plan_is_refused(flags, complaint, capsys):
    with pytest.raises(SystemExit):
        plan(*flags)
    assert complaint in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------- what a run leaves


LINE = Task(TUNING, NINE, "sync", 0, 0, 0, 0.05).line(command=["simulate.py"])


@pytest.mark.parametrize(
    ("output", "code", "diverged", "failed"),
    [
        (f"2026 sync seed 0 | error: {DIVERGED} in round 1, it is nan\n", EXIT_BUG, True, ""),
        ("2026 sync seed 0 | error: no room\n", EXIT_BUG, False, "error: no room"),
        ("", -9, False, "exit code -9"),
    ],
)
def test_a_run_that_ended_badly_is_kept_as_what_it_was(tmp_path, output, code, diverged, failed):
    (tmp_path / "output.txt").write_text(output)
    line = result(LINE, Ended(tmp_path, "mlp/sync", code), measured)
    assert (line.diverged, line.failed, line.validation) == (diverged, failed, ())
    assert line.seconds_to(0.1) == math.inf


def test_a_run_without_logs_has_failed(tmp_path):
    (tmp_path / "output.txt").write_text("")
    assert "does not exist" in result(LINE, Ended(tmp_path, "mlp/sync", EXIT_OK), measured).failed


@pytest.mark.cluster
def test_a_small_study_is_tuned_on_held_out_samples_reported_on_the_test_set_and_not_done_twice(
    tmp_path, monkeypatch, caplog
):
    caplog.set_level(logging.INFO)
    monkeypatch.chdir(tmp_path)
    tiny_data.write_mnist(tmp_path / "data" / "mnist")
    (tmp_path / "two.csv").write_text("step_time_s\n0.1\n0.3\n")
    of_study = ["--clusters", "two.csv", "--splits", "iid", "--networks", "mlp", "--entries", "sync"]
    of_study += ["--studies", "1", "--trials", "1", "--seeds", "1", "--validation", "16", "--epochs", "0.02"]
    of_study += ["--momenta", "0"]
    of_study += ["--phases", "tuning,report", "--folder", str(tmp_path / "results"), "--jobs", "2"]
    command = [*of_study, "--", "-b", "8", "--dataset", "mnist"]
    monkeypatch.setattr(study, "setup_logging", lambda role: None)
    assert study.main(command) == EXIT_OK
    tuned, reported = comparison.read(tmp_path / "results")
    assert (tuned.phase, reported.phase) == (TUNING, REPORT)
    assert tuned.validation and not tuned.test and reported.test and not reported.validation
    assert all(accuracy * 16 == round(accuracy * 16) for _, accuracy in tuned.validation)
    counts = [accuracy * tiny_data.TEST for _, accuracy in reported.test]
    assert counts == pytest.approx([*map(round, counts)])
    assert reported.step_size == tuned.step_size
    assert (tuned.workers, tuned.step_times_s) == (2, [0.1, 0.3])
    assert tuned.partition and tuned.initial_weights and tuned.samples_per_s > 0
    assert "2 of 2: report two.csv iid mlp sync, seed 100" in caplog.text
    assert not list((tmp_path / "logs" / "study" / "results").iterdir())
    before = (tmp_path / "results" / "runs.jsonl").read_bytes()
    assert study.main(command) == EXIT_OK
    assert (tmp_path / "results" / "runs.jsonl").read_bytes() == before
    # Of another version of the program it would be done anew, unless any counts.
    monkeypatch.setattr(study.version, "files_hash", lambda: "another")
    _, its = study.parse(command)
    (trial,) = its.tuning(its.workloads[0])
    assert study.Study(its, None, 1, 0.0, False, any_version=False)._line_of(trial) is None
    assert study.Study(its, None, 1, 0.0, False, any_version=True)._line_of(trial) == tuned
