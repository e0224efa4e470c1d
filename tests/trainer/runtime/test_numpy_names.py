"""`import mxnet` beside a numpy that has dropped names: with the hook in any program, without it by the engine."""

import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from cluster_processes import DEADLINE_S, ROOT

PACKAGES = str(Path(numpy.__file__).parents[1])


def run_without_site(program, *arguments, **environment):
    """Runs a program with the packages of this environment and none of its .pth files."""
    path = os.pathsep.join((str(ROOT), PACKAGES))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MXNET_")}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program, *arguments], env={**inherited, "PYTHONPATH": path, **environment},
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def packages(tmp_path):
    """The site-packages of an environment, with the hook alone."""
    folder = tmp_path / "lib" / "python3.11" / "site-packages"
    folder.mkdir(parents=True)
    command = ["bash", "-ec", "source scripts/common.sh && ensure_mxnet_hook"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "VENV": str(tmp_path)}, check=True)
    assert {path.name for path in folder.iterdir()} == {"esync_numpy_names.py", "esync_numpy_names.pth"}
    return folder


def test_any_program_imports_mxnet(packages):
    program = """
import site, sys
site.addsitedir(sys.argv[1])
assert "esync_numpy_names" in sys.modules
assert not {"numpy", "functools"} & sys.modules.keys()
import importlib.util
assert importlib.util.find_spec("mxnet") is not None and "numpy" not in sys.modules
import mxnet
print(mxnet.nd.ones(2).sum().asscalar(), any(name.split(".")[0] == "trainer" for name in sys.modules))
"""
    assert run_without_site(program, str(packages)) == ("2.0 False\n", "")


def test_the_engine_needs_no_hook():
    program = "import sys; from trainer.engine import mx; print('esync_numpy_names' in sys.modules)"
    assert run_without_site(program) == ("False\n", "")
