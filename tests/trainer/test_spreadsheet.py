"""Tables as spreadsheets write them say the same in every reader: hosts files, cluster files, straggler traces,
curves of other programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from esync.metric import ACCURACY
from report import csv_curves
from scripts.launch import hosts_file
from trainer import straggler_trace
from trainer.emulation import NETWORK, Slowdown
from trainer.simulation import cluster_file
from trainer.simulation.cluster_file import ClusterProfile, Worker
from utils import SetupError

HOSTS = "address,workers,devices,step_time_s\n10.1.1.34,2,gpu0 gpu1,0.5\n10.1.1.35,1,cpu,\n"
CLUSTER = "server_bandwidth_mbit_s,850.5\nstep_time_s,latency_s\n0.1,0.025\n1.5,\n"
TRACE = "start_s,duration_s,extra_s,kind\n20,60,0.01,network\n"
CURVE = "wall time_s,time,value\n1593631672,0,0.0871\n1593632043,371.5,0.25\n"


def with_semicolons(table: str) -> str:
    """As a spreadsheet does where the decimal separator is a comma; addresses are no numbers."""
    return "\n".join(
        ";".join(cell if cell.count(".") > 1 else cell.replace(".", ",") for cell in line.split(","))
        for line in table.splitlines()
    )


def with_empty_columns(table: str) -> str:
    lines = [f",{first},,{rest},,," for first, _, rest in (line.partition(",") for line in table.splitlines())]
    return "\r\n".join([",,,,,,", *lines, ",,,,,,", ",,"])


SPELLINGS = {
    "a byte order mark": lambda table: table.encode("utf-8-sig"),
    "UTF-16": lambda table: table.replace(",", "\t").encode("utf-16"),
    "CRLF": lambda table: table.replace("\n", "\r\n").encode(),
    "tabs": lambda table: table.replace(",", "\t").encode(),
    "semicolons and decimal commas": lambda table: with_semicolons(table).encode(),
    "tabs and decimal commas": lambda table: with_semicolons(table).replace(";", "\t").encode("utf-16"),
    "quotes and decimal commas": lambda table: "\n".join(
        ",".join(f'"{cell}"' for cell in line.split(";")) for line in with_semicolons(table).splitlines()
    ).encode(),
    "a line that names the separator": lambda table: f"sep=;\r\n{with_semicolons(table)}".encode("utf-8-sig"),
    "empty rows and columns": lambda table: table.replace("\n", ",,,\r\n,,,,,,\r\n").encode(),
    "quotes": lambda table: "".join(
        ",".join(f'"{cell}"' for cell in line.split(",")) + "\n" for line in table.splitlines()
    ).encode(),
    "capitals": lambda table: "\n".join(
        line.upper().replace("_", " ") if "address" in line or "_s" in line else line for line in table.splitlines()
    ).encode(),
    "spaces": lambda table: table.replace(",", " , ").encode(),
    "a quoted comment": lambda table: f'"# in the lab, first row",,,\n{table}'.encode(),
    "a comment with quotes": lambda table: table.replace("\n", '  # "so", they said\n').encode(),
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_each_reader_reads_a_table_however_it_was_written(tmp_path: Path, spelling) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(spelling(HOSTS))
    found = hosts_file.read(path)
    assert [(each.host, each.device, each.step_time_s) for each in found.workers] == [
        ("10.1.1.34", "gpu0", 0.5),
        ("10.1.1.34", "gpu1", 0.5),
        ("10.1.1.35", "cpu", 0.0),
    ]
    path.write_bytes(spelling(CLUSTER))
    assert cluster_file.read(path) == ClusterProfile((Worker(0.1, latency_s=0.025), Worker(1.5)), 850.5)
    path.write_bytes(spelling(TRACE))
    assert straggler_trace.read(path) == (Slowdown(20, 60, 0.01, NETWORK),)
    path.write_bytes(spelling(CURVE))
    assert csv_curves.read(path, ACCURACY) == [(0.0, 0.0871), (371.5, 0.25)]


def test_empty_columns_may_stand_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(with_empty_columns(HOSTS))
    assert [each.step_time_s for each in hosts_file.read(path).workers] == [0.5, 0.5, 0.0]
    path.write_text(with_empty_columns(TRACE))
    assert straggler_trace.read(path) == (Slowdown(20, 60, 0.01, NETWORK),)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("step_time_s\n0,1 # comma\n".encode("latin-1"), r"line 2: '0,1 # comma' has 2 values for 1 column\(s\)"),
        ("step_time_s # schrittl\xe4nge\n0.1\n".encode("latin-1"), "is no text in UTF-8; save it as CSV in UTF-8"),
        ("step_time_s\n0.1\n".encode("utf-16-le"), "is no text in UTF-8; save it as CSV in UTF-8"),
        (b"PK\x03\x04\x14\0\0\0\x08\0\xb5\xff", "is no text in UTF-8; save it as CSV in UTF-8"),
        (b"step_time_s,,\n0.1,,x\n", "line 2: '0.1,,x' has 3 values for 1 column"),
        (b'step_time_s,latency_s\n"1,000",\n', "line 2: .*; give for step_time_s"),  # a thousand, or one
        (b"step_time_s\tlatency_s\n1,000\t\n", "line 2: .*; give for step_time_s"),
        (b"", "line 1: '' ?; the first line"),
    ],
)
def test_what_is_no_table_is_named(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "cluster.csv").write_bytes(content)
    with pytest.raises(SetupError, match=rf"cluster file .*cluster\.csv.*{what}"):
        cluster_file.read(tmp_path / "cluster.csv")
