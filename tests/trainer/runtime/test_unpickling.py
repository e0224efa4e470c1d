"""What a pickle at a parameter server's port can do: hold an optimizer, and nothing else."""

from __future__ import annotations

import os
import pickle
import sys

import numpy as np
import pytest

from trainer.engine import mx
from trainer.runtime.unpickling import optimizer_in
from utils import SetupError

SGD = b"cmxnet.optimizer.optimizer\nSGD\n"
SCHEDULE = b"cmxnet.lr_scheduler\nLRScheduler\n"


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch):
    ran = []
    monkeypatch.setattr(os, "system", ran.append)
    monkeypatch.setattr(pickle, "loads", ran.append)
    yield
    assert ran == []


@pytest.mark.parametrize(
    "name",
    [
        *("os system", "posix system", "nt system", "subprocess Popen", "runpy run_path", "importlib import_module"),
        *("builtins eval", "__builtin__ eval", "builtins exec", "builtins getattr", "builtins type", "builtins open"),
        *(
            "operator attrgetter",
            "functools partial",
            "collections namedtuple",
            "collections _sys",
            "copyreg __newobj__",
        ),
        # What allowed modules have beside their classes, and a class that itself reads any pickle.
        *("mxnet.optimizer os", "mxnet.optimizer.optimizer os", "mxnet.optimizer.optimizer warnings"),
        *("mxnet.optimizer.optimizer pickle", "mxnet.optimizer.optimizer NDArray", "mxnet.optimizer.optimizer Updater"),
        *("mxnet.optimizer.optimizer get_updater", "mxnet.lr_scheduler logging", "mxnet.initializer Load"),
        *("trainer.algorithms.asynchronous AsyncTrainer", "trainer.algorithms.nowhere SGD", "trainer.algorithms. SGD"),
        *("trainer.survival.checkpoints os", "trainer.steps mx", "main main", "rates math", "trainer.loop main"),
        # With these bytes become addresses of objects.
        *("numpy.core.multiarray fromstring", "numpy load", "numpy.core.multiarray array", "numpy object_"),
    ],
)
def test_no_other_name_can_be_called(name):
    module, attribute = name.split(" ")
    pickled = f"c{module}\n{attribute}\n(S'ls'\ntR.".encode()
    with pytest.raises(SetupError, match=rf"its optimizer names {module}\.{attribute}, .* was not run"):
        optimizer_in(pickled)


def short(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("mxnet.optimizer.optimizer", "os.system"),
        ("mxnet.optimizer.optimizer", "SGD.update.__globals__"),
        ("mxnet.lr_scheduler", "LRScheduler.__init__"),
        ("trainer.survival.checkpoints", "Checkpoints.save"),
        ("builtins", "object.__reduce_ex__"),
    ],
)
def test_a_dotted_name_of_a_later_protocol_reaches_no_attribute(module, name):
    with pytest.raises(SetupError, match="was not run"):
        optimizer_in(b"\x80\x04" + short(module) + short(name) + b"\x93.")


def test_a_hostile_name_makes_one_line():
    with pytest.raises(SetupError) as refused:
        optimizer_in(b"\x80\x04" + short("os\n2026-11-21 worker | all is well\x1b[2J") + short("system") + b"\x93.")
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "pickled",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(SGD, id="cut off"),
        pytest.param(b"no pickle", id="another text"),
        pytest.param(b"Pos.system\n.", id="a persistent name"),
        pytest.param(b"\x80\x02\x82\x01.", id="a name by number"),
        pytest.param(b"]" * 100_000, id="deep"),
        pytest.param(SGD + b".", id="a class"),
        pytest.param(b"(lp0\n.", id="a list"),
        pytest.param(SCHEDULE + b"(tR.", id="no optimizer"),
        pytest.param(SGD + b"(cmxnet.lr_scheduler\nLRScheduler\n(tRi0\n.", id="bad arguments"),
        pytest.param(b"ccopy_reg\n_reconstructor\n(I5\nc__builtin__\nobject\nNtR.", id="no such object"),
        pytest.param(b"c_codecs\nencode\n(Vls\nVrot13\ntR.", id="another encoding"),
        pytest.param(b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(VO8\ntRVAAAAAAAA\ntR.", id="an address"),
        # An object gets any attributes, another class and a `__setstate__` of its own: only allowed names are there.
        pytest.param(SGD + b"(tR(N(dV__class__\n" + SCHEDULE + b"stb.", id="another class"),
    ],
)
def test_what_is_no_optimizer_is_refused_in_one_line(pickled):
    with pytest.raises(SetupError, match=r"^what came to this server as its optimizer (cannot be read|is a ).*$"):
        optimizer_in(pickled)


