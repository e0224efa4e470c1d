"""Programs that are not this project's, on its scheduler and parameter server: real processes."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from cluster_processes import ROOT, cluster, end_of, free_ports, wait_for
from few_images import few_images, on_few_images
from round_records import read_rounds

pytestmark = pytest.mark.cluster

FOREIGN = "tests/helpers/foreign_mxnet.py"
ALL_WELL = {"scheduler": 0, "server0": 0, "worker0": 0, "worker1": 0}

# --------------------------------------------------------------------------------------------- ordinary MXNet programs


@pytest.mark.parametrize(
    ("program", "store", "seconds"),
    [
        ("gluon_trainer", "dist_sync", 10),  # longer than this project's processes may be silent
        ("gluon_trainer", "dist_async", 1),
        ("two_trainers", "dist_sync", 1),
        ("published_asgd", "dist_async", 1),
        ("published_esync", "dist_sync", 1),
    ],
)
def test_an_ordinary_program_trains_and_all_processes_end_well(tmp_path, program, store, seconds):
    with cluster(tmp_path, num_workers=2) as job:
        for rank in range(2):
            job.start_worker(rank, FOREIGN, program, store, str(seconds))
        assert job.exit_codes() == ALL_WELL


def test_an_ordinary_program_that_dies_ends_the_others_instead_of_letting_them_wait(tmp_path):
    with cluster(tmp_path, num_workers=2) as job:
        for rank in range(2):
            job.start_worker(rank, FOREIGN, "gluon_trainer", "dist_sync", "600")
        wait_for(lambda: "trained" in job.log("worker0"), "a step")
        job.running["worker1"].send(signal.SIGKILL)
        job.running["worker0"].send(signal.SIGKILL)  # it waits for the other one, as MXNet has it
        assert job.exit_codes() == {"scheduler": 3, "server0": 3, "worker0": -9, "worker1": -9}
        for name in ("scheduler", "server0"):
            assert "a plain MXNet program at 127.0.0.1 is gone: it was killed or has crashed" in job.log(name)


# ---------------------------------------------------------------------------------------- dmlc's launcher: one command


def start_all_by_one_command(job, *flags):
    """As dmlc's launcher does: every process gets the same command, and its number among those of its role."""
    command = ["main.py", "-m", "sync", "-n", "mlp", "-c", "1", "--dataset", "mnist", "-dd", str(few_images()), *flags]
    for name in ALL_WELL:
        role = name.rstrip("01")
        job.start(name, role, *command, DMLC_TASK_ID=name.removeprefix(role) or "0", DMLC_JOB_CLUSTER="local")


def test_workers_that_are_started_by_one_command_have_log_folders_of_their_own(tmp_path):
    with cluster(tmp_path / "processes", num_workers=2, start=False) as job:
        start_all_by_one_command(job, "--max-rounds", "3", "-ld", str(tmp_path / "logs"))
        assert job.exit_codes() == ALL_WELL
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["cpu-0", "cpu-1"]


def test_a_worker_that_cannot_begin_ends_all_that_would_wait_for_it(tmp_path):
    with cluster(tmp_path / "processes", num_workers=2, start=False) as job:
        start_all_by_one_command(job, "-ld", str(tmp_path / "logs"), "--device-name", "one")
        codes = job.exit_codes()
        assert set(codes.values()) == {2}
        assert "ended before the job began: another worker writes its logs to" in job.log("server0")


# ------------------------------------------------------------------------------------------------ bytes of strangers

ZERO_MQ = b"\xff" + bytes(7) + b"\x01\x7f"  # how a connection of ZeroMQ begins
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: 10.0.0.1:9091\r\nUser-Agent: kube-probe/1.27\r\nConnection: close\r\n\r\n"
TLS = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)


def strangers_bytes():
    yield from (b"\n" * 4096, REQUEST, TLS, b"SSH-2.0-scan\r\n", b"", bytes(5000), b'{"msg_type": "JOIN"}\n')
    yield from (ZERO_MQ, ZERO_MQ + b"\x00" + b"\x05abcd" * 200, ZERO_MQ + b"\x03\x00NULL" + bytes(2000))
    yield from (b"\x05\x00abcd" * 1000, b"\x01\x00", b"\xff" * 100)  # messages of ZeroMQ's first versions
    draw = random.Random(0)
    for index in range(200):
        some = draw.randbytes(draw.choice((draw.randint(1, 64), draw.randint(1, 1 << 16))))
        yield b"\xff" + some if index % 4 == 0 else some


