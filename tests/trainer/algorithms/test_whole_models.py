"""What WBSP, the quorum merge and Sync-Switch do on the parameter server, in this process and without a kvstore: what
workers see when, worked by hand."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.algorithms.backup_optimizer import BackupOptimizer, BackupStatus
from trainer.algorithms.decoupled_optimizer import DecoupledOptimizer, Merging
from trainer.algorithms.schedule import Schedule
from trainer.algorithms.server_policies import UploadReport
from trainer.algorithms.sync_switch_optimizer import SyncSwitchOptimizer, SyncSwitchSettings, SyncSwitchStatus
from trainer.algorithms.wbsp_optimizer import WBSPOptimizer, WBSPStatus
from trainer.algorithms.whole_models import (
    CHANGE,
    SAVE,
    SHOWN,
    TEXT_SIZE,
    UPLOAD,
    WANT_STOP,
    Keys,
    text_of,
    text_to_numbers,
)
from trainer.runtime.unpickling import optimizer_in
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
    """Calls an optimizer as MXNet's server does: one push at a time, with the stored array of its key."""

    def __init__(self, optimizer, shown):
        """`shown` are the initial values. The optimizer's way here is text, as the kvstore sends it."""
        self.keys = optimizer.keys
        travelled = pickle.dumps(optimizer, 0).decode("utf-8")
        self.optimizer = optimizer_in(travelled.encode("utf-8"))
        self.optimizer.clock = Clock()
        assert len(shown) == self.keys.num_arrays
        sent = [np.zeros_like(array) for array in map(as_array, shown)]
        own = [array for rank in range(self.keys.num_workers) for array in (*sent, optimizer.status(rank))]
        self._stored = [as_array(values).copy() for values in (*shown, *own)]
        for key in range(self.keys.num_arrays):
            self.push(key, np.zeros_like(self.pull(key)))

    def push(self, key, values):
        pushed = as_array(values).copy()
        self.optimizer.pushed(key, self._stored[key], pushed)
        pushed[:] = np.nan  # a network buffer, which is freed now

    def pull(self, key):
        return self._stored[key].copy()

    def pushes(self, rank, arrays, about):
        """What an upload pushes, as (key, values); the order in which they arrive is nobody's promise."""
        command = np.zeros_like(self.status(rank))
        command[: 1 + len(about)] = (UPLOAD, *about)
        return list(enumerate((*arrays, command), self.keys.buffer(rank)))

    def upload(self, rank, *arrays, stop=False, step_s=1.0, samples=2):
        """Uploads a step, by default of two samples, the command first and the last array before the others."""
        for key, values in reversed(self.pushes(rank, arrays, UploadReport(stop, 1, samples, step_s, 0.0))):
            self.push(key, values)
        return self.status(rank)

    def command(self, rank, code, *values):
        """Pushes another command, and returns the status vector."""
        said = np.zeros_like(self.status(rank))
        said[: 1 + len(values)] = (code, *values)
        self.push(self.keys.command(rank), said)
        return self.status(rank)

    def status(self, rank):
        return self.pull(self.keys.command(rank))

    def buffer(self, rank):
        """What the worker can pull from its gradient buffer."""
        return [self.pull(self.keys.buffer(rank) + position) for position in range(self.keys.num_arrays)]

    @property
    def shown(self):
        return [self.pull(key) for key in range(self.keys.num_arrays)]

    @property
    def values(self):
        """Of the shown arrays, where each is one number."""
        return [array.item() for array in self.shown]


def as_array(values):
    return np.atleast_1d(np.asarray(values, dtype=np.float32))


# ------------------------------------------------------------------------------------------------ backup workers


