"""What holds for every test: the environment it gets, and what is said of those that were skipped."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest


@pytest.fixture
def conftest(pytestconfig: pytest.Config) -> ModuleType:
    return pytestconfig.pluginmanager.get_plugin(str(Path(__file__).with_name("conftest.py")))


def test_of_the_callers_variables_a_test_gets_those_that_have_a_reason(conftest: ModuleType) -> None:
    needed = {"HOME": "/home/me", "PATH": "/bin", "LANG": "C", "LC_ALL": "C", "TZ": "Asia/Kolkata", "CI": "true"}
    leaks = (
        "HOMEBREW_PREFIX",
        "PYTHONUNBUFFERED",
        "PYTHONPATH",
        "OMP_NUM_THREADS",
        "MXNET_ENGINE_TYPE",
        "DMLC_ROLE",
        "COLUMNS",
        "VENV",
    )
    assert conftest.kept(needed | dict.fromkeys(leaks, "1")) == needed


def test_each_reason_to_skip_is_one_line_with_its_number_of_tests(conftest: ModuleType) -> None:
    shown: list[str] = []
    reasons = ["no IPv6", "Skipped: no chromium: apt-get install chromium", "Skipped: no IPv6"]
    reports = [SimpleNamespace(longrepr=("test.py", 1, reason)) for reason in reasons]
    reporter = SimpleNamespace(stats={"skipped": reports}, section=shown.append, line=shown.append)
    conftest.pytest_terminal_summary(reporter)
    assert shown[1:] == ["2 tests: no IPv6", "1 test: no chromium: apt-get install chromium"]
    shown.clear()
    reporter.stats = {}
    conftest.pytest_terminal_summary(reporter)
    assert shown == []
