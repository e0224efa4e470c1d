from log_tree import FAST, NEVER, SLOW, device

from report import definitions as definitions_of
from report import metrics, tables


def speed_up_line(target=0.8, **named_curves):
    found = {metrics.MODES[name.replace("_", "-")]: curve for name, curve in named_curves.items()}
    return tables.speed_up_lines(found, target)


def test_a_speed_up_is_said_with_the_times_behind_it():
    assert speed_up_line(esync=FAST, sync=SLOW) == ["ESync, i.i.d.: 3.0x (ESync 8.0 s, SSGD 24.0 s)"]


def test_a_lower_bound_is_rounded_down_and_says_why():
    # 25.2 s / 8 s is 3.15: "> 3.2x" would be a claim too many.
    [line] = speed_up_line(esync=FAST, sync=[(25.2, 0.7)])
    assert line == "ESync, i.i.d.: > 3.1x: SSGD had not reached 0.80 after 25.2 s (ESync 8.0 s)"


def test_an_upper_bound_is_rounded_up_and_says_why():
    [line] = speed_up_line(esync=[(15.5, 0.7)], sync=SLOW)  # 24 s / 15.5 s is 1.548
    assert line == "ESync, i.i.d.: < 1.6x: ESync had not reached 0.80 after 15.5 s (SSGD 24.0 s)"


def test_a_slow_down_keeps_two_decimals():
    assert speed_up_line(esync=[(96.0, 0.9)], sync=[(6.0, 0.9)])[0].startswith("ESync, i.i.d.: 0.06x")


def test_a_target_that_no_run_reached_is_reported_with_the_best_accuracies():
    [line] = speed_up_line(esync=FAST, sync=NEVER, target=0.925)
    assert line == "ESync, i.i.d.: unknown: neither reached 0.925; at best ESync 0.8000, SSGD 0.6000"


def test_each_split_is_compared_with_ssgd_on_the_same_split():
    lines = speed_up_line(esync=FAST, sync=SLOW, esync_niid=FAST, async_niid=[], sync_niid=FAST, local=FAST)
    assert lines == [
        "ESync, i.i.d.: 3.0x (ESync 8.0 s, SSGD 24.0 s)",
        "ESync, non-i.i.d.: 1.0x (ESync 8.0 s, SSGD 8.0 s)",
        "ASGD, non-i.i.d.: unknown: ASGD has no accuracies",
    ]


def test_a_time_that_was_rounded_to_0_is_not_compared():
    [line] = speed_up_line(esync=[(0.0, 0.9)], sync=SLOW)
    assert line == "ESync, i.i.d.: unknown: a time to 0.80 is 0 s, rounded to whole seconds in the summary"


def test_without_ssgd_there_is_nothing_to_compare_with():
    assert speed_up_line(esync=FAST) == ["ESync, i.i.d.: unknown: no summary of SSGD on i.i.d. data"]


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
    assert table(runs, "measured") == [
        "mode             rounds  samples/s  MB/s  final acc.  best acc.  s to 0.80  computing ratio  lost",
        "ESync                 2       16.0  2.00      0.8000     0.8000        8.0             0.75  1.3%",
        "SSGD non-i.i.d.    1..2       16.1     -      0.6000     0.6000     > 10.0                -     -",
        MEASURED,
    ]
    # By the published definitions ESync has 2 * 2 MB in 8 s, SSGD 3 * 2 MB; aggregation took 1 s, and 0.5 s.
    assert table(runs, "auto", 2_000_000) == [
        "mode             rounds  samples/s   MB/s  final acc.  best acc.  s to 0.80  computing ratio  lost",
        "ESync                 2       16.0   2.00      0.8000     0.8000        8.0             0.75  1.3%",
        "SSGD non-i.i.d.    1..2       16.1  0.75*      0.6000     0.6000     > 10.0      0.88..0.94*     -",
        MEASURED,
        AS_PUBLISHED,
    ]
    assert table(runs, "published", 2_000_000) == [
        "mode             rounds  samples/s   MB/s  final acc.  best acc.  s to 0.80  computing ratio  lost",
        "ESync                 2       16.0  0.50*      0.8000     0.8000        8.0            0.88*  1.3%",
        "SSGD non-i.i.d.    1..2       16.1  0.75*      0.6000     0.6000     > 10.0      0.88..0.94*     -",
        AS_PUBLISHED,
    ]
    assert table(runs, "published")[3:] == ["* as published: computing ratio = 1 - aggregation / elapsed time"]


MEASURED = "MB/s = bytes pushed and pulled; computing ratio = time of batches, passes and local updates / elapsed time"
AS_PUBLISHED = (
    "* as published: MB/s = the model's size once a worker and round; computing ratio = 1 - aggregation / elapsed time"
)


def table(runs, definitions, model_bytes=None):
    numbers = {mode: definitions_of.numbers(devices, definitions, model_bytes) for mode, devices in runs.items()}
    return tables.table(runs, numbers, dict(zip(runs, (FAST, NEVER), strict=True)), 0.8).splitlines()


def first_line(**named_curves):
    found = {metrics.MODES[name.replace("_", "-")]: curve for name, curve in named_curves.items()}
    return tables.first_line(found, 0.8)


def test_the_first_is_named_with_how_many_times_as_fast_it_was_as_each_of_the_others_in_this_one_run():
    line = first_line(sync=NEVER, alone=SLOW, esync=[(16.0, 0.8)], esync_outer=FAST)
    assert line == (
        "ESync, outer Nesterov was first: test accuracy 0.80 after 8.0 s, 2.0x as fast as ESync (16.0 s), "
        f"3.0x as fast as Alone (24.0 s), > {NEVER[-1][0] / 8:.1f}x as fast as SSGD (not within {NEVER[-1][0]:.1f} s); "
        "this is one run of one seed: another day may order them otherwise"
    )


def test_without_an_algorithm_at_the_target_none_is_first():
    assert first_line(sync=NEVER, esync=[]) == "no algorithm reached test accuracy 0.80"
    assert "after 8.0 s, ESync was never evaluated; this is one run" in first_line(sync=FAST, esync=[])
