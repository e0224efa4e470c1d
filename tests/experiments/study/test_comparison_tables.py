"""The tables and figures of a comparison: numbers by hand, and a page with its figures."""

from __future__ import annotations

import dataclasses
import math

import pytest

from experiments.study import write_comparison
from experiments.study.comparison import REPORT, TUNING, Comparison, RunLine, Workload, running_means
from experiments.study.comparison_figures import ahead_at, crossing_jobs, shares
from experiments.study.comparison_tables import FROM_OTHERS, Fair, gain_text, notes, numbers_table, times_table
from report.metrics import reached
from scripts import run_lines

SLOW = {"half-0": 1e9, "half-50": 0.08, "half-100": 0.04}  # seconds of a slow machine's step


def line(phase, cluster, entry, number, at_s, momentum=0.9, size=0.001, **more):
    """A run that is at the target, 0.85, at this second; infinite: not within its 100 s. Trial 1 is reported."""
    curve = [(float(s), 0.9 if s >= at_s - 2 else 0.1) for s in range(1, 101)]
    if phase == REPORT:
        trial, seed, curves = 1, number, {"test": curve}
    else:
        trial, seed, curves = number, 0, {"validation": curve}
    return RunLine(
        phase=phase, cluster=cluster, split="iid", network="mlp", entry=entry, trial=trial, seed=seed,
        step_sizes={"learning_rate": size}, momentum=momentum, in_a_row=3, step_times_s=[0.04, 0.04, SLOW[cluster]] * 2,
        samples_per_s=640.0, mb_per_s=1.0, commit="abc", initial_weights=f"w{seed}",
        command=["simulate.py", "--target-accuracy", "0.85", "--max-seconds", "100", "--eval-seconds", "1"],
        **{"parameters": {}, "workers": 6, **curves, **more},
    )  # fmt: skip


def runs(cluster, entry, seconds, **more):
    lines = [line(TUNING, cluster, entry, number, 50, size=0.0005 * 2**number, **more) for number in range(3)]
    lines[1] = line(TUNING, cluster, entry, 1, 40, **more)
    return lines + [line(REPORT, cluster, entry, 100 + place, each, **more) for place, each in enumerate(seconds)]


@pytest.fixture
def fair():
    never = float("inf")
    lines = [
        *runs("half-0", "esync", [never] * 3),
        *runs("half-0", "fastest-sync", [20, 30, 40], parameters={"fastest": 4}),
        *runs("half-50", "esync", [20, 20, 30]),
        *runs("half-50", "fastest-sync", [40, 60, 30.0], parameters={"fastest": 6}),
        line(TUNING, "half-50", "fastest-sync", 3, 90, parameters={"fastest": 2}),
        *runs("half-100", "esync", [10, 20, 15]),
        *runs("half-100", "fastest-sync", [20, 80, never], parameters={"fastest": 5}),
    ]
    return Fair(Comparison(lines))


def test_a_ratio_is_that_of_the_medians_and_a_run_that_missed_counts_as_the_limit(fair):
    middle, equal, none = (Workload(name, "iid", "mlp") for name in ("half-50", "half-100", "half-0"))
    assert fair.target(middle) == 0.85 and fair.limit_s(middle) == 100
    assert fair.gain(middle, "esync", "fastest-sync") == (2.0, 1.0, 3.0)
    assert fair.gain(equal, "esync", "fastest-sync") == (80 / 15, 2.0, 100 / 15)
    assert gain_text(fair, equal, "esync", "fastest-sync").endswith("*")
    assert not gain_text(fair, middle, "esync", "fastest-sync").endswith("*")
    assert gain_text(fair, none, "esync", "fastest-sync") == "0.30 (0.20 to 0.40)*"
    assert gain_text(fair, none, "esync", "alone") == gain_text(fair, none, "esync", "esync") == ""
    assert "0 of 3" in times_table(fair, [none])
    assert fair.ceiling(middle) == pytest.approx((4 / 0.04 + 2 / 0.08) / (4 / 0.04))
    assert fair.ceiling(equal) == pytest.approx(1)


def test_a_chosen_number_is_marked_where_one_side_was_not_tried_unless_nothing_lies_there(fair):
    found = {job.cluster: fair.untried(fair.chosen(job, "fastest-sync")) for job in fair.its.workloads}
    assert found == {"half-0": ["fastest"], "half-50": [], "half-100": ["fastest"]}  # there are six machines
    assert "K 5!" in numbers_table(fair, fair.its.workloads)
    assert "K 6 " in numbers_table(fair, fair.its.workloads)


def test_what_another_cluster_chose_can_be_reported_but_is_not_the_rows_own_choice(fair):
    job = Workload("half-50", "iid", "mlp")
    others = line(TUNING, "half-50", "esync", FROM_OTHERS, 30)
    reports = [dataclasses.replace(each, trial=FROM_OTHERS) for each in fair.made.runs(REPORT, job, "esync")]
    rest = [each for each in fair.made.lines if each not in fair.made.runs(REPORT, job, "esync")]
    changed = Fair(Comparison([*rest, others, *reports]))
    assert changed.chosen(job, "esync").trial == FROM_OTHERS and changed.best(job, "esync").trial == 1
    mixed = Fair(Comparison([*rest, others, *reports[:1], *fair.made.runs(REPORT, job, "esync")[1:]]))
    assert "esync" in changed.rows(job) and "esync" not in mixed.rows(job)


