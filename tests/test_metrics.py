import pytest
from hypothesis import given
from hypothesis import strategies as st

import metrics
from metrics import Device, SpeedUp

SLOW = [(12.0, 0.4), (24.0, 0.8), (36.0, 0.75)]
FAST = [(4.0, 0.5), (8.0, 0.8)]
NEVER = [(5.0, 0.3), (10.0, 0.6)]
curves = st.lists(
    st.tuples(st.floats(0.001, 1e5), st.floats(0, 1)), min_size=1, max_size=20, unique_by=lambda point: point[0]
).map(sorted)


def device(**lists):
    lists = {
        "accuracy_list": [], "num_samples_list": [64, 64], "self_iters_list": [1, 1],
        "elapsed_time_list": [4.0, 8.0], "aggregate_time_list": [0.5, 0.5],
    } | lists  # fmt: skip
    return Device(**lists)


# ---------------------------------------------------------------------------------------------------- modes


def test_every_mode_has_its_published_folder_and_file_name():
    assert {name: mode.file_name for name, mode in metrics.MODES.items()} == {
        "esync": "ESync.json",
        "sync": "Sync.json",
        "async": "Async.json",
        "dcasgd": "DCASGD.json",
        "esync-niid": "ESync-Non-IID.json",
        "sync-niid": "Sync-Non-IID.json",
        "async-niid": "Async-Non-IID.json",
        "dcasgd-niid": "DCASGD-Non-IID.json",
        "ssp": "SSP.json",
        "ssp-niid": "SSP-Non-IID.json",
        "local-sgd": "LocalSGD.json",
        "local-sgd-niid": "LocalSGD-Non-IID.json",
        "wbsp": "WBSP.json",
        "wbsp-niid": "WBSP-Non-IID.json",
        "wbsp-pcc": "WBSP-PCC.json",
        "wbsp-pcc-niid": "WBSP-PCC-Non-IID.json",
        "sync-switch": "SyncSwitch.json",
        "sync-switch-niid": "SyncSwitch-Non-IID.json",
        "local": "Local.json",
    }


def test_no_two_algorithms_look_alike_in_colour_or_in_black_and_white():
    for looks in ("colour", "line", "marker", "hatch"):
        values = [getattr(algorithm, looks) for algorithm in metrics.DISTRIBUTED]
        assert len(set(values)) == len(values), looks


# -------------------------------------------------------------------------------------------------- numbers


def test_throughput_is_all_samples_over_the_longest_elapsed_time():
    # (64 + 64) + (192 + 192) = 512 samples; the second worker ends last, after 10 s.
    workers = [device(), device(num_samples_list=[192, 192], elapsed_time_list=[5.0, 10.0])]
    assert metrics.throughput(workers) == 51.2


def test_traffic_is_pushed_and_pulled_megabytes_of_all_workers_over_the_run():
    # (1 + 1 + 2 + 2) + (3 + 3 + 4 + 4) = 20 MB in 8 s.
    workers = [
        device(bytes_pushed_list=[1_000_000] * 2, bytes_pulled_list=[2_000_000] * 2),
        device(bytes_pushed_list=[3_000_000] * 2, bytes_pulled_list=[4_000_000] * 2),
    ]
    assert metrics.traffic(workers) == 2.5


def test_traffic_is_unknown_where_one_worker_did_not_count():
    assert metrics.traffic([device(bytes_pushed_list=[1, 1], bytes_pulled_list=[1, 1]), device()]) is None
    assert metrics.traffic([device(bytes_pushed_list=[1, 1])]) is None


def test_computing_ratio_is_computing_time_over_elapsed_time():
    assert metrics.computing_ratio(device(computing_time_list=[3.0, 3.0])) == 0.75
    assert metrics.computing_ratio(device()) is None


def test_time_to_accuracy_is_that_of_the_first_evaluation_at_or_above_the_target():
    assert metrics.time_to_accuracy(SLOW, 0.8) == 24.0  # at the target is enough
    assert metrics.time_to_accuracy(SLOW, 0.6) == 24.0  # nothing is interpolated
    assert metrics.time_to_accuracy(SLOW, 0.81) is None
    assert metrics.time_to_accuracy([], 0.1) is None


def test_speed_up_is_the_ratio_of_the_times_to_accuracy():
    assert metrics.speed_up(SLOW, FAST, 0.8) == SpeedUp(3.0, "")


def test_a_baseline_that_did_not_arrive_gives_a_lower_bound():
    assert metrics.speed_up(NEVER, FAST, 0.8) == SpeedUp(1.25, ">")  # more than 10 s / 8 s


def test_a_run_that_did_not_arrive_gives_an_upper_bound():
    assert metrics.speed_up(SLOW, NEVER, 0.8) == SpeedUp(2.4, "<")  # 24 s / more than 10 s


def test_two_runs_that_did_not_arrive_have_no_speed_up():
    assert metrics.speed_up(NEVER, NEVER, 0.8) is None
    assert metrics.speed_up([], FAST, 0.8) is None
    assert metrics.speed_up(SLOW, [], 0.8) is None


