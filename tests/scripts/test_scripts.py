"""The scripts: roles from options, the data, the environment. The supervisor and real clusters: elsewhere."""

from __future__ import annotations

import gzip
import hashlib
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy
import pytest
from cluster_processes import ROOT, ran
from stand_ins import role as stand_in, tells

from algorithms import ENTRIES, OWNERS
from config import HUB, transport_of
from scripts import demo, get_data
from scripts.launch import job_options, local_cluster
from scripts.launch.local_cluster import place
from scripts.launch.process import Kind
from scripts.launch.roles import JobSpec, build
from trainer import command_line
from utils import SetupError

SCRIPTS = ROOT / "scripts"
HUB_MODES = [name for name in ENTRIES if transport_of(name) == HUB]

# ------------------------------------------------------------------------------------------ roles from options


def options(*arguments: str) -> JobSpec:
    return local_cluster.parse(arguments)


def step_times_s(job: JobSpec) -> tuple[float, ...]:
    return tuple(worker.step_time_s for worker in job.hosts.workers)


def test_a_job_has_the_roles_that_its_mode_needs(tmp_path):
    def names(*arguments: str) -> list[str]:
        return [role.name for role in build(*place(options("--workers", "0,0.5", *arguments)))]

    trained = ["worker 0", "worker 1"]
    assert names("-m", "esync") == ["state server", "scheduler", "server 0", *trained]
    assert {"ssp", "ringmaster", "ringleader", "rescaled", "wbsp-pcc"} < {*HUB_MODES}
    for words in (*(["-m", mode] for mode in HUB_MODES), ["-m", "sync", "--exchange", "hub"]):
        assert names(*words) == ["state server", "server 0", *trained]
    watched = ["state server", "scheduler", "server 0", "server 1", *trained]
    assert names("-m", "dcasgd", "--servers", "2") == watched
    assert names("-m", "dcasgd", "--servers", "2", "--page", "0") == watched[1:]
    assert names("-m", "local", "--page", "0") == trained
    assert [role.name for role in build(*place(options("-m", "local")))] == ["state server", "worker 0"]


def test_the_workers_of_a_job_with_a_hub_meet_at_its_server():
    given = options("-m", "wbsp-pcc", "--workers", "0,0.5", "--root-port", "9000")
    _, hub, worker, _ = build(*place(given, {}))
    assert (hub.kind, [*hub.command[2:]]) == (Kind.HUB, ["-m", "wbsp"])
    places = [(each.environment["DMLC_PS_ROOT_URI"], each.environment["DMLC_PS_ROOT_PORT"]) for each in (hub, worker)]
    assert places == [("127.0.0.1", "9000")] * 2
    assert [each.environment["DMLC_NUM_SERVER"] for each in (hub, worker)] == ["1", "1"]
    assert "PORT" not in hub.environment  # it listens at that one port
    modules = job_options.forked(given, job_options.first_config(*place(given)))[2]
    assert modules == "trainer.worker,trainer.algorithms.wbsp,models"


