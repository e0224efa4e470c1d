"""What a process may use: cores, open files, packages; and addresses in words."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_processes import ROOT, ran

from utils import (
    EXIT_BUG,
    EXIT_SETUP,
    LAUNCHER,
    Output,
    SetupError,
    allow_open_files,
    authority,
    launchers_pipe,
    usable_cores,
)


def run(*command: str, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """A program of the project; `before` is a shell command ahead of it."""
    return ran("bash", "-c", f'{before or ":"} && exec "$@"', "", *command, **environment)


def test_lines_that_the_disk_does_not_take_are_written_when_there_is_room(tmp_path):
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    with Path("/dev/full").open("wb", buffering=0) as full:
        output = Output(io.TextIOWrapper(full, write_through=True), keeps=True)
        for number in range(2):
            output.write(f"line {number}\n")
            output.flush()
        os.dup2(log, full.fileno())
        output.write("line 2\n")
    os.close(log)
    assert (tmp_path / "log").read_text() == "line 0\nline 1\nline 2\n"


def cores(folder: Path, membership: str, **files: str) -> int:
    """Of a process in these control groups; the files are at `FOLDER__NAME`, with `_` for `.` in NAME."""
    (folder / "own").write_text(membership)
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(path.name.replace("cpu_", "cpu.", 1)).write_text(text)
    return len(usable_cores(folder, folder / "own"))


@pytest.fixture
def many_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))


@pytest.mark.usefixtures("many_cores")
@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/job/a\n", {"job__a__cpu_max": "max 100000", "job__cpu_max": "250000 100000"}, 2),  # of the group above
        ("0::/\n", {"cpu_max": "50000 100000"}, 1),  # a container's own group is its root
        ("0::/docker/f00\n", {"cpu_max": "400000 100000\n"}, 4),  # and may be seen by its name outside
        ("0::/job\n", {"job__cpu_max": "max 100000"}, 64),
        (
            "3:cpu,acct:/docker/f00\n0::/\n",
            {"cpu__cpu_cfs_quota_us": "200000", "cpu__cpu_cfs_period_us": "100000"},
            2,
        ),
        ("1:cpu:/\n", {"cpu__cpu_cfs_quota_us": "-1\n", "cpu__cpu_cfs_period_us": "100000\n"}, 64),
        ("3:cpuset:/\n", {}, 64),
        ("", {}, 64),
    ],
)
def test_a_cpu_quota_of_either_version_is_worth_so_many_cores(tmp_path, membership, files, expected):
    assert cores(tmp_path, membership, **files) == expected


def test_a_thread_that_cannot_begin_ends_the_process() -> None:
    program = (
        "import _thread, time, utils\nutils.die_where_a_thread_does()\n"
        "def begin():\n    raise MemoryError\n_thread.start_new_thread(begin, ())\ntime.sleep(60)"
    )
    done = ran(sys.executable, "-c", program)
    assert done.returncode == EXIT_BUG and "error: a thread could not begin: MemoryError" in done.stderr


def test_the_agent_on_a_host_tells_the_cores_that_it_may_use():
    own = sorted(os.sched_getaffinity(0))[0]
    told = run("taskset", "-c", str(own), "scripts/remote.sh", VENV=sys.prefix)
    assert '"cores": 1}' in told.stdout


def test_a_quota_of_the_system_counts(tmp_path):
    group = Path(f"/sys/fs/cgroup/cpu/esync-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError:
        pytest.skip("control groups of version 1 cannot be made here")
    try:
        (group / "cpu.cfs_quota_us").write_text("100000")
        told = run(
            *(sys.executable, "-c", "import trainer.engine, os; print(os.environ['OMP_NUM_THREADS'])"),
            before=f"echo $$ >{group}/cgroup.procs",
            OMP_NUM_THREADS="",
        )
    finally:
        group.rmdir()
    assert told.stdout == "1\n"  # OpenMP alone would take all cores of the machine


def test_too_few_open_files_are_one_line_and_a_soft_limit_is_raised():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.raises(SetupError, match=rf"may open {before[1]} files .*, and this job needs {before[1] + 1}:"):
        allow_open_files(0, before[1] + 1, "this job")
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
    allow_open_files(before[0], before[0], "this job")
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


@pytest.mark.parametrize(
    "program",
    [
        ("main.py", "-m", "sync", "-n", "mlp"),
        ("scripts/local_cluster.sh", "-m", "esync", "-n", "mlp", "--workers", "0,0", "--log-base"),
        ("scripts/state_server.sh",),
    ],
)
def test_a_job_with_too_few_open_files_ends_with_a_line(tmp_path, program):
    roles = {f"DMLC_{name}": "1" for name in ("NUM_SERVER", "NUM_WORKER", "PS_ROOT_PORT")}
    job = roles | {"DMLC_ROLE": "worker", "DMLC_PS_ROOT_URI": "127.0.0.1", "VENV": sys.prefix}
    python = [sys.executable] if program[0].endswith(".py") else []
    more = [str(tmp_path)] if program[-1] == "--log-base" else []
    ended = run(*python, *program, *more, before="ulimit -n 24", **job)
    assert ended.returncode == EXIT_SETUP
    assert "ulimit -Hn" in ended.stderr and len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("program", ["main.py", "summary.py", "draw.py", "simulate.py", "SimpleStateServer/manage.py"])
def test_programs_run_where_python_does_not_add_their_folder(program):
    assert run(sys.executable, program, "--help", PYTHONSAFEPATH="1").returncode == 0


def test_kubernetes_variable_of_a_service_called_state_server_is_no_port():
    words = ("scripts/state_server.sh", "--request-timeout", "0")
    ended = run(*words, STATE_SERVER_PORT="tcp://10.3.2.1:10010", VENV=sys.prefix)
    told, error = ended.stderr.splitlines()
    assert told.startswith("STATE_SERVER_PORT=tcp://10.3.2.1:10010 is Kubernetes' variable of a service")
    assert error == "error: --request-timeout is 0; give 0.1 or more"


def test_an_ipv6_address_stands_in_brackets():
    assert [authority("10.1.1.34", 1), authority("::1", "2")] == ["10.1.1.34:1", "[::1]:2"]


def test_a_pipe_of_another_program_is_not_taken_for_the_launchers(tmp_path):
    """mpiexec hands the variable on to what it starts, where the number is another file's, or none's."""
    code = "import utils; utils.tell_launcher({'rank': 1})"
    reader, writer = os.pipe()
    other = os.open(tmp_path / "other", os.O_CREAT | os.O_RDWR)
    told = launchers_pipe(writer)[LAUNCHER]
    for variable, kept, comes in ((told, writer, True), (f"{other} {told.split()[1]}", other, False), (told, 0, False)):
        environment = {**os.environ, LAUNCHER: variable}
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, pass_fds=[kept], check=True)
        os.set_blocking(reader, False)
        with contextlib.nullcontext() if comes else pytest.raises(BlockingIOError):
            assert os.read(reader, 100) == b'{"rank": 1}\n'
    assert not (tmp_path / "other").stat().st_size
