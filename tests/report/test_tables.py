import pytest
from log_tree import FAST, NEVER, SLOW, device, evaluated

from report import definitions as definitions_of, metrics, tables
from report.metrics import SpeedUp, times_of
from report.runs import Run
from scripts import demo

OFTEN = [(1.0 * n, 0.02 * n) for n in range(1, 51)]  # to 0.8 in 40 s, evaluated every second
MEET = "ESync and SSGD are not told apart: "
MOVED = {"event_list": [[12.0, "evaluator", "evaluated in the worker from 12 s on"]]}


def named(curves, **more):
    return {metrics.MODES[name.replace("_", "-")]: evaluated(curve, **more) for name, curve in curves.items()}


def speed_up_lines(target=0.8, virtual=True, **curves):
    """In virtual time, where the evaluations are a grid, or in real time."""
    return tables.speed_up_lines([times_of(named(curves, virtual=virtual), target)], target)


@pytest.mark.parametrize(
    ("curves", "text"),
    [
        ({"esync": FAST, "sync": SLOW}, "3.0x (ESync 8.0 s, SSGD 24.0 s)"),
        # 25.2 s / 8 s is 3.15: "> 3.2x" would be a claim too many.
        ({"esync": FAST, "sync": [(25.2, 0.7)]}, "> 3.1x: SSGD had not reached 0.80 after 25.2 s (ESync 8.0 s)"),
        # 24 s / 31 s is 0.774.
        ({"esync": [(31.0, 0.7)], "sync": SLOW}, "< 0.78x: ESync had not reached 0.80 after 31.0 s (SSGD 24.0 s)"),
        ({"esync": [(96.0, 0.9)], "sync": [(6.0, 0.9)]}, "0.06x (ESync 96.0 s, SSGD 6.0 s)"),
        ({"esync": FAST, "sync": NEVER, "target": 0.925},
         "unknown: neither reached 0.925; at best ESync 0.8000, SSGD 0.6000"),
        ({"esync": [(0.0, 0.9)], "sync": SLOW},
         "unknown: a time to 0.80 is 0 s, rounded to whole seconds in the summary"),
        ({"esync": FAST}, "unknown: no summary of SSGD on i.i.d. data"),
    ],
)  # fmt: skip
def test_a_speed_up_is_said_with_the_times_behind_it_and_its_bounds_to_the_side_where_they_hold(curves, text):
    assert speed_up_lines(**curves) == [f"ESync, i.i.d.: {text}"]


@pytest.mark.parametrize(
    ("curves", "text"),
    [
        # 12 to 24 s over 4 to 8 s.
        ({"esync": FAST, "sync": SLOW}, "1.5..6.0x (ESync 4.0..8.0 s, SSGD 12.0..24.0 s)"),
        ({"esync": SLOW, "sync": FAST}, "0.16..0.67x (ESync 12.0..24.0 s, SSGD 4.0..8.0 s)"),
        ({"esync": [(5.0, 0.9)], "sync": SLOW}, "> 2.4x (ESync 0.0..5.0 s, SSGD 12.0..24.0 s)"),
        ({"esync": FAST, "sync": [(9.0, 0.1)]}, "> 1.1x: SSGD had not reached 0.80 after 9.0 s (ESync 4.0..8.0 s)"),
        ({"esync": [(30.0, 0.1)], "sync": SLOW}, "< 0.80x: ESync had not reached 0.80 after 30.0 s (SSGD 12.0..24.0 "
         "s)"),
        ({"esync": OFTEN, "sync": SLOW}, "0.30..0.62x (ESync 40.0 s, SSGD 12.0..24.0 s)"),
        # An interval begins after its lower end: these do not meet.
        ({"esync": [(9.0, 0.1), (24.0, 0.9)], "sync": [(24.0, 0.1), (60.0, 0.8)]}, "1.0..6.7x (ESync 9.0..24.0 s, "
         "SSGD 24.0..60.0 s)"),
        # These do.
        ({"esync": [(10.2, 0.1), (60.7, 0.9)], "sync": [(12.0, 0.2), (30.1, 0.8)]}, f"{MEET}10.2..60.7 s and "
         "12.0..30.1 s"),
        ({"esync": [(60.7, 0.9)], "sync": FAST}, f"{MEET}0.0..60.7 s and 4.0..8.0 s"),
        ({"esync": OFTEN, "sync": [(at + 0.5, value) for at, value in OFTEN]}, f"{MEET}39.0..40.0 s and 39.5..40.5 s"),
        ({"esync": FAST, "sync": [(6.0, 0.1)]}, f"{MEET}4.0..8.0 s and > 6.0 s"),
    ],
)  # fmt: skip
def test_a_speed_up_by_wide_intervals_is_a_range_and_none_where_they_meet(curves, text):
    assert speed_up_lines(virtual=None, **curves) == [f"ESync, i.i.d.: {text}"]