def test_the_version_that_a_worker_was_given_stays_in_its_buffer_whatever_the_others_do():
    """Three workers, one of them spare, step size 1: versions are made by workers 0 and 1 alone."""
    server = Server(BackupOptimizer(Keys(1, 3), 1, 1.0, [True], ()), [10.0])
    waiting = BackupStatus.read(server.upload(0, 1.0))
    assert (waiting.answered, server.buffer(0)) == (0, [1.0])
    assert BackupStatus.read(server.upload(1, 3.0)) == BackupStatus(False, 1, 1, at_once=True, dropped=0)
    assert BackupStatus.read(server.status(0)) == BackupStatus(False, 1, 1, at_once=False, dropped=0)
    assert BackupStatus.read(server.upload(2, 100.0)) == BackupStatus(False, 1, 1, at_once=True, dropped=1)
    assert [server.buffer(rank) for rank in range(3)] == [[8.0]] * 3
    server.upload(0, 2.0)
    server.upload(1, 2.0)
    assert [server.buffer(rank) for rank in range(3)] == [[6.0], [6.0], [8.0]]
    assert server.values == [6.0]


# ---------------------------------------------------------------------------------------------------------- keys


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_the_owner_of_a_key_is_the_worker_whose_it_is(num_arrays, num_workers, data):
    keys = Keys(num_arrays, num_workers)
    rank, position = data.draw(st.integers(0, num_workers - 1)), data.draw(st.integers(0, num_arrays))
    assert keys.owner(keys.buffer(rank) + position) == (rank, position)
    assert keys.owner(keys.command(rank)) == (rank, num_arrays)


@given(st.integers(1, 9), st.integers(1, 9))
def test_no_key_is_two_things(num_arrays, num_workers):
    keys = Keys(num_arrays, num_workers)
    own = [
        key
        for rank in range(num_workers)
        for key in (*range(keys.buffer(rank), keys.buffer(rank) + num_arrays), keys.command(rank))
    ]
    assert [*range(num_arrays), *own] == list(range(num_arrays + num_workers * (1 + num_arrays)))


@given(st.text(st.characters(min_codepoint=1, max_codepoint=127), max_size=2 * TEXT_SIZE))
def test_a_reason_in_words_arrives_and_a_long_one_is_cut(text):
    assert text_of(np.float32([7.0, *text_to_numbers(text)])) == text[:TEXT_SIZE]


# ---------------------------------------------------------------------------------------------------------- WBSP

FAST, SLOW = 1.0, 4.0  # seconds of a step


def wbsp_server(num_workers, *initial):
    return Server(WBSPOptimizer(Keys(len(initial), num_workers)), initial)


def uploaded(server, rank, *arrays, **more):
    return WBSPStatus.read(server.upload(rank, *arrays, **more))


def test_a_release_on_paper():
    """It comes with the upload of the slowest, of all that was uploaded by then."""
    server = wbsp_server(2, 1.0, 10.0)
    status = uploaded(server, 0, 4.0, 2.0, step_s=FAST)
    assert (status.is_new, status.release, status.released) == (False, 0, False)
    uploaded(server, 0, 3.0, 1.0, step_s=FAST)
    assert server.values == [1.0, 10.0]
    status = uploaded(server, 1, 1.0, -1.0, step_s=SLOW)
    release = [1 + (4 + 3 + 1) / 2, 10 + (2 + 1 - 1) / 2]
    assert (status.is_new, status.release, status.released, status.uploads) == (True, 1, True, (2, 1))
    assert status.reason == "is the slowest: reaches the server in 4 s"
    assert server.values == server.buffer(1) == release


def test_a_worker_finds_a_release_that_is_new_to_it_where_its_upload_was_and_until_its_next_one():
    server = wbsp_server(2, 1.0)
    uploaded(server, 0, 4.0, step_s=FAST)
    uploaded(server, 1, 2.0, step_s=SLOW)  # release 1
    status = uploaded(server, 0, 2.0, step_s=FAST)
    assert (status.is_new, status.release, status.released) == (True, 1, False)
    assert server.buffer(0) == [1 + (4 + 2) / 2]
    assert uploaded(server, 1, 6.0, step_s=SLOW).release == 2
    assert server.buffer(0) == [1 + (4 + 2) / 2]  # however late it pulls
    assert server.values == server.buffer(1) == [4 + (2 + 6) / 2]
    assert uploaded(server, 0, 0.0, step_s=FAST).release == 2
    status = uploaded(server, 0, 0.0, step_s=FAST)
    assert (status.is_new, status.release) == (False, 2)