def test_a_job_that_sums_among_its_workers_has_no_parameter_server_but_a_state_server():
    given, layout = place(options("-m", "local-sgd", "--exchange", "ring", "--workers", "0,0.5", "--page", "0"), {})
    state_server, *workers = build(given, layout)
    assert [state_server.name, *(role.name for role in workers)] == ["state server", "worker 0", "worker 1"]
    assert not state_server.page  # it gets no messages about the training
    variables = {name: value for name, value in workers[1].environment.items() if name.startswith("DMLC_")}
    assert variables == {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2", "DMLC_INTERFACE": "lo"}
    config = command_line.parse(workers[1].command[2:], pytest.fail)
    assert (config.exchange, config.state_server_port) == ("ring", str(given.state_server_port))


@pytest.mark.parametrize(
    ("words", "exchange", "flag"),
    [
        ("-m sync", "kvstore", None),
        ("-m sync --exchange hub", "hub", "hub"),
        ("-m sync --collective ring", "ring", "ring"),
        ("-m sync --collective ps", "kvstore", "kvstore"),
        ("-m sync -- --exchange hub", "hub", "hub"),
        ("-m sync --exchange hub -- --exchange hub", "hub", "hub"),
        ("-m async -- --exchange auto", "kvstore", "auto"),
        ("-m async -- --max-delay 0", "kvstore", None),
        ("-m async -- --lr-schedule warmup:100", "hub", "hub"),
        ("-m dcasgd -- --dcasgd-adaptive 1", "hub", "hub"),
        ("-m dcasgd --exchange hub -- --momentum 0.9", "hub", "hub"),
        ("-m ringmaster", "hub", None),
        ("-m ringmaster -- --max-delay 4", "hub", None),
        ("-m wbsp", "hub", None),
        ("-m ssp -- --on-worker-death continue", "hub", None),
        ("-m local", "", None),
    ],
)
def test_a_launcher_starts_what_the_exchange_needs_wherever_it_is_named(words, exchange, flag):
    """Before `--` or behind it, by a flag that only the hub has, or by the mode."""
    job = options("--page", "0", *words.split())
    assert (job.transport, job.notes) == (exchange, ())
    roles = build(*place(job))
    kinds = {"kvstore": ["scheduler", "server 0"], "hub": ["server 0"]}.get(exchange, [])
    assert [role.name for role in roles if role.kind in (Kind.SERVER, Kind.HUB)] == kinds
    (worker, *_) = [role.command for role in roles if role.kind is Kind.WORKER]
    assert command_line.parse(worker[2:], pytest.fail).transport == exchange
    assert (worker[-1 - worker[::-1].index("--exchange") + 1] if "--exchange" in worker else None) == flag


@pytest.mark.parametrize("mode", ["sync", "esync", "async", "dcasgd", "local-sgd"])
def test_a_job_that_is_to_go_on_without_lost_workers_gets_the_hub_where_no_exchange_is_named(mode):
    job = options("-m", mode, "--", "--on-worker-death", "continue")
    told = (
        "--on-worker-death continue: this job runs on the hub (--exchange hub), since MXNet's kvstore does not go on "
        "without a lost worker"
    )
    assert (job.transport, job_options.warnings(*place(job))) == ("hub", [told])
    assert [role.kind for role in build(*place(job))].count(Kind.HUB) == 1
    named = options("-m", mode, "--exchange", "hub", "--", "--on-worker-death", "continue")
    assert job_options.warnings(*place(named)) == []


def started(words: list[str]) -> int:
    """The launcher, which may start nothing."""
    return local_cluster.main(words, lambda *_: pytest.fail("started"))


OF_A_CLUSTER = ("-m sync", "-s 1", "-n alexnet", "-ld elsewhere", "--device-name x", "-c 0")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        # Of what carries the arrays.
        ("-m sync --exchange ring -- --exchange hub", "--exchange hub behind `--` contradicts --exchange ring: leave"),
        ("-m sync --exchange hub -- --exchange auto", "--exchange auto behind `--` contradicts --exchange hub: leave"),
        ("-m async --exchange hub --servers 2", "mode async has one server, the hub, here there are 2"),
        ("-m wbsp --servers 2", "mode wbsp has one server, the hub, here there are 2"),
        ("-m sync --exchange ring --servers 2", "--servers 2 does nothing with --exchange ring"),
        ("-m sync --exchange ring --root-port 9000", "--root-port 9000 does nothing with --exchange ring"),
        ("-m async --exchange ring", "--exchange ring: mode async does not sum: it has a server"),
        ("-m sync --exchange mpi", "argument --exchange: invalid choice: 'mpi' (choose from"),
        ("-m sync -- --exchange mpi", "argument --exchange: invalid choice: 'mpi' (choose from"),
        ("-m sync -- --collective ring", "--collective is an option of this script: give it before `--`"),
        ("-m local --exchange hub", "--exchange hub belongs to mode esync, "),
        ("-m wbsp --exchange kvstore", "--exchange kvstore: mode wbsp has a server of its own, which is the hub"),
        ("-m ringmaster --exchange kvstore", "MXNet's own server has no --max-delay 16: give --exchange hub, or leave"),
        ("-m dcasgd --exchange kvstore -- --momentum 0.9", "own server has no --momentum 0.9: give --exchange hub"),
        (
            "-m sync --exchange kvstore -- --on-worker-death continue",
            "--on-worker-death continue: MXNet's kvstore does not go on without a lost worker: also give",
        ),
        # Of who takes part.
        ("-m fastest-sync --fastest 4", "--fastest 4: the cluster has 3 worker(s): give 1 to 3"),
        ("-m without-slow --fastest 2", "--fastest 2 does nothing in mode without-slow: leave it out, or choose"),
        ("-m esync --workers 3 --fastest auto", "--fastest auto: a step time is unknown"),
        ("-m without-slow --workers 0.1", "takes all workers but the slowest, and the cluster has no other: give it"),
        ("-m local --split-by-class", "--split-by-class does nothing in mode local"),  # it has all classes
        ("--workers=0", "0 is no number of workers from 1 to 100 (0.0 is one worker as fast as this machine)"),
        ("--workers=1000", "1000 is no number of workers from 1 to 100 (1000.0 is one worker of 1000 s a step)"),
        ("--workers=-1", "-1 is no number of workers from 1 to 100"),
        ("--workers=3,", "'3,' is no list of step times; give seconds with commas, such as 0.02,0.04,0.2, or a number"),
        ("--workers=,", "',' is no list of step times"),
        ("--workers=", "'' is no list of step times"),
        ("--workers=1,x", "'1,x' is no list of step times"),
        # Of flags that make another preset.
        ("-m fastest-outer -- --outer-nesterov 0", "make fastest-local of -m fastest-outer: leave them out, or give"),
        ("-m fastest-local -- -gl 0.7 --outer-momentum 0.9 --outer-nesterov 1", "make fastest-outer of -m fastest-l"),
        *(
            (f"-m {mode} -- {flags}", f"flags behind `--` make {made} of -m {mode}: leave them out, or give -m {made}")
            for mode, flags, made in (
                ("esync", "--outer-momentum 0.9 --outer-nesterov 1", "esync-outer"),
                ("esync-outer", "--policy upload-aware", "esync-outer-aware"),
                ("esync-outer-aware", "--policy journal", "esync-outer"),
            )
        ),
        # Of what is started again.
        ("-m sync --restarts 3", "--restarts 3 does nothing without --on-worker-death restart or continue"),
        (
            "-m local --workers 0,0 -- --on-worker-death restart --ckpt-frequency 5",
            "--on-worker-death restart is for one job, and in mode local each of the workers (here 2) is one",
        ),
        (
            "-m sync -- --on-worker-death restart",
            "--on-worker-death restart resumes from checkpoints, and there are none: also give --ckpt-frequency",
        ),
        (
            "-m sync -- --on-worker-death restart --ckpt-frequency 5 --ckpt-keep 1",
            "--on-worker-death restart needs two checkpoints of each worker",
        ),
        # Others.
        ("-m lb-bsp --page 0", "--page 0 does nothing in mode lb-bsp"),
        ("--root-port 9000 --state-server-port 9000", "--root-port and --state-server-port are both 9000: choose two"),
        ("--servers=0", "0 is out of range"),
        ("--grace=nan", "nan is out of range"),
        ("--mod=x", "unknown argument --mod"),
        ("-- --nope=1", "unknown argument --nope"),
        *((f"-m esync -- {flag}", "contradicts the cluster") for flag in OF_A_CLUSTER),
    ],
)
def test_a_job_that_cannot_be_is_refused_before_anything_is_written(tmp_path, words, complaint, refused):
    assert complaint in refused(started, "--log-base", str(tmp_path), *words.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["ssp", "wbsp"])
