"""The scripts: a job's supervisor with stand-ins for its roles, the data, the environment. Real clusters: elsewhere."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

import config
from algorithms import ENTRIES
from scripts import demo, get_data, launch, local_cluster
from scripts.process import Kind, Role
from scripts.roles import Options, build_roles
from scripts.supervisor import Outcome, Supervisor, Waits, parse_log_line
from utils import EXIT_SETUP, SetupError

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"
DEADLINE_S = 20.0  # generous: the machine may be busy

# ------------------------------------------------------------------------------------- stand-ins for the roles

BEGIN = "import os, signal, sys, time; from pathlib import Path; here = Path(sys.argv[1])\n"
IDLE = "\nwhile True: time.sleep(0.05)"  # what a role does until something happens to it
UP = "\n(here / f'{sys.argv[2]}.pid.tmp').write_text(str(os.getpid()))" + (
    "\nos.replace(here / f'{sys.argv[2]}.pid.tmp', here / f'{sys.argv[2]}.pid')"
)
FOREVER = UP + IDLE
# Ends with its "round" at SIGTERM, as main.py does.
WORKER = "def end(*_): print('round complete', flush=True); sys.exit(0)\nsignal.signal(signal.SIGTERM, end)" + UP + IDLE
STUBBORN_WORKER = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" + UP + IDLE
# Ends by itself after the workers, as a parameter server does; they tell by a file.
SERVER = UP + "\nwhile not (here / 'workers are done').exists(): time.sleep(0.05)"
DONE = "(here / 'workers are done').touch()"


def role(folder: Path, kind: Kind, program: str, name: str = "", **options: object) -> Role:
    name = name or kind.value
    return Role(
        name=name,
        kind=kind,
        command=[sys.executable, "-I", "-c", BEGIN + textwrap.dedent(program), str(folder), name.replace(" ", "-")],
        environment=dict(os.environ),
        folder=folder,
        log=folder / f"{name}.log",
        **options,  # type: ignore[arg-type]
    )


def supervise(*roles: Role, **waits: float) -> tuple[Outcome, list[str]]:
    """Runs the roles in this process; returns how it ended and what the user was told."""
    lines: list[str] = []
    return Supervisor(roles, lines.append, Waits(**waits)).run(), lines


def running(folder: Path) -> list[str]:
    """Command lines of the processes that were started with `folder` as an argument and have not ended."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")  # empty once it has ended
        except OSError:
            continue
        if str(folder).encode() in words:
            found.append(" ".join(word.decode() for word in words))
    return found


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_S:g} s"
        time.sleep(0.02)


# ------------------------------------------------------------- a whole supervisor in a process of its own

COMMAND = """
import sys
from pathlib import Path
from scripts import local_cluster
from scripts.process import Kind
from tests.test_scripts import {programs}, role
here = Path(sys.argv[1])
def build(options):
    return [
        role(here, Kind.SERVICE, FOREVER, "state server"),
        role(here, Kind.SERVER, SERVER, "scheduler"),
        role(here, Kind.WORKER, {worker}, "worker 0", title="cpu0"),
        role(here, Kind.WORKER, {worker}, "worker 1", title="cpu1"),
    ]
sys.exit(local_cluster.main(["--log-base", str(here), *sys.argv[2:]], build))
"""
ROLES = ("state-server", "scheduler", "worker-0", "worker-1")


class Job:
    """A supervisor and its four stand-ins, all of them up."""

    def __init__(self, folder: Path, worker: str) -> None:
        self.folder = folder
        programs = ", ".join(sorted({"FOREVER", "SERVER", worker}))
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND.format(programs=programs, worker=worker), str(folder)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        wait_for(lambda: all((folder / f"{name}.pid").exists() for name in ROLES), "all roles up")

    def pid(self, name: str) -> int:
        return int((self.folder / f"{name}.pid").read_text())

    def end(self) -> tuple[int, str]:
        """Its exit code and output, once it has ended."""
        output, _ = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, output


