"""What algorithms do on the hub, in this process and without a connection: what workers get when, worked by hand."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from config import Config
from trainer.algorithms.server_policies import UploadReport
from trainer.algorithms.sync_switch import GOES_ON_WAITING, Status
from trainer.array_tree import copied
from trainer.hub.server_part import (
    BAD,
    ENDED,
    KEPT,
    SHOWN,
    WANTS_STOP,
    GlobalModel,
    Served,
    in_shapes,
    marked,
    serve,
    shown_and_kept,
)
from trainer.survival import checkpoint_manager
from trainer.survival.checkpoint_manager import Writer
from trainer.survival.checkpoints import Checkpoints


class Clock:
    """Goes by a second at each look."""

    def __init__(self):
        self._now = 0.0

    def now(self):
        self._now += 1.0
        return self._now


class Server:
    """Calls a server part as the hub does, which always sends some answer here. Messages travel as JSON; the arrays of
    an upload are the server part's."""

    def __init__(self, config, num_workers, model, num_weights=1, saved=None):
        """`model` are the initial values. `saved`: a checkpoint, or what a worker knows of one."""
        model, saved = [as_array(values).copy() for values in model], dict(saved or {})
        model = in_shapes(saved.pop(SHOWN, model), model)
        decays = tuple(array.ndim > 1 for array in model[:num_weights])
        job = Served(config, num_workers, decays, (), model, saved, Clock().now, is_sending=lambda: True)
        self.part, self.num_workers = serve(job), num_workers
        self.answered = [0] * num_workers  # by rank, number of uploads
        self.rounds = list(saved.get("clocks", [0] * num_workers))  # by rank, of uploads
        self.asks_again = True  # a worker that is left out
        self.messages, self.models = {}, {}  # by rank, of the newest answer with one
        for rank in range(num_workers):
            self.take({rank: self.part.joined(rank)})
        self.answered = [0] * num_workers

    def take(self, answers):
        """The workers get these answers."""
        for rank, answer in answers.items():
            self.messages[rank] = json.loads(json.dumps(answer.message))
            if answer.arrays:
                self.models[rank] = answer.arrays
            self.answered[rank] += bool(answer.arrays)
            if not answer.arrays and "status" in answer.message and self.asks_again:
                self.send(rank, {GOES_ON_WAITING: True, WANTS_STOP: False})
        return answers

    def send(self, rank, message, *arrays):
        """Returns the worker's answer, if it has one now."""
        sent = [as_array(values).copy() for values in arrays]
        return self.take(self.part.act(rank, marked(rank, json.loads(json.dumps(message)), sent, True), sent)).get(rank)

    def upload(self, rank, *arrays, stop=False, step_s=1.0, samples=2):
        """Uploads a step, by default of two samples."""
        self.rounds[rank] += 1
        report = UploadReport(1, samples, step_s, 0.0)
        message = {"report": report, "round": self.rounds[rank], "step_s": step_s, WANTS_STOP: stop}
        return self.send(rank, message, *arrays)

    def lose(self, rank):
        self.take(self.part.lost(rank))

    def join(self, rank):
        """In place of a lost worker."""
        self.take({rank: self.part.joined(rank)})

    @property
    def shown(self):
        return [array.copy() for array in self.part.state()[SHOWN]]

    @property
    def values(self):
        """Of the shown arrays, where each is one number."""
        return [array.item() for array in self.shown]


def as_array(values):
    return np.atleast_1d(np.asarray(values, dtype=np.float32))


# ------------------------------------------------------------------------------------------------ the arrays


def test_a_model_is_changed_in_a_copy_while_it_is_sent():
    sending = [True]
    model = GlobalModel(Served(Config(), 1, (), (), [np.zeros(1)], {}, Clock().now, is_sending=lambda: sending[0]))
    first = model.arrays
    model.to_change()[0][:] = 1
    second = model.arrays
    assert (first, second) == ([0.0], [1.0])
    sending[0] = False
    model.to_change()[0][:] = 2
    assert second == model.arrays == [2.0]


STEPS = {"momentum": 0.9, "weight_decay": 0.1, "learning_rate": 0.1}
WITH_ALL = {
    "wbsp": {},
    "decoupled": {"quorum": 2, "grace": 0.0, "outer_momentum": 0.9},
    "async-local": {"outer_momentum": 0.9},
    "backup": {"backup": 1, **STEPS},
    "async": STEPS,
    "async, DC-ASGD": {"use_dcasgd": 1, **STEPS},
    "async, DC-ASGD-a": {"use_dcasgd": 1, "dcasgd_adaptive": 1, **STEPS},
    "async, Ringmaster": {"max_delay": 3, **STEPS},
    "async, Ringleader": {"table": 1, **STEPS},
    "async, Rescaled": {"rescale": 1, **STEPS},
    "ssp": {"staleness": 9, **STEPS},
    "sync-switch": {
        **{"switch_order": "01", "train_steps": (9, 9), **STEPS},
    },
}
WITHOUT_STATISTICS = [name for name in WITH_ALL if name.startswith(("async,", "ssp")) or name == "async"]