def test_of_nearly_equal_workers_one_releases_what_the_slowest_has_uploaded_and_only_once():
    server = wbsp_server(2, 1.0)
    assert not uploaded(server, 0, 1.0, step_s=5.0).released  # nobody knows yet how fast the other one is
    assert uploaded(server, 1, 1.0, step_s=4.0).released
    assert not uploaded(server, 1, 1.0, step_s=4.0).released
    assert uploaded(server, 0, 1.0, step_s=5.0).released


def test_what_is_uploaded_after_a_release_counts_from_the_next_one_on():
    server = wbsp_server(2, 1.0)
    uploaded(server, 0, 2.0, step_s=FAST)
    uploaded(server, 1, 2.0, step_s=SLOW)
    uploaded(server, 0, 8.0, step_s=FAST)
    assert server.values == [3.0]
    assert uploaded(server, 1, 0.0, step_s=SLOW).uploads == (2, 2)
    assert server.values == [7.0]


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(3)))
def test_an_upload_counts_when_all_of_it_is_there_in_whatever_order_it_comes(order):
    server = wbsp_server(1, 1.0, 10.0)
    pushes = server.pushes(0, (4.0, 2.0), UploadReport(False, 1, 2, 1.0, 0.0))
    for number, place in enumerate(order, start=1):
        server.push(*pushes[place])
        assert server.values == ([1.0, 10.0] if number < 3 else [5.0, 12.0])


def test_half_an_upload_is_not_in_a_release():
    server = wbsp_server(2, 1.0, 10.0)
    uploaded(server, 0, 0.0, 0.0, step_s=FAST)
    *most, last = server.pushes(0, (4.0, 2.0), UploadReport(False, 1, 2, FAST, 0.0))
    for key, values in most:
        server.push(key, values)
    uploaded(server, 1, 2.0, 2.0, step_s=SLOW)
    assert server.values == [2.0, 11.0]
    server.push(*last)
    assert uploaded(server, 1, 0.0, 0.0, step_s=SLOW).uploads == (2, 2)
    assert server.values == [4.0, 12.0]


def test_a_stop_request_is_seen_at_once_and_stays():
    server = wbsp_server(2, 1.0)
    assert not uploaded(server, 1, 1.0).stop
    assert uploaded(server, 0, 1.0, stop=True).stop
    assert uploaded(server, 1, 1.0).stop


updates = st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 4), updates, st.lists(st.tuples(st.integers(0, 3), updates, st.floats(0.1, 9)), max_size=20))
def test_each_release_is_the_initial_model_and_the_sum_of_all_uploads_over_n(num_workers, initial, course):
    """Of an array of two numbers and one of one; who is the slowest changes."""
    server = wbsp_server(num_workers, initial[:2], initial[2:])
    total, counts, release = np.zeros(3), [0] * num_workers, 0
    shown, given_to = np.float32(initial), [0] * num_workers
    for each, update, step_s in course:
        rank = each % num_workers
        total += update
        counts[rank] += 1
        status = uploaded(server, rank, update[:2], update[2:], step_s=step_s)
        if status.released:
            release += 1
            shown = np.concatenate(server.shown)
            np.testing.assert_allclose(shown, np.float64(initial) + total / num_workers, rtol=1e-5, atol=1e-3)
            assert status.uploads == tuple(counts)
        np.testing.assert_array_equal(np.concatenate(server.shown), shown)  # to the last bit, between releases
        assert (status.release, status.is_new) == (release, release > given_to[rank])
        given_to[rank] = release
        if status.is_new:
            np.testing.assert_array_equal(np.concatenate(server.buffer(rank)), shown)


# -------------------------------------------------------------------------------------------------- quorum merge


