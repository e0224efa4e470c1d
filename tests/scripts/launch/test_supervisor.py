"""A job's supervisor, with stand-ins for its roles: how a job ends, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from cluster_processes import DEADLINE_S, ROOT, begun, running, wait_for
from stand_ins import DONE, FOREVER, SERVER, role, tells
from supervised import supervise

from scripts.launch.console import parse_log_line, unhurried
from scripts.launch.process import Kind, Role
from scripts.launch.supervisor import JobOutcome
from utils import EXIT_INCOMPLETE, EXIT_SETUP


def worker(folder: Path, program: str, name: str = "worker", **more: object) -> Role:
    return role(folder, Kind.WORKER, program, name, **more)


def server(folder: Path, program: str = FOREVER, name: str = "server") -> Role:
    return role(folder, Kind.SERVER, program, name)


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
def build(*_):
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
        program = COMMAND.format(programs=programs, worker=worker, hangup=hangup)
        self.process = begun(sys.executable, "-c", program, folder)
        wait_for(lambda: all((folder / f"{name}.pid").exists() for name in ROLES), "all roles up")

    def end_round(self) -> None:
        """Waits until the workers have ended as a signal asks for, and lets the scheduler follow."""
        log = self.folder / "worker 1.log"
        wait_for(lambda: "round complete" in log.read_text(), "the workers' end")
        (self.folder / "workers are done").touch()

    def end(self) -> tuple[int, str]:
        """Its exit code and output, once it has ended and left nothing."""
        output, _ = self.process.communicate(timeout=DEADLINE_S)
        assert running(self.folder) == []
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


@pytest.mark.parametrize(
    ("hangup", "sent", "heard"),
    [
        ("SIG_DFL", ["SIGINT"], "SIGINT"),
        ("SIG_DFL", ["SIGTERM"], "SIGTERM"),
        ("SIG_DFL", ["SIGHUP"], "SIGHUP"),
        ("SIG_IGN", ["SIGHUP", "SIGTERM"], "SIGTERM"),  # what is started with nohup outlives its terminal
    ],
)
def test_a_signal_lets_the_workers_end_their_round_and_stops_the_rest(start_job, hangup, sent, heard):
    job = start_job(hangup=hangup)
    for name in sent:
        job.process.send_signal(signal.Signals[name])
    job.end_round()
    code, output = job.end()
    assert code == 0
    assert f"{heard}: the workers end with this round" in output and "stopped; the logs are in" in output
    assert not [name for name in sent if name != heard and name in output]


def test_a_second_signal_kills_at_once(start_job):
    job = start_job(worker="STUBBORN_WORKER")
    job.process.send_signal(signal.SIGINT)
    time.sleep(1.5)  # two signals within a second count as one
    assert job.process.poll() is None
    job.process.send_signal(signal.SIGINT)
    code, output = job.end()
    assert code == 130
    assert "a second signal" in output


@pytest.mark.parametrize(
    ("name", "label"), zip(ROLES, ("state server", "scheduler", "worker 0 (cpu0)", "worker 1 (cpu1)"), strict=True)
)
def test_a_role_that_is_killed_ends_the_job_with_its_name(start_job, tmp_path, name, label):
    job = start_job()
    begin = time.monotonic()
    os.kill(int((tmp_path / f"{name}.pid").read_text()), signal.SIGKILL)
    code, output = job.end()
    assert code == 3
    assert f"error: {label} was killed by signal 9; stopping the job" in output
    assert time.monotonic() - begin < 30  # the others were killed, not waited for


def test_the_roles_die_with_a_supervisor_that_is_killed(start_job, tmp_path):
    start_job().process.kill()
    wait_for(lambda: not running(tmp_path), "the end of every process")


def test_a_console_that_goes_away_does_not_end_the_job(start_job):
    job = start_job()
    job.process.stdout.close()
    job.process.send_signal(signal.SIGTERM)
    job.end_round()
    assert job.process.wait(DEADLINE_S) == 0


# ------------------------------------------------------------------------------ the supervisor in this process


def test_a_job_ends_when_its_workers_and_then_its_servers_do(tmp_path):
    roles = (role(tmp_path, Kind.SERVICE, FOREVER), server(tmp_path, SERVER), worker(tmp_path, DONE))
    assert supervise(*roles) == (JobOutcome(0, was_stopped=False), [])


def test_servers_that_stay_are_stopped_and_the_job_is_still_done(tmp_path):
    outcome, lines = supervise(server(tmp_path), worker(tmp_path, ""), settle_s=0.1)
    assert outcome.exit_code == 0
    assert lines == ["warning: server did not end by itself within 0.1 s and was killed"]


@pytest.mark.parametrize(("code", "expected"), [(1, 3), (2, 2), (3, 3), (7, 3)])
def test_a_roles_exit_code_is_passed_on_if_it_is_about_the_set_up(tmp_path, code, expected):
    program = f"print('2026-11-21 12:00:00 worker 0 | error: no such thing'); print('bye'); sys.exit({code})"
    outcome, lines = supervise(server(tmp_path), worker(tmp_path, program))
    assert outcome.exit_code == expected
    assert f"worker ended with exit code {code}; stopping the job" in lines[-1]
    assert [line for line in lines if "no such thing" in line] == ["2026-11-21 12:00:00 worker | error: no such thing"]
    assert lines[-1].endswith(f" Its log: {tmp_path / 'worker.log'}")


NOTICES = "(here / 'noticed').touch(); print('error: it is gone'); sys.exit(3)"
UNTIL_NOTICED = "while not (here / 'noticed').exists(): time.sleep(0.01)\n"


@pytest.mark.parametrize(
    ("programs", "waits", "last"),
    [
        # The cause is named, not its consequence: that of two dead, and where the consequence is seen before.
        (
            {"worker 0": f"{SERVER}\nos._exit(3)", "worker 1": f"{DONE}; os.kill(os.getpid(), 9)"},
            {},
            "error: worker 1 was killed by signal 9",
        ),
        (
            {"scheduler": f"{UNTIL_NOTICED}time.sleep(0.25)\nos.kill(os.getpid(), 9)", "worker 0": NOTICES},
            {},
            "error: scheduler was killed by signal 9; stopping the job",
        ),
        ({"server": "", "worker 0": FOREVER}, {"lead_s": 0.1}, "error: server ended before the workers"),
        (
            {"server": FOREVER, "worker 0": "", "worker 1": FOREVER},
            {"grace_s": 0.1},
            "error: worker 1 did not end within 0.1 s after the first worker",
        ),
    ],
)
def test_a_job_fails_by_what_went_wrong_first(tmp_path, programs, waits, last):
    roles = [(worker if "worker" in name else server)(tmp_path, text, name) for name, text in programs.items()]
    outcome, lines = supervise(*roles, **waits)
    assert outcome.exit_code == 3
    assert lines[-1].startswith(last)


def test_workers_without_a_server_need_not_end_together(tmp_path):
    roles = (worker(tmp_path, "", "worker 0"), worker(tmp_path, "time.sleep(0.5)", "worker 1"))
    assert supervise(*roles, grace_s=0.1)[0].exit_code == 0


def test_a_worker_whose_disk_has_not_taken_all_ends_no_other_and_the_job_has_its_code(tmp_path):
    outcome, lines = supervise(
        server(tmp_path, SERVER),
        worker(tmp_path, f"sys.exit({EXIT_INCOMPLETE})", "worker 0"),
        worker(tmp_path, f"time.sleep(0.4)\n{DONE}", "worker 1"),
    )
    assert outcome.exit_code == EXIT_INCOMPLETE
    assert lines == ["warning: the disk has not taken all logs of worker 0"]


def test_workers_that_do_not_end_after_a_signal_are_killed(tmp_path):
    program = f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.kill({os.getpid()}, signal.SIGTERM){FOREVER}"
    outcome, lines = supervise(worker(tmp_path, program), grace_s=0.3)
    assert outcome == JobOutcome(130, was_stopped=True)
    assert "worker did not end within 0.3 s after they were asked to" in lines[-1]


def test_workers_start_after_a_service_is_ready_and_not_without_it(tmp_path):
    page = "http://127.0.0.1:1/"
    ready = role(tmp_path, Kind.SERVICE, FOREVER, is_ready=(tmp_path / "service.pid").exists, page=page)
    looks = worker(tmp_path, "sys.exit(not (here / 'service.pid').exists())")
    outcome, lines = supervise(ready, looks)
    assert (outcome.exit_code, lines) == (0, [f"the job's status page: {page}"])
    never = role(tmp_path, Kind.SERVICE, FOREVER, is_ready=lambda: False, page=page)
    outcome, lines = supervise(never, looks, ready_s=0.1)
    assert outcome.exit_code == 3
    assert lines[0] == "warning: service has not answered for 0.1 s and is killed"
    assert lines[1].startswith("error: service was killed by signal 9; stopping the job.")


def test_a_service_that_is_there_for_its_page_alone_may_die_and_one_that_lives_writes_the_page(tmp_path):
    its = {"page": "http://127.0.0.1:1/", "is_for_page": True}
    at_end = "(here / 'page.html').write_text('') or sys.exit(print('error: no room', flush=True))"
    writes = f"signal.signal(signal.SIGINT, lambda *_: {at_end}){FOREVER}"
    dies = role(tmp_path, Kind.SERVICE, "sys.exit(1)", "dead", **its)
    lives = role(tmp_path, Kind.SERVICE, writes, is_ready=(tmp_path / "service.pid").exists, **its)
    outcome, lines = supervise(dies, lives, worker(tmp_path, "time.sleep(1)"))
    assert (outcome.exit_code, lines) == (0, [f"the job's status page: {its['page']}", "service | error: no room"])
    assert (tmp_path / "page.html").exists()


def test_a_program_that_is_not_there_is_named(tmp_path):
    missing = Role("worker 0", Kind.WORKER, [str(tmp_path / "no")], {}, tmp_path, tmp_path / "log")
    outcome, lines = supervise(server(tmp_path), missing)
    assert outcome.exit_code == 2
    assert "worker 0 cannot be started" in lines[-1]


def test_what_a_role_started_ends_with_it(tmp_path):
    sleeps = "[sys.executable, '-c', 'import time; time.sleep(99)', str(here.parent)]"
    program = f"import subprocess\nsubprocess.Popen({sleeps})"
    (tmp_path / "job").mkdir()
    assert supervise(worker(tmp_path / "job", program))[0].exit_code == 0
    wait_for(lambda: not running(tmp_path), "the end of every process")


def test_the_console_shows_one_worker_whole_and_of_the_others_what_matters(tmp_path):
    program = "print('round 1'); print(f'2026-11-21 12:00:01 worker | warning: {sys.argv[2]} is hot')"
    _, lines = supervise(worker(tmp_path, program, "worker 0", show_all=True), worker(tmp_path, program, "worker 1"))
    assert sorted(lines) == [
        "2026-11-21 12:00:01 worker 0 | warning: worker-0 is hot",
        "2026-11-21 12:00:01 worker 1 | warning: worker-1 is hot",
        "worker 0 | round 1",
    ]


def test_a_warning_that_another_worker_has_given_is_not_repeated_by_the_one_whose_lines_are_all_shown(tmp_path):
    warns = "print('warning: it is hot', flush=True)"
    waits = "while not (here / 'told').exists(): time.sleep(0.01)\n"
    _, lines = supervise(
        worker(tmp_path, f"{waits}{warns}; print('round 1'); print('round 1')", "worker 0", show_all=True),
        worker(tmp_path, f"{warns}; (here / 'told').touch()", "worker 1"),
    )
    assert sorted(line.partition("| ")[2] for line in lines) == ["round 1", "round 1", "warning: it is hot"]


def test_what_is_wrong_for_all_is_said_once(tmp_path):
    program = "print(f'2026-11-21 12:00:01 {sys.argv[2]} | error: no data')"
    _, (line,) = supervise(*(worker(tmp_path, program, f"worker {rank}") for rank in range(3)))
    assert line.endswith("| error: no data")


def test_a_mistake_that_others_repeat_is_told_once_by_the_worker_that_has_found_it(tmp_path):
    at_server = "print('error: worker cpu1 ended before the job began: no data', flush=True); (here / 'told').touch()"
    finder = "while not (here / 'told').exists(): time.sleep(0.01)\nprint('error: no data'); print('error: no room')"
    outcome, lines = supervise(
        server(tmp_path, f"{at_server}\n{FOREVER}", "server 0"),
        worker(tmp_path, f"print('error: worker cpu1: no data')\n{FOREVER}", "worker 0"),
        worker(tmp_path, f"{finder}; {tells(error='error: no room')}; sys.exit(2)", "worker 1"),
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
    _, (line,) = supervise(worker(tmp_path, f"{program}; logging.info('round 1')", "worker 0", show_all=True))
    when, text = line.split(" worker 0 | ")
    assert begin <= datetime.fromisoformat(when) <= datetime.now()
    assert text == "round 1"
