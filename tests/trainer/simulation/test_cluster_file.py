"""Cluster files: what they say, what is wrong with them, and the workers that come of them."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_processes import ROOT

import config
import simulate
from main import run_role
from scripts.launch import job_options, local_cluster
from trainer import command_line, straggler_trace
from trainer.simulation import cluster_file
from trainer.simulation.cluster_file import READY_MADE, ClusterProfile, Worker
from utils import EXIT_SETUP, SetupError

HEADER = "step_time_s,straggler_trace\n"
TRACE = "start_s,duration_s,extra_s\n20,60,0.01\n"


def cluster(folder: Path, rows: str, header: str = HEADER) -> Path:
    path = folder / "cluster.csv"
    path.write_text(header + rows)
    return path


def worker_configs(*arguments: str) -> list[config.Config]:
    """What the workers' main.py is told in a job of mode sync with these options."""
    return [*job_options.worker_configs(*local_cluster.place(local_cluster.parse(["-m", "sync", *arguments])))]


def test_a_row_is_a_worker_and_its_trace_lies_beside_the_file(tmp_path):
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "late.csv").write_text(TRACE)
    path = cluster(tmp_path, "0.1\n0,\n\n 1.5 , traces/late.csv \n")
    workers = Worker(0.1), Worker(0), Worker(1.5, tmp_path / "traces" / "late.csv")
    assert cluster_file.read(path) == ClusterProfile(workers)


def test_a_file_may_say_more_of_each_worker_and_of_the_server(tmp_path):
    columns = "latency_s,step_time_s,bandwidth_mbit_s,step_spread,state_server_round_trip_s,sample_time_s"
    path = cluster(tmp_path, "0.025,0.1,10,0.2,0.05,0.002\n,0.3\n", f"server_bandwidth_mbit_s,850\n{columns}\n")
    far = Worker(
        0.1, latency_s=0.025, bandwidth_mbit_s=10, step_spread=0.2, state_server_round_trip_s=0.05, sample_time_s=0.002
    )
    assert cluster_file.read(path) == ClusterProfile((far, Worker(0.3)), server_bandwidth_mbit_s=850)


@pytest.mark.parametrize("server_mbit_s", [850, math.inf])
def test_a_cluster_is_written_as_it_is_read(tmp_path, server_mbit_s):
    given = ClusterProfile((Worker(0.1, bandwidth_mbit_s=10, latency_s=0.025), Worker(0)), server_mbit_s)
    path = cluster(tmp_path, "", cluster_file.text(given))
    assert cluster_file.read(path) == given
    columns = path.read_text().splitlines()[server_mbit_s < math.inf]
    assert columns == "step_time_s,bandwidth_mbit_s,latency_s"


OF_SERVER = "server_bandwidth_mbit_s"
NO_HEADER = ".*must name columns, step_time_s and"