def config_of(name):
    return Config(mode=name.partition(",")[0], **WITH_ALL[name])


def packed(tree):
    """A checkpoint as version 0.6.0 has it: neighbours are one flat array, and a stepper's arrays are flat."""
    if isinstance(tree, dict):
        if "kept" in tree:
            return {**tree, "kept": [[position, array.reshape(-1)] for position, (array,) in tree["kept"]]}
        return {name: packed(each) for name, each in tree.items()}
    if isinstance(tree, (list, tuple)):
        if tree and all(isinstance(each, np.ndarray) for each in tree):
            return [np.concatenate([array.reshape(-1) for array in tree])]
        return [packed(each) for each in tree]
    return tree


@pytest.mark.parametrize("mode", WITH_ALL)
def test_a_checkpoint_goes_on_as_if_it_had_not_stopped_also_one_of_version_0_6_0(mode):
    """A model of a matrix, a bias and statistics."""
    shapes, random = ((2, 3), (3,), (2,)), np.random.default_rng(0)

    def drawn():
        return [random.random(shape, np.float32) for shape in shapes]

    def server(saved=None):
        return Server(config_of(mode), 3, model, num_weights=3 if mode in WITHOUT_STATISTICS else 2, saved=saved)

    model = drawn()
    first = server()
    for rank in (0, 1, 0, 1, 2):
        first.upload(rank, *drawn())
    state = first.part.state()
    servers = [server(tree) for tree in (copied(state), packed(copied(state)))]
    if mode != "wbsp":  # who is the slowest is in no checkpoint
        servers.append(first)
    for rank in range(3) if mode in WITHOUT_STATISTICS else ():  # nor is what each worker has got last
        first.join(rank)
    before = first.shown
    for rank in (2, 0, 1, 2):
        arrays = drawn()
        for each in servers:
            each.upload(rank, *arrays)
    for each in servers:
        for array, expected, old in zip(each.shown, servers[0].shown, before, strict=True):
            np.testing.assert_array_equal(array, expected)
            assert (array != old).all()


@pytest.mark.parametrize("mode", WITH_ALL)
def test_a_hub_that_is_started_again_goes_on_with_a_model_and_the_counts_of_an_answer(mode):
    config = config_of(mode)
    server = Server(config, 3, [1.0])
    for rank in (0, 1, 2, 0):
        server.upload(rank, 2.0)
    kept = server.messages[0][KEPT]
    again = Server(config, 3, server.shown, saved=kept)
    assert again.messages[1][KEPT] == kept and any(kept.values())
    assert again.models[1] == server.shown


@pytest.mark.parametrize("mode", WITH_ALL)
def test_what_is_not_finite_does_not_count_and_its_worker_waits_for_nobody(mode):
    server = Server(config_of(mode), 3, [1.0])
    kept = server.messages[0][KEPT]
    answer = server.upload(0, float("nan"))
    if mode == "ssp":  # it has done a step
        kept["clocks"][0] = 1
    assert (server.values, answer.message[KEPT]) == ([1.0], kept)
    for rank in (0, 1, 2) * 2:
        server.upload(rank, 2.0)
    assert np.isfinite(server.values).all() and server.values != [1.0]


@pytest.mark.parametrize("mode", ["async", "ssp", "async-local", "backup", "sync-switch"])
def test_a_wish_to_stop_that_crosses_an_answer_leaves_that_as_it_is(mode):
    server = Server(config_of(mode), 3, [1.0])
    for rank in (0, 1):
        server.upload(rank, 2.0)
    given = [array.copy() for array in server.models[0]]
    assert server.send(0, {WANTS_STOP: True}) is None
    for rank in (2, 1, 2):
        server.upload(rank, 2.0)
    assert server.models[0] == given != server.shown
    server.upload(1, 2.0)
    assert any(server.messages[1].get(name) for name in ("stop", "over")) or status_of(server, 1).over


@pytest.mark.parametrize("mode", ["wbsp", "decoupled"])
def test_a_wish_to_stop_while_an_upload_travels_counts_and_is_no_upload(mode):
    server = Server(Config(mode=mode), 2, [1.0])
    server.upload(0, 2.0)
    assert server.send(0, {WANTS_STOP: True}) is None
    server.upload(1, 2.0)
    assert server.messages[1]["stop"]


# ------------------------------------------------------------------------------------------------ backup workers


def backup_server(num_workers=3, num_backup=1):
    """Step size 1."""
    return Server(Config(mode="backup", backup=num_backup, learning_rate=1.0), num_workers, [10.0])


def sent(server, rank, gradient, stop=False):
    """The version, whether the job is over, the worker's dropped gradients and its model; None: it waits."""
    if (answer := server.send(rank, {WANTS_STOP: stop}, gradient)) is None:
        return None
    message = answer.message
    return message[KEPT]["version"], message["over"], message["dropped"], answer.arrays[0].item()


