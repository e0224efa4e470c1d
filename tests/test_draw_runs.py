"""Several runs of the same jobs: their means with intervals; and what accuracy is drawn over beside seconds."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from log_tree import NETWORK, device, evaluated, write_device, write_esync, write_sync
from matplotlib.figure import Figure
from matplotlib.text import Text

import draw
import summary
from report import bars, figures, metrics, tables
from report.figures import band
from report.metrics import Event
from report.runs import X_AXES, Run, by_mode, estimate, mean_ratios
from report.statistics import Estimate
from report.style import style
from utils import SetupError

INF = float("inf")
ESYNC, SYNC = metrics.MODES["esync"], metrics.MODES["sync"]
ACCURACIES = ((0.4, 0.8, 0.75), (0.4, 0.8, 0.8), (0.5, 0.85, 0.85))
pytestmark = pytest.mark.usefixtures("unpainted")


def seeds(base, number=3, esync=3):
    """So many runs of SSGD, of which `esync` have one of ESync too; all summarised."""
    for seed in range(number):
        write_sync(base / f"seed-{seed}", accuracies=ACCURACIES[seed])
        if seed < esync:
            write_esync(base / f"seed-{seed}")
    assert summary.main(["-b", str(base), "-n", NETWORK]) == 0
    return base


def table_of(capsys, base, *arguments):
    """What draw.py prints, and its rows by their first cell."""
    capsys.readouterr()
    assert draw.main(["-b", str(base), "-n", NETWORK, *arguments]) == 0
    out = capsys.readouterr().out
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in out.splitlines()]
    return out, {row[0]: row for row in cells if row}


# ------------------------------------------------------------------------------------------------------- bands


def test_a_mean_is_there_where_all_runs_have_an_accuracy():
    # The second run is evaluated from 2 s on, the first until 5 s; between, each evaluation holds until the next.
    its = band([[(1.0, 0.1), (3.0, 0.3), (5.0, 0.5)], [(2.0, 0.2), (4.0, 0.6), (9.0, 0.9)]])
    assert its.at.tolist() == [2.0, 3.0, 4.0, 5.0]
    assert its.median.tolist() == pytest.approx([(0.1 + 0.2) / 2, (0.3 + 0.2) / 2, (0.3 + 0.6) / 2, (0.5 + 0.6) / 2])


def test_runs_that_were_never_evaluated_at_the_same_time_have_no_mean():
    assert band([[(1.0, 0.1), (2.0, 0.3)], [(3.0, 0.2)]]) is None
    with pytest.raises(ValueError, match="each of them an evaluation"):
        band([[(1.0, 0.1)], []])


def test_of_two_evaluations_at_the_same_place_the_later_counts():
    # Over bytes, a worker may evaluate twice before anything is sent.
    assert band([[(1.0, 0.1), (1.0, 0.3)]]).median.tolist() == [0.3]


@given(
    st.lists(
        st.lists(st.floats(0, 1), min_size=1, max_size=30).map(
            lambda accuracies: [(float(at), accuracy) for at, accuracy in enumerate(accuracies, start=1)]
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_band_holds_its_median_and_lies_between_the_runs(curves):
    its = band(curves)
    least = [min(curve[point][1] for curve in curves) for point in range(len(its.at))]
    greatest = [max(curve[point][1] for curve in curves) for point in range(len(its.at))]
    assert len(its.at) == min(map(len, curves))
    for low, value, high in (
        (its.low, its.median, its.high),
        (least, its.low, its.high),
        (its.low, its.high, greatest),
    ):
        assert (np.array(low) <= np.array(value) + 1e-9).all()
        assert (np.array(value) <= np.array(high) + 1e-9).all()


def test_a_band_of_many_evaluations_is_thinned_out():
    curve = [(float(at), 0.5) for at in range(5000)]
    its = band([curve, curve])
    assert len(its.at) == 1000
    assert (its.at[0], its.at[-1]) == (0.0, 4999.0)


# -------------------------------------------------------------------------------------------------- what is drawn


def test_medians_are_drawn_in_their_bands_and_two_runs_as_they_are():
    runs = {
        ESYNC: [[(1.0, 0.1 * n), (2.0, 0.2 * n)] for n in (1, 2, 3)],
        SYNC: [[(1.0, 0.1), (2.0, 0.2)], [(1.0, 0.2), (3.0, 0.3)]],
    }
    with style():
        figure = Figure()
        figures.draw_curves(figure, runs, "lenet, i.i.d.", None)
        figure.draw_without_rendering()
    (axes,) = figure.axes
    middle, first, second = axes.lines
    assert list(middle.get_ydata()) == pytest.approx([0.2, 0.4])
    assert (middle.get_color(), middle.get_drawstyle()) == (ESYNC.algorithm.look.colour, "steps-post")
    (area,) = axes.collections
    assert area.get_paths()[0].get_extents().y0 == pytest.approx(0.1)
    assert area.get_paths()[0].get_extents().y1 == pytest.approx(0.6)
    assert [list(line.get_ydata()) for line in (first, second)] == [[0.1, 0.2], [0.2, 0.3]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ESync", "SSGD"]
    title = axes.get_title(loc="left")
    assert " ".join(title.split()) == (
        "lenet, i.i.d.: median of 3 runs, with its interval; single runs where there are fewer than 3"
    )
    (drawn,) = axes.findobj(lambda artist: isinstance(artist, Text) and artist.get_text() == title)
    assert drawn.get_window_extent().x1 <= figure.bbox.x1  # all of it can be read


def test_bars_of_means_have_the_ends_of_their_intervals():
    figure = Figure()
    bars.draw_bars(figure, {ESYNC: Estimate(50.0, 40.0, 55.0), SYNC: 10.0}, "lenet", "data throughput")
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == [50.0, 10.0]
    (line,) = axes.collections
    assert line.get_segments()[0][:, 0].tolist() == [40.0, 55.0]


def test_what_a_run_lacks_has_no_mean():
    assert estimate([1.0, None, 2.0]) is None
    assert estimate([1.0, 2.0]) == 1.5
    assert estimate([1.0, 2.0, 3.0]).value == 2.0
    cpu, gpu = ("a", "cpu"), ("a", "gpu0")
    assert mean_ratios([{cpu: 0.5, gpu: 0.1}, {cpu: 0.7}]) == {cpu: pytest.approx(0.6)}


# ---------------------------------------------------------------------------------------------------------- axes


def two_devices():
    """The first ends rounds after 4 and 8 s, the second after 3 and 12 s."""
    counted = {"bytes_pushed_list": [10, 20], "bytes_pulled_list": [1, 2]}
    return {
        ("a", "cpu0"): device(accuracy_list=[0.5, 0.6], accuracy_time_list=[4.0, 8.0], **counted),
        ("a", "cpu1"): device(elapsed_time_list=[3.0, 12.0], num_samples_list=[32, 100], **counted),
    }


@pytest.mark.parametrize(
    ("name", "places"),
    [("seconds", [4.0, 8.0]), ("rounds", [1, 2]), ("samples", [64 + 32, 128 + 32]), ("bytes", [11 + 11, 33 + 11])],
)
def test_an_accuracy_stands_at_what_all_had_done_by_then(name, places):
    devices = two_devices()
    curve, events = X_AXES[name].curve(devices, devices["a", "cpu0"], [Event(8.0, "switch", "")])
    assert curve == list(zip(places, [0.5, 0.6], strict=True))
    assert events == [Event(places[1], "switch", "")]


def test_what_the_logs_do_not_count_is_told_and_left_out():
    devices, warnings = two_devices() | {("a", "cpu1"): device()}, []
    run = Run({SYNC: devices}, {}, {SYNC: devices["a", "cpu0"]})
    assert run.drawn_over(X_AXES["bytes"], warnings.append) == ({}, {})
    its = "accuracy over pushed and pulled by all workers: its logs do not count that"
    assert warnings == [f"SSGD left out of the {its}"]


@pytest.mark.parametrize(
    ("name", "longest", "label"),
    [
        ("seconds", 600.0, "time (s)"),
        ("seconds", 601.0, "time (min)"),
        ("rounds", 1e6, "rounds of the worker that evaluates"),
        ("samples", 500.0, "samples of all workers"),
        ("samples", 2e6, "samples of all workers (thousand)"),
        ("bytes", 5e9, "pushed and pulled by all workers (MB)"),
        ("bytes", 5e10, "pushed and pulled by all workers (GB)"),
    ],
)
def test_an_axis_has_a_unit_that_can_be_read(name, longest, label):
    assert X_AXES[name].unit(longest)[0] == label


# ----------------------------------------------------------------------------------------------- the whole program


def test_the_runs_of_three_seeds_are_one_table_and_one_set_of_figures(tmp_path, capsys):
    out, rows = table_of(capsys, seeds(tmp_path), "--over", "seconds", "rounds")
    assert rows["mode"][:4] == ["mode", "runs", "samples/s", "MB/s"]
    assert rows["ESync"][1:3] == ["3", "51.2 (51.2 to 51.2)"]
    assert "0.80 (0.75 to 0.85)" in rows["SSGD"]  # of 0.75, 0.80 and 0.85 in the end
    assert "ESync, i.i.d.: 1.5..6.0x (1.5 to 6.0), median of 3 pairs of runs" in out.splitlines()
    assert "median (interval that covers it with 75 %) of 3 runs; computing ratio" in out
    drawn = {path.stem for path in (tmp_path / "figures" / NETWORK).glob("*.png")}
    assert drawn == {"accuracy-iid-over-rounds", "accuracy-iid", "computing-time", "throughput", "traffic"}


def test_a_mode_that_not_all_seeds_have_shows_how_many(tmp_path, capsys):
    out, rows = table_of(capsys, seeds(tmp_path, esync=2))
    assert rows["ESync"][1:3] == ["2", "51.2"]
    assert "; from the least to the greatest of fewer than 3 runs;" in out
    assert "ESync, i.i.d.: 1.5..6.0x, by the medians of 2 and 3 runs" in out


def test_runs_that_did_not_reach_the_target_are_counted_not_averaged(tmp_path, capsys):
    out, rows = table_of(capsys, seeds(tmp_path), "--target", "0.85")
    assert "1 of 3" in rows["SSGD"]
    assert "ESync, i.i.d.: unknown: 0 of 3 runs of ESync and 1 of 3 runs of SSGD reached it" in out


@pytest.mark.parametrize(
    ("seconds", "least", "text"),
    [
        ([10.0, 12.0, 14.0, 16.0, INF], None, "14 (10 to -), 4 of 5"),
        ([10.0, INF], None, "1 of 2"),
        ([10.0, 12.0], None, "10.0..12.0"),
        # The median of the runs is between those of the ends, and its interval spans both ends' intervals.
        ([10.0, 12.0, 14.0, 16.0, INF], [8.0, 11.0, 9.0, 16.0, INF], "11..14 (8 to -), 4 of 5"),
        ([100.0, 120.0, 140.0], [100.0, 60.0, 140.0], "100..120 (60 to 140)"),
        ([10.0], [8.0], "8.0..10.0"),
    ],
)
def test_the_median_of_times_is_said_with_how_many_runs_came_there(seconds, least, text):
    assert tables.times_text(seconds, *([least] if least else [])) == text


def speed_up_lines(**runs):
    """Of the curves of each mode's runs."""
    number = max(map(len, runs.values()))
    found = [
        metrics.times_of({metrics.MODES[name]: its[run] for name, its in runs.items() if run < len(its)}, 0.8)
        for run in range(number)
    ]
    return tables.speed_up_lines(found, 0.8)