@pytest.mark.parametrize(
    ("header", "rows", "line", "what"),
    [
        (HEADER, "", 2, "no worker"),
        (HEADER, "0.1,\nfast,\n", 3, "'fast,'; give for step_time_s the shortest time of a step"),
        *((HEADER, f"{time},\n", 2, ".*0 or more") for time in ("-1", "nan", "inf")),
        (HEADER, ",\n", 2, "no worker"),
        (HEADER, ",late.csv\n", 2, ".*0 or more"),
        (HEADER, "0.1,,x\n", 2, r".*has 3 values for 2 column\(s\)"),
        (HEADER, "0.1,\n\n0.2,gone.csv\n", 4, r".*gone\.csv cannot be read"),
        (HEADER, "0.2,bad.csv\n", 2, r".*bad\.csv, line 2: '1,2'"),
        ("step_time_s,bandwidth_mbit_s\n", "0.1,0\n", 2, "'0.1,0'; give for bandwidth_mbit_s .*above 0"),
        ("step_time_s,latency_s\n", "0.1,-1\n", 2, "'0.1,-1'; give for latency_s .*0 or more"),
        ("step_time_s,step_spread\n", "0.1,wide\n", 2, "'0.1,wide'; give for step_spread .*0 or more"),
        ("step_time_s,overhead_s\n", "0.1,inf\n", 2, "'0.1,inf'; give for overhead_s .*0 or more"),
        (
            "step_time_s,state_server_round_trip_s\n",
            "0.1,nan\n",
            2,
            "'0.1,nan'; give for state_server_round_trip_s .*0 or more",
        ),
        *((header, "0.1,\n", 1, NO_HEADER) for header in ("", "0.1,\n", "latency_s\n", "step_time_s,speed\n")),
        ("step_time_s,step_time_s\n", "0.1,\n", 1, NO_HEADER),
        *(
            (f"{OF_SERVER}{value}\nstep_time_s\n", "0.1\n", 1, f"'{OF_SERVER}{value}'; give {OF_SERVER}, a comma")
            for value in ("", ",0", ",1,2")
        ),
        (f"{OF_SERVER},850\nstep_time_s\n", "", 3, "no worker"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(tmp_path, header, rows, line, what):
    (tmp_path / "bad.csv").write_text("start_s,duration_s,extra_s\n1,2\n")
    with pytest.raises(SetupError, match=rf"cluster\.csv, line {line}: {what}"):
        cluster_file.read(cluster(tmp_path, rows, header))


def test_what_is_no_text_is_refused(tmp_path):
    (tmp_path / "cluster.csv").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "cluster.csv"):
        with pytest.raises(SetupError, match="cannot be read"):
            cluster_file.read(path)


def test_a_path_goes_before_a_ready_made_file_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cluster_file.find("wbsp-h1") == cluster_file.find("wbsp-h1.csv") == READY_MADE / "wbsp-h1.csv"
    (tmp_path / "wbsp-h1").touch()
    assert cluster_file.find("wbsp-h1") == Path("wbsp-h1")
    with pytest.raises(SetupError, match=r"wbsp-h9 does not exist.*wbsp-h1, wbsp-h2, wbsp-h3"):
        cluster_file.find("wbsp-h9")


@pytest.mark.parametrize(
    ("name", "step_times_s", "stragglers", "extra_s"),
    [
        ("wbsp-h1", [0.1, 0.1, 0.6, 0.6], 0, 0),
        ("wbsp-h2", [0.1, 0.1, 1.1, 1.1], 0, 0),
        ("wbsp-h3", [0.1, 0.1, 1.6, 1.6], 0, 0),
        ("sync-switch-1x10ms", [0.05] * 8, 1, 0.010),
        ("sync-switch-2x30ms", [0.05] * 8, 2, 0.030),
        ("sync-switch-2x30ms-early", [0.05] * 8, 2, 0.030),
    ],
)
def test_the_ready_made_clusters_are_the_published_ones(name, step_times_s, stragglers, extra_s):
    workers = cluster_file.read(cluster_file.find(name)).workers
    traces = [worker.straggler_trace for worker in workers if worker.straggler_trace]
    assert [worker.step_time_s for worker in workers] == step_times_s
    entries = {entry for trace in traces for entry in straggler_trace.read(trace)}
    assert {entry.extra_s for entry in entries} == ({extra_s} - {0})
    assert {entry.kind for entry in entries} <= {"network"}
    assert len(traces) == stragglers
    assert workers[0] == Worker(min(step_times_s))  # rank 0 evaluates


def test_every_ready_made_cluster_is_explained():
    text = (READY_MADE / "README.md").read_text()
    for path in READY_MADE.glob("*.csv"):
        assert f"`{path.stem}`" in text or f"`{path.stem[path.stem.rindex('-') :]}`" in text, path


def test_the_preprints_link_carries_ssgds_models_in_its_published_time():
    """Key by key, six of ResNet-18's 44.7 MB go up and then down through one link, so that SSGD trains 45 samples/s."""
    paper = cluster_file.read(cluster_file.find("paper"))
    way_s = 6 * 44.7e6 * 8 / (paper.server_bandwidth_mbit_s * 1e6)
    assert [worker.step_time_s for worker in paper.workers] == [0.03] * 4 + [3.5] * 2
    assert 6 * 64 / (3.5 + 2 * way_s) == pytest.approx(45, rel=0.001)


def test_a_real_cluster_says_what_it_leaves_out_of_a_file(tmp_path):
    told = [
        [*local_cluster.parse(["-m", "sync", "--cluster", name, "--log-base", str(tmp_path)]).notes]
        for name in ("slow-link", "sync-switch-1x10ms")
    ]
    assert told == [
        [
            "warning: bandwidth_mbit_s, latency_s, state_server_round_trip_s, server_bandwidth_mbit_s of the cluster "
            "file count in simulate.py only; here there are step times and traces"
        ],
        [],
    ]


def test_each_worker_gets_its_rows_step_time_trace_and_time_for_a_sample(tmp_path):
    (tmp_path / "late.csv").write_text(TRACE)
    header = "step_time_s,straggler_trace,sample_time_s\n"
    told = worker_configs("--cluster", str(cluster(tmp_path, "0.25,,0.002\n0.5,late.csv,\n", header)))
    assert [(each.min_step_time, each.straggler_trace, each.sample_time) for each in told] == [
        (0.25, "", 0.002),
        (0.5, str(tmp_path / "late.csv"), 0.0),
    ]


def test_by_the_sample_the_machines_of_nine_ways_are_the_same_at_batch_64():
    by_step, by_sample = (cluster_file.read(cluster_file.find(name)).workers for name in (
        "nine-ways", "nine-ways-per-sample",
    ))  # fmt: skip
    assert [each.shortest_step_s(64) for each in by_sample] == [each.step_time_s for each in by_step]


def test_the_slow_half_of_half_has_a_quarter_of_its_speed_and_fast_machines_of_mixed_links_have_slow_links_too():
    half, mixed = (cluster_file.read(cluster_file.find(name)).workers for name in ("half", "mixed-links"))
    speeds = [1 / each.step_time_s for each in half]
    assert sum(sorted(speeds)[:4]) / sum(speeds) == pytest.approx(0.25)
    assert [each.step_time_s for each in mixed] == [0.02, 0.03, 0.05, 0.05, 0.08, 0.12, 0.2, 0.6]
    links = [each.bandwidth_mbit_s for each in mixed]
    assert (min(links), max(links)) == (20, 1000)
    assert sum(links[:4]) == pytest.approx(sum(links[4:]), rel=0.3)


def test_a_trace_for_all_workers_may_be_given_where_the_cluster_file_has_none(tmp_path):
    path, trace = cluster(tmp_path, "0.25,\n0.5,\n"), tmp_path / "all.csv"
    trace.write_text(TRACE)
    told = worker_configs("--cluster", str(path), "--", "--straggler-trace", str(trace))
    assert [worker.straggler_trace for worker in told] == [str(trace)] * 2


LONG = "an emulated step takes 20 s, and the job 5 s (--max-seconds): step times are in seconds"


def test_programs_of_virtual_time_and_of_one_process_refuse_a_step_that_is_longer_than_the_job(tmp_path, capsys):
    limit = ["--max-seconds", "5"]
    with pytest.raises(SetupError, match=re.escape(LONG)):
        simulate.parse(["--workers", "20,40", *limit, "--log-base", str(tmp_path)])
    with pytest.raises(SetupError, match=re.escape(LONG)):
        run_role(command_line.parse(["-m", "local", "-c", "1", "--min-step-time", "20", *limit]))
    # The slow worker does not take part, and a step may be as long as the job.
    simulate.parse(["-m", "alone", "--workers", "5.0,20", *limit, "--log-base", str(tmp_path)])
    local_cluster.parse(["-m", "alone", "--workers", "5.0,20", "--", *limit])


def test_the_launchers_warn_of_steps_that_may_be_milliseconds():
    def said(*words: str) -> list[str]:
        lines = job_options.warnings(*local_cluster.place(local_cluster.parse(words)))
        return [line for line in lines if "seconds" in line]

    assert said("--workers", "20,40,0.1") == ["warning: an emulated step takes 40 s: step times are in seconds"]
    assert said("--workers", "0.1,9") == []


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--", "--straggler-trace", "nowhere.csv"], "nowhere.csv cannot be read"),
        (["-m", "wbsp", "--servers", "2"], "mode wbsp has one server, the hub, here there are 2"),
        (["-m", "backup", "--", "--backup", "3"], "--backup 3 of 3 worker(s) leaves no worker whose gradient counts"),
        (["--workers", "20,40", "--", "--max-seconds", "5"], f"{LONG}; did you mean 0.02?"),
        (["--cluster", "wbsp-h1", "--", "--max-seconds", "0.5"], "give shorter ones, or a longer job"),
        (["--workers", "0,0", "--", "--max-seconds", "20", "--sample-time", "5"], "did you mean 0.005?"),
        (["--cluster", "wrong.csv"], "cluster file wrong.csv, line 3: 'x,'"),
        (
            ["--cluster", "with-trace.csv", "--", "--straggler-trace", "all.csv"],
            "--straggler-trace all.csv behind `--` contradicts the cluster, where it is not given",
        ),
    ],
)
def test_what_the_workers_would_refuse_is_one_line_before_anything_starts(
    tmp_path, monkeypatch, capsys, refused, flags, complaint
):
    monkeypatch.chdir(tmp_path)
    for name, content in (("wrong", "0.1,\nx,\n"), ("with-trace", "0.25,\n0.5,late.csv\n")):
        (tmp_path / f"{name}.csv").write_text(HEADER + content)
    (tmp_path / "late.csv").write_text(TRACE)
    assert complaint in refused(local_cluster.main, "--log-base", str(tmp_path / "logs"), *flags)
    assert capsys.readouterr().err == ""  # but for that line
    assert not (tmp_path / "logs").exists()


def test_workers_are_given_in_one_way_only(capsys):
    with pytest.raises(SystemExit) as end:
        local_cluster.parse(["--workers", "0.1,0.2", "--cluster", "wbsp-h1"])
    assert end.value.code == EXIT_SETUP
    assert "--cluster: not allowed with argument --workers" in capsys.readouterr().err


def test_launcher_and_simulation_import_no_mxnet():
    modules = "scripts.launch.local_cluster, trainer.simulation.virtual_cluster"
    program = f"import sys, {modules}; sys.exit('mxnet' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