def listening_ports(processes):
    inodes = set()
    for process in processes:
        for entry in Path(f"/proc/{process._child.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(str(entry.readlink()).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sorted({int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes})


def attack(port):
    for data in strangers_bytes():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as stranger:
            stranger.sendall(data)
            stranger.settimeout(0.01)
            stranger.recv(100)


def test_strangers_bytes_at_any_port_at_any_time_are_no_matter_of_the_job(tmp_path):
    flags = ["-m", "async", "-n", "mlp", "-c", "1", "--dataset", "mnist", "-dd", str(few_images())]
    with cluster(tmp_path, num_workers=2) as job:
        wait_for(lambda: "server (host" in job.log("scheduler"), "the server at the rendezvous")
        for port in listening_ports(job.running.values()):
            attack(port)
        for rank in range(2):
            device = ["--device-name", f"cpu{rank}", "-ld", str(tmp_path / "logs")]
            job.start_worker(rank, "main.py", *flags, *device, "--min-step-time", "0.02", "--max-seconds", "60")
        wait_for(lambda: all("round 1," in job.log(f"worker{rank}") for rank in range(2)), "the first rounds")
        ports = listening_ports(job.running.values())
        assert len(ports) >= 5  # of the rendezvous, and MXNet's of each process
        for port in ports:
            attack(port)
        for rank in range(2):
            job.running[f"worker{rank}"].send(signal.SIGTERM)
        assert job.exit_codes() == ALL_WELL


def zero_mq_frame(flags, body):
    return struct.pack(">BQ", flags | 2, len(body)) + body if len(body) > 255 else bytes([flags, len(body)]) + body


def varint(value):
    """Of protobuf."""
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def test_a_strangers_pickle_at_a_servers_port_runs_nothing_and_ends_the_server_with_its_name(tmp_path):
    """The stranger could as well send the optimizer that stops all training: so an honest worker whose optimizer the
    server does not take must not train on, and MXNet tells it that all is well."""
    body = f"cposix\nsystem\n(Vtouch {tmp_path / 'it-ran'}\ntR.".encode()
    about = ((1, 0), (4, 1), (6, 1), (7, 0), (8, 0), (10, 0))  # ps-lite's PBMeta: a request, command 0
    numbers = b"".join(varint(field << 3) + varint(value) for field, value in about)
    meta = numbers + varint(2 << 3 | 2) + varint(len(body)) + body
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    properties = ((b"Socket-Type", b"DEALER"), (b"Identity", b"ps99"))
    told = b"".join(bytes([len(key)]) + key + struct.pack(">I", len(value)) + value for key, value in properties)
    with cluster(tmp_path, num_workers=1) as job:
        job.start_worker(0, FOREIGN, "published_asgd", "dist_async", "60")
        wait_for(lambda: "trained" in job.log("worker0"), "a step")
        (port,) = listening_ports([job.running["server0"]])
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(greeting)
            answer = b""
            while b"READY" not in answer:
                answer += stranger.recv(1 << 16)
            stranger.sendall(zero_mq_frame(4, b"\x05READY" + told) + zero_mq_frame(0, meta))
            assert end_of(job.running["server0"]) == 2
        lines = [line for line in job.log("server0").splitlines() if "posix.system" in line]
        assert len(lines) == 1 and "error: what came to this server as its optimizer names posix.system" in lines[0]
        assert "Traceback" not in job.log("server0") and not (tmp_path / "it-ran").exists()
        assert end_of(job.running["scheduler"]) == 3


# ------------------------------------------------------------------------------- the published state server


@pytest.fixture
def published(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """The port and the log of a published state server."""
    (port,) = free_ports(1)
    program, log = ROOT / "tests" / "helpers" / "published_program.py", tmp_path / "published.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-u", str(program), "runserver", "--noreload", f"127.0.0.1:{port}"],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(lambda: "Quit the server" in log.read_text(), "the start of the published server")
        yield port, log
    finally:
        process.kill()
        process.wait()


def test_esync_trains_with_a_published_state_server(published: tuple[int, Path], tmp_path: Path) -> None:
    port, server_log = published
    earlier = {"num_workers": 1, "epsilon": 0.5}  # of a job before
    assert requests.post(f"http://127.0.0.1:{port}/init/", data=earlier, timeout=10).status_code == 200
    flags = ["-m", "esync", "-n", "mlp", "-c", "1", "--max-rounds", "4", "-port", str(port), *on_few_images()]
    own = ["--policy", "preprint", "--epsilon", "0.01"]
    with cluster(tmp_path / "job", 2) as job:
        for rank, step_s in enumerate(("0.05", "0.5")):
            where = ["-ld", str(tmp_path / f"worker{rank}"), "--min-step-time", step_s]
            job.start_worker(rank, "main.py", *flags, *own, *where)
        assert set(job.exit_codes().values()) == {0}
        for rank in range(2):
            warning = f"http://127.0.0.1:{port} is a published ESync state server: its rule is the preprint's"
            assert job.log(f"worker{rank}").count(warning) == 1
            assert "Traceback" not in job.log(f"worker{rank}")
    state = requests.get(f"http://127.0.0.1:{port}/", timeout=10).json()
    assert (state["num_workers"], state["t"], state["epsilon"]) == (2, 4, 0.01)
    assert [row[5] for row in state["records"]] == [4, 4]
    logs = [read_rounds(tmp_path / f"worker{rank}" / "cpu", pytest.fail) for rank in range(2)]
    fast, slow = (sum(record["num_samples"] for record in log) for log in logs)
    assert fast > 2 * slow  # the rule has decided: ten steps fit into the slow one's
    assert "Internal Server Error" not in server_log.read_text()