def test_the_version_that_a_worker_was_given_stays_as_it_is_whatever_the_others_do():
    """Three workers, one of them spare: versions are made by workers 0 and 1 alone."""
    server = backup_server()
    assert sent(server, 0, 1.0) is None
    assert sent(server, 1, 3.0) == (1, False, 0, 8.0)
    assert (server.answered, server.messages[0]) == ([1, 1, 0], server.messages[1])
    assert sent(server, 2, 100.0) == (1, False, 1, 8.0)
    assert [server.models[rank] for rank in range(3)] == [[8.0]] * 3
    sent(server, 0, 2.0)
    sent(server, 1, 2.0)
    assert [server.models[rank] for rank in range(3)] == [[6.0], [6.0], [8.0]]
    assert server.values == [6.0]


def test_who_begins_again_on_a_new_connection_while_its_gradient_waits_sends_it_anew():
    server = backup_server(2, 0)
    sent(server, 0, 100.0)
    server.join(0)
    assert sent(server, 0, 1.0) is None
    assert sent(server, 1, 3.0) == (1, False, 0, 8.0)
    assert sent(server, 0, 1.0) is None  # one gradient of it, not two


@pytest.mark.parametrize(
    ("sizes", "course", "answered", "value"),  # `0`: worker 0 sends 3, and worker 1 sends 6; `-0`: worker 0 is lost
    [
        ((3, 1), "0 -2", [0, 0, 0], 10),  # it was spare
        ((3, 1), "0 -2 1", [1, 1, 0], 5.5),
        ((3, 1), "0 -2 1 0 -1", [2, 1, 0], 2.5),  # no other gradient can come
        ((4, 1), "0 1 -1 2", [0] * 4, 10),  # a gradient of a lost worker that waits does not count
        ((4, 1), "0 1 -1 2 3", [1, 0, 1, 1], 2),
    ],
)
def test_backup_workers_are_fewer_and_then_none(sizes, course, answered, value):
    server = backup_server(*sizes)
    for event in course.split():
        if event.startswith("-"):
            server.lose(int(event[1:]))
        else:
            sent(server, int(event), 3.0 * (int(event) + 1))
    assert (server.answered, server.values) == (answered, [value])


def test_the_gradient_of_a_worker_that_is_back_after_the_last_version_is_answered():
    server = backup_server(2, 0)
    server.lose(1)
    assert sent(server, 0, 1.0) == (1, False, 0, 9.0)
    assert sent(server, 0, 1.0, stop=True) == (2, True, 0, 8.0)
    server.join(1)
    assert sent(server, 1, 1.0) == (2, True, 0, 8.0)  # no other gradient can come


# ------------------------------------------------------------------------------------------- ASGD and its kin


def asgd_server(num_workers, *model, mode="async", saved=None, **flags):
    """By default with steps of 0.5."""
    config = Config(mode=mode, **{"learning_rate": 0.5, "batch_size": 1, **flags})
    return Server(config, num_workers, model, num_weights=len(model), saved=saved)


def own_gradients(server, ranks):
    """Workers send what they have got last, which is the gradient of w * w / 2; returns the weight after each."""
    return [server.upload(rank, *server.models[rank]).arrays[0].item() for rank in ranks]


def test_an_answer_has_the_newest_weights_in_the_memory_of_the_upload():
    server = asgd_server(2, [[1.0]], [5.0])
    upload = [as_array([[2.0]]), as_array(4.0)]
    answer = server.part.act(0, {WANTS_STOP: False, "round": 1, "step_s": 1.0}, upload)[0]
    assert all(one is other for one, other in zip(answer.arrays, upload, strict=True))
    assert answer.arrays == [0.0, 3.0]
    assert answer.message == {KEPT: {"num_steps": 1}, "stop": False}
    server.upload(1, [[2.0]], 0.0)
    assert (answer.arrays[0], server.models[1]) == (0.0, [-1.0, 3.0])


def test_what_comes_without_a_gradient_gets_the_weights():
    server = asgd_server(2, 1.0)
    server.upload(1, 1.0)
    assert server.send(0, {WANTS_STOP: False, BAD: True}).arrays == [0.5]


@pytest.mark.parametrize("adaptive", [0, 1])
@pytest.mark.parametrize("pushes", [[0, 0, 0, 1, 0, 1, 1], [0, 1, 2, 2, 1, 0, 0]])
def test_dcasgd_keeps_one_backup_for_each_worker_and_one_mean_square_of_all_gradients(pushes, adaptive):
    """The paper's algorithm 2 with one weight; in its adaptive form lambda = lambda_0 / sqrt(s + 1e-7)."""
    rate, strength, weight, backups, square, expected = 0.03, 0.5, 1.0, [1.0] * 3, 0.0, []
    for worker in pushes:
        gradient = backups[worker]
        square = 0.95 * square + 0.05 * gradient * gradient
        its = strength / (square + 1e-7) ** 0.5 if adaptive else strength
        weight -= rate * (gradient + its * gradient * gradient * (weight - backups[worker]))
        backups[worker] = weight
        expected.append(weight)
    flags = {"use_dcasgd": 1, "dcasgd_lambda": strength, "dcasgd_adaptive": adaptive}
    server = asgd_server(3, 1.0, learning_rate=rate, **flags)
    np.testing.assert_allclose(own_gradients(server, pushes), expected, rtol=1e-6)