def quorum_server(grace_s, saved=None):
    """Three workers, K = 2, eps = beta = 0.5; a weight of 10, and a statistic of BatchNorm of 1."""
    optimizer = DecoupledOptimizer(Keys(2, 3), 1, Merging(2, grace_s, 0.5, 0.5))
    optimizer.checks_uploads = True
    if saved:
        optimizer.restore(saved)
    return Server(optimizer, saved[SHOWN] if saved else [10.0, 1.0])


@pytest.mark.parametrize("resumes", [False, True])
def test_a_merge_on_paper(resumes):
    server = quorum_server(0.0)
    uploaded(server, 0, 4.0, 0.9)
    assert uploaded(server, 0, 2.0, 0.7).reason == "1 of 3 workers are in, the quorum is 2"
    if resumes:  # a checkpoint here changes nothing
        server = quorum_server(0.0, {SHOWN: server.shown, **server.optimizer.state()})
    status = uploaded(server, 1, 3.0, 0.4, samples=4)
    # Worker 0 is in with D = 6 of 4 samples in 2 steps, weight 4 * 2; worker 1 with 3 of 4 in 1, weight 4 * 4.
    # Delta = (8 * 6 + 16 * 3) / 24 = 4, v = 4, and w = 10 + 0.5 * (4 + 0.5 * 4); the statistic is the weighed mean.
    assert server.values == pytest.approx([13.0, (8 * 0.7 + 16 * 0.4) / 24])
    assert (status.is_new, status.release, status.released, status.samples) == (True, 1, True, 8)
    assert server.buffer(1) == server.shown
    late = uploaded(server, 2, 8.0, 0.3)  # an update of the old model counts in the next merge
    assert (late.is_new, late.release, late.released, server.buffer(2)) == (True, 1, False, server.shown)
    status = uploaded(server, 0, 4.0, 0.1)
    # Delta = (4 * 8 + 4 * 4) / 8 = 6, v = 0.5 * 4 + 6 = 8, w = 13 + 0.5 * (6 + 0.5 * 8)
    assert server.values == pytest.approx([18.0, 0.2])
    assert (status.is_new, status.release, status.uploads) == (True, 2, (3, 1, 1))
    assert not uploaded(server, 0, 1.0, 0.1).is_new


def test_by_default_a_merge_waits_until_a_worker_uploads_again_or_all_are_in():
    server = quorum_server(None)
    released = [uploaded(server, rank, 3.0, 1.0).released for rank in (0, 0, 1)]
    assert released == [False, False, False]  # 1 is in for the first time
    assert uploaded(server, 1, 3.0, 1.0).released
    assert server.values == [10 + 0.5 * (6 + 0.5 * 6), 1.0]  # both with two uploads
    assert [uploaded(server, rank, 1.0, 1.0).released for rank in (2, 0, 1)] == [False, False, True]


def test_the_lost_are_not_waited_for_and_what_is_not_finite_or_has_no_samples_is_not_in():
    server = quorum_server(0.0)
    assert not uploaded(server, 0, 4.0, 1.0).released
    for bad in ({"update": float("nan")}, {"update": 0.0, "samples": 0}):
        status = uploaded(server, 1, bad.pop("update"), 1.0, **bad)
        assert (status.released, status.reason) == (False, "nothing of its upload counts")
    server.command(0, CHANGE, 1, 1)
    assert not uploaded(server, 0, 2.0, 1.0).released
    server.command(0, CHANGE, 2, 3)
    assert uploaded(server, 0, 2.0, 1.0).released
    assert server.values == [10 + 0.5 * (8 + 0.5 * 8), 1.0]


# --------------------------------------------------------------------------------------------------- Sync-Switch

ETA = 0.1


