"""What holds for every test: what it started has ended; and the fixtures that several files use."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import namespaces
import pytest
from cluster_processes import children, forks, wait_for
from hypothesis import settings
from on_virtual_clock import clock, pytest_pyfunc_call  # noqa: F401  (a fixture, and what runs its tests)
from state_server_process import StateServerProcess, running_state_server

from utils import EXIT_SETUP, SetupError

STARTED_BY = "TESTS_PROCESS"  # in the environment of all that the tests start, and of what that starts in turn
END_S = 10.0  # what was told to end may take so long

# What the tests, and all that they start, get of the caller's environment; what ends in _ begins several names. What
# a test needs beside these it sets itself, so it passes or fails on every machine alike.
KEPT = (
    *("HOME", "PATH"),
    *("LANG", "LC_", "TZ"),  # the machine's language and time, in which everything has to work
    *("TMPDIR", "LD_LIBRARY_PATH"),  # where this machine has room, and where it has libraries of its Python
    *("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"),  # without them the OpenBLAS in MXNet's wheel fails on some processors
    *("CI", "PYTEST_"),  # which examples are drawn (below), and what pytest and its workers tell each other
)


def kept(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of the caller that reach a test."""
    several = tuple(name for name in KEPT if name.endswith("_"))
    return {name: value for name, value in environment.items() if name in KEPT or name.startswith(several)}


# On a busy machine an example may take long. Each run at a developer's desk draws other examples; where a change is
# judged, all draw the same, so that it is judged by what it changed.
settings.register_profile("suite", max_examples=50, deadline=None, derandomize="CI" in os.environ)
settings.load_profile("suite")


# Files that take longest of those without clusters. One of them at the end would keep one process busy, and the other
# idle, where two files run at a time.
LONGEST = ("test_why.py", "test_simulate.py", "test_draw.py", "test_state_server_page.py", "test_scripts.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with clusters come first, then the longest of the others."""
    with_clusters = {item.path for item in items if item.get_closest_marker("cluster")}
    items.sort(key=lambda item: (item.path not in with_clusters, item.path.name not in LONGEST))


def pytest_configure() -> None:
    """Cleans this process's environment and marks it, before anything is started. The project's scripts take the Python
    of the tests."""
    own = {STARTED_BY: str(os.getpid()), "VENV": sys.prefix}
    for name in os.environ.keys() - kept(os.environ).keys():
        del os.environ[name]
    os.environ.update(own)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many tests, or files of them, were skipped, why, and what lets them run: each reason is one line."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(
        ("file" if isinstance(report, pytest.CollectReport) else "test", report.longrepr[2].removeprefix("Skipped: "))
        for report in skipped
    )
    if reasons:
        terminalreporter.section("not tested here")
    for (what, reason), number in reasons.most_common():
        terminalreporter.line(f"{number} {what}{'s'[: number > 1]}: {reason}")


def left_running() -> dict[int, str]:
    """Command and test, by process id, of what the tests started and has not ended."""
    mark = f"{STARTED_BY}={os.getpid()}".encode()
    found = {}
    ours = set(children(os.getpid()))
    for pid in {*ours, *(int(entry.name) for entry in Path("/proc").glob("[0-9]*"))}:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has just ended
        if forks.cache_info().currsize and pid == getattr(forks()._server, "pid", None):
            continue  # it ends with this process
        if mark in environment or (command and pid in ours):
            tests = [entry.decode() for entry in environment if entry.startswith(b"PYTEST_CURRENT_TEST=")]
            found[pid] = f"{command.strip()} ({''.join(tests)})"
    return found


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A program that runs in the test's own process sends its log lines to streams that end with the test."""
    root = logging.getLogger()
    handlers, level = [*root.handlers], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True)
def environment_as_before() -> Iterator[None]:
    """A program that runs in the test's own process sets variables of MXNet, which what later tests start would get,
    and adds the folder of a job file to the places of modules."""
    before, places = dict(os.environ), [*sys.path]
    yield
    sys.path[:] = places
    for name in os.environ.keys() - before.keys() - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if name != "PYTEST_CURRENT_TEST"})


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """Fails a test that blocks signals in its own process: what later tests start would inherit that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    now = signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert now == before, f"blocked signals: {now - before}; run the program in a process of its own"


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """Fails a file of tests that leaves a process behind, and ends that process."""
    yield
    try:
        wait_for(lambda: not left_running(), "the end of all that was started", END_S)
    except AssertionError:
        left = left_running()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        pytest.fail(f"left running: {left}")


@pytest.fixture(scope="session", autouse=True)
def forks_end() -> Iterator[None]:
    """Ends what the tests forked workers from."""
    yield
    if forks.cache_info().currsize:
        forks().close()


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a program, or its parser, says of words that it refuses: the one line of its error."""

    def told(program: Callable[[list[str]], object], *words: str) -> str:
        try:
            code = program([*words])
        except SetupError as error:
            return str(error)
        except SystemExit as end:
            code = end.code
        assert code == EXIT_SETUP
        (line,) = (line for line in capsys.readouterr().err.splitlines() if "error: " in line)
        return line

    return told


@pytest.fixture
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what is said and which figures there are: their files stay empty, which takes no time."""
    from matplotlib.figure import Figure  # a third of a second, for few tests

    monkeypatch.setattr(Figure, "savefig", lambda self, path, **others: path.touch())


@pytest.fixture(scope="session")
def namespaces_can_be_made() -> None:
    """Skips the test where hosts cannot be made of network namespaces."""
    if why := namespaces.missing():
        pytest.skip(why)


@pytest.fixture(scope="module")
def state_server() -> Iterator[StateServerProcess]:
    """A state server in its one loop, as users start it."""
    with running_state_server(command=("serve",)) as process:
        yield process
        assert process.process.poll() is None, "the server must survive everything that the tests send"