@pytest.fixture
def start_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start(worker: str = "WORKER") -> Job:
        jobs.append(Job(tmp_path, worker))
        return jobs[-1]

    yield start
    for job in jobs:
        job.process.kill()
        job.process.wait()
    wait_for(lambda: not running(tmp_path), "the end of every process")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_the_workers_end_their_round_and_stops_the_rest(start_job, tmp_path, number):
    job = start_job()
    job.process.send_signal(number)
    wait_for(lambda: "round complete" in (tmp_path / "worker 1.log").read_text(), "the workers' end")
    (tmp_path / "workers are done").touch()
    code, output = job.end()
    assert (code, running(tmp_path)) == (0, [])
    assert f"{signal.Signals(number).name}: the workers end with this round" in output
    assert "stopped; the logs are in" in output


def test_a_second_signal_kills_at_once(start_job, tmp_path):
    job = start_job(worker="STUBBORN_WORKER")
    job.process.send_signal(signal.SIGINT)
    time.sleep(1.5)  # two signals within a second count as one
    assert job.process.poll() is None
    job.process.send_signal(signal.SIGINT)
    code, output = job.end()
    assert (code, running(tmp_path)) == (130, [])
    assert "a second signal" in output


@pytest.mark.parametrize(
    ("name", "label"), zip(ROLES, ("state server", "scheduler", "worker 0 (cpu0)", "worker 1 (cpu1)"), strict=True)
)
def test_a_role_that_is_killed_ends_the_job_with_its_name(start_job, tmp_path, name, label):
    job = start_job()
    begin = time.monotonic()
    os.kill(job.pid(name), signal.SIGKILL)
    code, output = job.end()
    assert (code, running(tmp_path)) == (3, [])
    assert f"error: {label} was killed by signal 9; stopping the job" in output
    assert time.monotonic() - begin < 5


def test_the_roles_die_with_a_supervisor_that_is_killed(start_job, tmp_path):
    job = start_job()
    job.process.kill()
    wait_for(lambda: not running(tmp_path), "the end of every process")


def test_a_console_that_goes_away_does_not_end_the_job(start_job, tmp_path):
    job = start_job()
    job.process.stdout.close()
    job.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "round complete" in (tmp_path / "worker 1.log").read_text(), "the workers' end")
    (tmp_path / "workers are done").touch()
    assert job.process.wait(DEADLINE_S) == 0


# ------------------------------------------------------------------------------ the supervisor in this process


def test_a_job_ends_when_its_workers_and_then_its_servers_do(tmp_path):
    outcome, lines = supervise(
        role(tmp_path, Kind.SERVICE, FOREVER),
        role(tmp_path, Kind.SERVER, SERVER),
        role(tmp_path, Kind.WORKER, DONE),
    )
    assert (outcome, lines, running(tmp_path)) == (Outcome(0, was_stopped=False), [], [])


def test_servers_that_stay_are_stopped_and_the_job_is_still_done(tmp_path):
    outcome, lines = supervise(role(tmp_path, Kind.SERVER, FOREVER), role(tmp_path, Kind.WORKER, ""), settle_s=0.1)
    assert (outcome.exit_code, running(tmp_path)) == (0, [])
    assert lines == ["warning: server did not end by itself within 0.1 s and was killed"]


@pytest.mark.parametrize(("code", "expected"), [(1, 3), (2, 2), (3, 3), (7, 3)])
def test_a_roles_exit_code_is_passed_on_if_it_is_about_the_set_up(tmp_path, code, expected):
    program = f"print('2026-11-21 12:00:00 worker 0 | error: no such thing'); print('bye'); sys.exit({code})"
    outcome, lines = supervise(role(tmp_path, Kind.SERVER, FOREVER), role(tmp_path, Kind.WORKER, program))
    assert (outcome.exit_code, running(tmp_path)) == (expected, [])
    assert f"worker ended with exit code {code}; stopping the job" in lines[-1]
    assert lines[-1].endswith("error: no such thing")