def grid(*steps, **more):
    """A run a step: evaluated at so many seconds, and at 0.8 after the twelfth such step."""
    return [evaluated([(step * n, 0.8 if n == 12 else 0.1) for n in range(1, 13)], **more) for step in steps]


COARSE = [evaluated([(4.0, 0.1), (at, 0.8)]) for at in (6.0, 6.0, 12.0)]


@pytest.mark.parametrize(
    ("sync", "esync", "says"),
    [
        (grid(2, 2, 2), grid(1, 1, 1), "2.00x (2.00 to 2.00), median of 3 pairs of runs"),
        (grid(1, 1, 1), COARSE, "2.0..3.0x (1.0 to 3.0), median of 3 pairs of runs"),
        (grid(0.5, 0.5, 0.5), COARSE[:2], "1.0..1.5x, by the medians of 2 and 3 runs"),
        (grid(0.4, 0.4, 0.4), COARSE,
         "ESync and SSGD are not told apart: 4.0..6.0 (4.0 to 12.0) s and 4.80 (4.80 to 4.80) s"),
        (grid(2, 2, 2), grid(1, 1, 1, event_list=[[1.0, "evaluator", "late"]]),
         "ESync and SSGD are not told apart: 12.0 (12.0 to 12.0) s and 24.0 (24.0 to 24.0) s, and ESync alone was in "
         "part evaluated in the worker"),
    ],
)  # fmt: skip
def test_a_speed_up_of_several_runs_is_a_range_where_their_evaluations_are_far_apart(sync, esync, says):
    assert speed_up_lines(sync=sync, esync=esync) == [f"ESync, i.i.d.: {says}"]


def test_one_tree_beside_those_of_seeds_is_taken_and_the_others_are_told_of(tmp_path):
    seeds(tmp_path, 2)
    with pytest.raises(SetupError, match="holds seed-0"):  # of another network
        summary.find_runs(tmp_path, "mlp", pytest.fail)
    write_sync(tmp_path)
    warnings = []
    assert summary.find_runs(tmp_path, NETWORK, warnings.append) == [tmp_path / NETWORK]
    assert warnings == [f"{tmp_path} holds {NETWORK} and 2 seed-N with it: the former is taken; move it elsewhere"]


def test_a_seed_whose_logs_are_broken_costs_only_itself(tmp_path, capsys):
    write_sync(tmp_path / "seed-0")
    write_device(tmp_path / "seed-1" / NETWORK / "sync" / "a" / "cpu", [])
    assert summary.main(["-b", str(tmp_path), "-n", NETWORK]) == 0
    assert f"warning: {tmp_path}/seed-1/{NETWORK}/sync holds no readable round log" in capsys.readouterr().err


def test_modes_are_in_the_order_of_the_table():
    assert by_mode([{SYNC: 1}, {SYNC: 2, ESYNC: 3}]) == {ESYNC: [3], SYNC: [1, 2]}
