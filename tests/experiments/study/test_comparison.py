"""The lines of a comparison and what is made of them, on a small one whose numbers can be followed by hand."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from experiments import markdown
from experiments.study import comparison, write_comparison as command
from experiments.study.comparison import REPORT, TUNING, Comparison, RunLine, Workload, measured
from experiments.study.comparison_tables import Fair, notes
from scripts import run_lines
from scripts.run_process import Ended, result
from utils import DIVERGED, EXIT_BUG, EXIT_OK

NINE, SLOW = Workload("nine-ways", "iid", "mlp"), Workload("slow-link", "iid", "mlp")
STEP_TIMES = {NINE: (0.04, 0.04, 0.04, 0.4), SLOW: (0.05,) * 4}
# Seconds to 0.85 of the five seeds.
TIMES = {
    NINE: {"esync": (10, 11, 12, 13, 14), "sync": (50, 55, math.inf, 60, 65), "alone": (20, 22, 24, 26, 28)},
    SLOW: {"esync": (30, 30, 30, 30, 30), "sync": (15, 15, 15, 15, 15), "alone": (60, 60, 60, 60, 60)},
}


def curve(seconds):
    """0.80 after half of the time; where that is infinite 0.80 after 70 s, and no more."""
    return [(70.0, 0.8)] if math.isinf(seconds) else [(seconds / 2, 0.8), (float(seconds), 0.85)]


def line(entry="esync", workload=NINE, seconds=10.0, phase=TUNING, **more):
    """A run of one of four workers, or of a machine alone."""
    its = curve(seconds)
    fields = {
        "trial": 0,
        "seed": 0,
        "step_sizes": {"local_lr": 0.003},
        "momentum": 0.0,
        "command": ["simulate.py", "--target-accuracy", "0.85", "--eval-seconds", "1.5"],
        "validation" if phase == TUNING else "test": its,
        "final_accuracy": its[-1][1],
        "samples_per_s": 1000.0,
        "step_times_s": STEP_TIMES[workload],
        "workers": 1 if entry == "alone" else 4,
        "initial_weights": "w",
        "partition": "alone" if entry == "alone" else "p",
        "program": "0123456789abcdef",
    }
    return RunLine(entry=entry, **workload._asdict(), phase=phase, **{**fields, **more})


def all_lines():
    found = []
    for workload, entries in TIMES.items():
        for entry, times in entries.items():
            for trial, seconds in enumerate((9, 12, 8, 20, math.inf, 11)):
                sizes = {"local_lr": 0.001 * (trial + 1)}
                found.append(line(entry, workload, seconds, trial=trial, step_sizes=sizes))
            for number, seconds in enumerate(times):
                chosen = {"local_lr": 0.003}  # of the best trial
                found.append(line(entry, workload, seconds, REPORT, seed=100 + number, step_sizes=chosen))
    return found


@pytest.fixture
def folder(tmp_path):
    """Those lines as a folder of results, and a page beside it with a place for them."""
    (tmp_path / "toy").mkdir()
    for each in all_lines():
        run_lines.append(tmp_path / "toy", each)
    (tmp_path / "toy" / "README.md").write_text("# Toy\n\n" + "\n".join(markdown.marks("tables")) + "\n\nand more\n")
    return tmp_path / "toy"


# ------------------------------------------------------------------------------------------------------ the lines


def test_what_was_written_is_read_back(folder):
    again = comparison.read(folder)
    assert [json.dumps(dataclasses.asdict(each)) for each in again] == [
        json.dumps(dataclasses.asdict(each)) for each in all_lines()
    ]


def test_of_two_runs_of_the_same_thing_the_later_counts(folder):
    run_lines.append(folder, line(phase=REPORT, seconds=99.0, seed=100, trial=2))
    again = comparison.read(folder)
    assert len(again) == len(all_lines())
    assert again[-1].seconds_to(0.85) == 99.0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "line 67 is no run"),
        ('{"entry": "esync"}', "missing"),
        (json.dumps({**dataclasses.asdict(line()), "entry": "fast"}), "entry is 'fast'; it should be one of esync"),
        (json.dumps({**dataclasses.asdict(line()), "split": "even"}), "split is 'even'; it should be one of iid"),
        (json.dumps({**dataclasses.asdict(line()), "validation": [[1]]}), "validation is no list of"),
        (json.dumps({**dataclasses.asdict(line()), "step_sizes": {}}), "step_sizes are {}"),
        (json.dumps({**dataclasses.asdict(line()), "speed": 1}), "unexpected keyword argument 'speed'"),
    ],
)
def test_a_line_that_is_no_run_is_named(folder, refused, text, complaint):
    with (folder / "runs.jsonl").open("a") as file:
        file.write(text + "\n")
    error = refused(command.main, str(folder))
    assert f"{folder}/runs.jsonl, line" in error and complaint in error


def test_a_folder_without_runs_is_told(tmp_path, refused):
    assert "experiments/study/study.py makes one" in refused(command.main, str(tmp_path))


@pytest.mark.parametrize("lost", [{"diverged": True}, {"failed": "no memory"}])
def test_a_run_that_diverged_or_failed_has_reached_nothing(lost):
    assert line().seconds_to(0.85) == 10.0
    assert line(**lost).seconds_to(0.85) == math.inf
    assert line(**lost).best_accuracy == 0.0


@pytest.mark.parametrize(
    ("output", "code", "diverged", "failed"),
    [
        (f"2026 sync seed 0 | error: {DIVERGED} in round 1, it is nan\n", EXIT_BUG, True, ""),
        ("2026 sync seed 0 | error: no room\n", EXIT_BUG, False, "error: no room"),
        ("", -9, False, "exit code -9"),
        ("", EXIT_OK, False, "does not exist"),  # it has no logs
    ],
)
def test_a_run_that_ended_badly_is_kept_as_what_it_was(tmp_path, output, code, diverged, failed):
    (tmp_path / "output.txt").write_text(output)
    ended = result(line(validation=()), Ended(tmp_path, "mlp/sync", code), measured)
    assert (ended.diverged, ended.validation) == (diverged, ())
    assert ended.failed == failed or (code == EXIT_OK and failed in ended.failed)
    assert ended.seconds_to(0.1) == math.inf


# ------------------------------------------------------------------------------------------------------ what they say


def test_the_versions_that_made_the_runs_are_named_also_where_files_were_changed():
    commit = "f8d4e9ccf64e0123456789012345678901234567"
    lines = [line(commit=commit), line(commit=f"{commit}-dirty"), line(), line(commit=commit)]
    assert run_lines.programs(lines) == ["f8d4e9ccf64e", "f8d4e9ccf64e-dirty", "0123456789ab"]


def test_the_speed_of_all_is_the_sum_of_speeds_over_the_greatest():
    its = Comparison(all_lines())
    assert its.speed_of_all(NINE) == pytest.approx(3.1)
    assert its.speed_of_all(SLOW) == pytest.approx(4.0)


def test_other_weights_or_partitions_under_the_same_seed_are_told():
    lines = all_lines()
    assert Comparison(lines).differences() == []  # one machine alone has another partition, as it must
    other = {(NINE, "esync", TUNING, 0), (NINE, "esync", REPORT, 100), (NINE, "esync", REPORT, 101)}
    lines = [
        dataclasses.replace(each, initial_weights="x", partition="q")
        if (each.workload, each.entry, each.phase, each.seed) in other
        else each
        for each in lines
    ]
    weights, partitions = Comparison(lines).differences()
    assert weights == "initial weights differ on nine-ways, iid, mlp, seed 0, 100, 101: alone, sync against esync"
    assert partitions == "partitions differ on nine-ways, iid, mlp, seed 0, 100, 101: esync against sync"
    assert f"NOT COMPARABLE: {weights}." in notes(Fair(Comparison(lines)))


def test_rows_that_are_the_same_runs_are_said():
    # The curves of every row and job here have the same accuracies, but for one run of SSGD.
    said = notes(Fair(Comparison(all_lines())))
    assert "Alone is the same runs, but for the clock, on nine-ways (i.i.d.), slow-link (i.i.d.)." in said
    assert "SSGD is ESync, run by run, on slow-link (i.i.d.)." in said
    other = [
        dataclasses.replace(each, test=[(1.0, 0.1)]) if (each.entry, each.seed) == ("sync", 100) else each
        for each in all_lines()
    ]
    assert "SSGD is ESync" not in notes(Fair(Comparison(other)))


# --------------------------------------------------------------------------------------------------- the command


def test_the_tables_are_written_between_their_marks_and_again_the_same(folder):
    assert command.main([str(folder)]) == 0
    text = (folder / "README.md").read_text()
    begin, end = markdown.marks("tables")
    assert text.startswith(f"# Toy\n\n{begin}\n\nmlp, i.i.d.: seconds to a test accuracy\n\n|")
    assert text.endswith(f"{end}\n\nand more\n")
    assert "66 runs, 36 of them trials" in text
    assert "(of 5 runs it covers the median with 94 %)" in text
    assert "| SSGD | 60 (50 to -), 4 of 5 | 15.0 (15.0 to 15.0) |" in text
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(files) == {
        *("runs.jsonl", "README.md", "details.md"),
        *(f"{job}-iid-mlp.{form}" for job in ("nine-ways", "slow-link") for form in ("png", "pdf")),
    }
    assert command.main([str(folder)]) == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


@pytest.mark.usefixtures("unpainted")
def test_a_page_without_a_place_for_the_tables_is_left_as_it_is(folder, refused):
    page = folder / "README.md"
    page.write_text("no marks")
    told = "add the lines <!-- tables --> and <!-- end of tables --> to it"
    assert told in refused(command.main, str(folder))
    assert page.read_text() == "no marks"


@pytest.mark.usefixtures("unpainted")
def test_a_folder_without_a_page_gets_one(folder):
    (folder / "README.md").unlink()
    assert command.main([str(folder)]) == 0
    assert (folder / "README.md").read_text().startswith("# toy\n\n<!-- tables -->\n\nmlp, i.i.d.")