def test_the_shares_at_which_an_algorithm_is_ahead(fair):
    jobs = crossing_jobs(fair, Workload("half", "iid", "mlp"))
    assert list(jobs) == [33.3, 66.7, 100.0]
    assert shares([1, 1, 2, 2]) == 50.0
    # Not at 66.7 %, where 1.0 is in the interval; where the baseline misses, it counts as the limit.
    assert ahead_at(fair, jobs, "esync", None) == ahead_at(fair, jobs, "esync", "fastest-sync") == [100.0]
    assert ahead_at(fair, jobs, "fastest-sync", "esync") == [33.3]
    assert ahead_at(fair, jobs, "esync", "alone") == ahead_at(fair, jobs, "esync", "esync") == []
    lines = [*runs("half-50", "esync", [20, 20, 20]), *runs("half-50", "fastest-sync", [40, 60, 30])]
    lines += [*runs("half-0", "esync", [30, 30, 30]), *runs("half-0", "fastest-sync", [20, 30, 40])]
    faster = Fair(Comparison(lines))
    jobs = crossing_jobs(faster, Workload("half", "iid", "mlp"))
    assert ahead_at(faster, jobs, "esync", "fastest-sync") == [max(jobs)]


def test_what_only_fast_machines_run_is_shared_with_jobs_whose_slow_machines_are_no_faster():
    few = {"parameters": {"fastest": 4}, "workers": 4}
    lines = [*runs("half-50", "fastest-sync", [40, 60, 30], **few), *runs("half-50", "alone", [90, 80, 70], workers=1)]
    lines += [*runs("half-0", "esync", [20, 20, 30]), *runs("half-100", "esync", [10, 20, 15])]
    fair = Fair(Comparison(lines))
    slower, faster = (Workload(name, "iid", "mlp") for name in ("half-0", "half-100"))
    assert fair.rows(slower) == ["esync", "fastest-sync", "alone"]
    assert list(fair.seconds(slower, "fastest-sync").values()) == [40, 60, 30]
    assert fair.ceiling(slower) == pytest.approx(1)
    assert fair.rows(faster) == ["esync"]  # where 5 or 6 machines may be better than 4
    assert "half-0: SSGD on the fastest, Alone." in notes(fair) and notes(fair).startswith("24 runs")
    five = {"parameters": {"fastest": 5}, "workers": 5}
    lines = [*runs("half-50", "fastest-sync", [40, 60, 30], **five), *runs("half-0", "esync", [20, 20, 30])]
    assert Fair(Comparison(lines)).rows(slower) == ["esync"]


def test_rows_that_another_job_made_do_not_make_a_job_of_the_crossing_whole(monkeypatch):
    few = {"parameters": {"fastest": 4}, "workers": 4}
    lines = [*runs("half-50", "esync", [20, 20, 30]), *runs("half-50", "fastest-local", [40, 60, 30], **few)]
    fair = Fair(Comparison([*lines, *runs("half-0", "esync", [20, 20, 30])]))
    monkeypatch.setattr(write_comparison, "CROSSING_ROWS", ("esync",))
    middle, slower = (Workload(name, "iid", "mlp") for name in ("half-50", "half-0"))
    assert fair.rows(slower) == ["esync", "fastest-local"] and write_comparison.whole_jobs(fair) == [middle]


@pytest.mark.usefixtures("unpainted")
def test_the_page_has_tables_and_figures(fair, tmp_path, monkeypatch):
    for each in fair.its.lines:
        if each.cluster == "half-50" or (each.cluster, each.entry) == ("half-0", "esync"):
            run_lines.append(tmp_path, each)
    monkeypatch.setattr(write_comparison, "CROSSING_ROWS", ("esync",))
    assert write_comparison.main([str(tmp_path)]) == 0
    text = (tmp_path / "README.md").read_text()
    assert "2.0 (1.0 to 3.0)" in text and "ahead at" in text
    assert "K 6 " in (tmp_path / "details.md").read_text()
    assert {path.name for path in tmp_path.glob("*.p*")} == {
        f"{name}.{form}" for name in ("crossing", "half-50-iid-mlp") for form in ("png", "pdf")
    }


def test_a_curve_is_at_a_target_where_the_mean_of_evaluations_in_a_row_is():
    curve = [(10.0, 0.5), (20.2, 0.9), (30.0, 0.7), (39.999, 0.8), (50.0, 0.9)]  # 0.9 is touched at 20.2
    means = running_means(curve, 3, 10.0)
    assert means == [(30.0, pytest.approx(0.7)), (39.999, pytest.approx(0.8)), (50.0, pytest.approx(0.8))]
    assert (reached(means, 0.75).by_s, reached(means, 0.85).by_s) == (39.999, math.inf)
    assert running_means(curve[:2], 3, 10.0) == []


def test_curves_that_were_evaluated_more_often_have_means_on_the_same_grid():
    often = [(2.0 * number, 0.01 * number) for number in range(11)]  # 0, 2, ... 20 s
    assert running_means(often, 2, 10.0) == [(10.0, pytest.approx(0.025)), (20.0, pytest.approx(0.075))]
    late = [(0.4, 0.1), (10.4, 0.3), (19.8, 0.7), (20.2, 0.5)]  # at the end of the round after 0, 10, 20 s
    assert running_means(late, 3, 10.0) == [(20.2, pytest.approx(0.3))]
