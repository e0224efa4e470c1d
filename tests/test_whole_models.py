"""WBSP's and Sync-Switch's sides of the parameter server, in this process and without a kvstore: what workers see when,
worked by hand."""

from __future__ import annotations

import contextlib
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer import sync_switch_keeper as sync_switch
from trainer import wbsp, whole_models
from trainer.engine import mx
from trainer.schedule import Schedule
from trainer.sync_switch_keeper import COMPUTED, SAVE, WANT_STOP, Settings, SyncSwitchKeeper
from trainer.wbsp import PUBLISH, UPLOADED, WBSPKeeper
from trainer.whole_models import Keys


@pytest.fixture(autouse=True, scope="module")
def errors_reach_the_test():
    """In the server's own process they would end the process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_models, "die_on_error", lambda what: contextlib.nullcontext())
        yield


class Server:
    """Calls a keeper as MXNet's server does: one push at a time, with the stored array of its key."""

    def __init__(self, keeper, shown):
        """`shown` are the initial values. The keeper's way here is text, as the kvstore sends an optimizer."""
        self.keys = keeper.keys
        travelled = pickle.dumps(keeper, 0).decode("utf-8")
        self.keeper = pickle.loads(travelled.encode("utf-8"))
        assert len(shown) == self.keys.num_shown
        sent = [np.zeros_like(array) for array in map(as_array, shown[: self.keys.num_sent])]
        initial = [*shown, keeper.board, *sent * self.keys.num_workers]
        self._stored = [mx.nd.array(as_array(values)) for values in initial]
        for key in range(self.keys.num_shown):
            self.push(key, np.zeros_like(self.pull(key)))

    def push(self, key, values):
        pushed = mx.nd.array(as_array(values))
        self.keeper.update(key, self._stored[key], pushed, None)
        pushed[:] = np.nan  # a network buffer, which is freed now

    def pull(self, key):
        return self._stored[key].asnumpy()

    def send(self, rank, *arrays):
        """Fills an inbox, the last array first: the order in which they arrive is nobody's promise."""
        for position in reversed(range(len(arrays))):
            self.push(self.keys.inbox(rank) + position, arrays[position])

    def command(self, *numbers):
        """Pushes a command, and returns the numbers on the board."""
        said = np.zeros_like(self.pull(self.keys.board))
        said[: len(numbers)] = numbers
        self.push(self.keys.board, said)
        return self.pull(self.keys.board)

    @property
    def shown(self):
        return [self.pull(key) for key in range(self.keys.num_shown)]

    @property
    def values(self):
        """Of the shown arrays, where each is one number."""
        return [array.item() for array in self.shown]


def as_array(values):
    return np.atleast_1d(np.asarray(values, dtype=np.float32))


# ---------------------------------------------------------------------------------------------------------- keys


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.data())
def test_the_owner_of_a_key_is_the_worker_whose_inbox_it_is_in(num_shown, num_sent, num_workers, data):
    keys = Keys(num_shown, num_sent, num_workers)
    rank, position = data.draw(st.integers(0, num_workers - 1)), data.draw(st.integers(0, num_sent - 1))
    assert keys.owner(keys.inbox(rank) + position) == (rank, position)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_no_key_is_two_things(num_shown, num_sent, num_workers):
    keys = Keys(num_shown, num_sent, num_workers)
    inboxes = [keys.inbox(rank) + position for rank in range(num_workers) for position in range(num_sent)]
    assert [*range(num_shown), keys.board, *inboxes] == list(range(num_shown + 1 + num_workers * num_sent))


# ---------------------------------------------------------------------------------------------------------- WBSP


def wbsp_server(num_workers, *initial):
    return Server(WBSPKeeper(Keys(len(initial), len(initial), num_workers)), initial)


def read(numbers):
    return wbsp.Board.read(numbers)


def test_a_release_on_paper():
    server = wbsp_server(2, 1.0, 10.0)
    server.send(0, 4.0, 2.0)
    assert read(server.command(UPLOADED, 0)) == wbsp.Board(0, False, (0, 0))
    server.send(1, 1.0, -1.0)
    server.command(UPLOADED, 1)
    server.send(0, 3.0, 1.0)
    server.command(UPLOADED, 0)
    assert server.values == [1.0, 10.0]
    assert read(server.command(PUBLISH, 1)) == wbsp.Board(1, False, (2, 1))
    assert server.values == [1 + (4 + 1 + 3) / 2, 10 + (2 - 1 + 1) / 2]