def test_of_several_dead_the_cause_is_named(tmp_path):
    lost = role(tmp_path, Kind.WORKER, f"{SERVER}\nos._exit(3)", "worker 0")
    killed = role(tmp_path, Kind.WORKER, f"{DONE}; os.kill(os.getpid(), 9)", "worker 1")
    assert "worker 1 was killed by signal 9" in supervise(lost, killed)[1][-1]


def test_a_server_that_ends_before_the_workers_fails_the_job(tmp_path):
    outcome, lines = supervise(role(tmp_path, Kind.SERVER, ""), role(tmp_path, Kind.WORKER, FOREVER), lead_s=0.1)
    assert (outcome.exit_code, running(tmp_path)) == (3, [])
    assert "server ended before the workers" in lines[-1]


def test_a_worker_that_stays_when_the_others_left_fails_the_job(tmp_path):
    outcome, lines = supervise(
        role(tmp_path, Kind.SERVER, FOREVER),
        role(tmp_path, Kind.WORKER, "", "worker 0"),
        role(tmp_path, Kind.WORKER, FOREVER, "worker 1"),
        grace_s=0.1,
    )
    assert (outcome.exit_code, running(tmp_path)) == (3, [])
    assert "worker 1 did not end within 0.1 s after the first worker" in lines[-1]


def test_workers_without_a_server_need_not_end_together(tmp_path):
    outcome, _ = supervise(
        role(tmp_path, Kind.WORKER, "", "worker 0"),
        role(tmp_path, Kind.WORKER, "time.sleep(1)", "worker 1"),
        grace_s=0.1,
    )
    assert outcome.exit_code == 0


def test_workers_that_do_not_end_after_a_signal_are_killed(tmp_path):
    program = f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.kill({os.getpid()}, signal.SIGTERM){FOREVER}"
    outcome, lines = supervise(role(tmp_path, Kind.WORKER, program), grace_s=0.3)
    assert (outcome, running(tmp_path)) == (Outcome(130, was_stopped=True), [])
    assert "worker did not end within 0.3 s after they were asked to" in lines[-1]


def test_workers_start_after_a_service_is_ready_and_not_without_it(tmp_path):
    page = "http://127.0.0.1:1/"
    ready = role(tmp_path, Kind.SERVICE, FOREVER, is_ready=(tmp_path / "service.pid").exists, page=page)
    worker = role(tmp_path, Kind.WORKER, "sys.exit(not (here / 'service.pid').exists())")
    outcome, lines = supervise(ready, worker)
    assert (outcome.exit_code, lines) == (0, [f"the job's status page: {page}"])
    never = role(tmp_path, Kind.SERVICE, FOREVER, is_ready=lambda: False, page=page)
    outcome, lines = supervise(never, worker, ready_s=0.1)
    assert (outcome.exit_code, running(tmp_path)) == (3, [])
    (line,) = lines
    assert "service did not answer within 0.1 s" in line


def test_a_program_that_is_not_there_is_named(tmp_path):
    missing = Role("worker 0", Kind.WORKER, [str(tmp_path / "no")], {}, tmp_path, tmp_path / "log")
    outcome, lines = supervise(role(tmp_path, Kind.SERVER, FOREVER), missing)
    assert (outcome.exit_code, running(tmp_path)) == (2, [])
    assert "worker 0 cannot be started" in lines[-1]


def test_what_a_role_started_ends_with_it(tmp_path):
    program = "import subprocess\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)', str(here)])"
    assert supervise(role(tmp_path, Kind.WORKER, program))[0].exit_code == 0
    wait_for(lambda: not running(tmp_path), "the end of every process")


