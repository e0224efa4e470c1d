"""The lines of a comparison and what is made of them, on a small one whose numbers can be followed by hand."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from experiments import markdown
from experiments.study import comparison, comparison_tables
from experiments.study import write_comparison as command
from experiments.study.comparison import REPORT, TUNING, UNTUNED, Comparison, RunLine, Workload
from scripts import run_lines

NINE, SLOW = Workload("nine-ways", "iid", "mlp"), Workload("slow-link", "iid", "mlp")
STEP_TIMES = {NINE: (0.04, 0.04, 0.04, 0.4), SLOW: (0.05,) * 4}
# Seconds to 0.85 of the five seeds.
TIMES = {
    NINE: {"esync": (10, 11, 12, 13, 14), "sync": (50, 55, math.inf, 60, 65), "local": (20, 22, 24, 26, 28)},
    SLOW: {"esync": (30, 30, 30, 30, 30), "sync": (15, 15, 15, 15, 15), "local": (60, 60, 60, 60, 60)},
}


def curve(seconds):
    """0.80 after half of the time; where that is infinite 0.80 after 70 s, and no more."""
    return [(70.0, 0.8)] if math.isinf(seconds) else [(seconds / 2, 0.8), (float(seconds), 0.85)]


def line(entry="esync", workload=NINE, seconds=10.0, phase=TUNING, **more):
    """A run of one of four workers, or of a machine alone."""
    its = curve(seconds)
    fields = {
        "study": 0,
        "trial": 0,
        "seed": 0,
        "step_sizes": {"local_lr": 0.003},
        "validation" if phase == TUNING else "test": its,
        "final_accuracy": its[-1][1],
        "samples_per_s": 1000.0,
        "step_times_s": STEP_TIMES[workload],
        "workers": 1 if entry == "local" else 4,
        "initial_weights": "w",
        "partition": "alone" if entry == "local" else "p",
        "program": "0123456789abcdef",
    }
    return RunLine(entry=entry, **workload._asdict(), phase=phase, **{**fields, **more})


def all_lines():
    found = []
    for workload, entries in TIMES.items():
        for entry, times in entries.items():
            for study, (first, second) in enumerate([(9, 12), (8, 20), (math.inf, 11)]):
                found.append(line(entry, workload, first, study=study, step_sizes={"local_lr": 0.001 * (study + 1)}))
                more = {"study": study, "trial": 1, "step_sizes": {"local_lr": 0.01 * (study + 1)}}
                found.append(line(entry, workload, second, **more))
            for number, seconds in enumerate(times):
                chosen = {"local_lr": 0.001}  # in the study whose best trial is the median
                found.append(line(entry, workload, seconds, REPORT, seed=100 + number, step_sizes=chosen))
                found.append(line(entry, workload, 2 * seconds, UNTUNED, seed=100 + number))
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
    run_lines.append(folder, line(phase=REPORT, seconds=99.0, seed=100, study=2))
    again = comparison.read(folder)
    assert len(again) == len(all_lines())
    assert again[-1].seconds_to(0.85) == 99.0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "line 97 is no run"),
        ('{"entry": "esync"}', "missing"),
        (json.dumps({**dataclasses.asdict(line()), "entry": "fast"}), "entry is 'fast'; it should be one of esync"),
        (json.dumps({**dataclasses.asdict(line()), "split": "even"}), "split is 'even'; it should be one of iid"),
        (json.dumps({**dataclasses.asdict(line()), "validation": [[1]]}), "validation is no list of"),
        (json.dumps({**dataclasses.asdict(line()), "step_sizes": {}}), "step_sizes are {}"),
        (json.dumps({**dataclasses.asdict(line()), "speed": 1}), "unexpected keyword argument 'speed'"),
    ],
)
def test_a_line_that_is_no_run_is_named(folder, capsys, text, complaint):
    with (folder / "runs.jsonl").open("a") as file:
        file.write(text + "\n")
    assert command.main([str(folder)]) == 2
    error = capsys.readouterr().err
    assert f"{folder}/runs.jsonl, line" in error
    assert complaint in error


def test_a_folder_without_runs_is_told(tmp_path, capsys):
    assert command.main([str(tmp_path)]) == 2
    assert "experiments/study/study.py makes one" in capsys.readouterr().err


@pytest.mark.parametrize("lost", [{"diverged": True}, {"failed": "no memory"}])
def test_a_run_that_diverged_or_failed_has_reached_nothing(lost):
    assert line().seconds_to(0.85) == 10.0
    assert line(**lost).seconds_to(0.85) == math.inf
    assert line(**lost).best_accuracy == 0.0


# ------------------------------------------------------------------------------------------------------ what they say


def test_the_score_is_the_median_of_the_studies_best_and_its_trial_gives_the_step_size():
    its = Comparison(all_lines())
    # Best of the studies: 9, 8 and 11 s.
    assert comparison_tables.score_text(its, NINE, "esync", 0.85) == "9.0"
    chosen = its.chosen(NINE, "esync", 0.85)
    assert (chosen.study, chosen.trial, chosen.step_size) == (0, 0, 0.001)
    assert its.is_at_an_end(chosen)  # 0.001 is the least of those tried


def test_of_trials_that_did_not_reach_the_target_the_most_accurate_is_best():
    trials = [
        line(trial=number, validation=[(5.0, accuracy)], step_sizes={"local_lr": 0.001 * (number + 1)})
        for number, accuracy in enumerate([0.5, 0.7, 0.6])
    ]
    its = Comparison(trials)
    assert its.chosen(NINE, "esync", 0.85).trial == 1
    assert not its.is_at_an_end(its.chosen(NINE, "esync", 0.85))
    assert comparison_tables.score_text(its, NINE, "esync", 0.85) == "inf"


def test_the_versions_that_made_the_runs_are_named_also_where_files_were_changed():
    commit = "f8d4e9ccf64e0123456789012345678901234567"
    lines = [line(commit=commit), line(commit=f"{commit}-dirty"), line(), line(commit=commit)]
    assert run_lines.programs(lines) == ["f8d4e9ccf64e", "f8d4e9ccf64e-dirty", "0123456789ab"]


def test_without_trials_nothing_is_chosen():
    assert Comparison([line(phase=REPORT)]).chosen(NINE, "esync", 0.85) is None


def test_the_speed_of_all_is_the_sum_of_speeds_over_the_greatest():
    its = Comparison(all_lines())
    assert its.speed_of_all(NINE) == pytest.approx(3.1)
    assert its.speed_of_all(SLOW) == pytest.approx(4.0)


def test_other_weights_or_partitions_under_the_same_seed_are_told():
    lines = all_lines()
    assert Comparison(lines).differences() == []  # one machine alone has another partition, as it must
    lines[0] = dataclasses.replace(lines[0], initial_weights="x", partition="q")
    weights, partitions = Comparison(lines).differences()
    assert weights == "initial weights differ on nine-ways, iid, mlp, seed 0: esync against esync, local, sync"
    assert partitions == "partitions differ on nine-ways, iid, mlp, seed 0: esync against esync, sync"
    assert f"NOT COMPARABLE: {weights}." in comparison_tables.notes(Comparison(lines))


def cells(table, title):
    (row,) = (row for row in table.splitlines() if row.startswith(f"| {title} |"))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_the_table_of_times_by_hand():
    table = comparison_tables.times_table(Comparison(all_lines()), REPORT, "mlp", "iid", 0.85)
    assert cells(table, "") == ["", "nine-ways, s", "x alone", "slow-link, s", "x alone"]
    assert cells(table, "ESync")[1:] == [
        "12 (10 to 14)",
        "2.00 (2.00 to 2.00)",
        "30.0 (30.0 to 30.0)",
        "2.00 (2.00 to 2.00)",
    ]
    # One run never came there: its median, how many did, and no factor.
    assert cells(table, "SSGD")[1:3] == ["60 (50 to -), 4 of 5", "-"]
    assert cells(table, "SSGD")[4] == "4.00 (4.00 to 4.00)"
    assert cells(table, "Standalone")[2] == ""
    assert cells(table, "samples/s at best") == ["samples/s at best", "", "3.10", "", "4.00"]


@pytest.mark.parametrize(
    ("alone", "shown"),
    # Of ESync's 10, 11, 12, 13 and 14 s; None: a run of the machine alone that did not get there.
    [
        ((20, 22, 24, 26, None), "2.00 (2.00 to -)"),
        ((20, 22, None, None, None), "-"),
        ((30, 22, 24, 26, 28), "2.0 (2.0 to 3.0)"),
    ],
)
def test_times_as_fast_as_one_machine_alone_are_those_of_each_seed(alone, shown):
    its = iter([((float(each), 0.86),) if each else () for each in alone])
    lines = [
        dataclasses.replace(each, test=next(its))
        if (each.phase, each.workload, each.entry) == (REPORT, NINE, "local")
        else each
        for each in all_lines()
    ]
    assert comparison_tables.alone_cell(Comparison(lines), REPORT, NINE, "esync", 0.85) == shown


def test_rows_that_are_the_same_runs_are_said():
    # The curves of every row and job here have the same accuracies, but for one run of SSGD.
    said = comparison_tables.repeated(Comparison(all_lines()))
    assert "Standalone is the same runs, but for the clock, on nine-ways (i.i.d.), slow-link (i.i.d.)." in said
    assert "SSGD is ESync, run by run, on slow-link (i.i.d.)." in said
    other = [
        dataclasses.replace(each, test=[(1.0, 0.1)]) if (each.entry, each.seed) == ("sync", 100) else each
        for each in all_lines()
    ]
    assert not any("SSGD is ESync" in each for each in comparison_tables.repeated(Comparison(other)))


def test_a_table_has_the_clusters_that_there_are_runs_of():
    lines = [each for each in all_lines() if (each.workload, each.phase) != (SLOW, UNTUNED)]
    tuned, untuned = comparison_tables.page(Comparison(lines), 0.85).split("One step size for all, mlp")
    assert f"{NINE.cluster}, s" in tuned and f"{SLOW.cluster}, s" in tuned
    assert f"{NINE.cluster}, s" in untuned and f"{SLOW.cluster}, s" not in untuned


# --------------------------------------------------------------------------------------------------- the command


def test_the_tables_are_written_between_their_marks_and_again_the_same(folder):
    assert command.main([str(folder)]) == 0
    text = (folder / "README.md").read_text()
    begin, end = markdown.marks("tables")
    assert text.startswith(f"# Toy\n\n{begin}\n\nTuned, mlp, i.i.d.: seconds to 0.85 on the test set\n\n|")
    assert text.endswith(f"{end}\n\nand more\n")
    assert "96 runs (36 for tuning, 30 tuned, 30 with one step size for all)" in text
    assert "Median of the seeds (least to greatest of 5, which covers the median with 94 %)" in text
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(files) == {"runs.jsonl", "README.md", "details.md", "nine-ways-iid.png", "slow-link-iid.png"}
    assert command.main([str(folder)]) == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


@pytest.mark.parametrize(
    ("ends", "shown"),
    [([()], 0.85), ([("0.8",)], 0.85), ([("0.87", "0.85")], 0.85), ([("0.87",)] * 2, 0.87), ([("0.87",), ()], 0.85)],
)
def test_the_page_shows_the_target_that_all_runs_on_the_test_set_go_on_to(ends, shown):
    commands = [["simulate.py", *(word for end in each for word in ("--target-accuracy", end))] for each in ends]
    commands[-1][1:] = [f"--target-accuracy={end}" for end in ends[-1]]  # as argparse takes it, too
    reported = [line(phase=REPORT, seed=seed, command=words) for seed, words in enumerate(commands)]
    trial = line(command=["simulate.py", "--target-accuracy", "0.8"])
    assert command.target_of(Comparison([trial, *reported])) == shown


def test_a_run_whose_mean_counts_ends_above_its_target():
    run = line(phase=REPORT, in_a_row=3, command=["simulate.py", "--target-accuracy", "0.88"])
    assert command.target_of(Comparison([run])) == 0.87


def test_the_details_have_every_job_and_every_target(folder):
    assert command.main([str(folder)]) == 0
    details = (folder / "details.md").read_text()
    assert "## nine-ways, i.i.d., mlp" in details and "## slow-link, i.i.d., mlp" in details
    head = next(row for row in details.splitlines() if "score 0.80" in row)
    assert all(f"s to {goal}" in head and f"score {goal}" in head for goal in ("0.80", "0.85", "0.87"))
    row = next(row for row in details.splitlines() if row.startswith("| ESync |"))
    assert "| 0.001! | 4.5 | 9.0 | inf |" in row


def test_a_page_without_a_place_for_the_tables_is_left_as_it_is(folder, capsys):
    page = folder / "README.md"
    page.write_text("no marks")
    assert command.main([str(folder)]) == 2
    assert "add the lines <!-- tables --> and <!-- end of tables --> to it" in capsys.readouterr().err
    assert page.read_text() == "no marks"


def test_a_folder_of_comparisons_gets_a_page_that_shows_them_side_by_side(folder):
    several = folder.parent / "several"
    several.mkdir()
    folder.rename(several / "plain")
    (several / "fast").mkdir()
    row = {"step_sizes": {"learning_rate": 0.02}, "mb_per_s": 6.0, "in_a_row": 3}
    command_line = ["simulate.py", "--eval-seconds", "1"]
    for seed, seconds in enumerate((4.0, 5.0, 6.0)):
        test = [(1.0, 0.86), (2.0, 0.8), *((seconds + later, 0.86) for later in range(3))]
        run = line("fastest-sync", NINE, 1, REPORT, seed=seed, test=test, workers=3, command=command_line, **row)
        run_lines.append(several / "fast", run)
    assert command.main([str(several)]) == 0
    page = (several / "README.md").read_text()
    assert "mlp on nine-ways, i.i.d.: seconds to 0.85 on the test set; MB/s: sent and received" in page
    assert "|  | fast: s | step size | plain: s | step size | samples/s | MB/s a worker |" in page
    # The mean of 0.8, 0.86 and 0.86 is not at the target, that of the next three is.
    assert "| SSGD on the fastest | 7.0 (6.0 to 8.0) | 0.02 |  |  | 1000 | 2 |" in page
    assert "| ESync |  |  | 12 (10 to 14) | 0.001! | 1000 | - |" in page
    assert "fast: 3 runs (3 tuned)" in page and "The fastest: 3 of 4 machines of nine-ways." in page
    assert page.count("from the evaluation on with which the mean of 3 in a row is") == 1


def test_a_folder_without_a_page_gets_one(folder):
    (folder / "README.md").unlink()
    assert command.main([str(folder)]) == 0
    assert (folder / "README.md").read_text().startswith("# toy\n\n<!-- tables -->\n\nTuned, mlp")
