import pytest
from log_tree import FAST, NETWORK, sync_round, write_device
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import draw
import summary
from algorithms import EVENTS
from report import figures, metrics
from report.figure_set import curve_figures
from report.figures import Marks, place_marks, thinning
from report.metrics import Event
from report.runs import Run

WBSP, WBSP_PCC, SWITCH = (metrics.MODES[name] for name in ("wbsp", "wbsp-pcc", "sync-switch"))


def releases(count):
    return [Event(4.0 + number / 100, "release", "") for number in range(count)]


def accuracy_figure(curves, events):
    figure = Figure()
    figures.draw_curves(figure, {mode: [curve] for mode, curve in curves.items()}, "lenet", None, events)
    return figure


def lines_of(figure, kind):
    return [line for line in figure.axes[0].lines if line.get_label() == f"_{kind}"]


def explained(figure):
    """The texts of the legend below the axes."""
    return [text.get_text() for legend in figure.legends[1:] for text in legend.get_texts()]


def test_a_mark_is_on_the_curve_of_its_mode_at_the_time_of_the_event():
    curves = {SWITCH: [(4.0, 0.5), (8.0, 1.0)], WBSP: FAST}
    events = {SWITCH: [Event(2.0, "resume", ""), Event(5.0, "switch", "BSP to ASP"), Event(7.0, "switch", "")]}
    # 1 s of 4 from 0.5 to 1, then 3 s of 4; before the first evaluation: at its accuracy.
    assert place_marks(curves, events) == [
        Marks(SWITCH, "switch", [(5.0, 0.625), (7.0, 0.875)], every=1),
        Marks(SWITCH, "resume", [(2.0, 0.5)], every=1),
    ]


def test_neither_releases_before_the_first_evaluation_nor_a_mode_without_a_curve_have_marks():
    events = {WBSP: [Event(1.0, "release", ""), Event(4.0, "release", "")]}
    assert place_marks({WBSP: [(4.0, 0.5), (8.0, 1.0)]}, events) == [Marks(WBSP, "release", [(4.0, 0.5)], every=1)]
    assert place_marks({WBSP: FAST, WBSP_PCC: []}, {SWITCH: releases(3), WBSP_PCC: releases(3)}) == []


@pytest.mark.parametrize(
    ("count", "every"), [(0, 1), (30, 1), (31, 2), (60, 2), (61, 5), (150, 5), (300, 10), (301, 20), (100_000, 5000)]
)
def test_many_events_are_thinned_by_a_round_number(count, every):
    assert thinning(count, at_most=30) == every


def test_marks_that_are_large_are_fewer_and_a_rare_one_is_drawn_above_them():
    many = [Event(4.0 + number / 10, "elastic", "") for number in range(24)]
    assert explained(accuracy_figure({SWITCH: FAST}, {SWITCH: many[:12]})) == ["elastic"]
    figure = accuracy_figure({SWITCH: FAST}, {SWITCH: [*many, Event(5.0, "greedy", "")]})
    assert explained(figure) == ["greedy", "elastic (every 2nd)"]
    [elastic], [greedy] = lines_of(figure, "elastic"), lines_of(figure, "greedy")
    assert len(elastic.get_xdata()) == 12
    assert figure.axes[0].lines.index(elastic) < figure.axes[0].lines.index(greedy)


def test_all_curves_of_a_figure_are_thinned_alike_as_the_legend_says():
    few, many = releases(12), releases(300)
    found = place_marks({WBSP: FAST, WBSP_PCC: FAST}, {WBSP: few, WBSP_PCC: many})
    assert [(its.mode, len(its.points), its.every) for its in found] == [(WBSP, 2, 10), (WBSP_PCC, 30, 10)]
    assert [elapsed_s for elapsed_s, _ in found[0].points] == [few[0].elapsed_s, few[10].elapsed_s]


@pytest.mark.parametrize(
    ("count", "text"), [(30, "release"), (31, "release (every 2nd)"), (300, "release (every 10th)")]
)
def test_the_legend_says_how_many_of_the_releases_are_drawn(count, text):
    assert explained(accuracy_figure({WBSP: FAST}, {WBSP: releases(count)})) == [text]


@pytest.mark.parametrize("end_s", [8.0, 1200.0])  # which is an axis in minutes
def test_the_marks_are_in_the_figure_in_the_colour_of_their_curve(end_s):
    curve, event = [(end_s / 2, 0.5), (end_s, 1.0)], Event(0.625 * end_s, "switch", "")
    [line] = lines_of(accuracy_figure({WBSP: FAST, SWITCH: curve}, {SWITCH: [event]}), "switch")
    assert line.get_xydata().tolist() == [[5.0 if end_s == 8.0 else 12.5, 0.625]]
    assert to_hex(line.get_markeredgecolor()) == SWITCH.algorithm.look.colour.lower()
    assert line.get_linestyle() == "None"


def test_each_kind_is_explained_once_in_a_colour_of_no_mode_and_has_a_look_of_its_own():
    events = [Event(5.0, kind, "") for kind in EVENTS]
    figure = accuracy_figure({WBSP: FAST, SWITCH: FAST}, {WBSP: events, SWITCH: events})
    assert explained(figure) == list(EVENTS)
    colours = {to_hex(handle.get_markeredgecolor()) for handle in figure.legends[1].legend_handles}
    assert len(colours) == 1
    assert not colours & {algorithm.look.colour.lower() for algorithm in metrics.COMPARED}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["WBSP", "Sync-Switch"]
    looks = {(line.get_marker(), line.get_markersize()) for kind in EVENTS for line in lines_of(figure, kind)}
    assert len(looks) == len(EVENTS)
    assert len(accuracy_figure({WBSP: FAST}, {}).legends) == 1


def test_only_the_events_of_the_device_that_evaluated_are_drawn(tmp_path):
    event, other = {"kind": "switch", "text": "BSP to ASP"}, {"kind": "greedy", "text": "on another device"}
    folder = tmp_path / NETWORK / "sync-switch"
    write_device(folder / "a" / "cpu", [sync_round(1, 4.0, 0.5), sync_round(2, 8.0, 1.0, events=[event])])
    write_device(folder / "b" / "cpu", [sync_round(1, 6.0, events=[other])])
    assert summary.main(["-b", str(tmp_path), "-n", NETWORK]) == 0
    runs = draw.read_summaries(tmp_path / NETWORK, tmp_path, pytest.fail)
    run = Run(runs, {}, {SWITCH: draw.evaluator(SWITCH, runs[SWITCH], 1, pytest.fail)})
    [(_, curves, draw_on), _] = curve_figures(NETWORK, [run], pytest.fail)
    figure = Figure()
    draw_on(figure, curves)
    assert [line.get_xydata().tolist() for line in lines_of(figure, "switch")] == [[[8.0, 1.0]]]
    assert lines_of(figure, "greedy") == []


def test_an_axis_ends_with_the_longest_curve_and_later_events_are_left_out():
    curves = {SWITCH: FAST, WBSP: [(4.0, 0.5), (10.0, 0.8)]}
    figure = accuracy_figure(curves, {SWITCH: [Event(at, "switch", "") for at in (9.0, 16.0)]})
    assert figure.axes[0].get_xlim() == (0.0, 10.0)
    assert [line.get_xydata().tolist() for line in lines_of(figure, "switch")] == [[[9.0, 0.8]]]