def test_the_backup_of_a_worker_in_the_place_of_a_lost_one_is_what_it_begins_with():
    server = asgd_server(2, 1.0, learning_rate=0.1, use_dcasgd=1, dcasgd_lambda=2.0)
    server.upload(0, 1.0)
    server.lose(1)
    server.lose(1)
    server.join(1)
    assert server.upload(1, 1.0).arrays == [pytest.approx(0.8)]  # no delay


def test_lambda_0_is_the_same_on_the_summed_and_on_the_mean_loss():
    """The gradient of the sum over 64 samples is 64 times that of the mean, and the step size a 64th."""
    ends = []
    for size in (1, 64):
        flags = {"learning_rate": 0.1 / size, "use_dcasgd": 1, "dcasgd_adaptive": 1, "dcasgd_lambda": 2.0}
        server = asgd_server(2, [1.0, -2.0], **flags)
        for worker in (0, 1, 1, 0):
            server.upload(worker, size * server.models[worker][0])
        ends.append(server.shown[0])
    np.testing.assert_allclose(*ends, rtol=1e-5)


def test_a_compensated_gradient_that_is_not_finite_does_not_count():
    server = asgd_server(2, 1.0, use_dcasgd=1, dcasgd_lambda=2.0)
    server.upload(0, 1.0)
    with np.errstate(over="ignore"):
        assert server.upload(1, 1e30).arrays == server.shown == [0.5]  # its square is infinite


def test_ringmaster_counts_what_was_applied_and_not_what_was_dropped():
    server, seen = asgd_server(3, 8.0, max_delay=1), []
    # 0 counts; so 1 and 2 are late, once each; then 1 and 0 have no other between; 2 is late by that of 1.
    for worker in (0, 1, 2, 1, 0, 2):
        seen.append(server.upload(worker, 1.0).arrays[0].item())
    assert seen == [7.5, 7.5, 7.5, 7.0, 7.0, 7.0]


def test_ringleader_answers_without_weights_until_a_step():
    server = asgd_server(2, 8.0, table=1)
    given = [server.upload(rank, value).arrays for rank, value in ((0, 1.0), (0, 3.0), (1, 4.0))]
    assert given == [(), (), ()]
    # The table is complete; worker 0 has (1 + 3 + 5) / 3 = 3, and worker 1 has 4.
    assert server.upload(0, 5.0).arrays == [8 - 0.5 * (3 + 4) / 2]
    assert server.upload(0, 100.0).arrays == ()  # of the next round
    assert server.upload(1, 8.0).arrays == [6.25 - 0.5 * (3 + 6) / 2]
    assert server.messages[1][KEPT] == {"num_steps": 6}
    server.upload(1, 2.0)
    assert server.upload(1, 4.0).arrays == [4.0 - 0.5 * (100 + 3) / 2]  # both have an entry, of 100 and of 2 and 4


def test_ringleader_does_not_wait_for_the_entry_of_a_worker_that_is_lost_or_has_ended():
    server = asgd_server(3, 8.0, table=1)
    server.upload(0, 1.0)
    server.lose(1)
    server.send(2, {ENDED: True})
    assert server.upload(0, 3.0).arrays == [8 - 0.5 * 2]
    server.join(1)
    assert server.upload(0, 1.0).arrays == ()


def test_ringleader_keeps_the_first_gradient_of_a_worker_that_has_come_back_in_the_second_phase():
    """The answer to that gradient, which a step follows, has the gradient's own memory."""
    server = asgd_server(3, 8.0, table=1)
    for rank, value in enumerate((1.0, 2.0, 3.0)):
        server.upload(rank, value)
    assert server.upload(0, 3.0).arrays == [pytest.approx(8 - 0.5 * (2 + 2 + 3) / 3)]
    server.lose(1)
    server.join(1)
    (after,) = server.upload(1, 4.0).arrays
    assert after == pytest.approx(8 - 0.5 * (7 / 3 + (2 + 4 + 3) / 3))
    assert server.upload(2, 5.0).arrays == [pytest.approx(after - 0.5 * (2 + 4 + 4) / 3)]


