"""Curves of other programs from CSV files, beside ours."""

import argparse
from pathlib import Path

import pytest
from log_tree import NETWORK, write_esync, write_sync
from matplotlib.figure import Figure

import draw
import summary
from esync.metric import ACCURACY, Metric
from report import csv_curves, metrics
from utils import SetupError

# As Sync-Switch's acc.csv, which TensorBoard exported, and its acc_proc.csv, without a line end at the end.
EXPORTED = "Wall time,Step,Value\n1588298433.5,0,0.1\n1588298503.75,1012,0.2\n1588298513.75,2045,0.27\n"
PROCESSED = "Wall time,Time,Progress,Step,Value\n1588298433,0,0,0,0.1\n1588298504,70.5,0.01,1012,0.2"


def written(folder: Path, text: str) -> Path:
    path = folder / "acc.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_published_files_are_read_from_their_first_row_or_by_their_own_time(tmp_path):
    assert csv_curves.read(written(tmp_path, EXPORTED), ACCURACY) == [(0.0, 0.1), (70.25, 0.2), (80.25, 0.27)]
    assert csv_curves.read(written(tmp_path, PROCESSED), ACCURACY) == [(0.0, 0.1), (70.5, 0.2)]
    assert csv_curves.read(written(tmp_path, f"\ufeff{EXPORTED}\r\n"), ACCURACY)[-1] == (80.25, 0.27)
    loss = csv_curves.read(written(tmp_path, "VALUE, Time\n2.9,17\n2.3,135\n"), Metric("loss", more_is_better=False))
    assert loss == [(17.0, 2.9), (135.0, 2.3)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "begins with ''; its columns should be Value, and Time"),
        ("time_s;acc\n1;0,5\n", "begins with 'time_s;acc'; its columns should be"),
        ("Time,Value\n", "holds no row below its head"),
        ("Time,Value\n0,0.1\n1,2.98\n", "line 3: Value is 2.98, no number from 0 to 1, as the accuracy of these logs"),
        ("Time,Value\n0,0.1\n1\n", "line 3: Value is '', but should be a number"),
        ("Time,Value\nnan,0.1\n", "line 2: Time is 'nan', but should be a number"),
        ("Time,Value\n5,0.1\n4,0.2\n", "line 3: Time is 4, before that of the row above or 0"),
        ("Time,Value\n-5,0.1\n", "line 2: Time is -5, before that of the row above or 0"),
        (b"\x89PNG\r\n\xff", "cannot be read: it is no text in UTF-8"),
    ],
)
def test_a_file_that_is_no_such_curve_is_named_in_one_line(tmp_path, text, said):
    path = written(tmp_path, text)
    with pytest.raises(SetupError) as error:
        csv_curves.read(path, ACCURACY)
    assert said in str(error.value)
    assert str(error.value).startswith(f"file {path}") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["acc.csv", "=acc.csv", "BSP=", "_BSP=acc.csv", "B\nSP=acc.csv", f"{'x' * 61}=acc.csv"]
)
def test_a_flag_without_a_name_for_the_legend_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is no NAME=FILE"):
        csv_curves.beside(text)


@pytest.mark.parametrize("seeds", [1, 3])
def test_they_are_drawn_beside_ours_in_looks_of_their_own(tmp_path, monkeypatch, capsys, seeds):
    for base in [tmp_path] if seeds == 1 else [tmp_path / f"seed-{seed}" for seed in range(seeds)]:
        write_esync(base)
        write_sync(base)
    assert summary.main(["-b", str(tmp_path), "-n", NETWORK]) == 0
    path, drawn = written(tmp_path, EXPORTED), {}
    monkeypatch.setattr(draw, "save_figures", lambda found, *others: drawn.update({each[0]: each for each in found}))
    flags = ["-b", str(tmp_path), "-n", NETWORK, "--over", "seconds", "rounds", f"--beside=ASP $={path}"]
    assert draw.main([*flags, f"--beside=again={path}"]) == 0
    told = "files beside ours have seconds alone: they are left out of the accuracy over rounds"
    assert told in capsys.readouterr().err
    figure = Figure()
    drawn["accuracy-iid"][2](figure, drawn["accuracy-iid"][1])
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert [*lines["ASP $"].get_xdata()] == [0.0, 70.25, 80.25]
    assert len({line.get_color() for line in lines.values()}) == 5  # two of ours, two beside, the target
    assert figure.axes[0].get_xlim() == (0.0, 80.25)
    assert not {mode.algorithm.title for mode in drawn["accuracy-iid-over-rounds"][1]} & {"ASP $", "again"}
    assert not drawn["accuracy-non-iid"][1]
    assert draw.main([*flags, f"--beside=SSGD={path}"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert f"--beside SSGD={path}: the figure has another curve of that name" in said.err
    assert metrics.MODES["sync-switch"].title == "Sync-Switch"