def test_what_is_uploaded_after_a_release_counts_from_the_next_one_on():
    server = wbsp_server(1, 1.0)
    server.command(PUBLISH, 0)
    server.send(0, 2.0)
    assert read(server.command(UPLOADED, 0)) == wbsp.Board(1, False, (0,))
    assert server.values == [1.0]
    assert read(server.command(PUBLISH, 0)) == wbsp.Board(2, False, (1,))
    assert server.values == [3.0]


def test_half_an_inbox_is_not_in_a_release():
    server = wbsp_server(2, 1.0, 10.0)
    server.push(server.keys.inbox(0), 4.0)
    server.command(PUBLISH, 1)
    assert server.values == [1.0, 10.0]
    server.push(server.keys.inbox(0) + 1, 2.0)  # the other half, and still nobody has said that it is complete
    server.command(PUBLISH, 1)
    assert server.values == [1.0, 10.0]


def test_a_wish_to_stop_is_seen_at_once_and_stays():
    server = wbsp_server(2, 1.0)
    server.send(0, 1.0)
    assert read(server.command(UPLOADED, 0, 1)).stop
    server.send(1, 1.0)
    assert read(server.command(UPLOADED, 1, 0)).stop
    assert read(server.command(PUBLISH, 1)) == wbsp.Board(1, True, (1, 1))


updates = st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 4), updates, st.lists(st.one_of(st.tuples(st.integers(0, 3), updates), st.none()), max_size=20))
def test_each_release_is_the_initial_model_and_the_sum_of_all_uploads_over_n(num_workers, initial, course):
    """Of an array of two numbers and one of one. None in the course is a release, the others are uploads."""
    server = wbsp_server(num_workers, initial[:2], initial[2:])
    total, counts = np.zeros(3), [0] * num_workers
    board, shown = wbsp.Board(0, False, (0,) * num_workers), np.float32(initial)
    for step in course:
        if step is None:
            board = wbsp.Board(board.release + 1, False, tuple(counts))
            assert read(server.command(PUBLISH, 0)) == board
            shown = np.concatenate(server.shown)
            np.testing.assert_allclose(shown, np.float64(initial) + total / num_workers, rtol=1e-5, atol=1e-3)
        else:
            rank, update = step[0] % num_workers, step[1]
            total += update
            counts[rank] += 1
            server.send(rank, update[:2], update[2:])
            assert read(server.command(UPLOADED, rank)) == board
        np.testing.assert_array_equal(np.concatenate(server.shown), shown)  # to the last bit, between releases


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
    copies=None,
    done=None,
    batches=0,
):
    """A model of one weight, and one statistic where one is given; `copies`: what the checkpoint's copy holds."""
    model = [weight] if statistic is None else [weight, statistic]
    keys = Keys(len(model) + len(copies or ()), len(model), num_workers)
    ckpt_steps = (int(copies is not None),) * len(order)
    rules = Settings(order, steps, ckpt_steps, learning_rate=ETA, momentum=momentum, policy=policy)
    keeper = SyncSwitchKeeper(keys, Schedule(order, steps, num_workers, policy, done, batches), rules, num_weights=1)
    return Server(keeper, [*model, *(copies or ())])


def computed(server, rank, *arrays, stop=False, alone=False):
    """A worker sends its gradient and statistics, and says so; returns the board."""
    server.send(rank, *arrays)
    return board_of(server, server.command(COMPUTED, rank, stop, alone))


def board_of(server, numbers):
    return sync_switch.Board.read(numbers, server.keys.num_workers)


def test_an_update_under_bsp_and_one_under_asp_on_paper():
    server = sync_switch_server("10", (1, 2), 2)
    board = computed(server, 1, 4.0)
    assert (board.freed, board.bsp, board.steps, board.dealt_with_at) == ((0, 0), True, 0, (0, 0))
    assert server.values == [1.0]
    board = computed(server, 0, 2.0)
    assert server.values == pytest.approx([1 - ETA * 3])  # eta, and the mean of 4 and 2
    assert (board.freed, board.bsp, board.phase, board.dealt_with_at) == ((1, 1), False, 1, (2, 2))
    board = computed(server, 1, 5.0)
    assert server.values == pytest.approx([0.7 - ETA / 2 * 5])  # eta / N
    assert (board.freed, board.dealt_with_at, board.steps, board.over) == ((1, 2), (2, 3), 1, False)


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


def test_an_update_of_some_of_the_workers_counts_by_their_share():
    server = sync_switch_server("10", (2, 2), 3, policy="greedy")
    computed(server, 2, 4.0)
    board = computed(server, 0, 2.0, alone=True)
    assert server.values == pytest.approx([1 - ETA * 2 / 3 * 3])  # two of three, and the mean of 4 and 2
    assert (board.freed, board.bsp, board.phase) == ((1, 0, 1), False, 0)


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


