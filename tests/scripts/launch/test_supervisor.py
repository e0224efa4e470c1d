"""A job's supervisor, with stand-ins for its roles: how a job ends, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from cluster_processes import DEADLINE_S, ROOT, running, wait_for
from stand_ins import DONE, FOREVER, SERVER, role, tells

from scripts.launch.console import parse_log_line, unhurried
from scripts.launch.process import Kind, Role
from scripts.launch.supervisor import JobOutcome, Supervisor, Timeouts
from utils import EXIT_INCOMPLETE, EXIT_SETUP


def supervise(*roles: Role, **waits: float) -> tuple[JobOutcome, list[str]]:
    """Runs the roles in this process; returns how it ended and what the user was told."""
    lines: list[str] = []
    return Supervisor(roles, lines.append, Timeouts(**waits)).run(), lines


def test_a_console_that_nobody_reads_holds_up_nothing_and_gets_all_lines_in_their_order() -> None:
    is_read, lines = threading.Event(), list[str]()

    def say(line: str) -> None:
        assert is_read.wait(DEADLINE_S)
        lines.append(line)

    with unhurried(say) as later:
        for number in range(3):
            later(f"{number}")
        assert not lines
        is_read.set()
    assert lines == ["0", "1", "2"]


# ------------------------------------------------------------- a whole supervisor in a process of its own

COMMAND = """
import signal
import sys
from pathlib import Path
from scripts.launch import local_cluster
from scripts.launch.process import Kind
from tests.helpers.stand_ins import {programs}, role
here = Path(sys.argv[1])
signal.signal(signal.SIGHUP, signal.{hangup})  # whatever the tests were started with
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

    def __init__(self, folder: Path, worker: str, hangup: str) -> None:
        self.folder = folder
        programs = ", ".join(sorted({"FOREVER", "SERVER", worker}))
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND.format(programs=programs, worker=worker, hangup=hangup), str(folder)],
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

    def start(worker: str = "WORKER", hangup: str = "SIG_DFL") -> Job:
        jobs.append(Job(tmp_path, worker, hangup))
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


def test_what_is_started_with_nohup_outlives_its_terminal(start_job, tmp_path):
    job = start_job(hangup="SIG_IGN")
    job.process.send_signal(signal.SIGHUP)
    job.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "round complete" in (tmp_path / "worker 1.log").read_text(), "the workers' end")
    (tmp_path / "workers are done").touch()
    code, output = job.end()
    assert code == 0
    assert "SIGTERM: the workers end with this round" in output
    assert "SIGHUP" not in output


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
    assert time.monotonic() - begin < 30  # the others were killed, not waited for


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
    assert (outcome, lines, running(tmp_path)) == (JobOutcome(0, was_stopped=False), [], [])


def test_a_worker_whose_disk_has_not_taken_all_ends_no_other_and_the_job_has_its_code(tmp_path):
    outcome, lines = supervise(
        role(tmp_path, Kind.SERVER, SERVER),
        role(tmp_path, Kind.WORKER, f"sys.exit({EXIT_INCOMPLETE})", "worker 0"),
        role(tmp_path, Kind.WORKER, f"time.sleep(0.4)\n{DONE}", "worker 1"),
    )
    assert (outcome.exit_code, running(tmp_path)) == (EXIT_INCOMPLETE, [])
    assert lines == ["warning: the disk has not taken all logs of worker 0"]


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
    assert [line for line in lines if "no such thing" in line] == ["2026-11-21 12:00:00 worker | error: no such thing"]
    assert lines[-1].endswith(f" Its log: {tmp_path / 'worker.log'}")


def test_of_several_dead_the_cause_is_named(tmp_path):
    lost = role(tmp_path, Kind.WORKER, f"{SERVER}\nos._exit(3)", "worker 0")
    killed = role(tmp_path, Kind.WORKER, f"{DONE}; os.kill(os.getpid(), 9)", "worker 1")
    assert "worker 1 was killed by signal 9" in supervise(lost, killed)[1][-1]