def test_a_run_that_its_worker_evaluated_is_not_told_apart_from_others_and_is_marked():
    sync, esync = metrics.MODES["sync"], metrics.MODES["esync"]
    found = {sync: evaluated(SLOW, **MOVED), esync: evaluated(OFTEN)}
    why = "SSGD alone was in part evaluated in the worker"
    times = "39.0..40.0 s and 12.0..24.0 s"
    assert tables.speed_up_lines([times_of(found, 0.8)], 0.8) == [
        f"ESync, i.i.d.: ESync and SSGD are not told apart: {times}, and {why}"
    ]
    assert demo.first_line(times_of(found, 0.8), 0.8).startswith(
        "no algorithm is told to be first at test accuracy 0.80: SSGD and"
    )
    both = {sync: found[sync], esync: evaluated(OFTEN, **MOVED)}
    assert "0.30..0.62x" in tables.speed_up_lines([times_of(both, 0.8)], 0.8)[0]
    runs = {mode: {("a", "cpu"): its} for mode, its in found.items()}
    numbers = {mode: definitions_of.numbers(devices, "auto", None) for mode, devices in runs.items()}
    *_, mark, advice = tables.table([Run(runs, numbers, found)], 0.8).splitlines()
    assert mark == "SSGD: evaluated in the worker from 12 s on" and "--evaluator 0" in advice
    assert tables.short_doubts_of({mode: [its] for mode, its in runs.items()}) == mark


@pytest.mark.parametrize(
    ("gain", "text"),
    [
        (SpeedUp(1.25, 1.25), "1.2x"),
        (SpeedUp(0.5, 0.5), "0.50x"),
        (SpeedUp(1.19, 3.11), "1.1..3.2x"),
        (SpeedUp(1.1, 1.2), "1.1..1.2x"),  # 1.1 * 10 is more than 11
        (SpeedUp(0.0, 0.331), "< 0.34x"),
        (SpeedUp(1.99, float("inf")), "> 1.9x"),
    ],
)
def test_the_bounds_of_a_factor_are_rounded_to_the_side_on_which_they_hold(gain, text):
    assert tables.factor_text(gain) == text


def test_each_split_is_compared_with_ssgd_on_the_same_split():
    lines = speed_up_lines(esync=FAST, sync=SLOW, esync_niid=FAST, async_niid=[], sync_niid=FAST, local=FAST)
    assert lines == [
        "ESync, i.i.d.: 3.0x (ESync 8.0 s, SSGD 24.0 s)",
        "ESync, non-i.i.d.: 1.0x (ESync 8.0 s, SSGD 8.0 s)",
        "ASGD, non-i.i.d.: unknown: ASGD has no accuracies",
    ]


def test_the_table_is_aligned_and_marks_what_is_unknown():
    esync, sync = metrics.MODES["esync"], metrics.MODES["sync-niid"]
    known = device(
        computing_time_list=[3.0, 3.0],
        bytes_pushed_list=[8_000_000] * 2,
        bytes_pulled_list=[0, 0],
        steps_list=[40, 37],
        lost_steps_list=[0, 1],  # 1 of 77
    )
    short = device(num_samples_list=[1], elapsed_time_list=[8.0], self_iters_list=[1], aggregate_time_list=[0.5])
    runs = {esync: {("a", "cpu"): known}, sync: {("a", "cpu"): device(), ("b", "cpu"): short}}
    real = [
        "mode             rounds  samples/s  MB/s  final acc.  best acc.  s to 0.80  computing ratio  lost",
        "ESync                 2       16.0  2.00      0.8000     0.8000   4.0..8.0             0.75  1.3%",
        "SSGD non-i.i.d.    1..2       16.1     -      0.6000     0.6000     > 10.0                -     -",
        MEASURED,
    ]
    assert table(runs, "measured", virtual=None) == real
    real[1] = real[1].replace("4.0..8.0", "     8.0")
    assert table(runs, "measured") == [*real, GRID]
    # By the published definitions ESync has 2 * 2 MB in 8 s, SSGD 3 * 2 MB; aggregation took 1 s, and 0.5 s.
    assert table(runs, "auto", 2_000_000) == [
        "mode             rounds  samples/s   MB/s  final acc.  best acc.  s to 0.80  computing ratio  lost",
        "ESync                 2       16.0   2.00      0.8000     0.8000        8.0             0.75  1.3%",
        "SSGD non-i.i.d.    1..2       16.1  0.75*      0.6000     0.6000     > 10.0      0.88..0.94*     -",
        MEASURED,
        AS_PUBLISHED,
        GRID,
    ]
    assert table(runs, "published", 2_000_000) == [
        "mode             rounds  samples/s   MB/s  final acc.  best acc.  s to 0.80  computing ratio  lost",
        "ESync                 2       16.0  0.50*      0.8000     0.8000        8.0            0.88*  1.3%",
        "SSGD non-i.i.d.    1..2       16.1  0.75*      0.6000     0.6000     > 10.0      0.88..0.94*     -",
        AS_PUBLISHED,
        GRID,
    ]
    assert table(runs, "published")[3:] == ["* as published: computing ratio = 1 - aggregation / elapsed time", GRID]