def test_rescaled_asgd_weighs_by_the_last_step_over_the_mean_of_those_that_are_there():
    server = asgd_server(2, 8.0, rescale=1)
    for rank, step_s in ((0, 1.0), (1, 3.0)):
        server.send(rank, {WANTS_STOP: False, BAD: True, "round": 0, "step_s": step_s})
    assert server.upload(0, 2.0, step_s=1.0).arrays == [8 - 0.5 * 2 * 1 / 2]
    assert server.upload(1, 2.0, step_s=4.0).arrays == [pytest.approx(7.5 - 0.5 * 2 * 4 / 2.5)]
    server.lose(1)
    assert server.upload(0, 2.0, step_s=1.0).arrays == [pytest.approx(5.9 - 0.5 * 2)]
    assert server.upload(0, 2.0, step_s=0.0).arrays == [pytest.approx(4.9 - 0.5 * 2)]  # a clock that stands


def ssp_server(num_workers, staleness, **more):
    return asgd_server(num_workers, 8.0, mode="ssp", staleness=staleness, **more)


def test_ssp_answers_who_is_too_far_ahead_when_the_slowest_has_done_a_step():
    server = ssp_server(2, 1)
    assert server.upload(0, 1.0).arrays == [7.5]
    assert server.upload(0, 1.0) is None  # two steps ahead; its gradient counts
    assert server.upload(1, 1.0).arrays == [6.5]
    assert (server.models[0], server.answered) == ([6.5], [2, 1])


def test_ssp_answers_who_waits_where_the_others_are_lost_or_end_or_somebody_wants_to_stop():
    def waiting():
        server = ssp_server(2, 0)
        assert server.upload(0, 1.0) is None
        return server

    server = waiting()
    server.lose(1)
    assert server.models[0] == [7.5]
    server = waiting()
    server.send(1, {ENDED: True})
    assert server.models[0] == [7.5]
    server = waiting()
    server.send(0, {WANTS_STOP: True})
    assert (server.models[0], server.messages[0]["stop"]) == ([7.5], True)


def test_ssp_puts_the_clock_of_a_worker_that_is_back_to_that_of_the_slowest():
    server = ssp_server(3, 0)
    server.lose(1)
    for _ in range(2):
        server.upload(0, 1.0)
        server.upload(2, 1.0)
    server.join(1)
    assert server.messages[1][KEPT]["clocks"] == [2, 2, 2]
    server.upload(0, 1.0)
    assert server.upload(2, 1.0) is None
    server.rounds[1] = 2
    assert server.upload(1, 1.0) is not None
    assert server.answered == [3, 2, 3]  # with the answer to its return


def test_the_answer_of_a_lost_worker_that_waits_under_ssp_is_none():
    server = ssp_server(2, 0)
    server.upload(0, 1.0)
    server.lose(0)
    server.upload(1, 1.0)
    assert server.answered == [0, 1]


def test_a_job_without_all_clocks_of_a_checkpoint_begins_with_none():
    assert ssp_server(2, 0, saved={"clocks": [5, 5, 5]}).messages[0][KEPT]["clocks"] == [0, 0]


@pytest.mark.parametrize("flags", [{}, {"use_dcasgd": 1, "dcasgd_adaptive": 1}, {"max_delay": 1}], ids=str)
def test_a_checkpoint_of_version_0_6_0_goes_on(flags):
    """It has a count of steps for each weight; where each worker has a copy, the server's own is `global`."""
    matrix, bias = np.float32([[1.0, 2.0]]), np.float32([3.0])
    velocities, squares = [np.float32([[0.5, 0.25]]), np.float32([1.0])], [np.float32([[4.0, 9.0]]), np.float32([16.0])]
    arrays = [[0, matrix.reshape(-1)], [1, bias]]
    copies = [[2, np.float32([7.0, 7.0])], [3, np.float32([7.0])]]  # of worker 1
    saved = {
        "values": [*copies, *([] if flags else arrays)],
        "num_steps": [[0, 6], [1, 6]],
        "steps": {"kept": [[0, velocities[0].reshape(-1)], [1, velocities[1]]], "updates": []},
    }
    if flags:
        saved |= {"global": arrays}
    if "dcasgd_adaptive" in flags:
        saved |= {"squares": [[1, squares[1]], [0, squares[0].reshape(-1)]]}
    model = [np.zeros_like(matrix), np.zeros_like(bias)]
    shown, kept = shown_and_kept(copied(saved), model)
    server = asgd_server(2, *shown, momentum=0.9, lr_schedule="step:6x0.1", saved=kept, **flags)
    state = server.part.state()
    for array, expected in zip([*state[SHOWN], *state.get("squares", ())], [matrix, bias, *squares], strict=False):
        np.testing.assert_array_equal(array, expected)
    assert state["num_steps"] == 6
    server.upload(0, [[1.0, 1.0]], 1.0)  # the seventh, with a tenth of the step
    for array, before, velocity in zip(server.shown, (matrix, bias), velocities, strict=True):
        np.testing.assert_allclose(array, before - 0.05 * (0.9 * velocity + 1), rtol=1e-6)


# ---------------------------------------------------------------------------------------------------------- WBSP

FAST, SLOW = 1.0, 4.0  # seconds of a step


def wbsp_server(num_workers, *initial):
    return Server(Config(mode="wbsp"), num_workers, initial)


