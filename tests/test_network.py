"""The virtual network: who gets how much of a link that several use at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.clock import VirtualClock, run_all
from trainer.transport.network import Direction, Link, fair_shares


@pytest.mark.parametrize(
    ("wanted", "capacity", "shares"),
    [
        ([1, 10, 10], 12, [1, 5.5, 5.5]),  # what one does not want the others share
        ([10, 1, 10], 12, [5.5, 1, 5.5]),
        ([4, 4], 12, [4, 4]),
        ([5, 9], 6, [3, 3]),
        ([], 6, []),
    ],
)
def test_nobody_gets_more_than_it_wants_nor_than_its_fair_share(wanted, capacity, shares):
    assert fair_shares(wanted, capacity) == shares


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(1, 300))
def test_a_link_is_used_up_or_nobody_wants_more(wanted, capacity):
    shares = fair_shares(wanted, capacity)
    assert sum(shares) == pytest.approx(min(sum(wanted), capacity))
    less = [share for share, want in zip(shares, wanted, strict=True) if share < want - 1e-9]
    assert all(share >= max(shares) - 1e-9 for share in less)


def test_transfers_of_one_worker_go_one_after_the_other():
    clock, ends = VirtualClock(), {}
    direction = Direction(clock, [Link(100.0)])

    def send(name, num_bytes):
        direction.transfer(0, num_bytes)
        ends[name] = clock.now()

    run_all(clock, [lambda: send("short", 100), lambda: send("long", 300)])
    assert ends == {"short": pytest.approx(1.0), "long": pytest.approx(4.0)}