def sync_switch_server(
    order,
    steps,
    num_workers,
    weight=1.0,
    statistic=None,
    momentum=0.0,
    policy="none",
    done=None,
    batches=0,
    saved=None,
):
    """A model of one weight, and one statistic where one is given."""
    model = [weight] if statistic is None else [weight, statistic]
    keys = Keys(len(model), num_workers)
    rules = SyncSwitchSettings(order, steps, learning_rate=ETA, momentum=momentum, policy=policy)
    schedule = Schedule(order, steps, num_workers, policy, done, batches)
    optimizer = SyncSwitchOptimizer(keys, schedule, rules, decays=[True])
    if saved:
        optimizer.restore(saved)
    return Server(optimizer, model)


def computed(server, rank, *arrays, **more):
    """A worker uploads its gradient and statistics; returns its status."""
    return of_phases(server, server.upload(rank, *arrays, **more))


def of_phases(server, numbers):
    return SyncSwitchStatus.read(numbers)


def status_of(server, rank):
    return of_phases(server, server.status(rank))


def of_all(server, name):
    """By rank, one entry of the workers' status vectors."""
    return tuple(getattr(status_of(server, rank), name) for rank in range(server.keys.num_workers))


def rounds_under_bsp(server, count, *steps_s):
    """All workers send gradients of zero, after steps of these lengths; they arrive by rank."""
    for _ in range(count):
        for rank, step_s in enumerate(steps_s):
            computed(server, rank, 0.0, step_s=step_s)


def test_an_update_under_bsp_and_one_under_asp_on_paper():
    server = sync_switch_server("10", (1, 2), 2)
    status = computed(server, 1, 4.0)
    assert (status.answered, status.at_once, status.bsp, status.steps, status.processed_at) == (0, False, True, 0, 0)
    assert server.values == [1.0]
    status = computed(server, 0, 2.0)
    assert server.values == pytest.approx([1 - ETA * 3])  # eta, and the mean of 4 and 2
    assert (status.bsp, status.phase) == (False, 1)
    assert (of_all(server, "answered"), of_all(server, "processed_at")) == ((1, 1), (2, 2))
    assert of_all(server, "at_once") == (True, False)  # who waited has to pull the weights anew
    status = computed(server, 1, 5.0)
    assert server.values == pytest.approx([0.7 - ETA / 2 * 5])  # eta / N
    assert (status.answered, status.at_once, status.processed_at, status.steps, status.over) == (2, True, 3, 1, False)


def test_the_velocity_is_carried_over_the_switch():
    server = sync_switch_server("10", (2, 2), 2, momentum=0.9)
    computed(server, 0, 2.0)
    computed(server, 1, 4.0)  # v = 3
    assert server.values == pytest.approx([1 - 0.3])
    computed(server, 0, 1.0)
    computed(server, 1, 1.0)  # v = 0.9 * 3 + 1 = 3.7
    assert server.values == pytest.approx([0.7 - 0.37])
    computed(server, 1, 1.0)  # v = 0.9 * 3.7 + 1 = 4.33, by half of eta
    assert server.values == pytest.approx([0.33 - 0.05 * 4.33])
    computed(server, 1, -4.0)  # v = 0.9 * 4.33 - 4 = -0.103
    assert server.values == pytest.approx([0.33 - 0.05 * 4.33 + 0.05 * 0.103])


def test_greedy_goes_over_to_asp_with_the_update_of_those_that_are_there_by_their_share():
    server = sync_switch_server("10", (20, 20), 3, policy="greedy")
    rounds_under_bsp(server, 5, 1.0, 1.0, 1.0)
    rounds_under_bsp(server, 2, 1.0, 1.0, 9.0)  # the median of five does not show it yet
    assert server.values == [1.0]
    computed(server, 0, 2.0)
    status = computed(server, 2, 4.0, step_s=9.0)
    assert server.values == pytest.approx([1 - ETA * 2 / 3 * 3])  # two of three, and the mean of 2 and 4
    assert (status.bsp, status.phase, status.in_step) == (False, 0, False)
    assert of_all(server, "answered") == (8, 7, 8)
    assert status.reason.startswith("worker 2 is a straggler: 0.2222 samples/s, the mean is 1.407 +- ")
    computed(server, 1, 3.0)  # late for the update, and on its own
    assert server.values == pytest.approx([0.8 - ETA / 3 * 3])