MEASURED = "MB/s = bytes pushed and pulled; computing ratio = time of batches, passes and local updates / elapsed time"
AS_PUBLISHED = (
    "* as published: MB/s = the model's size once a worker and round; computing ratio = 1 - aggregation / elapsed time"
)


GRID = "evaluated at least every 4 s of virtual time, so a time is up to 4 s late"


def table(runs, definitions, model_bytes=None, virtual=True):
    numbers = {mode: definitions_of.numbers(devices, definitions, model_bytes) for mode, devices in runs.items()}
    curves = {mode: evaluated(curve, virtual=virtual) for mode, curve in zip(runs, (FAST, NEVER), strict=True)}
    return tables.table([Run(runs, numbers, curves)], 0.8).splitlines()


def first_line(virtual=True, **curves):
    return demo.first_line(times_of(named(curves, virtual=virtual), 0.8), 0.8)


@pytest.mark.parametrize(
    ("virtual", "curves", "said"),
    [
        (
            True,
            {"sync": NEVER, "esync": [(16.0, 0.8)]},
            "ESync, outer Nesterov was first: test accuracy 0.80 after 8.0 s, 2.0x as fast as ESync (16.0 s), "
            f"3.0x as fast as Alone (24.0 s), > {NEVER[-1][0] / 8:.1f}x as fast as SSGD (not within 10.0 s)",
        ),
        (
            None,
            {"sync": NEVER, "esync": [(9.0, 0.1), (16.0, 0.8)]},
            "ESync, outer Nesterov was first: test accuracy 0.80 after 4.0..8.0 s, 1.1..4.0x as fast as ESync "
            "(9.0..16.0 s), 1.5..6.0x as fast as Alone (12.0..24.0 s), > 1.2x as fast as SSGD (not within 10.0 s)",
        ),
        (
            None,
            {"sync": [], "esync": [(6.0, 0.1), (60.7, 0.8)]},
            "no algorithm is told to be first at test accuracy 0.80: ESync, outer Nesterov and ESync are not told "
            "apart: 4.0..8.0 s and 6.0..60.7 s; ESync, outer Nesterov: 1.5..6.0x as fast as Alone (12.0..24.0 s), SSGD "
            "was never evaluated",
        ),
    ],
)
def test_the_first_is_named_where_all_others_are_told_apart_with_how_many_times_as_fast_it_was(virtual, curves, said):
    line = first_line(virtual=virtual, alone=SLOW, esync_outer=FAST, **curves)
    assert line == f"{said}; this is one run of one seed: another day may order them otherwise"


def test_of_curves_of_an_evaluation_each_none_is_first():
    """The evaluations of a machine with other work: one of each, at the end."""
    curves = {"sync": [(57.1, 0.9)], "alone": [(56.0, 0.9)], "esync": [(60.7, 0.9)], "esync_outer": [(55.0, 0.1)]}
    line = first_line(virtual=None, **curves)
    assert line.startswith("no algorithm is told to be first") and line.count("are not told apart") == 3
    assert "Alone and ESync, outer Nesterov are not told apart: 0.0..56.0 s and > 55.0 s" in line
    assert "x as fast" not in line


def test_without_an_algorithm_at_the_target_none_is_first():
    assert first_line(sync=NEVER, esync=[]) == "no algorithm reached test accuracy 0.80"
    assert first_line(sync=[(0.0, 0.9)]) == "no algorithm reached test accuracy 0.80"  # rounded to whole seconds
    assert "after 8.0 s, ESync was never evaluated; this is one run" in first_line(sync=FAST, esync=[])