def test_half_an_inbox_is_not_visible():
    server = sync_switch_server("0", (9,), 2, statistic=10.0)
    server.push(server.keys.inbox(1), 5.0)
    assert computed(server, 0, 2.0, 4.0).freed == (1, 0)
    assert server.values == pytest.approx([1 - ETA / 2 * 2, 7.0])


def test_a_worker_that_is_left_out_stands_on_the_board_until_the_phase_ends():
    server = sync_switch_server("10", (2, 2), 3, policy="elastic")
    computed(server, 0, 0.0)
    computed(server, 2, 0.0, alone=True)
    board = computed(server, 1, 0.0)
    assert (board.left_out, board.freed) == ((2,), (1, 1, 0))
    for rank in (0, 1):
        board = computed(server, rank, 0.0)
    assert (board.left_out, board.freed, board.phase, board.steps) == ((), (2, 2, 1), 1, 2)
    assert board.dealt_with_at == (5, 5, 3)  # its gradient is in the model since the first step


def test_the_end_and_a_wish_to_stop_stand_on_the_board():
    server = sync_switch_server("1", (1,), 2)
    computed(server, 0, 0.0)
    board = computed(server, 1, 0.0)
    assert (board.over, board.finished, board.phase) == (True, True, 0)

    server = sync_switch_server("1", (2,), 2)
    board = computed(server, 0, 0.0, stop=True)
    assert not board.over
    board = computed(server, 1, 0.0)
    assert (board.over, board.finished) == (True, False)

    server = sync_switch_server("1", (2,), 2)
    computed(server, 0, 0.0)
    assert not board_of(server, server.command(WANT_STOP, 0)).over
    assert computed(server, 1, 0.0).over


def test_a_copy_for_a_checkpoint_holds_all_of_one_moment_and_later_updates_do_not_change_it():
    server = sync_switch_server("10", (1, 9), 2, statistic=10.0, momentum=0.9, copies=[1.0, 10.0, 0.0])
    computed(server, 0, 2.0, 4.0)
    board = computed(server, 1, 4.0, 8.0)
    assert server.values[2:] == [1.0, 10.0, 0.0]  # nothing was saved yet
    assert (board.saved, board.saved_batches) == ((0, 0), 0)
    computed(server, 1, 1.0, 8.0)
    board = board_of(server, server.command(SAVE, 0))
    saved = pytest.approx([1 - 0.3 - 0.05 * 3.7, 7.0, 3.7])
    assert server.values[2:] == saved
    assert server.values[:2] == server.values[2:4]
    assert (board.saved, board.saved_batches, board.steps, board.freed) == ((2, 1), 3, 1, (1, 2))
    for rank in (0, 1, 1):
        board = computed(server, rank, 1.0, 1.0)
    assert server.values[2:] == saved
    assert server.values[0] != server.values[2]
    assert (board.saved, board.saved_batches, board.steps, board.dealt_with_at) == ((2, 1), 3, 3, (4, 6))


def test_a_checkpoint_may_be_taken_before_the_first_update_and_without_momentum():
    server = sync_switch_server("1", (9,), 1, copies=[0.0, 5.0])
    board = board_of(server, server.command(SAVE, 0))
    assert server.values == [1.0, 1.0, 5.0]
    assert board.saved == (0,)
    computed(server, 0, 2.0)
    server.command(SAVE, 0)
    assert server.values == pytest.approx([0.8, 0.8, 5.0])


def test_a_job_that_is_resumed_goes_on_with_the_velocity_of_the_copy():
    server = sync_switch_server("10", (1, 9), 2, momentum=0.9, copies=[1.0, 5.0], done=[2, 3], batches=5)
    board = computed(server, 0, 3.0)  # v = 0.9 * 5 + 3 = 7.5
    assert server.values == pytest.approx([1 - 0.05 * 7.5, 1.0, 5.0])
    assert (board.phase, board.dealt_with_at, board.saved, board.saved_batches) == (1, (6, 5), (2, 3), 5)
    computed(server, 1, 0.0)  # v = 6.75
    assert server.values == pytest.approx([1 - 0.05 * 7.5 - 0.05 * 6.75, 1.0, 5.0])


def test_before_the_first_update_the_board_says_where_a_resumed_job_is():
    server = sync_switch_server("101", (1, 1, 1), 2, done=[2, 2, 0], batches=3)
    board = board_of(server, server.pull(server.keys.board))
    assert board == sync_switch.Board(False, False, 2, True, 2, (0, 0), (), (0, 0), (3, 3), 3, (2, 2, 0))


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
