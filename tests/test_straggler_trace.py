"""Emulated transient stragglers: when they slow a device down, and what is wrong with a trace."""

import pytest

from trainer.straggler_trace import Slowdown, extra_step_time, read
from utils import SetupError


def test_entries_add_up_while_they_last(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("start_s,duration_s,extra_s\n10,5,0.5\n\n12, 1, 0.25\n")
    trace = read(path)
    assert trace == (Slowdown(10, 5, 0.5), Slowdown(12, 1, 0.25))
    assert [extra_step_time(trace, when) for when in (9.9, 10, 12.5, 13, 15)] == [0, 0.5, 0.75, 0.5, 0]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "first line"),
        ("10,5,0.5\n", "first line"),
        ("start_s,duration_s,extra_s\n1,2\n", "line 2"),
        ("start_s,duration_s,extra_s\n1,2,3\n1,2,x\n", "line 3"),
        ("start_s,duration_s,extra_s\n1,-2,3\n", "line 2"),
        ("start_s,duration_s,extra_s\n1,nan,3\n", "line 2"),
    ],
)
def test_a_malformed_trace_is_named_with_its_line(tmp_path, content, line):
    path = tmp_path / "trace.csv"
    path.write_text(content)
    with pytest.raises(SetupError, match=rf"trace\.csv.*{line}"):
        read(path)


def test_a_missing_trace_is_named(tmp_path):
    with pytest.raises(SetupError, match=r"gone\.csv"):
        read(tmp_path / "gone.csv")
