import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from log_tree import FAST, NEVER, SLOW, device, published_device

from algorithms import ENTRIES, LOOKS, OWNERS, PALETTE
from report import device_json, metrics
from report.definitions import MODEL_BYTES
from report.metrics import Event

curves = st.lists(
    st.tuples(st.floats(0.001, 1e5), st.floats(0, 1)), min_size=1, max_size=20, unique_by=lambda point: point[0]
).map(sorted)


# ---------------------------------------------------------------------------------------------------- modes


PUBLISHED = {"esync": "ESync", "sync": "Sync", "async": "Async", "dcasgd": "DCASGD"}


def test_the_published_modes_have_their_folders_and_file_names():
    for name, stem in PUBLISHED.items():
        assert metrics.MODES[name].file_name == f"{stem}.json"
        assert metrics.MODES[f"{name}-niid"].file_name == f"{stem}-Non-IID.json"


def test_every_mode_has_a_file_of_its_own_and_one_worker_alone_only_one_split():
    files = [mode.file_name for mode in metrics.MODES.values()]
    split = [entry for entry in metrics.COMPARED if OWNERS[entry.name].is_distributed]
    assert len(set(files)) == len(files) == len(metrics.COMPARED) + len(split) + 1
    assert metrics.LOCAL.file_name == "Local.json"
    assert {"local-niid", "alone-niid"}.isdisjoint(metrics.MODES)


# What one figure may draw together: every algorithm with every preset, whichever are added to the table.
COLOURS = {entry.title: entry.look.colour for entry in metrics.COMPARED}
FREE = [look for look in PALETTE if look not in [entry.look for entry in metrics.COMPARED]]
COLOURS_TO_COME = {f"look {number} of the palette": look.colour for number, look in enumerate(FREE, 1)}
PAPER = {"white paper": "#FFFFFF"}


def test_no_two_curves_of_a_figure_look_alike_in_black_and_white():
    for part in ("line", "marker", "hatch"):
        values = [getattr(look, part) for look in (*(entry.look for entry in metrics.COMPARED), *FREE)]
        assert len(set(values)) == len(values), part
        assert part != "line" or metrics.STANDALONE.look.line not in values