def test_the_console_shows_one_worker_whole_and_of_the_others_what_matters(tmp_path):
    program = "print('round 1'); print(f'2026-11-21 12:00:01 worker | warning: {sys.argv[2]} is hot')"
    _, lines = supervise(
        role(tmp_path, Kind.WORKER, program, "worker 0", show_all=True),
        role(tmp_path, Kind.WORKER, program, "worker 1"),
    )
    assert sorted(lines) == [
        "2026-11-21 12:00:01 worker 0 | warning: worker-0 is hot",
        "2026-11-21 12:00:01 worker 1 | warning: worker-1 is hot",
        "worker 0 | round 1",
    ]


def test_what_is_wrong_for_all_is_said_once(tmp_path):
    program = "print(f'2026-11-21 12:00:01 {sys.argv[2]} | error: no data')"
    _, (line,) = supervise(*(role(tmp_path, Kind.WORKER, program, f"worker {rank}") for rank in range(3)))
    assert line.endswith("| error: no data")


@pytest.mark.parametrize(
    ("line", "parsed"),
    [
        ("2026-11-21 12:00:01 worker 0 cpu0 | round 1", ("2026-11-21 12:00:01 ", "round 1")),
        ("2026-11-21 12:00:01 server | a | b", ("2026-11-21 12:00:01 ", "a | b")),
        ("[12:00:01] src/van.cc:1: x | y", ("", "[12:00:01] src/van.cc:1: x | y")),
    ],
)
def test_the_role_in_a_log_line_gives_way_to_the_supervisors_name(line, parsed):
    assert parse_log_line(line) == parsed


def test_the_lines_that_a_process_logs_carry_the_date_and_the_console_keeps_it(tmp_path):
    program = f"sys.path.insert(0, {str(ROOT)!r}); import utils, logging; utils.setup_logging('worker 0 gpu1')"
    begin = datetime.now().replace(microsecond=0)
    worker = role(tmp_path, Kind.WORKER, f"{program}; logging.info('round 1')", "worker 0", show_all=True)
    _, (line,) = supervise(worker)
    when, text = line.split(" worker 0 | ")
    assert begin <= datetime.fromisoformat(when) <= datetime.now()
    assert text == "round 1"


# ------------------------------------------------------------------------------------------ roles from options


def options(*arguments: str) -> Options:
    return local_cluster.parse(arguments)


def test_a_job_has_the_roles_that_its_mode_needs(tmp_path):
    def names(*arguments: str) -> list[str]:
        return [role.name for role in build_roles(options("--workers", "0,0.5", *arguments))]

    trained = ["worker 0", "worker 1"]
    for mode in ("esync", "wbsp", "wbsp-pcc", "sync-switch"):
        assert names("-m", mode) == ["state server", "scheduler", "server 0", *trained]
    assert names("-m", "dcasgd", "--servers", "2") == ["scheduler", "server 0", "server 1", *trained]
    assert names("-m", "local") == trained
    assert [role.name for role in build_roles(options("-m", "local"))] == ["worker 0"]


def test_a_job_with_a_state_server_has_a_status_page():
    given = options("-m", "wbsp")
    page = f"http://127.0.0.1:{given.state_server_port}/"
    assert [role.page for role in build_roles(given) if role.page] == [page]
    assert not any(role.page for role in build_roles(options("-m", "ssp")))


def test_workers_differ_in_device_speed_and_port_alone(tmp_path):
    given = options(
        "-m", "dcasgd", "--split-by-class", "--workers", "0.1,2", "--log-base", str(tmp_path), "--", "-e", "5"
    )
    first, second = (role for role in build_roles(given, {}) if role.kind is Kind.WORKER)
    host_folder = tmp_path / "lenet" / "dcasgd-niid" / socket.gethostname()
    flags = dict(zip(first.command[2::2], first.command[3::2], strict=True))
    assert {name: flags[name] for name in ("-m", "--use-dcasgd", "-s", "-c", "-n", "-ld", "-e")} == {
        "-m": "async",
        "--use-dcasgd": "1",
        "-s": "1",
        "-c": "1",
        "-n": "lenet",
        "-ld": str(host_folder),
        "-e": "5",
    }
    assert set(second.command) - set(first.command) == {"cpu1", "2.0"}
    assert {name for name in first.environment if first.environment[name] != second.environment[name]} == {"PORT"}
    assert int(first.environment["PORT"]) < int(second.environment["PORT"])