def test_the_cause_is_named_where_its_consequence_is_seen_before(tmp_path):
    dies_later = "while not (here / 'noticed').exists(): time.sleep(0.01)\ntime.sleep(0.25)\nos.kill(os.getpid(), 9)"
    outcome, lines = supervise(
        role(tmp_path, Kind.SERVER, dies_later, "scheduler"),
        role(tmp_path, Kind.WORKER, "(here / 'noticed').touch(); print('error: it is gone'); sys.exit(3)", "worker 0"),
    )
    assert outcome.exit_code == 3
    assert lines[-1].startswith("error: scheduler was killed by signal 9; stopping the job")


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
        role(tmp_path, Kind.WORKER, "time.sleep(0.5)", "worker 1"),
        grace_s=0.1,
    )
    assert outcome.exit_code == 0


def test_workers_that_do_not_end_after_a_signal_are_killed(tmp_path):
    program = f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.kill({os.getpid()}, signal.SIGTERM){FOREVER}"
    outcome, lines = supervise(role(tmp_path, Kind.WORKER, program), grace_s=0.3)
    assert (outcome, running(tmp_path)) == (JobOutcome(130, was_stopped=True), [])
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
    assert lines[0] == "warning: service has not answered for 0.1 s and is killed"
    assert lines[1].startswith("error: service was killed by signal 9; stopping the job.")


def test_a_service_that_is_there_for_its_page_alone_may_die_and_one_that_lives_writes_the_page(tmp_path):
    page = "http://127.0.0.1:1/"
    at_end = "(here / 'page.html').write_text('') or sys.exit(print('error: no room', flush=True))"
    writes = f"signal.signal(signal.SIGINT, lambda *_: {at_end}){FOREVER}"
    dies = role(tmp_path, Kind.SERVICE, "sys.exit(1)", "dead", page=page, is_for_page=True)
    lives = role(
        tmp_path, Kind.SERVICE, writes, page=page, is_for_page=True, is_ready=(tmp_path / "service.pid").exists
    )
    worker = role(tmp_path, Kind.WORKER, "time.sleep(1)")
    outcome, lines = supervise(dies, lives, worker)
    assert (outcome.exit_code, lines) == (0, [f"the job's status page: {page}", "service | error: no room"])
    assert (tmp_path / "page.html").exists() and running(tmp_path) == []


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


def test_a_warning_that_another_worker_has_given_is_not_repeated_by_the_one_whose_lines_are_all_shown(tmp_path):
    warns = "print('warning: it is hot', flush=True)"
    waits = "while not (here / 'told').exists(): time.sleep(0.01)\n"
    _, lines = supervise(
        role(tmp_path, Kind.WORKER, f"{waits}{warns}; print('round 1'); print('round 1')", "worker 0", show_all=True),
        role(tmp_path, Kind.WORKER, f"{warns}; (here / 'told').touch()", "worker 1"),
    )
    assert sorted(line.partition("| ")[2] for line in lines) == ["round 1", "round 1", "warning: it is hot"]


def test_what_is_wrong_for_all_is_said_once(tmp_path):
    program = "print(f'2026-11-21 12:00:01 {sys.argv[2]} | error: no data')"
    _, (line,) = supervise(*(role(tmp_path, Kind.WORKER, program, f"worker {rank}") for rank in range(3)))
    assert line.endswith("| error: no data")


def test_a_mistake_that_others_repeat_is_told_once_by_the_worker_that_has_found_it(tmp_path):
    server = "print('error: worker cpu1 ended before the job began: no data', flush=True); (here / 'told').touch()"
    finder = "while not (here / 'told').exists(): time.sleep(0.01)\nprint('error: no data'); print('error: no room')"
    outcome, lines = supervise(
        role(tmp_path, Kind.SERVER, f"{server}\n{FOREVER}", "server 0"),
        role(tmp_path, Kind.WORKER, f"print('error: worker cpu1: no data')\n{FOREVER}", "worker 0"),
        role(tmp_path, Kind.WORKER, f"{finder}; {tells(error='error: no room')}; sys.exit(2)", "worker 1"),
    )
    assert outcome.exit_code == EXIT_SETUP
    assert [sum(mistake in line for line in lines) for mistake in ("no data", "no room")] == [1, 1]
    assert "stopping the job. Its log: " in lines[-1] and len(lines) == 3


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
