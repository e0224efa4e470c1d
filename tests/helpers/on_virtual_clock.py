"""Virtual time: a test whose fixture `clock` is a virtual clock is the one worker on it."""

from __future__ import annotations

import pytest
from run_all import run_all

from esync.clock import Clock
from trainer.simulation.virtual_clock import VirtualClock


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> Clock:
    """A virtual clock, or one of the class that the test's parameters say."""
    return getattr(request, "param", VirtualClock)()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs such a test on its clock, and leaves the others to pytest."""
    clock = pyfuncitem.funcargs.get("clock")
    if not isinstance(clock, VirtualClock):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    run_all(clock, [lambda: pyfuncitem.obj(**given)])
    return True