def linear(colour):
    """Light of the three primaries, from sRGB."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return np.array([part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts])


def cielab(light):
    """Lightness from 0 to 100 and two axes of hue, in which distances are about as large as they look."""
    to_xyz = np.array([[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]])
    x, y, z = np.cbrt(to_xyz @ light.clip(0) / to_xyz.sum(axis=1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


# Vision without one of the three cones (Machado, Oliveira and Fernandes 2009, severity 1).
EYES = {
    "all cones": np.eye(3),
    "no red": np.array([[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]),
    "no green": np.array([[0.3674, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]]),
    "no blue": np.array([[1.2555, -0.0767, -0.1788], [-0.0784, 0.9309, 0.1476], [0.0047, 0.6914, 0.3039]]),
}


def too_alike(colours, eyes):
    """Pairs that these eyes cannot tell apart for certain; a distance of 2 is just noticeable side by side."""
    seen = {title: cielab(EYES[eyes] @ linear(colour)) for title, colour in colours.items()}
    return [
        (one, other)
        for one, other in itertools.combinations(seen, 2)
        if np.linalg.norm(seen[one] - seen[other]) < (30 if other in PAPER else 15)
    ]


@pytest.mark.parametrize("eyes", EYES)
def test_colour_blind_readers_can_tell_the_curves_of_a_figure_apart_and_from_the_paper(eyes):
    assert too_alike({**COLOURS, **COLOURS_TO_COME, **PAPER}, eyes) == []


def test_a_row_without_a_look_of_its_own_has_the_next_of_the_palette():
    drawn = [entry.look for entry in ENTRIES.values() if entry.name not in LOOKS]
    assert drawn == list(PALETTE[: len(drawn)])


# -------------------------------------------------------------------------------------------------- numbers


def test_throughput_is_all_samples_over_the_longest_elapsed_time():
    # (64 + 64) + (192 + 192) = 512 samples; the second worker ends last, after 10 s.
    workers = [device(), device(num_samples_list=[192, 192], elapsed_time_list=[5.0, 10.0])]
    assert metrics.throughput(workers) == 51.2


def counted(pushed, pulled):
    return device(bytes_pushed_list=[pushed] * 2, bytes_pulled_list=[pulled] * 2)


def test_traffic_is_pushed_and_pulled_megabytes_of_all_workers_over_the_run_if_all_have_counted():
    # (1 + 1 + 2 + 2) + (3 + 3 + 4 + 4) = 20 MB in 8 s.
    assert metrics.traffic([counted(1_000_000, 2_000_000), counted(3_000_000, 4_000_000)]) == 2.5
    assert metrics.traffic([counted(1, 1), device()]) is None
    assert metrics.traffic([device(bytes_pushed_list=[1, 1])]) is None


def test_computing_ratio_is_computing_time_over_elapsed_time():
    assert metrics.computing_ratio(device(computing_time_list=[3.0, 3.0])) == 0.75
    assert metrics.computing_ratio(device()) is None


def of_rounds(elapsed_s, **more):
    """A published device with rounds that end at these seconds."""
    lists = dict.fromkeys(("num_samples_list", "self_iters_list", "aggregate_time_list"), [1] * len(elapsed_s))
    return device(**lists, elapsed_time_list=elapsed_s, **more)


def test_published_traffic_is_the_models_size_once_a_worker_and_round():
    # 2 rounds of one worker and 3 of the other: 5 * 4 MB in 10 s.
    other = of_rounds([1.0, 2.0, 10.0])
    assert metrics.published_traffic([device(), other], 4e6) == 2.0
    assert metrics.published_traffic([device(), other], None) is None
    # What the summary says goes before: (2 * 1 + 3 * 4) MB in 10 s.
    assert metrics.published_traffic([device(parameter_bytes=1_000_000), other], 4e6) == 1.4
    # ResNet-18 under SSGD: 45 samples/s in batches of 64 are 31 MB/s in the paper's figures.
    rounds = round(45 / 64 * 1000)
    worker = of_rounds([1000.0 * number / rounds for number in range(1, rounds + 1)])
    assert round(metrics.published_traffic([worker], MODEL_BYTES["resnet18-v1"])) == 31


def test_published_computing_ratio_is_all_but_the_aggregation():
    assert metrics.published_computing_ratio(device()) == 1 - 1.0 / 8.0
    assert metrics.published_computing_ratio(device(elapsed_time_list=[0, 1], aggregate_time_list=[0.6, 0.6])) == 0.0


def test_a_round_below_half_a_second_does_not_cost_the_device():
    its = device_json.read(published_device(4, 0.15), "here", pytest.fail)
    assert [one.elapsed_s for one in its.rounds] == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("workers", "share"),
    [
        ([([60, 40], [0, 5]), ([10, 10], [1, 0])], 6 / 120),  # 5 of 100 and 1 of 20: no mean of the two shares
        ([([60, 40], [0, 6]), ([5, 5], [5, 0])], 11 / 110),
        ([([1, 1], [0, 0]), None], None),  # one did not count
        ([([1, 1], None)], None),
        ([([0, 0], [0, 0])], None),  # there are no steps
    ],
)
def test_the_lost_share_is_that_of_the_steps_of_all_workers(workers, share):
    lists = [dict(zip(("steps_list", "lost_steps_list"), of or (), strict=False)) for of in workers]
    given = [{name: its for name, its in of.items() if its is not None} for of in lists]
    assert metrics.lost_share([device(**of) for of in given]) == share


@pytest.mark.parametrize(
    ("curve", "target", "by_s"),
    # At the target is enough, and nothing is interpolated.
    [(SLOW, 0.8, 24.0), (SLOW, 0.6, 24.0), (SLOW, 0.81, math.inf), ([], 0.1, math.inf)],
)
def test_time_to_accuracy_is_that_of_the_first_evaluation_at_or_above_the_target(curve, target, by_s):
    assert metrics.reached(curve, target).by_s == by_s


def every(step_s, target_s):
    """Evaluations every `step_s` s, at 0.8 from `target_s` on."""
    return [(at, 0.8 if at >= target_s else 0.1) for at in (step_s * number for number in range(1, 200))]


@pytest.mark.parametrize(
    ("curve", "low_s", "by_s"),
    [
        (FAST, 4.0, 8.0),
        ([(60.7, 0.9)], 0.0, 60.7),  # none came before
        (every(1.0, 10.0), 9.0, 10.0),  # nine before
        (every(1.0, 11.0), 11.0, 11.0),  # ten before, and the gap is an eleventh
        ([*((0.5 * n, 0.1) for n in range(1, 21)), (12.0, 0.9)], 10.0, 12.0),  # a gap at the end
        ([*((0.5 * n, 0.1) for n in range(1, 21)), (11.0, 0.9)], 11.0, 11.0),
        ([*((0.1 * n, 0.1) for n in range(1, 5)), (0.41, 0.9)], 0.4, 0.41),  # few, near each other
        (NEVER, math.inf, math.inf),
    ],
)
def test_a_time_to_a_target_is_one_number_only_where_evaluations_are_close(curve, low_s, by_s):
    its = metrics.reached(curve, 0.8)
    assert (its.low_s, its.by_s) == (low_s, by_s)
    virtual = metrics.reached(curve, 0.8, is_virtual=True)
    assert (virtual.low_s, virtual.by_s) == (by_s, by_s)


real_and_virtual = st.tuples(curves, st.booleans())


@given(sides=st.lists(real_and_virtual, min_size=2, max_size=2), target=st.floats(0.01, 1), kept=st.integers(1, 20))
def test_the_order_and_the_factor_of_runs_cut_short_hold_for_the_whole_runs(sides, target, kept):
    """Also between virtual and real ones: where evaluations are left out at the end, less is told, and nothing else."""
    (baseline, is_virtual), (curve, its_virtual) = sides
    whole = [
        metrics.reached(baseline, target, is_virtual=is_virtual),
        metrics.reached(curve, target, is_virtual=its_virtual),
    ]
    cut = [metrics.reached(baseline[:kept], target, is_virtual=is_virtual), whole[1]]
    if not (cut[0].is_apart(cut[1]) and metrics.speed_up(*cut)):
        return
    assert whole[0].is_apart(whole[1])
    gain, cut_gain = metrics.speed_up(*whole), metrics.speed_up(*cut)
    assert gain is None or cut_gain.low <= gain.low * (1 + 1e-9) <= gain.high * (1 + 2e-9) <= cut_gain.high * (1 + 3e-9)


def test_a_time_that_was_rounded_to_0_and_two_runs_that_did_not_arrive_give_no_speed_up():
    slow, never, at_once = (metrics.reached(curve, 0.8) for curve in (SLOW, NEVER, [(0.0, 0.9)]))
    for sides in ((slow, at_once), (at_once, slow), (never, never)):
        assert metrics.speed_up(*sides) is None


def test_the_evaluating_device_is_the_one_with_accuracies_the_longest_of_several_of_which_the_user_is_told():
    devices = {("a", "cpu"): device()}
    assert metrics.evaluating_device(devices, pytest.fail) is None
    devices["a", "gpu3"] = device(accuracy_list=[0.1, 0.2], rank=1)
    assert metrics.evaluating_device(devices, pytest.fail) is devices["a", "gpu3"]
    devices["b", "cpu"] = device(accuracy_list=[0.3], accuracy_time_list=[8.0], rank=0)
    warnings = []
    assert metrics.evaluating_device(devices, warnings.append) is devices["a", "gpu3"]
    assert warnings == ["2 devices have accuracies; those of a/gpu3 are used"]


@pytest.mark.parametrize("kind", ["members", "resume"])
def test_accuracies_of_workers_that_evaluated_in_turn_are_one_curve(kind):
    devices = {
        ("a", "cpu0"): device(rank=0, accuracy_list=[0.2], accuracy_time_list=[6.0], event_list=[[5.0, kind, ""]]),
        ("a", "cpu1"): device(rank=1, accuracy_list=[0.1, 0.3], accuracy_time_list=[4.0, 8.0]),
    }
    found = metrics.evaluating_device(devices, pytest.fail)
    assert found is not None and found.curve == [(4.0, 0.1), (6.0, 0.2), (8.0, 0.3)] and not found.moved
    moved = Event(6.0, "evaluator", "evaluated in the worker from 6 s on")
    devices["a", "cpu1"] = dataclasses.replace(devices["a", "cpu1"], events=[moved])
    assert metrics.evaluating_device(devices, pytest.fail).moved == [moved.text]
    alone = {key: dataclasses.replace(one, rank=0) for key, one in devices.items()}  # each resumed by itself
    assert kind == "members" or metrics.evaluating_device(alone, lambda text: None) is alone["a", "cpu1"]


# -------------------------------------------------------------------------------------------------- devices


@pytest.mark.parametrize(
    ("lists", "curve"),
    [
        ({"accuracy_list": [0.7], "accuracy_time_list": [8.0]}, [(8.0, 0.7)]),
        ({"accuracy_list": [0.5, 0.7]}, [(4.0, 0.5), (8.0, 0.7)]),  # published, with one a round
        ({"accuracy_list": [0.7]}, []),  # not known, and not guessed
    ],
)
def test_the_times_of_the_accuracies_are_taken_from_the_summary(lists, curve):
    assert device(**lists).curve == curve


def test_accuracies_of_every_so_many_rounds_get_the_times_of_those_rounds():
    published = of_rounds([1.0, 2.0, 3.0, 4.0, 5.0], accuracy_list=[0.5, 0.7])
    assert published.curve == []
    assert published.evaluated_every(2).curve == [(2.0, 0.5), (4.0, 0.7)]
    assert published.evaluated_every(1).curve == published.evaluated_every(3).curve == []  # 5 and 1 would be there
    known = device(accuracy_list=[0.5], accuracy_time_list=[8.0])
    assert known.evaluated_every(2) is known


def test_a_device_survives_its_json():
    lists = {"accuracy_list": [0.7], "accuracy_time_list": [8.0], "bytes_pushed_list": [1, 2], "rank": 0}
    lists |= {"steps_list": [3, 4], "lost_steps_list": [0, 1], "event_list": [[4.0, "switch", "BSP to ASP"]]}
    original = device(**lists)
    assert original.events == [Event(4.0, "switch", "BSP to ASP")]
    written = device_json.written(original)
    for more in ({}, {"key of a later version": 1}, {"parameter_bytes": "big"}):
        assert device_json.read(written | more, "here", pytest.fail) == original


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"elapsed_time_list": [4.0]}, "elapsed_time_list has 1 entries, num_samples_list 2"),
        ({"elapsed_time_list": "48"}, "elapsed_time_list is no list"),
        ({"steps_list": [1]}, "steps_list has 1 entries, num_samples_list 2"),
        ({"elapsed_time_list": [0.0, 0.0]}, "the last elapsed time is not above 0"),
        ({"accuracy_list": [0.5], "accuracy_time_list": []}, "the 1 accuracies have other times"),
    ],
)
def test_lists_that_do_not_fit_are_refused(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        device(**change)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"num_samples_list": [64, None]}, "1 of 2 rounds left out, the first is 2: a number in it cannot be"),
        ({"num_samples_list": [float("nan"), 64]}, "1 of 2 rounds left out, the first is 1: a number in it cannot be"),
        ({"steps_list": [1, 1], "lost_steps_list": [0, -1]}, "1 of 2 rounds left out, the first is 2: a number"),
        ({"elapsed_time_list": [8.0, 4.0]}, "the first is 2: total_time is 4 s, after 8 s in round 1"),
        ({"event_list": 3}, "1 event(s) left out: event 3 is not [seconds, kind, text]"),
        ({"event_list": [[4.0, "switch"]]}, "event [4.0, 'switch'] is not [seconds, kind, text]"),
        ({"event_list": [["4", "switch", ""]]}, "event ['4', 'switch', ''] is not [seconds, kind, text]"),
        ({"event_list": [[4.0, "swap", ""]]}, "kind is 'swap', but should be one of members, release, switch, greedy"),
        ({"event_list": [[4.0, "switch", 1]]}, "event [4.0, 'switch', 1] is not [seconds, kind, text]"),
    ],
)
def test_what_cannot_be_is_left_out_and_told_and_the_rest_counts(change, complaint):
    told = []
    its = device(told.append, **change)
    assert len(its.rounds) + len(its.events) == 1 + ("event_list" in change)
    assert len(told) == 1 and told[0].startswith("here: ") and complaint in told[0]