class Uploaded:
    """The answer to an upload of WBSP or the quorum merge."""

    def __init__(self, answer):
        message = answer.message
        self.is_new, self.model = bool(answer.arrays), list(answer.arrays)
        self.release, self.samples = message[KEPT]["release"], message[KEPT]["samples"]
        self.released, self.reason = message["action"] == "SYNC", message["reason"]
        self.uploads, self.stop = tuple(message["uploads"]), message["stop"]


def uploaded(server, rank, *arrays, **more):
    return Uploaded(server.upload(rank, *arrays, **more))


def test_of_nearly_equal_workers_one_releases_what_the_slowest_has_uploaded_and_only_once():
    server = wbsp_server(2, 1.0)
    assert not uploaded(server, 0, 1.0, step_s=5.0).released  # the speed of the other one is not known yet
    assert uploaded(server, 1, 1.0, step_s=4.0).released
    assert not uploaded(server, 1, 1.0, step_s=4.0).released
    assert uploaded(server, 0, 1.0, step_s=5.0).released


updates = st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 4), updates, st.lists(st.tuples(st.integers(0, 3), updates, st.floats(0.1, 9)), max_size=20))
def test_each_release_is_the_initial_model_and_the_sum_of_all_uploads_over_n(num_workers, initial, course):
    """Of an array of two numbers and one of one; who is the slowest changes. A worker has a release that is new to it
    with its upload, and until its next one."""
    server = wbsp_server(num_workers, initial[:2], initial[2:])
    total, counts, release = np.zeros(3), [0] * num_workers, 0
    shown, given_to = np.float32(initial), [0] * num_workers
    had: dict[int, tuple[list[np.ndarray], np.ndarray]] = {}  # by rank
    for each, update, step_s in course:
        rank = each % num_workers
        total += update
        counts[rank] += 1
        answer = uploaded(server, rank, update[:2], update[2:], step_s=step_s)
        if answer.released:
            release += 1
            shown = np.concatenate(server.shown)
            np.testing.assert_allclose(shown, np.float64(initial) + total / num_workers, rtol=1e-5, atol=1e-3)
            assert answer.uploads == tuple(counts)
        np.testing.assert_array_equal(np.concatenate(server.shown), shown)  # to the last bit, between releases
        assert (answer.release, answer.is_new) == (release, release > given_to[rank])
        given_to[rank] = release
        if answer.is_new:
            had[rank] = answer.model, shown
        for model, release_then in had.values():
            np.testing.assert_array_equal(np.concatenate(model), release_then)


# -------------------------------------------------------------------------------------------------- quorum merge


def quorum_server(grace_s, saved=None):
    """Three workers, K = 2, eps = beta = 0.5; a weight of 10, and a statistic of BatchNorm of 1."""
    config = Config(mode="decoupled", quorum=2, grace=grace_s, global_lr=0.5, outer_momentum=0.5)
    return Server(config, 3, [10.0, 1.0], saved=saved)


@pytest.mark.parametrize("resumes", [False, True])
def test_a_merge_on_paper(resumes):
    server = quorum_server(0.0)
    uploaded(server, 0, 4.0, 0.9)
    assert uploaded(server, 0, 2.0, 0.7).reason == "1 of 3 workers are in, the quorum is 2"
    if resumes:  # a checkpoint here changes nothing
        server = quorum_server(0.0, server.part.state())
    answer = uploaded(server, 1, 3.0, 0.4, samples=4)
    # Worker 0 is in with D = 6 of 4 samples in 2 steps, weight 4 * 2; worker 1 with 3 of 4 in 1, weight 4 * 4.
    # Delta = (8 * 6 + 16 * 3) / 24 = 4, v = 4, and w = 10 + 0.5 * (4 + 0.5 * 4); the statistic is the weighed mean.
    assert server.values == pytest.approx([13.0, (8 * 0.7 + 16 * 0.4) / 24])
    assert (answer.is_new, answer.release, answer.released, answer.samples) == (True, 1, True, 8)
    assert answer.model == server.shown
    late = uploaded(server, 2, 8.0, 0.3)  # an update of the old model counts in the next merge
    assert (late.is_new, late.release, late.released, late.model) == (True, 1, False, server.shown)
    answer = uploaded(server, 0, 4.0, 0.1)
    # Delta = (4 * 8 + 4 * 4) / 8 = 6, v = 0.5 * 4 + 6 = 8, w = 13 + 0.5 * (6 + 0.5 * 8)
    assert server.values == pytest.approx([18.0, 0.2])
    assert (answer.is_new, answer.release, answer.uploads) == (True, 2, (3, 1, 1))
    assert not uploaded(server, 0, 1.0, 0.1).is_new


