"""The state server's rules on the hub: what they are told there, and what they need there."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from cluster_processes import ROOT

from trainer import version
from trainer.algorithms.server_policies import Action, PolicyRunner, UploadReport


def upload(steps: int = 1, samples: int = 64, step_s: float = 1.0, transmission_s: float = 0.0) -> UploadReport:
    return UploadReport(steps, samples, step_s, transmission_s)


def test_the_slowest_is_found_by_step_and_transmission_time() -> None:
    decisions = PolicyRunner("wbsp", 2, 0.0)
    for rank, about in enumerate((upload(step_s=1.0, transmission_s=3.5), upload(step_s=4.0))):
        decisions.uploaded(rank, about, 1.0)
    assert decisions.decide(0, 1.0).action is Action.SYNC
    assert decisions.decide(1, 1.0).action is Action.TRAIN


def test_throughputs_count_the_samples_of_a_step() -> None:
    """Worker 2 takes as long for a step as the others, with a quarter of the samples."""
    decisions = PolicyRunner("sync-switch-elastic", 3, 0.0)
    for round_ in range(1, 6):
        for rank, samples in enumerate((64, 64, 16)):
            decisions.enter(rank, round_, float(round_))
            decisions.uploaded(rank, upload(samples=samples), float(round_))
    assert decisions.decide(0, 6.0).action is Action.SYNC
    decision = decisions.decide(2, 6.0)
    assert (decision.action, decision.reason[:42]) == (Action.TRAIN, "worker 2 is a straggler: 16 samples/s, the")


def printed(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_hub_needs_no_django_and_all_that_it_runs_is_compared_when_the_processes_meet() -> None:
    lines = printed(
        "import sys, trainer.algorithms.decoupled, trainer.algorithms.sync_switch; "
        "print(*((name, getattr(module, '__file__', None)) for name, module in sys.modules.items()), sep='\\n')"
    )
    modules = dict(map(ast.literal_eval, lines))
    assert "numpy" in modules and "django" not in modules
    files = {Path(file) for file in modules.values() if str(file).startswith(f"{ROOT}/")}
    run = {path for path in files if ".venv" not in path.parts and path.stat().st_size}
    compared = {path for pattern in version._PROGRAM for path in ROOT.glob(pattern)}
    assert run - compared == {ROOT / "SimpleStateServer/server/__init__.py"}  # a docstring


def test_the_rules_alone_need_neither_numpy_nor_mxnet() -> None:
    needs = "{'numpy', 'mxnet', 'django', 'prometheus_client', 'msgspec'} & set(sys.modules)"
    rules = "import trainer, server.policies, server.state"
    assert printed(f"import sys; {rules}; print({needs})") == ["set()"]