def test_a_job_has_a_status_page_unless_none_is_wanted(mode):
    for wanted in (0, 1):
        given, layout = place(options("-m", mode, "--page", str(wanted)))
        pages = [role.page for role in build(given, layout) if role.page]
        assert pages == [f"http://127.0.0.1:{given.state_server_port}/"][:wanted]
        (worker, *_) = [role for role in build(given, layout) if role.kind is Kind.WORKER]
        assert command_line.parse(worker.command[2:], pytest.fail).tells_state_server == bool(wanted)


def test_workers_differ_in_device_speed_and_port_alone(tmp_path):
    words = f"-m dcasgd --split-by-class --workers 0.1,2 --log-base {tmp_path} -- -e 5"
    given = options(*words.split())
    first, second = (role for role in build(*place(given, {})) if role.kind is Kind.WORKER)
    host_folder = tmp_path / "lenet" / "dcasgd-niid" / socket.gethostname()
    flags = f"-m async --use-dcasgd 1 -s 1 -c 1 -n lenet -ld {host_folder} -e 5".split()
    pairs = {*zip(first.command[2::2], first.command[3::2], strict=True)}
    assert {*zip(flags[::2], flags[1::2], strict=True)} <= pairs
    assert set(second.command) - set(first.command) == {"cpu1", "2.0"}
    assert {name for name in first.environment if first.environment[name] != second.environment[name]} == {"PORT"}
    assert int(first.environment["PORT"]) < int(second.environment["PORT"])


@pytest.mark.parametrize("mode", ENTRIES)
def test_a_cluster_gives_its_workers_only_flags_that_count_in_their_mode(mode):
    split = ["--split-by-class"] if OWNERS[mode].is_distributed else []
    given = options("-m", mode, *split)
    for role in build(*place(given, {})):
        if role.kind is Kind.WORKER:
            parsed = command_line.parse(role.command[2:], pytest.fail)
            assert (parsed.mode, parsed.split_by_class) == (given.algorithm.name, len(split))
            flags = parsed.values_by_name()
            assert (flags["use_dcasgd"], flags["wbsp_overlap"]) == (mode == "dcasgd", mode == "wbsp-pcc")


def test_a_preset_chooses_workers_by_their_step_times_and_the_launcher_says_whom():
    cluster = ["--workers", "0.4,0.04,0.04,0.4"]
    fast, but_slow = options("-m", "alone", *cluster), options("-m", "without-slow", *cluster)
    assert (step_times_s(fast), fast.algorithm.name, fast.log_folder.name) == ((0.04,), "local", "alone")
    assert (step_times_s(but_slow), but_slow.algorithm.name) == ((0.4, 0.04, 0.04), "sync")
    assert job_options.warnings(*place(fast)) == ["alone takes the fastest 1 of 4 workers: row 1 (0.04 s a step)"]
    assert "row 0 (0.4 s a step), row 1" in but_slow.notes[-1] and len(but_slow.hosts.workers) == 3


def test_as_many_of_the_fastest_workers_take_part_as_the_user_says():
    cluster = ["-m", "fastest-outer", "--workers", "0.4,0.04,0.04,0.2,0.4"]
    assert step_times_s(options(*cluster)) == (0.04, 0.04, 0.2)
    two = options(*cluster, "--fastest", "2", "--", "--outer-momentum", "0.5")
    assert (step_times_s(two), two.algorithm.name, two.log_folder.name) == ((0.04, 0.04), "local-sgd", "fastest-outer")
    assert two.notes[-1].startswith("fastest-outer takes the fastest 2 of 5 workers: row 1 (0.04 s a step), row 2")
    outer = options("-m", "esync-outer", *cluster[2:], "--fastest", "3")
    assert (step_times_s(outer), outer.log_folder.name) == ((0.04, 0.04, 0.2), "esync-outer-k3")


def test_a_law_says_how_many_take_part_where_the_user_leaves_it_to_the_launcher():
    """By hand, for ESync on three machines: (1 + K/3 + h/10) / rate is 0.143, 0.121 (h = 3/2), 0.140 (h = 10/3)."""
    unlike = ["--workers", "0.1,0.2,0.6", "--fastest", "auto"]
    assert step_times_s(options("-m", "esync", *unlike)) == (0.1, 0.2)
    assert options("-m", "esync", *unlike).log_folder.name == "esync-k2"
    assert step_times_s(options("-m", "sync", *unlike)) == (0.1,)  # as many samples/s as two, in step
    assert len(step_times_s(options("-m", "sync", "--workers", "0.1,0.1,0.1", "--fastest", "auto"))) == 3
    assert step_times_s(options("-m", "local", *unlike)) == (0.1,)


