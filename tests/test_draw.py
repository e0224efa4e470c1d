import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial

import matplotlib as mpl
import pytest
from log_tree import (
    NETWORK,
    ROOT,
    run_program,
    six_published_devices,
    sync_round,
    write_device,
    write_esync,
    write_published,
    write_sync,
)
from matplotlib import image
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

import draw
import summary
from algorithms import ENTRIES, EVENTS
from esync.metric import ACCURACY
from report import bars, figure_set, figures, metrics
from report.definitions import RATIO, TRAFFIC, published_note
from report.metrics import Event, Mode
from report.runs import SECONDS
from report.style import WIDTHS, style

FIGURES = ("accuracy-iid", "accuracy-non-iid", "throughput", "traffic", "computing-time")
ESYNC, SYNC = (metrics.MODES[name] for name in ("esync", "sync"))
pytestmark = pytest.mark.usefixtures("unpainted")


@pytest.fixture
def tree(tmp_path):
    """ESync with every extra, and SSGD as the published program logs it; both summarised."""
    write_esync(tmp_path)
    write_sync(tmp_path)
    return summarise(tmp_path)


@pytest.fixture(scope="module")
def real_run(tmp_path_factory):
    """One run of the program as a user without a display starts it, on such a tree with an old figure in it."""
    base = tmp_path_factory.mktemp("logs")
    write_esync(base)
    write_sync(base)
    old = summarise(base) / NETWORK / "figures" / "accuracy-non-iid.png"
    old.parent.mkdir()
    old.write_text("of an earlier run")
    headless = {name: value for name, value in os.environ.items() if not name.endswith(("DISPLAY", "MPLBACKEND"))}
    environment = headless | {"SOURCE_DATE_EPOCH": "now"}
    return base, run_program("draw.py", "-b", base, "-n", NETWORK, "--show", environment=environment)


def summarise(base):
    assert summary.main(["-b", str(base), "-n", NETWORK]) == 0
    return base


def draw_all(base, *arguments):
    return draw.main(["-b", str(base), "-n", NETWORK, *arguments])


def row_of(out, title):
    """The cells of a mode's line in the table."""
    return next(line for line in out.splitlines() if line.startswith(f"{title} ")).split()


def saved(base):
    return sorted(path.name for path in (base / NETWORK / "figures").iterdir())


def files(*figures):
    return sorted(f"{name}.{kind}" for name in figures for kind in ("png", "pdf"))


# --------------------------------------------------------------------------------------------------- printed


def test_the_table_holds_the_numbers_worked_by_hand(real_run):
    _, result = real_run
    lines = result.stdout.splitlines()
    at = lines.index(NETWORK)
    # ESync: 512 samples and 16 MB in 10 s. SSGD: 384 samples in 36 s, 0.75 of 12 s computing; its bytes were not
    # counted, so 6 times the 246,824 bytes of LeNet.
    assert lines[at + 1 : at + 6] == [
        "mode   rounds  samples/s   MB/s  final acc.  best acc.   s to 0.80  computing ratio  lost",
        "ESync       2       51.2   1.60      0.8000     0.8000    4.0..8.0       0.20..0.75  0.0%",
        "SSGD        3       10.7  0.04*      0.7500     0.8000  12.0..24.0             0.06  0.0%",
        "MB/s = bytes pushed and pulled; computing ratio = time of batches, passes and local updates / elapsed time",
        "* as published: MB/s = the model's size once a worker and round",
    ]
    assert "no logs of" not in result.stdout
    assert "ESync, i.i.d.: 1.5..6.0x (ESync 4.0..8.0 s, SSGD 12.0..24.0 s)" in lines


def test_modes_can_be_chosen_and_those_without_logs_are_named(tree, capsys):
    assert draw_all(tree, "-m", "esync,dcasgd") == 0
    out = capsys.readouterr().out
    assert "no logs of: dcasgd" in out.splitlines()
    assert "\nSSGD " not in out
    with pytest.raises(SystemExit, match="2"):
        draw_all(tree, "-m", "esync,fast")
    assert "'fast' is no mode; choose from esync," in capsys.readouterr().err