def test_by_default_a_merge_waits_until_a_worker_uploads_again_or_all_are_in():
    server = quorum_server("auto")
    released = [uploaded(server, rank, 3.0, 1.0).released for rank in (0, 0, 1)]
    assert released == [False, False, False]  # 1 is in for the first time
    assert uploaded(server, 1, 3.0, 1.0).released
    assert server.values == [10 + 0.5 * (6 + 0.5 * 6), 1.0]  # both with two uploads
    assert [uploaded(server, rank, 1.0, 1.0).released for rank in (2, 0, 1)] == [False, False, True]


def test_the_lost_are_not_waited_for_and_what_is_not_finite_or_has_no_samples_is_not_in():
    server = quorum_server(0.0)
    assert not uploaded(server, 0, 4.0, 1.0).released
    for update, samples in ((float("nan"), 2), (0.0, 0)):
        answer = uploaded(server, 1, update, 1.0, samples=samples)
        assert (answer.released, answer.reason) == (False, "nothing of its upload counts")
    server.lose(1)
    assert not uploaded(server, 0, 2.0, 1.0).released
    server.lose(2)
    assert uploaded(server, 0, 2.0, 1.0).released
    assert server.values == [10 + 0.5 * (8 + 0.5 * 8), 1.0]


# --------------------------------------------------------------------------------------------------- Sync-Switch

ETA = 0.1


def sync_switch_server(order, steps, num_workers, weight=1.0, statistic=None, momentum=0.0, policy="none", saved=None):
    """A model of one weight, and one statistic where one is given."""
    model = [weight] if statistic is None else [weight, statistic]
    flags = {"switch_order": order, "train_steps": steps, "straggler_policy": policy}
    return Server(
        Config(mode="sync-switch", learning_rate=ETA, momentum=momentum, **flags), num_workers, model, saved=saved
    )


def computed(server, rank, *arrays, **more):
    """A worker uploads its gradient and statistics; returns what it has heard last."""
    server.upload(rank, *arrays, **more)
    return status_of(server, rank)


def status_of(server, rank):
    return Status(*server.messages[rank]["status"])


def of_all(server, name):
    """By rank, one entry of what the workers have heard last."""
    return tuple(getattr(status_of(server, rank), name) for rank in range(server.num_workers))


def rounds_under_bsp(server, count, *steps_s):
    """All workers send gradients of zero, after steps of these lengths; they arrive by rank."""
    for _ in range(count):
        for rank, step_s in enumerate(steps_s):
            computed(server, rank, 0.0, step_s=step_s)


def test_an_update_is_the_same_to_the_last_bit_in_whichever_order_the_workers_arrived():
    gradients, weights = (1e8, 1.0, -1e8), set()
    for arrivals in ((0, 1, 2), (2, 0, 1), (1, 2, 0), (0, 2, 1)):
        server = sync_switch_server("1", (1,), 3)
        for rank in arrivals:
            computed(server, rank, gradients[rank])
        weights.add(server.values[0])
    assert len(weights) == 1


def test_statistics_move_to_the_mean_by_the_share_of_the_workers():
    server = sync_switch_server("10", (1, 2), 4, statistic=10.0, momentum=0.9)  # which is none of theirs
    for rank, statistic in enumerate((4.0, 8.0, 2.0, 6.0)):
        computed(server, rank, 0.0, statistic)
    assert server.values == [1.0, 5.0]  # all four: the mean
    computed(server, 2, 0.0, 9.0)
    assert server.values == [1.0, 6.0]  # a quarter of the way to 9


def test_under_elastic_all_hear_of_a_worker_that_is_left_out_until_the_phase_ends():
    server = sync_switch_server("10", (7, 2), 3, policy="elastic")
    rounds_under_bsp(server, 5, 1.0, 1.0, 4.0)
    assert of_all(server, "left_out") == ([2], [2], [2])
    assert (server.answered, of_all(server, "in_step")) == ([5, 5, 4], (True, True, False))
    assert status_of(server, 2).reason.startswith("worker 2 is a straggler: 0.5 samples/s, ")
    rounds_under_bsp(server, 2, 1.0, 1.0)
    assert (of_all(server, "left_out"), server.answered) == (([], [], []), [7, 7, 5])
    status = status_of(server, 2)
    assert (status.phase, status.steps) == (1, 7)
    assert of_all(server, "processed_at") == (19, 19, 15)  # its gradient is in the model since the fifth step


def test_a_worker_that_waits_when_it_is_left_out_hears_of_it():
    server = sync_switch_server("10", (20, 2), 3, policy="elastic")
    rounds_under_bsp(server, 5, 1.0, 1.0, 1.0)
    for _ in range(3):  # the median of five shows the third
        computed(server, 2, 0.0, step_s=9.0)
        for rank in (0, 1):
            computed(server, rank, 0.0)
    assert (of_all(server, "left_out"), server.answered) == (([2], [2], [2]), [8, 8, 7])