def test_the_environment_is_the_users_without_another_jobs_variables():
    user = {"HOME": "/home/u", "DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "9", "PORT": "80", "OMP_NUM_THREADS": "2"}
    roles = {role.name: role.environment for role in build(*place(options("--workers", "0,0"), user))}
    assert roles["scheduler"]["DMLC_ROLE"] == "scheduler"
    assert roles["worker 0"]["DMLC_NUM_WORKER"] == "2"
    assert all((its["HOME"], its["OMP_NUM_THREADS"]) == ("/home/u", "2") for its in roles.values())
    assert {name for name, its in roles.items() if its.get("PORT", "80") == "80"} == {"state server"}
    assert not any(name.startswith(("DMLC_", "PORT")) for name in roles["state server"])


def test_every_port_is_another_one():
    job, layout = place(options("--workers", "0,0,0"))
    workers = [worker.port for worker in layout.workers]
    assert len({job.root_port, job.state_server_port, layout.scheduler_port, *layout.server_ports, *workers}) == 7
    assert workers == sorted(workers)


@pytest.mark.parametrize("flag", ["--root-port", "--state-server-port"])
def test_a_port_in_use_is_one_line_before_anything_starts(tmp_path, flag, refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = refused(started, "--log-base", str(tmp_path / "logs"), flag, str(port))
    assert told == f"{flag} {port} is in use: choose another, or leave the flag out for a free one"
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    ("given", "expected_s", "told"),
    [
        ("3", (0.0,) * 3, "--workers 3: 3 worker(s), each as fast as this machine (3.0 is one worker of 3 s a step)"),
        ("03", (0.0,) * 3, "--workers 3: 3 worker(s)"),
        ("3.0", (3.0,), ""),
        ("2e0", (2.0,), ""),
        ("0.02", (0.02,), ""),
        ("0,0", (0.0, 0.0), ""),
    ],
)
def test_a_whole_number_alone_is_how_many_workers_there_are_and_the_job_says_so(given, expected_s, told):
    asked = options("--workers", given)
    assert step_times_s(asked) == expected_s
    assert len(asked.notes) == bool(told) and "".join(asked.notes).startswith(told)
    assert job_options.warnings(*place(asked)) == [*asked.notes]


TRAINS = tells(begun=True)


@pytest.mark.parametrize("trains", [True, False])
def test_what_a_larger_job_before_left_is_moved_once_the_next_one_trains_and_not_before(tmp_path, trains):
    given = options("--workers", "0,0", "--log-base", str(tmp_path))
    folder = given.log_folder / socket.gethostname()
    for device in ("cpu0", "cpu2", "cpu3"):
        (folder / device).mkdir(parents=True)
        (folder / device / "iter-1.txt").write_text(device)
    (folder / "cpu3" / "notes.txt").touch()
    (given.log_folder / "worker2.log").write_text("of the larger job")
    lines: list[str] = []
    local_cluster.run(given, lambda *_: [stand_in(tmp_path, Kind.WORKER, TRAINS if trains else "")], lines.append)
    there = {path.name: [file.name for file in path.iterdir()] for path in folder.iterdir()}
    earlier = tmp_path / "earlier" / given.began
    if not trains:
        assert there == {"cpu0": ["iter-1.txt"], "cpu2": ["iter-1.txt"], "cpu3": sorted(there["cpu3"])}
        assert not earlier.exists() and not any("run before" in line for line in lines)
        return
    assert there == {"cpu0": ["iter-1.txt"], "cpu3": ["notes.txt"]}  # a worker moves its own
    assert lines.count(f"the logs of the run before are in {earlier} now; the last 5 runs stay there") == 1
    moved = earlier / folder.relative_to(tmp_path)
    assert (moved / "cpu2" / "iter-1.txt").read_text() == "cpu2" and (moved / "cpu3" / "iter-1.txt").exists()
    assert (moved.parent / "worker2.log").read_text() == "of the larger job"


def test_a_resumed_job_moves_nothing_and_its_processes_append_to_their_logs(tmp_path):
    given = options("--log-base", str(tmp_path), "--", "--ckpt-frequency", "5", "--resume")
    stale = given.log_folder / socket.gethostname() / "cpu7"
    stale.mkdir(parents=True)
    (stale / "iter-1.txt").touch()
    log = tmp_path / "worker.log"
    log.write_text("before\n")
    assert job_options.warnings(*place(given)) == []
    local_cluster.run(given, lambda *_: [stand_in(tmp_path, Kind.WORKER, TRAINS)], lambda line: None)
    assert (stale / "iter-1.txt").exists() and not (tmp_path / "earlier").exists()
    assert log.read_text().startswith("before\n")


def test_logs_that_cannot_be_moved_or_made_are_one_line_before_anything_is_started(tmp_path, refused):
    (tmp_path / "earlier").touch()
    folder = options("--log-base", str(tmp_path)).log_folder / socket.gethostname() / "cpu0"
    folder.mkdir(parents=True)
    (folder / "iter-1.txt").touch()
    line = refused(started, "--log-base", str(tmp_path))
    assert f"{tmp_path / 'earlier'} is no folder; move it yourself, or choose another log folder" in line
    assert (folder / "iter-1.txt").exists()
    assert "--log-base" in refused(started, "--log-base", str(tmp_path / "earlier"))


def test_a_job_file_names_its_logs_and_is_read_before_anything_starts(tmp_path, refused, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text("import numpy")
    monkeypatch.chdir(tmp_path)
    given = options("--log-base", str(tmp_path / "logs"), "--run", "first", "-m", "sync", "--job", "mine.py")
    assert given.log_folder == tmp_path / "logs" / "first" / "mine" / "sync"
    worker = command_line.parse(build(*place(given))[-1].command[2:], pytest.fail)
    assert (worker.job, worker.network) == (str(file), "lenet")
    assert job_options.forked(given, worker)[0] == "", "the fork server would read data that the file may replace"
    told = refused(started, "-m", "sync", "--", "--job", "mine.py")
    assert "--job mine.py behind `--` contradicts the cluster, where it is not given" in told
    file.write_text("import utils")
    (tmp_path / "utils.py").touch()
    has_its_name = "utils.py has the name of a module of this program: rename it"
    assert has_its_name in refused(started, "--job", "mine.py")
    assert "No such" in refused(started, "--job", "no.py")
    assert not (tmp_path / "logs").exists()


def test_a_run_with_a_name_is_filed_in_a_log_tree_of_its_own(tmp_path):
    given = options("--log-base", str(tmp_path), "--run", "with-gpu", "-m", "sync")
    assert given.log_folder == tmp_path / "with-gpu" / "lenet" / "sync"
    assert given.earlier == tmp_path / "with-gpu" / "earlier" / given.began
    assert given.remote_folder == Path("logs/with-gpu/lenet/sync")  # on another host


@pytest.mark.parametrize("name", ["", ".x", "-x", "a/b", "..", "a b", "lenet", "none", "earlier", "seed-3", "x" * 65])
def test_a_name_that_no_run_can_have_is_refused(name, refused):
    told = refused(started, f"--run={name}")
    assert "choose another name" in told or "cannot name a run; use 1 to 64" in told


@pytest.mark.parametrize("mode", demo.MODES)
def test_the_demo_asks_for_the_job_of_its_options(mode):
    given, for_main = demo.parse(["--seconds", "9", "--eval-seconds", "3", "--workers", "0.1,0.2", "--", "--seed", "7"])
    job = local_cluster.parse(demo.cluster_arguments(mode, given, for_main))
    worker = command_line.parse(build(*place(job))[-1].command[2:], pytest.fail)
    assert (worker.mode, worker.entry) == (OWNERS[mode].name, mode if mode != "alone" else "local")
    assert (worker.max_seconds, worker.eval_seconds, worker.seed) == (9, 3, 7)
    assert (worker.min_step_time, worker.device) == ((0.1, "cpu0") if mode == "alone" else (0.2, "cpu1"))


# --------------------------------------------------------------------------------------------------- get_data

CONTENT = {"images.gz": b"some images", "labels.gz": b"some labels"}
SUMS = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}


def source(**content: bytes) -> get_data.Source:
    def files(scratch: Path) -> Path:
        for name, data in content.items():
            (scratch / f"{name}.gz").write_bytes(gzip.compress(data))
        return scratch

    return files


GOOD = source(images=b"some images", labels=b"some labels")


def test_the_first_source_that_has_everything_right_is_taken(tmp_path):
    lines: list[str] = []
    sources = {"partial": source(images=b"some images"), "wrong": source(images=b"x", labels=b"y"), "good": GOOD}
    get_data.get(tmp_path / "data", SUMS, sources, lines.append)
    found = {path.name: gzip.decompress(path.read_bytes()) for path in (tmp_path / "data").iterdir()}
    assert found == CONTENT
    assert lines == [f"{tmp_path / 'data'} has Fashion-MNIST now, from good"]


def test_files_that_are_there_are_kept(tmp_path):
    get_data.get(tmp_path, SUMS, {"good": GOOD}, lambda _: None)
    before = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    get_data.get(tmp_path, SUMS, {}, lambda _: None)
    (tmp_path / "labels.gz").unlink()
    get_data.get(tmp_path, SUMS, {"good": GOOD}, lambda _: None)
    assert (tmp_path / "images.gz").stat().st_ino == before["images.gz"]


def test_a_file_that_is_something_else_is_named_and_left_alone(tmp_path):
    (tmp_path / "labels.gz").write_bytes(b"mine")
    with pytest.raises(SetupError, match=r"labels.gz is something else.*remove or rename it"):
        get_data.get(tmp_path, SUMS, {"good": GOOD}, lambda _: None)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"labels.gz": b"mine"}


