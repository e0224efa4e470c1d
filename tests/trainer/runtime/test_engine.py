"""MXNet runs beside the numpy that is installed, and one without the distributed kvstore is told in time."""

import sys

import numpy as np
import pytest
from cluster_processes import ran
from error_lines import ENDLESS, assert_one_error_line, worker_environment

from trainer.engine import mx
from trainer.runtime.library import check_kvstore, has_kvstore
from utils import SetupError


def run_python(program, *arguments, **environment):
    return ran(sys.executable, "-W", "ignore", "-c", program, *arguments, **environment)


def test_this_mxnet_has_the_distributed_kvstore():
    check_kvstore(has_kvstore())


def test_an_mxnet_without_it_is_named_with_what_runs_there():
    with pytest.raises(SetupError, match=r"1\.9\.1 has no distributed kvstore .*aarch64.*: .*x86_64.* -m local"):
        check_kvstore(False)


@pytest.mark.parametrize("role", ["scheduler", "server", "worker"])
def test_no_role_joins_a_job_without_it(tmp_path, role):
    program = """
import os, sys
from trainer.runtime import library
library.has_kvstore = lambda: False
os.environ["DMLC_ROLE"] = sys.argv.pop(1)  # only now: with it MXNet's import would become the role
import main
sys.exit(main.main())
"""
    environment = worker_environment()
    del environment["DMLC_ROLE"]
    finished = run_python(program, role, *ENDLESS, "-m", "sync", "-ld", str(tmp_path), **environment)
    assert_one_error_line(finished, "no distributed kvstore")


def test_what_numpy_has_stays_its_own():
    program = """
import numpy
before = dict(vars(numpy))
import trainer.engine
print([name for name, value in before.items() if vars(numpy)[name] is not value])
"""
    assert run_python(program).stdout == "[]\n"


def test_what_mxnet_took_from_numpy_computes():
    steps = mx.np.array([3.0, 1.0, 2.0])
    assert mx.np.msort(steps).tolist() == [1.0, 2.0, 3.0]
    assert mx.np.trapz(steps) == 3.5
    assert mx.np.in1d(steps, mx.np.array([1.0])).tolist() == [0, 1, 0]
    assert mx.np.array([True], dtype=mx.np.bool).dtype == np.bool_
    assert mx.np.PINF > 0 > mx.np.NINF
    assert np.isinf([mx.np.PINF, mx.np.NINF]).all()


def test_operators_that_are_made_on_demand_are_those_of_mxnets_own_import():
    """Their names, what they compute, and what they refuse."""
    program = """
import sys
if sys.argv[1] == "all at once":
    from trainer.runtime import numpy_names
    numpy_names.restore()
    import mxnet
from trainer.engine import mx
arrays = (mx.nd, mx.nd.op, mx.nd._internal, mx.nd.contrib, mx.nd.numpy._internal, mx.np, mx.npx)
for module in (*arrays, mx.sym, mx.sym.op, mx.sym._internal):
    print(module.__name__, sorted(name for name in vars(module) if not name.startswith("__")))
data, weight = mx.nd.arange(6).reshape((2, 3)), mx.nd.ones((4, 3))
print(mx.nd.FullyConnected(data, weight, no_bias=True, num_hidden=4).asnumpy().tolist())
print(mx.nd.contrib.arange_like(data).asnumpy().tolist())
print(mx.np.dot(mx.np.ones(3), mx.np.ones(3)), mx.npx.relu(mx.np.array([-1.0, 1.0])))
print(mx.sym.Convolution(mx.sym.var("x"), kernel=(3, 3), num_filter=2, name="c").list_arguments())
try:
    mx.nd.FullyConnected(data, weight, hidden=4)
except mx.MXNetError as error:
    print(str(error).splitlines()[0].split("]")[-1])
"""
    on_demand, at_once = (run_python(program, how) for how in ("on demand", "all at once"))
    assert on_demand.returncode == at_once.returncode == 0, on_demand.stderr + at_once.stderr
    assert on_demand.stdout == at_once.stdout
    assert "'Convolution'" in on_demand.stdout and "argument" in on_demand.stdout


def test_steps_that_overflow_are_no_warnings_of_numpys_and_those_of_a_user_are():
    program = """
import warnings
warnings.simplefilter("error")
from trainer.engine import np
from trainer.steps import PLAIN, Stepper
for size in (3e38, np.inf):
    weight = np.float32([size])
    Stepper(PLAIN, [False]).step([weight], [np.float32([size])], -1e30)
    Stepper(PLAIN, [False]).step([weight], [np.float32([size])], 1e30)
try:
    np.float32([3e38]) * 10
except RuntimeWarning as warning:
    print(weight, warning)
"""
    finished = run_python(program)
    assert (finished.stdout, finished.stderr) == ("[nan] overflow encountered in multiply\n", "")