@pytest.mark.parametrize("mode", ENTRIES)
def test_a_cluster_gives_its_workers_only_flags_that_count_in_their_mode(mode):
    split = ["--split-by-class"] if mode != "local" else []
    given = options("-m", mode, *split)
    for role in build_roles(given, {}):
        if role.kind is Kind.WORKER:
            parsed = config.parse(role.command[2:], pytest.fail)
            assert (parsed.mode, parsed.split_by_class) == (given.algorithm.name, len(split))
            assert (parsed.use_dcasgd, parsed.wbsp_overlap) == (mode == "dcasgd", mode == "wbsp-pcc")


def test_one_device_alone_has_all_classes():
    with pytest.raises(SetupError, match="--split-by-class does nothing in mode local"):
        options("-m", "local", "--split-by-class")


def test_the_environment_is_the_users_without_another_jobs_variables():
    user = {"HOME": "/home/u", "DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "9", "PORT": "80", "OMP_NUM_THREADS": "2"}
    roles = {role.name: role.environment for role in build_roles(options("--workers", "0,0"), user)}
    assert roles["scheduler"]["DMLC_ROLE"] == "scheduler"
    assert roles["worker 0"]["DMLC_NUM_WORKER"] == "2"
    assert all(environment["HOME"] == "/home/u" for environment in roles.values())
    assert all(environment["OMP_NUM_THREADS"] == "2" for environment in roles.values())
    assert {name for name, environment in roles.items() if "PORT" in environment} == {"worker 0", "worker 1"}
    assert not any(name.startswith("DMLC_") for name in roles["state server"])


def test_every_port_is_another_one():
    given = options("--workers", "0,0,0")
    ports = [given.root_port, given.state_server_port, *given.worker_ports]
    assert len(set(ports)) == 5
    assert list(given.worker_ports) == sorted(given.worker_ports)


@pytest.mark.parametrize("flag", ["--root-port", "--state-server-port"])
def test_a_port_in_use_is_one_line_before_anything_starts(tmp_path, flag, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code = local_cluster.main(["--log-base", str(tmp_path / "logs"), flag, str(port)])
    assert (code, capsys.readouterr().err.splitlines()) == (
        2,
        [f"error: {flag} {port} is in use: choose another, or leave the flag out for a free one"],
    )
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    "bad", ["--workers=", "--workers=1,x", "--workers=-1", "--servers=0", "--grace=nan", "--mod=x", "-- --nope=1"]
)
def test_bad_options_end_with_the_code_of_a_set_up_error(bad):
    with pytest.raises(SystemExit) as end:
        options(*bad.split())
    assert end.value.code == 2


def test_devices_of_an_earlier_job_are_named_and_kept(tmp_path):
    given = options("--workers", "0,0", "--log-base", str(tmp_path))
    for device in ("cpu0", "cpu1", "cpu2"):
        (given.host_folder / device).mkdir(parents=True)
    lines: list[str] = []
    local_cluster.run(given, lambda _: [role(tmp_path, Kind.WORKER, "")], lines.append)
    stale = given.host_folder / "cpu2"
    assert stale.is_dir()
    assert [line for line in lines if "warning" in line] == [
        f"warning: {stale} is of an earlier job and counts in this one's summary; to remove it: rm -r '{stale}'"
    ]


@pytest.mark.parametrize("mode", demo.MODES)
def test_the_demo_asks_for_the_job_that_its_options_say(mode):
    given, for_main = demo.parse(["--seconds", "9", "-e", "3", "--workers", "0.1,0.2", "--", "--seed", "7"])
    job = local_cluster.parse(demo.cluster_arguments(mode, given, for_main))
    worker = config.parse(build_roles(job)[-1].command[2:], pytest.fail)
    assert (worker.mode, worker.max_seconds, worker.eval_duration, worker.seed) == (mode, 9, 3, 7)
    assert (worker.min_step_time, worker.device) == (0.2, "cpu1")


# --------------------------------------------------------------------------------------------------- get_data

CONTENT = {"images.gz": b"some images", "labels.gz": b"some labels"}
SUMS = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}