def test_without_any_source_the_error_says_what_to_do_and_what_was_tried(tmp_path):
    with pytest.raises(SetupError) as error:
        get_data.get(tmp_path, SUMS, {"wrong": source(images=b"x")}, lambda _: None)
    assert f"Put images.gz, labels.gz into {tmp_path} by hand" in str(error.value)
    assert "wrong: images.gz there is not the published file" in str(error.value)
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------ the demo's console


def test_the_demo_shows_what_a_person_needs_and_each_warning_once():
    lines, now = [], 0.0
    digest = demo.digest(lines.append, lambda: now)
    for mode in ("sync", "esync"):
        digest(f"== {mode}")
        digest("2026-11-21 12:00:01 worker 0 | training begins")
        for second in range(50):
            now += 1.0
            digest(f"2026-11-21 12:00:01 worker 0 | round {second}, 1 step(s), {second}.1 s, loss 2.1, 5 s left")
            digest(f"2026-11-21 12:00:01 worker 0 | round {second}, 1 step(s), {second}.1 s, loss 2.1, accuracy 0.4")
        digest("2026-11-21 12:00:01 worker 0 | warning: it is slow (0.2 s in place of 0.1 s)")
        digest("2026-11-21 12:00:01 worker 1 | warning: it is slow (0.3 s in place of 0.1 s)")
        digest("2026-11-21 12:00:01 worker 1 | error: no room")
    told = [line.rpartition(" worker ")[2] for line in lines]
    evaluated = [line for line in told if "accuracy" in line]
    assert len(evaluated) in (7, 8)
    others = [
        "0 | warning: it is slow (0.2 s in place of 0.1 s)",
        "1 | error: no room",
        "== esync",
        "1 | error: no room",
    ]
    assert [line for line in told if line not in evaluated] == ["== sync", *others]


# ------------------------------------------------------------------------------------------ the shell scripts

COMMANDS = sorted(path for path in SCRIPTS.glob("*.sh") if path.name != "common.sh")