@given(baseline=curves, curve=curves, target=st.floats(0.01, 1), kept=st.integers(1, 20))
def test_the_bounds_of_runs_cut_short_hold_for_the_whole_runs(baseline, curve, target, kept):
    whole = metrics.speed_up(baseline, curve, target)
    if whole is None or whole.bound:
        return
    cut = metrics.speed_up(baseline[:kept], curve, target)
    assert cut is not None
    assert cut.factor <= whole.factor
    assert cut.bound == ("" if metrics.time_to_accuracy(baseline[:kept], target) else ">")
    cut = metrics.speed_up(baseline, curve[:kept], target)
    assert cut is not None
    assert cut.factor >= whole.factor


def test_the_evaluating_device_is_the_one_with_accuracies():
    devices = {("a", "cpu"): device(), ("b", "gpu3"): device(accuracy_list=[0.1, 0.2])}
    assert metrics.evaluating_device(devices, pytest.fail) is devices["b", "gpu3"]
    assert metrics.evaluating_device({("a", "cpu"): device()}, pytest.fail) is None


def test_of_several_devices_with_accuracies_rank_0_counts_and_the_user_is_told():
    warnings = []
    devices = {
        ("a", "cpu"): device(accuracy_list=[0.1, 0.2], rank=1),
        ("b", "cpu"): device(accuracy_list=[0.3], accuracy_time_list=[8.0], rank=0),
    }
    assert metrics.evaluating_device(devices, warnings.append) is devices["b", "cpu"]
    assert warnings == ["2 devices have accuracies; those of b/cpu are used"]


# -------------------------------------------------------------------------------------------------- devices


def test_the_times_of_the_accuracies_are_taken_from_the_summary():
    assert device(accuracy_list=[0.7], accuracy_time_list=[8.0]).curve == [(8.0, 0.7)]


def test_published_summaries_with_an_accuracy_a_round_need_no_times_of_their_own():
    assert device(accuracy_list=[0.5, 0.7]).curve == [(4.0, 0.5), (8.0, 0.7)]


def test_times_that_are_not_known_are_not_guessed():
    assert device(accuracy_list=[0.7]).curve == []


def test_a_device_survives_its_json():
    original = device(accuracy_list=[0.7], accuracy_time_list=[8.0], bytes_pushed_list=[1, 2], rank=0)
    assert Device.from_json(original.to_json()) == original
    assert Device.from_json(original.to_json() | {"key of a later version": 1}) == original


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"elapsed_time_list": [4.0]}, "num_samples_list has 2 entries, elapsed_time_list 1"),
        ({"elapsed_time_list": "48"}, "elapsed_time_list is not a list of numbers from 0 on"),
        ({"num_samples_list": [64, None]}, "num_samples_list is not a list of numbers from 0 on"),
        ({"num_samples_list": [64, float("nan")]}, "num_samples_list is not a list of numbers from 0 on"),
        ({"elapsed_time_list": [0.0, 8.0]}, "an elapsed time is not above 0"),
        ({"accuracy_list": [0.5], "accuracy_time_list": []}, "accuracy_time_list has 0 entries, accuracy_list 1"),
    ],
)
def test_lists_that_do_not_fit_are_refused(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        device(**change)


# --------------------------------------------------------------------------------------------------- tables


def speed_up_line(target=0.8, **named_curves):
    found = {metrics.MODES[name.replace("_", "-")]: curve for name, curve in named_curves.items()}
    return metrics.speed_up_lines(found, target)


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


def test_nobody_at_the_target_is_said_with_the_best_accuracies():
    [line] = speed_up_line(esync=FAST, sync=NEVER, target=0.925)
    assert line == "ESync, i.i.d.: unknown: neither reached 0.925; at best ESync 0.8000, SSGD 0.6000"


def test_each_split_is_compared_with_ssgd_on_the_same_split():
    lines = speed_up_line(esync=FAST, sync=SLOW, esync_niid=FAST, async_niid=[], sync_niid=FAST, local=FAST)
    assert lines == [
        "ESync, i.i.d.: 3.0x (ESync 8.0 s, SSGD 24.0 s)",
        "ESync, non-i.i.d.: 1.0x (ESync 8.0 s, SSGD 8.0 s)",
        "ASGD, non-i.i.d.: unknown: ASGD has no accuracies",
    ]


def test_without_ssgd_there_is_nothing_to_compare_with():
    assert speed_up_line(esync=FAST) == ["ESync, i.i.d.: unknown: no summary of SSGD on i.i.d. data"]


def test_the_table_is_aligned_and_marks_what_is_unknown():
    esync, sync = metrics.MODES["esync"], metrics.MODES["sync-niid"]
    known = device(computing_time_list=[3.0, 3.0], bytes_pushed_list=[8_000_000] * 2, bytes_pulled_list=[0, 0])
    short = device(num_samples_list=[1], elapsed_time_list=[8.0], self_iters_list=[1], aggregate_time_list=[0.5])
    runs = {esync: {("a", "cpu"): known}, sync: {("a", "cpu"): device(), ("b", "cpu"): short}}
    assert metrics.table(runs, {esync: FAST, sync: NEVER}, 0.8).splitlines() == [
        "mode             rounds  samples/s  MB/s  final acc.  best acc.  s to 0.80  computing ratio",
        "ESync                 2       16.0  2.00      0.8000     0.8000        8.0             0.75",
        "SSGD non-i.i.d.    1..2       16.1     -      0.6000     0.6000     > 10.0                -",
    ]