def test_a_worker_that_has_heard_that_it_is_left_out_and_asks_when_the_phase_has_ended_has_its_answer_at_once():
    server = sync_switch_server("10", (6, 2), 3, policy="elastic")
    server.asks_again = False
    rounds_under_bsp(server, 5, 1.0, 1.0, 4.0)
    rounds_under_bsp(server, 1, 1.0, 1.0)
    assert (server.answered, status_of(server, 2).left_out) == ([6, 6, 4], [2])
    computed(server, 0, 3.0)
    answer = server.send(2, {GOES_ON_WAITING: True, WANTS_STOP: False})
    assert (answer.arrays, server.answered, status_of(server, 2).phase) == (server.shown, [7, 6, 5], 1)


def test_a_worker_that_was_left_out_and_begins_again_on_a_new_connection_has_its_answer_as_before():
    server = sync_switch_server("10", (6, 2), 3, policy="elastic")
    server.asks_again = False
    rounds_under_bsp(server, 5, 1.0, 1.0, 4.0)
    server.join(2)
    assert server.upload(2, 0.0, step_s=4.0) is None
    rounds_under_bsp(server, 1, 1.0, 1.0)
    assert (server.answered, status_of(server, 2).phase) == ([6, 6, 6], 1)


def test_a_worker_that_is_left_out_has_its_answer_where_the_job_ends_or_the_hub_was_started_again():
    server = sync_switch_server("10", (20, 2), 3, policy="elastic")
    rounds_under_bsp(server, 5, 1.0, 1.0, 4.0)
    kept = server.messages[0][KEPT]
    server.send(2, {WANTS_STOP: True})
    rounds_under_bsp(server, 1, 1.0, 1.0)
    assert (of_all(server, "over"), server.answered) == ((True, True, True), [6, 6, 5])

    server = sync_switch_server("10", (20, 2), 3, policy="elastic", saved=kept)
    assert server.send(2, {GOES_ON_WAITING: True, WANTS_STOP: False}).arrays == server.shown


def test_a_worker_that_was_left_out_counts_again_from_its_next_gradient_on():
    server = sync_switch_server("101", (7, 2, 9), 3, policy="elastic")
    rounds_under_bsp(server, 5, 1.0, 1.0, 4.0)
    rounds_under_bsp(server, 1, 1.0, 1.0)
    assert "the mean is 2 +- 0" in status_of(server, 0).reason
    rounds_under_bsp(server, 1, 1.0, 1.0)
    rounds_under_bsp(server, 2, 1.0, 1.0, 4.0)  # two steps of ASP
    server.upload(0, 0.0)
    for rank in (1, 2):
        computed(server, rank, 0.0)
    status = status_of(server, 0)
    assert (status.phase, status.bsp) == (2, True)
    assert "the mean is 1.5 +- " in status.reason


def test_under_asp_nobody_is_told_anything():
    server = sync_switch_server("01", (30, 1), 3, policy="elastic")
    rounds_under_bsp(server, 6, 1.0, 1.0, 9.0)
    assert (of_all(server, "in_step"), of_all(server, "reason")) == ((True,) * 3, ("",) * 3)


def test_all_hear_of_the_end_of_the_last_phase_and_of_one_by_a_wish_to_stop():
    for steps, stop in ((1, False), (2, True)):
        server = sync_switch_server("1", (steps,), 2)
        assert server.upload(0, 0.0, stop=stop) is None
        status = computed(server, 1, 0.0)
        assert (status.finished, status.phase, of_all(server, "over")) == (not stop, 0, (True, True))


def test_a_checkpoint_holds_all_of_one_moment_and_later_updates_do_not_change_it(tmp_path, monkeypatch):
    server = sync_switch_server("10", (1, 9), 2, statistic=10.0, momentum=0.9)
    checkpoints = Checkpoints(tmp_path, "server", {})
    writer = Writer(checkpoints)
    updated = threading.Event()
    monkeypatch.setattr(checkpoint_manager, "is_finite", lambda tree: updated.wait(60))  # the thread waits there
    computed(server, 0, 2.0, 4.0)
    computed(server, 1, 4.0, 8.0)
    computed(server, 1, 1.0, 8.0)
    writer.write(7, server.part.state())
    assert computed(server, 0, 1.0, 1.0).processed_at == 4
    updated.set()
    writer.wait()
    saved = checkpoints.load(7)
    assert [array.tolist() for array in saved["shown"]] == [[pytest.approx(1 - 0.3 - 0.05 * 3.7)], [7.0]]
    assert saved["velocity"][0].tolist() == [pytest.approx(3.7)]
    assert (saved["done"], saved["batches"]) == ([2, 1], 3)


def test_before_the_first_update_a_worker_hears_where_a_resumed_job_is():
    server = sync_switch_server("101", (1, 1, 1), 2, saved={"done": [2, 2, 0], "batches": 3, "samples": [2, 2, 0]})
    resumed = Status(False, False, phase=2, counts_for=2, bsp=True, steps=2, dropped=0, processed_at=3, in_step=True,
                     left_out=[], reason="")  # fmt: skip
    assert [status_of(server, rank) for rank in range(2)] == [resumed] * 2
