"""The virtual network: shares of a link that several workers use at once."""

import math
from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st
from run_all import run_all

from trainer.simulation.network import Direction, WorkerLink, fair_shares
from trainer.simulation.virtual_clock import VirtualClock


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
def test_no_flow_gets_more_than_it_wants_nor_than_its_fair_share(wanted, capacity, shares):
    assert fair_shares(wanted, capacity, [1] * len(wanted)) == shares


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(1, 300))
def test_a_link_is_used_up_or_no_flow_wants_more(wanted, capacity):
    shares = fair_shares(wanted, capacity, [1] * len(wanted))
    assert sum(shares) == pytest.approx(min(sum(wanted), capacity))
    less = [share for share, want in zip(shares, wanted, strict=True) if share < want - 1e-9]
    assert all(share >= max(shares) - 1e-9 for share in less)


def test_transfers_of_one_worker_go_one_after_the_other(clock):
    direction = Direction(clock, [WorkerLink(100.0)])
    short, long = (clock.start(lambda size=size: direction.transfer(0, size), "send") for size in (100, 300))
    short.result()
    assert clock.now() == pytest.approx(1.0)
    long.result()
    assert clock.now() == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("num_bytes", "is_over", "took_s"),
    [(300, False, 0.25 + 3.0), (300, True, 3.0), (0, False, 0.25), (0, True, 0.0)],
)
def test_a_transfer_takes_its_own_links_latency_once_and_the_time_of_its_bytes(clock, num_bytes, is_over, took_s):
    Direction(clock, [WorkerLink(7.0, 9.0), WorkerLink(100.0, 0.25)]).transfer(1, num_bytes, is_over)
    assert clock.now() == pytest.approx(took_s)


def test_the_bytes_of_transfers_follow_each_other_and_their_latencies_pass_side_by_side():
    clock, ends = VirtualClock(), []
    direction = Direction(clock, [WorkerLink(math.inf, 0.5), WorkerLink(math.inf, 0.0)], 100.0)

    def send(rank):
        direction.transfer(rank, 100)
        ends.append((rank, clock.now()))

    run_all(clock, [lambda rank=rank: send(rank) for rank in (0, 0, 1)])
    # Bytes: 0 to 0.5 s worker 1 alone, then half of the server's link each; the second of worker 0 waits for the first.
    assert ends == [(1, pytest.approx(1.5)), (0, pytest.approx(2.0)), (0, pytest.approx(3.0))]


@dataclass(frozen=True)
class Sent:
    """One worker's transfer."""

    link: float  # bytes/s
    begins_s: float
    num_bytes: int


def fluid_ends_s(transfers: list[Sent], server: float) -> list[float]:
    """When each is done, in small steps from one change of the rates to the next."""
    now, left, ends = 0.0, {i: float(each.num_bytes) for i, each in enumerate(transfers)}, [0.0] * len(transfers)
    while left:
        sending = [i for i in left if transfers[i].begins_s <= now]
        rates = dict(
            zip(sending, fair_shares([transfers[i].link for i in sending], server, [1] * len(sending)), strict=True)
        )
        changes = [now + left[i] / rates[i] for i in sending]
        changes += [transfers[i].begins_s for i in left if i not in rates]
        passed, now = min(changes) - now, min(changes)
        for i in sending:
            left[i] -= rates[i] * passed
            if left[i] < 1e-6:
                del left[i]
                ends[i] = now
    return ends


sent = st.builds(
    Sent,
    link=st.sampled_from([5.0, 10.0, 20.0, math.inf]),
    begins_s=st.sampled_from([0.0, 1.0, 2.5]),
    num_bytes=st.integers(1, 100),
)


@given(st.lists(sent, min_size=1, max_size=8), st.sampled_from([15.0, 40.0, 1e9]))
def test_transfers_end_when_fair_shares_followed_from_change_to_change_say(transfers, server):
    clock, ends_s = VirtualClock(), [0.0] * len(transfers)
    direction = Direction(clock, [WorkerLink(each.link) for each in transfers], server)

    def send(rank):
        clock.sleep(transfers[rank].begins_s)
        direction.transfer(rank, transfers[rank].num_bytes)
        ends_s[rank] = clock.now()

    run_all(clock, [lambda rank=rank: send(rank) for rank in range(len(transfers))])
    assert ends_s == pytest.approx(fluid_ends_s(transfers, server), rel=1e-4, abs=1e-4)