def source(**content: bytes) -> get_data.Source:
    def files(scratch: Path) -> Iterator[Path]:
        for name, data in content.items():
            path = scratch / f"{name}.gz"
            path.write_bytes(gzip.compress(data))
            yield path

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
    with pytest.raises(get_data.DataError, match=r"labels.gz is something else.*remove or rename it"):
        get_data.get(tmp_path, SUMS, {"good": GOOD}, lambda _: None)
    assert [path.name for path in tmp_path.iterdir()] == ["labels.gz"]
    assert (tmp_path / "labels.gz").read_bytes() == b"mine"


def test_without_any_source_the_error_says_what_to_do_and_what_was_tried(tmp_path):
    with pytest.raises(get_data.DataError) as error:
        get_data.get(tmp_path, SUMS, {"wrong": source(images=b"x")}, lambda _: None)
    assert f"Put images.gz, labels.gz into {tmp_path} by hand" in str(error.value)
    assert "wrong: images.gz there is not the published file" in str(error.value)
    assert not list(tmp_path.iterdir())


def test_the_checksums_are_those_that_the_trainers_check():
    from trainer.data import FASHION_MNIST_SHA256

    assert get_data.checksums() == {f"{name}.gz": checksum for name, checksum in FASHION_MNIST_SHA256.items()}


# ------------------------------------------------------------------------------------------ the shell scripts

COMMANDS = sorted(path for path in SCRIPTS.glob("*.sh") if path.name != "common.sh")


