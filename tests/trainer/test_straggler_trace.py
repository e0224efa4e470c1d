"""Emulated transient stragglers: when they slow a device down, and what is wrong with a trace."""

import pytest

from trainer.emulation import COMPUTE, NETWORK, SAMPLE, Slowdown, extra_time
from trainer.straggler_trace import read
from utils import SetupError


def test_entries_add_up_while_they_last(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("start_s,duration_s,extra_s\n10,5,0.5\n\n12, 1, 0.25\n")
    trace = read(path)
    assert trace == (Slowdown(10, 5, 0.5), Slowdown(12, 1, 0.25))
    assert [extra_time(trace, COMPUTE, when) for when in (9.9, 10, 12.5, 13, 15)] == [0, 0.5, 0.75, 0.5, 0]
    assert extra_time(trace, NETWORK, 12.5) == 0


def test_a_fourth_column_says_what_takes_longer_and_each_kind_adds_up_on_its_own(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("start_s,duration_s,extra_s,kind\n0,5,0.5, network\n0,5,0.25,compute\n4,5,1,network\n")
    trace = read(path)
    assert trace == (Slowdown(0, 5, 0.5, NETWORK), Slowdown(0, 5, 0.25, COMPUTE), Slowdown(4, 5, 1, NETWORK))
    assert [extra_time(trace, kind, 4.5) for kind in (NETWORK, COMPUTE)] == [1.5, 0.25]


def test_what_a_sample_takes_more_is_a_kind_of_its_own(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("start_s,duration_s,extra_s,kind\n0,5,0.005,sample\n0,5,0.25,compute\n")
    assert [extra_time(read(path), kind, 1.0) for kind in (SAMPLE, COMPUTE, NETWORK)] == [0.005, 0.25, 0]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "first line"),
        ("10,5,0.5\n", "first line"),
        ("start_s,duration_s,extra_s\n1,2\n", "line 2"),
        ("start_s,duration_s,extra_s\n1,2,3\n1,2,x\n", "line 3"),
        ("start_s,duration_s,extra_s\n1,-2,3\n", "line 2"),
        ("start_s,duration_s,extra_s\n1,nan,3\n", "line 2"),
        ("start_s,duration_s,extra_s\n1,2,3,network\n", "line 2"),
        ("start_s,duration_s,kind,extra_s\n", "first line"),
        ("start_s,duration_s,extra_s,kind\n1,2,3\n", "line 2"),
        (
            "start_s,duration_s,extra_s,kind\n1,2,3,disk\n",
            "line 2: '1,2,3,disk'; .* for kind compute, network or sample",
        ),
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