# What a caller's shell may have exported. NOISE is a file that prints a line.
CALLERS = {
    **{"BASH_ENV": "NOISE", "ENV": "NOISE", "PYTHONSTARTUP": "NOISE", "CDPATH": f".:{ROOT}:/", "GLOBIGNORE": "*"},
    **{f"BASH_FUNC_{name}%%": "() { echo called; return 1; }" for name in ("cd", "dirname", "realpath", "sed", "exec")},
    **{"SHELLOPTS": "noglob:noclobber:xtrace", "BASHOPTS": "failglob:nullglob", "BASH_COMPAT": "31", "IFS": "/"},
    **{"POSIXLY_CORRECT": "1", "GREP_OPTIONS": "-v", "GREP_COLOR": "7", "TAR_OPTIONS": "--nonsense", "TMOUT": "1"},
    **{"LANG": "de_DE.UTF-8", "LS_COLORS": "di=7", "TMPDIR": "/no such folder", "HOME": "/no such home", "LC_ALL": "C"},
    **{"PYTHONHOME": "/none", "PYTHONPLATLIBDIR": "none", "PYTHONOPTIMIZE": "2", "PYTHONSAFEPATH": "1"},
    **{"PYTHONWARNINGS": "error", "PYTHONINSPECT": "1", "PYTHONVERBOSE": "1", "PYTHONIOENCODING": "none"},
    **{"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": "/no such folder", "MAKEFLAGS": "-n", "PS4": "$(echo called >&2)"},
}


def help_of(script: Path, folder: Path, *before: str, **callers: str) -> tuple[int, str, str]:
    """Exit code, errors and first line of what a script says in a fresh clone when it is asked for help."""
    stub(folder / "bin" / "python3", f'exec {sys.executable} -S "$@"')  # without packages
    (folder / "noise").write_text("echo called\n")
    set_there = {name: value.replace("NOISE", str(folder / "noise")) for name, value in callers.items()}
    path = f"{folder}/bin:{os.environ['PATH']}"
    done = ran(*before, script, "--help", cwd=folder, VENV=str(folder / "none"), **(set_there | {"PATH": path}))
    return done.returncode, done.stderr, done.stdout.partition("\n")[0]


@pytest.mark.parametrize("script", COMMANDS, ids=lambda path: path.name)
def test_every_script_has_help_and_runs_from_any_folder_whatever_the_callers_shell_has_exported(script, tmp_path):
    code, errors, first = help_of(script, tmp_path, **CALLERS)
    if (code, errors) != (0, "") or not first.startswith(f"usage: scripts/{script.name}"):
        heard = {name: help_of(script, tmp_path, **{name: value}) for name, value in CALLERS.items()}
        deaf = help_of(script, tmp_path)
        pytest.fail(f"{(code, errors, first)}; alone: { ({name: it for name, it in heard.items() if it != deaf}) }")


def test_a_script_that_bash_was_given_is_as_deaf(tmp_path):
    called = {name: value for name, value in CALLERS.items() if name not in ("BASH_ENV", "SHELLOPTS")}  # bash's own
    for name in ("dirname", "exec"):  # called in the script's first lines
        del called[f"BASH_FUNC_{name}%%"]
    code, errors, first = help_of(SCRIPTS / "why.sh", tmp_path, "bash", **called)
    assert (code, errors) == (0, "") and first.startswith("usage: scripts/why.sh")


def test_a_script_finds_a_home_and_a_folder_for_files_that_do_not_stay(copy):
    command = f"source {copy}/scripts/common.sh && find_python && mktemp -u && echo $HOME"
    done = ran("env", "-u", "HOME", "bash", "-euc", command, TMPDIR="/no such folder", PYTHON=sys.executable)
    _, file, home = done.stdout.splitlines()
    assert file.startswith("/tmp/tmp.") and home == pwd.getpwuid(os.getuid()).pw_dir


@pytest.mark.parametrize("words", ["demo.sh --seconds 9 --help", "reproduce.sh --quick -h", "worker.sh -m sync --help"])
def test_help_behind_other_options_starts_nothing(words, copy):
    name, *arguments = words.split()
    done = ran(SCRIPTS / name, *arguments, VENV=str(copy / "none"))
    assert (done.returncode, done.stderr) == (0, "") and f"usage: scripts/{name}" in done.stdout
    assert not (copy / "none").exists()


@pytest.mark.parametrize("name", ["setup.sh", "test.sh", "test_pythons.sh"])
def test_help_that_is_not_read_starts_nothing(name, copy):
    shutil.copy(SCRIPTS / name, copy / "scripts")
    done = ran("bash", "-c", f"{copy}/scripts/{name} --help >/dev/full", VENV=str(copy / "none"))
    assert done.returncode == 4 and done.stderr.startswith("sed: ")
    assert not [*copy.glob(".venv*"), *copy.glob("none")]