@pytest.mark.parametrize("target", ["-0.5", "1.5", "nan", "high"])
def test_a_target_that_is_no_accuracy_is_refused(tree, capsys, target):
    try:
        code = draw_all(tree, "--target", target)
    except SystemExit as end:  # no number at all
        code = end.code
    assert code == 2
    assert target in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------- figures


def test_a_full_tree_gives_five_figures_as_png_and_pdf(tmp_path, capsys, monkeypatch):
    monkeypatch.undo()  # paints
    for split in ("", "-niid"):
        write_esync(tmp_path, f"esync{split}")
        for mode in ("sync", "async", "dcasgd"):
            write_sync(tmp_path, f"{mode}{split}")
    write_device(tmp_path / NETWORK / "local" / "alpha" / "gpu0", [sync_round(1, 1.0, 0.9)])
    summarise(tmp_path)
    capsys.readouterr()
    out = tmp_path / "paper" / "figures"
    assert draw_all(tmp_path, "-o", str(out)) == 0
    printed = capsys.readouterr().out.splitlines()
    blue = [int(ENTRIES["esync"].look.colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    for name in FIGURES:
        pixels = image.imread(out / f"{name}.png")
        assert min(pixels.shape[:2]) > 400
        assert (abs(pixels[..., :3] - blue).max(axis=-1) < 0.01).sum() > 100, f"{name} shows nothing of ESync"
        text = (out / f"{name}.pdf").read_bytes()
        assert text.startswith(b"%PDF-") and text.rstrip().endswith(b"%%EOF") and len(text) > 5000
        assert {f"{out}/{name}.png", f"{out}/{name}.pdf"} <= set(printed)


def test_the_same_numbers_give_the_same_files_whatever_the_users_settings_are(tmp_path, monkeypatch):
    monkeypatch.undo()  # paints
    curves = {ESYNC: [[(4.0, 0.5)]]}
    one = ("one", curves, partial(figures.draw_curves, title="$ is no formula", standalone=0.9, target=0.8))
    of_the_user = {"text.usetex": True, "font.size": 22, "axes.facecolor": "yellow", "legend.loc": "center"}
    for run, settings in (("first", {}), ("second", of_the_user)):
        (tmp_path / run).mkdir()
        with mpl.rc_context(settings), style():
            figure_set.save_figures([one], tmp_path / run, str)
    for name in ("one.png", "one.pdf"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_a_figure_without_numbers_is_left_out_and_its_old_file_goes(real_run):
    base, result = real_run
    assert "no figure accuracy-non-iid: the logs have no numbers for it" in result.stdout
    assert saved(base) == files(*(name for name in FIGURES if "non" not in name))


def test_the_standalone_accuracy_is_a_dotted_line_and_the_target_a_dashed_one():
    figure = Figure()
    figures.draw_curves(figure, {ESYNC: [[(4.0, 0.5), (8.0, 0.7)]]}, "lenet", 0.926, target=0.8)
    curve, *lines = figure.axes[0].lines
    assert curve.get_xydata().tolist() == [[4.0, 0.5], [8.0, 0.7]]
    assert [(line.get_linestyle(), set(line.get_ydata()), line.get_label()) for line in lines] == [
        (":", {0.926}, "Standalone (0.926)"),
        ("--", {0.8}, "target (0.80)"),
    ]
    assert figure.axes[0].get_title(loc="left") == "lenet"
    low, high = figure.axes[0].get_ylim()
    assert low < 0.5 and high > 0.926


@pytest.mark.parametrize(("ended", "has_line"), [("test accuracy 0.9000 reached 0.9", False), ("2 rounds done", True)])
def test_a_standalone_run_that_ended_at_its_target_has_no_line(tree, capsys, monkeypatch, ended, has_line):
    found = []
    monkeypatch.setattr(draw, "save_figures", lambda figures, *others: found.extend(figures))
    write_device(tree / NETWORK / "local" / "a" / "cpu", [sync_round(1, 1.0, 0.9)], {"rank": 0, "ended": ended})
    assert draw_all(summarise(tree)) == 0
    figure = Figure()
    found[0][2](figure, found[0][1])
    assert ("Standalone (0.900)" in [line.get_label() for line in figure.axes[0].lines]) == has_line
    assert ("Standalone ended at its target" in capsys.readouterr().err) != has_line


@pytest.mark.parametrize(("end_s", "label", "end"), [(600.0, "time (s)", 600.0), (7200.0, "time (min)", 120.0)])
def test_long_runs_have_their_time_in_minutes(end_s, label, end):
    figure = Figure()
    figures.draw_curves(figure, {SYNC: [[(60.0, 0.1), (end_s, 0.8)]]}, "lenet", standalone=None)
    assert (figure.axes[0].get_xlabel(), figure.axes[0].lines[0].get_xdata()[-1]) == (label, end)


def test_bars_are_as_long_as_the_numbers():
    figure = Figure()
    values = {ESYNC: 51.2, SYNC: 10.7, metrics.MODES["esync-niid"]: 50.0}
    bars.draw_bars(figure, values, "lenet", "data throughput (samples/s)")
    axes = figure.axes[0]
    assert [bar.get_width() for bar in axes.patches] == [51.2, 10.7, 50.0]
    assert axes.get_xlabel() == "data throughput (samples/s)"
    assert [text.get_text() for text in axes.get_yticklabels()] == ["ESync", "SSGD"]


@pytest.mark.parametrize(("of_two", "mark"), [([SYNC], "*"), ([], "")])
def test_figures_mark_the_numbers_of_the_published_definition_and_say_what_it_is(of_two, mark):
    note = "* as published"
    figure = Figure()
    bars.draw_bars(figure, {ESYNC: 51.2, SYNC: 10.7}, "lenet", "traffic load (MB/s)", of_two, note)
    assert [text.get_text() for text in figure.axes[0].texts] == ["51.2", f"10.7{mark}"]
    other, ratios = Figure(), {("a", "cpu"): 0.5}
    bars.draw_computing_ratio(other, {ESYNC: ratios, SYNC: ratios}, "lenet", of_two, note)
    assert [text.get_text() for text in other.legends[0].get_texts()] == ["ESync", f"SSGD{mark}"]
    assert [each.get_supxlabel() for each in (figure, other)] == [note if mark else ""] * 2


FOUR = ("esync", "sync", "async", "dcasgd")
ALL = [algorithm.name for algorithm in metrics.COMPARED]


def many_devices(modes=FOUR, hosts=2):
    keys = [(f"node-{host + 17}.cluster.example.org", f"gpu{number}") for host in range(hosts) for number in range(7)]
    return {metrics.MODES[name]: dict.fromkeys(keys, 0.5) for name in modes}


MARKED = [SYNC]


def every_kind(modes):
    """A run in which everything that can be marked happened."""
    return {metrics.MODES[name]: [Event(1.5, kind, "") for kind in [*EVENTS] * 40] for name in modes}


def drawn(draw_function, *arguments, width="page"):
    with style(width):
        figure = Figure()
        FigureCanvasAgg(figure)
        draw_function(figure, *arguments)
        figure.canvas.draw()
    return figure


def flat(modes):
    return {mode: [[(1.0, 0.1), (2.0, 0.9)]] for mode in many_devices(modes)}


def long_names(modes):
    """`flat`, with the longest names that files beside ours may have: of common letters, and of the widest."""
    names = itertools.cycle(["Sync-Switch as published by its authors, with 8 GPUs, in 2021", 60 * "W"])
    return {
        Mode(replace(mode.algorithm, name=name, title=name), mode.split): curve
        for (mode, curve), name in zip(flat(modes).items(), names, strict=False)
    }


def beyond(figure):
    """Labels of ticks outside their axis, which are there and not drawn."""
    axises = [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    ticks = [(tick, sorted(axis.get_view_interval())) for axis in axises for tick in axis.get_major_ticks()]
    return [tick.label1 for tick, (low, high) in ticks if not low <= tick.get_loc() <= high]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("draw_function", "arguments"),
    [
        (bars.draw_computing_ratio, (many_devices(hosts=1), "resnet50-v1")),
        (bars.draw_computing_ratio, (many_devices(ALL), "resnet50-v1", MARKED, published_note(RATIO))),
        (figures.draw_curves, (flat(FOUR), "resnet50-v1, i.i.d.", 0.926)),
        (figures.draw_curves, (flat(ALL), "resnet50-v1", 0.9, every_kind(ALL), SECONDS, "a note " * 20, ACCURACY, 0.8)),
        (figures.draw_curves, (flat(FOUR[:2]) | long_names(FOUR[2:]), "resnet50-v1, i.i.d.", 0.926)),
        (bars.draw_bars, (dict.fromkeys(MARKED, 1.0), "lenet", "traffic (MB/s)", MARKED, published_note(TRAFFIC))),
        (bars.draw_bars, (dict.fromkeys([*metrics.MODES.values()][:-1], 12345.6), "lenet", "traffic (MB/s)")),
    ],
    ids=[
        "seven devices",
        "all modes, a note",
        "four curves",
        "all curves, lines, marks, a note",
        "names",
        "a bar",
        "all bars",
    ],
)
def test_all_text_fits_is_not_small_and_covers_nothing(draw_function, arguments, width):
    figure = drawn(draw_function, *arguments, width=width)
    assert figure.get_figwidth() == WIDTHS[width]
    outside = beyond(figure)
    texts = [each for each in figure.findobj(Text) if each.get_text() and each.get_visible() and each not in outside]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    for text, (words, box) in zip(texts, boxes, strict=True):
        assert text.get_fontsize() >= 7
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1, words
    axes = figure.axes[0]
    for legend in (legend.get_window_extent() for legend in figure.legends):
        assert not legend.overlaps(axes.get_tightbbox())  # with title and labels
    for one, other in itertools.combinations(boxes, 2):
        assert not one[1].overlaps(other[1]), (one, other)


def test_each_device_has_its_group_and_each_mode_its_bar():
    figure = drawn(bars.draw_computing_ratio, many_devices(), "resnet50-v1")
    assert len(figure.axes[0].patches) == 14 * 4
    centres = [bar.get_x() + bar.get_width() / 2 for bar in figure.axes[0].patches]
    assert sorted(round(centre) for centre in centres) == sorted([*range(14)] * 4)


def test_more_devices_than_have_room_are_a_distribution():
    figure = drawn(bars.draw_computing_ratio, many_devices(hosts=15), "resnet50-v1", MARKED)
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "resnet50-v1, i.i.d., 105 devices"
    assert [text.get_text() for text in axes.get_yticklabels()] == ["ESync", "SSGD*", "ASGD", "DC-ASGD"]
    assert [len(line.get_xdata()) for line in axes.lines if line.get_marker() == "|"] == [105] * 4
    assert figure.get_figheight() < 2.5


def test_devices_are_named_as_shortly_as_they_can_be_told_apart():
    assert bars.device_labels([("vm", "cpu"), ("vm", "gpu0")]) == ["cpu", "gpu0"]
    assert bars.device_labels([("a.lan", "cpu"), ("b.lan", "cpu")]) == ["a/cpu", "b/cpu"]
    assert bars.device_labels([("a.lan", "cpu"), ("a.wan", "cpu")]) == ["a.lan/cpu", "a.wan/cpu"]
    assert bars.device_labels([("10.0.0.1", "cpu"), ("11.0.0.2", "cpu")]) == ["10.0.0.1/cpu", "11.0.0.2/cpu"]


# --------------------------------------------------------------------------- summaries that are not as they should be


def read_all(base):
    """What can be read of the summaries, and the warnings."""
    warnings = []
    runs = draw.read_summaries(base / NETWORK, base, warnings.append)
    return {mode.name: devices for mode, devices in runs.items()}, warnings


def test_numbers_of_two_definitions_side_by_side_are_told(real_run):
    _, result = real_run
    warning = "warning: numbers with * follow the published definition, the others are measured: compare them with "
    assert f"{warning}--definitions published" in result.stderr.splitlines()


def test_logs_without_byte_counts_are_left_out_of_the_measured_traffic(tree, capsys):
    assert draw_all(tree, "--definitions", "measured") == 0
    output = capsys.readouterr()
    warning = "warning: SSGD left out of the traffic figure: its logs do not count the bytes of every worker"
    assert warning in output.err.splitlines()
    assert "*" not in output.out


def test_a_model_of_unknown_size_can_be_told(tree, capsys):
    (tree / NETWORK).rename(tree / "mine")
    assert draw.main(["-b", str(tree), "-n", "mine"]) == 0
    assert "nor hold the size of the model: give it with --model-bytes" in capsys.readouterr().err
    assert draw.main(["-b", str(tree), "-n", "mine", "--model-bytes", "60000000"]) == 0
    output = capsys.readouterr()
    assert "10.00*" in output.out  # 6 times 60 MB in 36 s
    assert "--model-bytes" not in output.err


def test_the_size_of_the_model_is_taken_from_our_own_logs(tmp_path, capsys):
    run = {"rank": 0, "num_workers": 1, "parameter_bytes": 7_000_000}
    write_device(tmp_path / NETWORK / "sync" / "a" / "cpu", [sync_round(1, 10.0), sync_round(2, 20.0)], run)
    assert draw_all(summarise(tmp_path), "--definitions", "published") == 0
    assert "0.70*" in capsys.readouterr().out  # 2 times 7 MB in 20 s


def test_five_figures_and_the_right_numbers_come_from_published_summaries_alone(tmp_path, capsys):
    """Six devices, of which four have rounds that end before the first full second."""
    content = json.loads(six_published_devices(tmp_path).read_text())
    for name in ("esync", "sync-niid"):
        write_published(tmp_path, metrics.MODES[name], content)
    assert draw_all(tmp_path) == 0
    output = capsys.readouterr()
    assert output.err == ""
    # (4 * 400 + 2 * 15) * 64 samples in 60 s; as many times 246,824 bytes; three quarters without aggregation.
    of_asgd = ["ASGD", "15..400", "1738.7", "6.71*", "0.9000", "0.9000", "53.0", "0.75*", "-"]
    assert row_of(output.out, "ASGD") == of_asgd
    assert saved(tmp_path) == files(*FIGURES)


def test_logs_without_a_summary_come_with_the_command_that_makes_it(tree):
    folder = write_sync(tree, "async")
    runs, warnings = read_all(tree)
    assert set(runs) == {"esync", "sync"}
    command = f"python summary.py -b {tree} -n {NETWORK} -m async"
    assert warnings == [f"ASGD left out: {folder} has logs but no Async.json; make it with: {command}"]


def test_a_truncated_summary_is_named_and_the_rest_is_drawn(tree, capsys):
    path = tree / NETWORK / "sync" / "Sync.json"
    path.write_text(path.read_text()[:100])
    assert draw_all(tree) == 0
    output = capsys.readouterr()
    assert f"warning: SSGD left out: {path} cannot be read as JSON" in output.err
    assert f"make it anew with: python summary.py -b {tree} -n {NETWORK} -m sync\n" in output.err
    assert "ESync, i.i.d.: unknown: no summary of SSGD on i.i.d. data" in output.out
    assert "throughput.png" in saved(tree)


@pytest.mark.parametrize("content", [[], {"alpha": []}, {"alpha": {"cpu": {}}}, {}, {"alpha": {"cpu": {"a": 1}}}, 3])
def test_a_summary_of_another_shape_is_named_and_the_rest_is_used(tree, content):
    path = tree / NETWORK / "sync" / "Sync.json"
    path.write_text(json.dumps(content))
    runs, warnings = read_all(tree)
    assert set(runs) == {"esync"}
    assert f"SSGD left out: {path} " in warnings[-1]


def test_a_device_of_another_shape_is_named_and_the_others_are_used(tree):
    path = tree / NETWORK / "esync" / "ESync.json"
    content = json.loads(path.read_text())
    content["beta"]["cpu"]["elapsed_time_list"] = [5.0]
    path.write_text(json.dumps(content))
    runs, warnings = read_all(tree)
    assert set(runs["esync"]) == {("alpha", "gpu0")}
    assert warnings == [f"{path}: beta/cpu left out: elapsed_time_list has 1 entries, num_samples_list 2"]


def test_summaries_of_the_published_program_are_drawn_and_nothing_is_guessed(tree, capsys):
    path = tree / NETWORK / "sync" / "Sync.json"
    content = json.loads(path.read_text())
    for host, device in (("alpha", "gpu0"), ("beta", "cpu")):
        del content[host][device]["accuracy_time_list"], content[host][device]["computing_time_list"]
    content["alpha"]["gpu0"]["accuracy_list"] = [0.8]  # evaluated in one of the three rounds: which?
    path.write_text(json.dumps(content))
    assert draw_all(tree, "--definitions", "measured") == 0
    warnings = capsys.readouterr().err
    assert "SSGD: its summary does not say when it was evaluated (1 accuracies in 3 rounds); make it anew" in warnings
    assert "SSGD: no computing time of alpha/gpu0, beta/cpu; make its summary anew with summary.py" in warnings


def test_the_rounds_between_evaluations_of_a_published_summary_can_be_told(tmp_path, capsys):
    path = six_published_devices(tmp_path)
    content = json.loads(path.read_text())
    content["alpha"]["gpu0"]["accuracy_list"] = [0.5, 0.7, 0.9]  # after 101, 202 and 303 of 400 rounds of 0.15 s
    path.write_text(json.dumps(content))
    assert draw_all(tmp_path, "-e", "101") == 0
    assert row_of(capsys.readouterr().out, "ASGD")[6] == "30.0..45.0"  # to 0.80: rounds 202 and 303
    assert "accuracy-iid.png" in saved(tmp_path)
    for other in ("100", "150"):
        assert draw_all(tmp_path, "-e", other) == 0
        assert "(3 accuracies in 400 rounds); make it anew with summary.py, or give the -e" in capsys.readouterr().err
        assert "accuracy-iid.png" not in saved(tmp_path)


def test_a_mode_without_accuracies_is_told_and_still_counted(tmp_path, capsys):
    write_device(tmp_path / NETWORK / "sync" / "a" / "cpu", [sync_round(1, 1.0)])
    assert draw_all(summarise(tmp_path)) == 0
    assert "SSGD has no accuracies" in capsys.readouterr().err
    assert saved(tmp_path) == files("computing-time", "throughput", "traffic")


@pytest.mark.parametrize("text", ["", "0.9 0.91", "high", "92.6", "nan"])
def test_a_damaged_standalone_accuracy_costs_only_its_line_and_none_need_be_there(tmp_path, text):
    assert draw.read_standalone(tmp_path, {}, pytest.fail) is None
    warnings, path = [], tmp_path / "standalone.txt"
    path.write_text(text)
    assert draw.read_standalone(tmp_path, {}, warnings.append) is None
    assert str(path) in warnings[0]
    path.write_text("0.926\n")
    assert draw.read_standalone(tmp_path, {}, pytest.fail) == (ACCURACY, 0.926)


def test_standalone_training_alone_is_nothing_to_draw(tmp_path, capsys):
    write_device(tmp_path / NETWORK / "local" / "a" / "cpu", [sync_round(1, 1.0, 0.9)])
    assert draw_all(summarise(tmp_path)) == 2
    assert "nothing to draw: no summary of distributed training" in capsys.readouterr().err


def test_an_output_folder_that_cannot_be_made_ends_in_one_line(tree, capsys, monkeypatch):
    monkeypatch.undo()  # paints
    png = tree / "figures" / "accuracy-iid.png"
    png.mkdir(parents=True)
    (tree / "out").write_text("a file in the way")
    for name, says in (
        ("out", f"{tree}/out cannot be the folder of the figures: File exists; give another with -o"),
        ("figures", f"{png} cannot be written: Is a directory; give another folder with -o"),
    ):
        assert draw_all(tree, "-o", str(tree / name)) == 2
        said = capsys.readouterr()
        assert said.err.splitlines()[-1] == f"error: {says}"
        assert name == "figures" or said.out == ""


# ------------------------------------------------------------------------------------------------ as a program


def test_a_real_run_says_that_there_is_no_display_to_show_on_and_ends_well(real_run):
    _, result = real_run
    assert result.returncode == 0
    assert "warning: --show: there is no display" in result.stderr


def test_without_summaries_the_command_that_makes_them_is_told(tmp_path, capsys):
    folder = write_esync(tmp_path)
    assert draw_all(tmp_path) == 2
    said = capsys.readouterr()
    warning, error = said.err.splitlines()
    assert warning.startswith(f"warning: ESync left out: {folder} has logs but no ESync.json")
    assert error == (
        f"error: nothing to draw: no summary of distributed training can be read in {tmp_path / NETWORK}; "
        f"where there are logs, make it with: python summary.py -b {tmp_path} -n {NETWORK}"
    )
    assert said.out == ""


def test_draw_needs_neither_mxnet_nor_django_nor_the_notebook_from_which_it_was_started():
    program = "import sys; sys.modules['mxnet'] = sys.modules['django'] = None; import draw"
    environment = {**os.environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60, env=environment)