def shell(command: list[str | Path], cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("script", COMMANDS, ids=lambda path: path.name)
def test_every_script_has_help_and_runs_from_any_folder(script, tmp_path):
    done = shell([script, "--help"], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: scripts/{script.name}" in done.stdout


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say():
    done = shell(["shellcheck", *SCRIPTS.glob("*.sh"), ROOT / ".ci" / "run"])
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
    (tmp_path / "scripts").mkdir()
    scripts = [f"scripts/{name}" for name in ("common.sh", "worker.sh", "worker.py")]
    for name in (*scripts, "algorithms.py", "config.py", "utils.py", "VERSION"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "main.py").write_text("import os, sys\nprint(os.environ['DMLC_ROLE'], *sys.argv[1:])")

    def told(*more: str) -> list[str]:
        done = shell([tmp_path / "scripts" / "worker.sh", *flags, *more], cwd=Path("/"), VENV=sys.prefix)
        return done.stdout.split()

    expected = ["worker", "-ld", f"logs/{folder}/{socket.gethostname()}", *flags]
    assert told() == expected
    assert config.parse(told("-ld", "mine")[1:]).log_dir == "mine"
    assert told("--nonsense") == []


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A project with the real set-up scripts and nothing to install."""
    (tmp_path / "scripts").mkdir()
    for name in ("common.sh", "setup.sh"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts" / name)
    (tmp_path / "requirements.txt").write_text("# nothing\n")
    (tmp_path / "requirements-test.txt").write_text("-r requirements.txt\n")
    return tmp_path


def set_up(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    offline = {"PIP_NO_INDEX": "1", "VENV": "", "PYTHON": sys.executable}
    return shell([project / "scripts" / "setup.sh", *arguments], **(offline | environment))


def test_the_environment_is_made_once_and_again_when_that_was_interrupted(copy):
    first = set_up(copy)
    assert first.returncode == 0, first.stderr
    assert "making" in first.stderr
    assert set_up(copy).stderr == f"{copy}/.venv is ready\n"

    (copy / "requirements.txt").write_text("# still nothing\n")
    changed = set_up(copy)
    assert "installing" in changed.stderr
    assert "making" not in changed.stderr

    (copy / ".venv" / ".unfinished").touch()
    assert "making" in set_up(copy, "--test").stderr
    assert set_up(copy).stderr == f"{copy}/.venv is ready\n"  # --test installs the other requirements too


def stub(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
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
    command = ["bash", "-c", f"source {copy}/scripts/common.sh && find_python"]
    assert shell(command, PYTHON=str(python)).stdout == (f"{python}\n" if 10 <= minor <= 14 else "")


def test_what_a_package_says_that_it_needs_is_not_asked(copy):
    """MXNet says numpy<2, so the lists are complete and pip does not look beyond them."""
    info = "needy-1.dist-info"
    with zipfile.ZipFile(copy / "needy-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: needy\nVersion: 1\nRequires-Dist: nowhere<2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    (copy / "requirements.txt").write_text("needy==1\n")
    done = set_up(copy, PIP_FIND_LINKS=str(copy))
    assert done.returncode == 0, done.stderr


def test_the_tests_run_with_every_python_that_is_there(copy):
    """A machine with nothing but a Python 3.11, a 3.13 whose tests fail, and a 3.15."""
    environment = without_pythons(copy)
    python_of_version(copy / "bin" / "python3.11", (3, 11))
    python_of_version(copy / "bin" / "python3.13", (3, 13))
    python_of_version(copy / "bin" / "python3", (3, 15))
    shutil.copy(SCRIPTS / "test_pythons.sh", copy / "scripts")
    stub(copy / "scripts" / "test.sh", 'echo "$PYTHON $VENV $*"\ncase $PYTHON in *13) exit 1 ;; esac')
    done = shell([copy / "scripts" / "test_pythons.sh", "tests/test_models.py"], **environment)
    assert done.stdout.splitlines() == [
        f"{copy}/bin/python3.13 {copy}/.venv-3.13 tests/test_models.py",
        f"{copy}/bin/python3.11 {copy}/.venv-3.11 tests/test_models.py",
    ]
    summary = done.stderr.splitlines()[-5:]
    assert summary == [f"Python 3.{minor}: {result}" for minor, result in (
        (14, "not found"), (13, "failed"), (12, "not found"), (11, "passed"), (10, "not found")
    )]  # fmt: skip
    assert done.returncode == 1


def test_a_python_is_found_behind_shims_that_fail(copy):
    stub(copy / "bin" / "python3", OTHER_PYTHON)
    stub(copy / "bin" / "python3.12", "exit 127")
    stub(copy / "bin" / "python3.11", f'exec {sys.executable} "$@"')
    command = ["bash", "-c", f"source {copy}/scripts/common.sh && find_python"]
    assert shell(command, **without_pythons(copy)).stdout == f"{copy}/bin/python3.11\n"


@pytest.mark.parametrize(
    "flags", [["-m", "sync"], ["-s", "1"], ["-n", "alexnet"], ["-ld", "elsewhere"], ["--device-name", "x"], ["-c", "0"]]
)
def test_a_flag_for_the_workers_must_not_contradict_the_cluster(tmp_path, flags, capsys):
    arguments = ["--log-base", str(tmp_path), "-m", "esync", "--", *flags]
    assert local_cluster.main(arguments) == EXIT_SETUP
    assert "contradicts the cluster" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_two_clusters_do_not_write_to_the_same_logs(tmp_path):
    folder = tmp_path / "esync"
    with launch.claimed(folder), pytest.raises(SetupError, match="--log-base"), launch.claimed(folder):
        pass
    with launch.claimed(folder):
        pass  # the first one is gone


def test_a_log_folder_that_cannot_be_made_is_one_line(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert local_cluster.main(["--log-base", str(tmp_path / "file")]) == EXIT_SETUP
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "--log-base" in line