def test_no_base_is_called_to_make_an_object():
    # As a base it would be called with the content.
    found = optimizer_in(b"ccopy_reg\n_reconstructor\n(" + SGD + SCHEDULE + b"Vls\ntR.")
    assert type(found) is mx.optimizer.SGD and vars(found) == {}


def test_a_state_that_sets_attributes_calls_allowed_classes_alone():
    own = b"(dV__setstate__\n" + SCHEDULE + b"sV__reduce__\nVos.system\nsb"  # the next state is given to the class
    found = optimizer_in(SGD + b"(tR(dVrule\n" + SCHEDULE + b"(tR" + own + b"I1\nb" + b"sb.")
    assert found.rule.__setstate__ is mx.lr_scheduler.LRScheduler and "os" not in vars(found)


def test_a_type_of_numbers_takes_no_flags_from_a_pickle():
    """With numpy's own dtype the four bytes would be taken for the address of an object."""
    kind = b"cnumpy\ndtype\n(Vf4\nI00\nI01\ntR(I3\nV<\nNNNI-1\nI-1\nI63\ntb"
    number = b"cnumpy.core.multiarray\nscalar\n(" + kind + b"c_codecs\nencode\n(V\\u0000\\u0000\\u0000?\nVlatin1\ntRtR"
    found = optimizer_in(SGD + b"(tR(dVlr\n" + number + b"sb.")
    assert found.lr == 0.5 and not found.lr.dtype.hasobject


@pytest.mark.parametrize("protocol", range(5))  # MXNet's is 0
def test_an_array_arrives_as_it_was(protocol):
    sent = mx.optimizer.SGD()
    sent.held = [np.arange(6, dtype=">i2").reshape(2, 3).T, np.float32([[1.5]]), np.array(True)]
    for found, array in zip(optimizer_in(pickle.dumps(sent, protocol)).held, sent.held, strict=True):
        np.testing.assert_array_equal(found, array)
        assert found.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")


@pytest.mark.parametrize("kind", ["O", "i4,O", "V8", "nonsense"])
def test_an_array_of_objects_is_none(kind):
    array = b"(cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntVb\ntR"
    state = b"(I1\n(I1\nt(cnumpy\ndtype\n(V" + kind.encode() + b"\ntRI00\nVAAAAAAAA\nt"
    with pytest.raises(SetupError, match="cannot be read"):
        optimizer_in(SGD + b"(tR(dVlr\n" + array[1:] + state + b"bsb.")
    with pytest.raises(SetupError, match="cannot be read"):
        optimizer_in(b"cnumpy\nndarray\n((I1\ntVO\ntR.")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_mxnets_optimizers_arrive_with_their_schedules(protocol):
    schedules = [
        mx.lr_scheduler.FactorScheduler(10, 0.9),
        mx.lr_scheduler.MultiFactorScheduler([1, 2]),
        mx.lr_scheduler.PolyScheduler(10),
        mx.lr_scheduler.CosineScheduler(10, warmup_steps=2),
    ]
    kinds = {*mx.optimizer.Optimizer.opt_registry.values()} - {mx.optimizer.LBSGD}
    for kind in kinds:
        for schedule in schedules:
            sent = kind(lr_scheduler=schedule, wd=np.float64(0.1), clip_gradient=np.float16(1), param_idx2name={0: "w"})
            found = optimizer_in(pickle.dumps(sent, protocol))
            assert type(found) is kind and found.wd == sent.wd and found.clip_gradient == 1
            assert vars(found.lr_scheduler) == vars(schedule)
    assert len(kinds) > 15 and "encodings.rot_13" not in sys.modules