def test_a_user_without_root_is_told_all_missing_debian_packages_at_once(copy):
    python = stub(
        copy / "bin" / "python3.11",
        f'case "$2" in *ensurepip* | *libquadmath* | *libgomp*) exit 1 ;; *) exec {sys.executable} "$@" ;; esac',
    )
    stub(copy / "bin" / "id", "echo 1000")
    stub(copy / "bin" / "apt-get", "exit 1")
    done = set_up(copy, PYTHON=str(python), PATH=f"{copy}/bin:{os.environ['PATH']}")
    (line,) = done.stderr.splitlines()
    found = re.search(r"run 'sudo apt-get install (.*)', then this again$", line)
    number = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert {*found[1].split()} == {f"python{number}-venv", "libgomp1", "libquadmath0"}, line
    assert (done.returncode, (copy / ".venv").exists()) == (2, False)


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="no shellcheck: apt-get install shellcheck")
def test_shellcheck_has_nothing_to_say():
    done = ran("shellcheck", *SCRIPTS.glob("*.sh"), ROOT / ".ci" / "run")
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("flags", "folder"),
    [
        ([], "resnet18-v1/esync"),
        (["-n", "lenet", "-m", "async", "-dcasgd", "1", "-c", "1"], "lenet/dcasgd"),
        (["-m", "wbsp", "--wbsp-overlap", "1", "-s", "1"], "resnet18-v1/wbsp-pcc-niid"),
    ],
)
def test_a_workers_logs_are_filed_as_the_summary_reads_them(tmp_path, flags, folder):
    for folder_of_files in ("esync", "scripts", "trainer"):
        compiled = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder_of_files, tmp_path / folder_of_files, ignore=compiled)
    for name in ("algorithm_row", "algorithms", "config", "flag_parser", "flag_values", "rates", "start", "utils"):
        shutil.copy(ROOT / f"{name}.py", tmp_path)
    shutil.copy(ROOT / "VERSION", tmp_path)
    (tmp_path / "main.py").write_text("import os, sys\nprint(os.environ['DMLC_ROLE'], *sys.argv[1:])")

    def told(*more: str) -> list[str]:
        done = ran(tmp_path / "scripts" / "worker.sh", *flags, *more, cwd=Path("/"), VENV=sys.prefix)
        return done.stdout.split()

    here = f"{folder}/{socket.gethostname()}"
    assert told() == ["worker", "-ld", f"logs/{here}", "--earlier", "logs/earlier", *flags]
    assert told("--run", "one") == ["worker", "-ld", f"logs/one/{here}", "--earlier", "logs/one/earlier", *flags]
    own = command_line.parse(told("-ld", "mine")[1:])
    assert (own.log_dir, own.earlier) == ("mine", "")
    assert told("-ld", "mine", "--run", "one") == []
    assert told("--nonsense") == []


def copy_to(folder: Path) -> Path:
    """A project with the real set-up scripts and nothing to install."""
    (folder / "scripts").mkdir()
    for name in ("common.sh", "setup.sh"):
        shutil.copy(SCRIPTS / name, folder / "scripts" / name)
    (folder / "trainer" / "runtime").mkdir(parents=True)
    shutil.copy(ROOT / "trainer" / "runtime" / "numpy_names.py", folder / "trainer" / "runtime")
    (folder / "requirements.txt").write_text("# nothing\n")
    (folder / "requirements-test.txt").write_text("-r requirements.txt\n")
    return folder


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A project without an environment yet."""
    return copy_to(tmp_path)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose environment was made, which takes seconds, after an attempt that was interrupted."""
    project = copy_to(tmp_path_factory.mktemp("project"))
    stub(project / ".venv" / "bin" / "python", f'exec {sys.executable} "$@"')
    (project / ".venv" / ".unfinished").touch()
    made = set_up(project, "--test")
    assert made.returncode == 0, made.stderr
    assert "making" in made.stderr
    assert set_up(project).stderr == f"{project}/.venv is ready\n"  # --test installs the other requirements too
    return project