def test_an_update_is_the_same_to_the_last_bit_in_whichever_order_the_workers_arrived():
    gradients, weights = (1e8, 1.0, -1e8), set()
    for arrivals in ((0, 1, 2), (2, 0, 1), (1, 2, 0), (0, 2, 1)):
        server = sync_switch_server("1", (1,), 3)
        for rank in arrivals:
            computed(server, rank, gradients[rank])
        weights.add(server.values[0])
    assert len(weights) == 1


def test_statistics_move_to_the_mean_by_the_share_of_the_workers():
    server = sync_switch_server("10", (1, 2), 4, statistic=10.0)
    for rank, statistic in enumerate((4.0, 8.0, 2.0, 6.0)):
        computed(server, rank, 0.0, statistic)
    assert server.values == [1.0, 5.0]  # all four: the mean
    computed(server, 2, 0.0, 9.0)
    assert server.values == [1.0, 6.0]  # a quarter of the way to 9


def test_statistics_have_no_momentum():
    server = sync_switch_server("0", (4,), 1, statistic=10.0, momentum=0.9)
    for statistic in (4.0, 4.0):
        computed(server, 0, 0.0, statistic)
        assert server.values == [1.0, 4.0]


def test_half_an_upload_is_not_visible():
    server = sync_switch_server("0", (9,), 2, statistic=10.0)
    server.push(server.keys.buffer(1), 5.0)
    assert computed(server, 0, 2.0, 4.0).answered == 1
    assert status_of(server, 1).answered == 0
    assert server.values == pytest.approx([1 - ETA / 2 * 2, 7.0])


def test_under_elastic_all_hear_of_a_worker_that_is_left_out_until_the_phase_ends():
    server = sync_switch_server("10", (7, 2), 3, policy="elastic")
    rounds_under_bsp(server, 5, 1.0, 1.0, 4.0)
    assert of_all(server, "left_out") == ((2,), (2,), (2,))
    assert (of_all(server, "answered"), of_all(server, "in_step")) == ((5, 5, 4), (True, True, False))
    assert status_of(server, 2).reason.startswith("worker 2 is a straggler: 0.5 samples/s, ")
    rounds_under_bsp(server, 2, 1.0, 1.0)
    assert (of_all(server, "left_out"), of_all(server, "answered")) == (((), (), ()), (7, 7, 5))
    status = status_of(server, 2)
    assert (status.phase, status.steps, status.at_once) == (1, 7, False)
    assert of_all(server, "processed_at") == (19, 19, 15)  # its gradient is in the model since the fifth step


def test_a_worker_that_waits_when_it_is_left_out_hears_of_it():
    server = sync_switch_server("10", (20, 2), 3, policy="elastic")
    rounds_under_bsp(server, 5, 1.0, 1.0, 1.0)
    for _ in range(3):  # the median of five shows the third
        computed(server, 2, 0.0, step_s=9.0)
        for rank in (0, 1):
            computed(server, rank, 0.0)
    assert (of_all(server, "left_out"), of_all(server, "answered")) == (((2,), (2,), (2,)), (8, 8, 7))


def test_a_worker_that_was_left_out_counts_again_from_its_next_gradient_on():
    server = sync_switch_server("101", (7, 2, 9), 3, policy="elastic")
    rounds_under_bsp(server, 5, 1.0, 1.0, 4.0)
    rounds_under_bsp(server, 1, 1.0, 1.0)
    assert "the mean is 2 +- 0" in status_of(server, 0).reason
    rounds_under_bsp(server, 1, 1.0, 1.0)
    rounds_under_bsp(server, 2, 1.0, 1.0, 4.0)  # two steps of ASP
    status = computed(server, 0, 0.0)
    assert (status.phase, status.bsp) == (2, True)
    assert "the mean is 1.5 +- " in status.reason


def test_under_asp_nobody_is_told_anything():
    server = sync_switch_server("01", (30, 1), 3, policy="elastic")
    rounds_under_bsp(server, 6, 1.0, 1.0, 9.0)
    assert (of_all(server, "in_step"), of_all(server, "reason")) == ((True,) * 3, ("",) * 3)


def test_all_hear_of_the_end_and_of_a_stop_request():
    server = sync_switch_server("1", (1,), 2)
    computed(server, 0, 0.0)
    status = computed(server, 1, 0.0)
    assert (status.over, status.finished, status.phase) == (True, True, 0)
    assert of_all(server, "over") == (True, True)

    server = sync_switch_server("1", (2,), 2)
    assert not computed(server, 0, 0.0, stop=True).over
    status = computed(server, 1, 0.0)
    assert (status.over, status.finished) == (True, False)

    server = sync_switch_server("1", (2,), 2)
    computed(server, 0, 0.0)
    assert not of_phases(server, server.command(0, WANT_STOP)).over
    assert computed(server, 1, 0.0).over


def test_a_checkpoint_holds_all_of_one_moment_and_later_updates_do_not_change_it(tmp_path, monkeypatch):
    server = sync_switch_server("10", (1, 9), 2, statistic=10.0, momentum=0.9)
    checkpoints = Checkpoints(tmp_path, "server", {})
    server.optimizer.writer = writer = Writer(checkpoints)
    updated = threading.Event()
    monkeypatch.setattr(checkpoint_manager, "is_finite", lambda tree: updated.wait(60))  # the thread waits there
    computed(server, 0, 2.0, 4.0)
    computed(server, 1, 4.0, 8.0)
    computed(server, 1, 1.0, 8.0)
    status = of_phases(server, server.command(0, SAVE, 7))
    computed(server, 0, 1.0, 1.0)
    updated.set()
    writer.wait()
    saved = checkpoints.load(7)
    assert [array.tolist() for array in saved["shown"]] == [[pytest.approx(1 - 0.3 - 0.05 * 3.7)], [7.0]]
    assert saved["velocity"][0].tolist() == [pytest.approx(3.7)]
    assert (saved["done"], saved["batches"]) == ([2, 1], 3)
    assert (status.steps, of_all(server, "processed_at")) == (1, (4, 3))


def test_a_job_that_is_resumed_goes_on_with_the_velocity_of_its_checkpoint():
    saved = {"done": [2, 3], "batches": 5, "samples": [2, 3], "velocity": [np.float32([5.0])]}
    server = sync_switch_server("10", (1, 9), 2, momentum=0.9, saved=saved)
    status = computed(server, 0, 3.0)  # v = 0.9 * 5 + 3 = 7.5
    assert server.values == pytest.approx([1 - 0.05 * 7.5])
    assert (status.phase, of_all(server, "processed_at")) == (1, (6, 5))


def test_before_the_first_update_a_worker_hears_where_a_resumed_job_is():
    server = sync_switch_server("101", (1, 1, 1), 2, done=[2, 2, 0], batches=3)
    for rank in (0, 1):
        status = status_of(server, rank)
        assert (status.phase, status.bsp, status.steps, status.in_step) == (2, True, 2, True)
        assert status.processed_at == 3
        assert not (status.over or status.finished or status.answered or status.left_out or status.reason)


@settings(max_examples=30, deadline=None)
@given(
    st.one_of(st.just(0.0), st.floats(0.01, 0.99)),
    st.lists(st.tuples(st.integers(0, 2), st.floats(-10, 10, width=32)), min_size=1, max_size=12),
)
def test_asp_is_momentum_sgd_with_the_step_size_over_n(momentum, course):
    server = sync_switch_server("0", (99,), 3, momentum=momentum)
    weight, velocity = 1.0, 0.0
    for rank, gradient in course:
        computed(server, rank, gradient)
        velocity = momentum * velocity + gradient
        weight -= ETA / 3 * velocity
        assert server.values[0] == pytest.approx(weight, rel=1e-5, abs=1e-4)