def set_up(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    offline = {"PIP_NO_INDEX": "1", "VENV": "", "PYTHON": sys.executable}
    return ran(project / "scripts" / "setup.sh", *arguments, **(offline | environment))


def test_an_environment_is_made_again_after_an_interruption_alone_and_installs_what_changed(ready):
    (ready / "requirements.txt").write_text("# still nothing\n")
    changed = set_up(ready)
    assert "installing" in changed.stderr
    assert "making" not in changed.stderr
    assert set_up(ready).stderr == f"{ready}/.venv is ready\n"


def test_an_environment_of_an_earlier_version_gets_the_hook_that_lets_any_program_import_mxnet(ready):
    for file in (ready / ".venv").glob("lib/python3.*/site-packages/esync_numpy_names.*"):
        file.unlink()
    assert set_up(ready).stderr == f"{ready}/.venv is ready\n"  # nothing is installed again
    packages = str(Path(numpy.__file__).parents[1])  # of this environment, whose .pth files do not count there
    program = "import sys; assert 'numpy' not in sys.modules; import mxnet; print(mxnet.nd.ones(2).sum().asscalar())"
    done = ran(ready / ".venv" / "bin" / "python", "-c", program, cwd=Path("/"), PYTHONPATH=packages)
    assert (done.stdout, done.stderr) == ("2.0\n", "")


def stub(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


OTHER_PYTHON = 'case "$2" in *print*) echo 3.15 ;; *) exit 1 ;; esac'


def test_without_a_supported_python_one_line_says_which_and_how_to_get_one(copy):
    python = stub(copy / "bin" / "python", OTHER_PYTHON)
    done = set_up(copy, PYTHON=str(python))
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.startswith(f"error: no supported Python here: {python} is 3.15; this project runs on 3.10 to 3.14")
    assert "apt-get install" in line
    assert not (copy / ".venv").exists()


def write_wheel(folder: Path, name: str, metadata: str = "") -> None:
    """Version 1 of a package without files."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{metadata}")
        wheel.writestr(f"{name}-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-1.dist-info/RECORD", "")


def python_of_version(path: Path, number: tuple[int, int]) -> Path:
    """A Python that takes itself for another version."""
    return stub(path, f'exec {sys.executable} -c "import sys; sys.version_info = {number}; exec(sys.argv[1])" "$2"')


def without_pythons(project: Path) -> dict[str, str]:
    """An environment in which the scripts find no Python but the stand-ins in the project's `bin`."""
    for tool in ("bash", "dirname", "env", "realpath", "sed"):
        stub(project / "bin" / tool, f'exec {shutil.which(tool)} "$@"')
    nowhere = str(project / "nowhere")
    return {"PATH": str(project / "bin"), "PYTHON": "", "PYENV_ROOT": nowhere, "XDG_DATA_HOME": nowhere}


@pytest.mark.parametrize("minor", range(9, 16))
def test_python_3_10_to_3_14_are_supported(copy, minor):
    python = python_of_version(copy / "bin" / "python", (3, minor))
    assert python_found(copy, PYTHON=str(python)) == (f"{python}\n" if 10 <= minor <= 14 else "")


def python_found(project: Path, **environment: str) -> str:
    return ran("bash", "-c", f"source {project}/scripts/common.sh && find_python", **environment).stdout


def test_a_python_is_found_behind_shims_that_fail(copy):
    stub(copy / "bin" / "python3", OTHER_PYTHON)
    stub(copy / "bin" / "python3.12", "exit 127")
    stub(copy / "bin" / "python3.11", f'exec {sys.executable} "$@"')
    assert python_found(copy, **without_pythons(copy)) == f"{copy}/bin/python3.11\n"


def test_what_a_package_says_that_it_needs_is_not_asked(ready):
    """MXNet says numpy<2, so the lists are complete and pip does not look beyond them."""
    write_wheel(ready, "needy", "Requires-Dist: nowhere<2\n")
    (ready / "requirements.txt").write_text("needy==1\n")
    elsewhere = {"PIP_TARGET": str(ready / "elsewhere"), "PIP_USER": "1"}
    done = set_up(ready, PIP_FIND_LINKS=str(ready), PYTHONHOME="/nowhere", **elsewhere)
    assert done.returncode == 0, done.stderr
    assert list((ready / ".venv").glob("lib/python3.*/site-packages/needy-1.dist-info"))


def test_an_extra_is_added_once_and_where_it_is_not_to_be_had_the_rest_stays(ready):
    extra, all_there = ready / "requirements-torch.txt", f"{ready}/.venv is ready\n"
    (ready / "requirements.txt").write_text("# nothing\n")
    set_up(ready, "--test")
    extra.write_text(f"--find-links {ready}/page\nextra==1\n")
    refused = set_up(ready, "--torch")
    assert (refused.returncode, refused.stderr.count("\nerror: ")) == (2, 1)
    assert "error: pip could not install requirements-torch.txt; what it said is above" in refused.stderr
    assert set_up(ready, "--test").stderr == all_there  # the environment is not made again
    write_wheel(ready / "page", "extra")
    assert set_up(ready, "--torch", "--test").stderr.startswith(f"installing requirements-torch.txt into {ready}/.venv")
    assert list((ready / ".venv").glob("lib/python3.*/site-packages/extra-1.dist-info"))
    for options in (["--test", "--torch"], ["--torch"], []):
        assert set_up(ready, *options).stderr == all_there
    extra.write_text(extra.read_text() + "# changed\n")
    assert "installing" in set_up(ready, "--torch").stderr
    assert "error: unknown argument '--cuda'" in set_up(ready, "--torch", "--cuda").stderr


def test_where_pip_fails_a_line_says_so_also_without_a_variable_of_pip():
    done = ran("env", "-i", "bash", "-c", f"source '{ROOT}/scripts/common.sh'; pins_missing here")
    assert (done.returncode, done.stderr) == (2, "error: pip could not install here; what it said is above\n")


@pytest.mark.parametrize("code", [0, 2])
def test_continuous_integration_tests_without_pytorch_where_it_is_not_to_be_had(tmp_path, code):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    stub(tmp_path / "scripts" / "setup.sh", f'echo "setup $* $PIP_RETRIES $SECRET"; exit {code}')
    stub(tmp_path / "scripts" / "test.sh", 'echo "test $* $PIP_RETRIES $SECRET"')
    stub(tmp_path / "bin" / "id", "echo 1000")  # it installs no Debian packages
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    done = ran(tmp_path / ".ci" / "run", PATH=path, PIP_RETRIES="3", SECRET="heard")
    assert (done.returncode, done.stdout) == (0, "setup --test --torch 3 \ntest  3 \n")
    assert done.stderr == ("without PyTorch: its tests are skipped\n" if code else "")


def test_the_tests_run_with_every_python_that_is_there(copy):
    """A machine with nothing but a Python 3.11, a 3.13 whose tests fail, and a 3.15."""
    environment = without_pythons(copy)
    python_of_version(copy / "bin" / "python3.11", (3, 11))
    python_of_version(copy / "bin" / "python3.13", (3, 13))
    python_of_version(copy / "bin" / "python3", (3, 15))
    shutil.copy(SCRIPTS / "test_pythons.sh", copy / "scripts")
    stub(copy / "scripts" / "test.sh", 'echo "$PYTHON $VENV $*"\ncase $PYTHON in *13) exit 1 ;; esac')
    done = ran(copy / "scripts" / "test_pythons.sh", "tests/models/test_models.py", **environment)
    assert done.stdout.splitlines() == [
        f"{copy}/bin/python3.13 {copy}/.venv-3.13 tests/models/test_models.py",
        f"{copy}/bin/python3.11 {copy}/.venv-3.11 tests/models/test_models.py",
    ]
    summary = done.stderr.splitlines()[-5:]
    assert summary == [f"Python 3.{minor}: {result}" for minor, result in (
        (14, "not found"), (13, "failed"), (12, "not found"), (11, "passed"), (10, "not found")
    )]  # fmt: skip
    assert done.returncode == 1


def test_a_policy_alone_makes_no_preset():
    assert options("-m", "esync", "--", "--policy", "upload-aware").mode_folder == Path("lenet/esync")


def test_two_clusters_do_not_write_to_the_same_logs(tmp_path):
    folder = tmp_path / "esync"
    with job_options.claimed(folder), pytest.raises(SetupError, match="--log-base"), job_options.claimed(folder):
        pass
    with job_options.claimed(folder):
        pass  # the first one is gone
