"""WBSP by hand, with small numbers, in virtual time: what is released when, what each worker takes, and what travels.
Steps of 1 s (the fast worker) and 2.5 s."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from contexts import by_flags
from memory_cluster import CLOSE, ZERO, Trained, Worker, batch, dense, gradient, normalised, train

from algorithms import TransportKind
from config import Config
from flag_values import parse_schedule
from trainer.algorithms.wbsp import WBSPTrainer
from trainer.emulation import Slowdown
from trainer.hub.server_part import Answer, Arrays, Message
from trainer.simulation.network import WorkerLink
from trainer.steps import PLAIN, Rule

ETA = 0.5


def step(weight: np.ndarray, rank: int) -> np.ndarray:
    """The update of a local step of this worker, which has one batch."""
    return -ETA * gradient(weight, batch(rank))


def trained(
    overlap: bool,
    rounds: int,
    slowdown: Slowdown | None = None,  # of the slow worker
    link: WorkerLink = WorkerLink(),  # noqa: B008
    samples: Sequence[int] = (1, 1),
    kind: type[WBSPTrainer] = WBSPTrainer,
    network: Callable[[], Any] = dense,
    rule: Rule = PLAIN,
) -> Trained:
    workers = [
        Worker([batch(rank)], step_s=step_s, link=link, samples=count)
        for rank, (step_s, count) in enumerate(zip((1.0, 2.5), samples, strict=True))
    ]
    build = by_flags("wbsp", kind, local_lr=ETA, wbsp_overlap=int(overlap))
    trace = {1: slowdown} if slowdown else {}
    return train(TransportKind.HUB, workers, build, rounds, network, trace=trace, rule=rule, config=Config(mode="wbsp"))


@pytest.mark.parametrize("samples", [(1, 1), (3, 1)], ids=["equal", "unequal"])
def test_a_release_is_the_initial_model_and_the_weighed_mean_of_all_uploads(
    samples: tuple[int, int],
) -> None:
    """The uploads are the steps on each worker's own weights. Release 1, at 2.5 s, has two of the fast worker's."""
    done = trained(False, rounds=3, samples=samples)
    fast, slow = (2 * count / sum(samples) for count in samples)
    u1 = step(ZERO, 0)
    u2 = step(u1, 0)
    v1 = step(ZERO, 1)
    first = (fast * (u1 + u2) + slow * v1) / 2
    u3 = step(u1 + u2, 0)  # the fast worker takes release 1 after its next upload, at 3 s
    v2 = step(first, 1)
    second = first + (fast * u3 + slow * v2) / 2
    v3 = step(second, 1)
    np.testing.assert_allclose(done.weights(0), first, **CLOSE)
    np.testing.assert_allclose(done.weights(1), second + slow * v3 / 2, **CLOSE)
    begun_s = 3 * 2.5  # three test steps of the slower one
    assert [done.ended_s[rank] - begun_s for rank in (0, 1)] == pytest.approx([3.0, 7.5])  # nobody waits


def test_a_schedule_follows_the_samples_that_the_server_has_got_and_the_own_ones_since() -> None:
    """A warm-up of ten samples, one each a step. Uploads come at 1, 2, 2.5 (the slow worker's), 3, 4, 5 s and so on."""
    done = trained(False, rounds=4, rule=Rule(schedule=parse_schedule("warmup:10")))

    def sized(weight: np.ndarray, rank: int, count: int) -> np.ndarray:
        return count / 10 * step(weight, rank)

    u1 = sized(ZERO, 0, 1)
    u2 = sized(u1, 0, 2)
    v1 = sized(ZERO, 1, 1)
    first = (u1 + u2 + v1) / 2  # release 1, at 2.5 s: three samples
    u3 = sized(u1 + u2, 0, 3)  # its last status, at 2 s, told two
    u4 = sized(first, 0, 5)  # at 4 s; there were four at 3 s
    v2 = sized(first, 1, 4)  # at 5 s; there were three at 2.5 s
    np.testing.assert_allclose(done.weights(0), first + u4, **CLOSE)
    second = first + (u3 + u4 + v2) / 2
    v3 = sized(second, 1, 7)  # at 7.5 s; there were six at 5 s
    third = second + v3 / 2
    v4 = sized(third, 1, 8)
    np.testing.assert_allclose(done.weights(1), third + v4 / 2, **CLOSE)


def test_with_overlap_steps_that_were_taken_during_an_upload_are_kept_on_top_of_the_release_that_it_brings() -> None:
    """An upload and a release take 0.4 s each. The slow worker's first upload, begun at 2.5 s, is there at 2.9 s and
    makes release 1. Each trains on meanwhile."""
    done = trained(True, rounds=3, link=WorkerLink(latency_s=0.4), samples=(3, 1))
    # The fast worker: round 1 ends at 1 s and hands u1 over, there at 1.4: no release. Round 2 ends at 2 s: hands u2
    # over, there at 2.4: none. Round 3 ends at 3 s: hands u3 over, there at 3.4; release 1 comes back until 3.8. It
    # takes it at its end, with no step on top.
    u1 = step(ZERO, 0)
    u2 = step(u1, 0)
    v1 = step(ZERO, 1)
    first = (1.5 * (u1 + u2) + 0.5 * v1) / 2  # at 2.9 s
    np.testing.assert_allclose(done.weights(0), first, **CLOSE)
    # The slow worker: release 1 comes by 3.3; round 2 ends at 5 s with v2, a step on its own weights.
    # It takes release 1 then: v2 stays on top, and is handed over at once. There at 5.4: release 2, with u3.
    v2 = step(v1, 1)
    u3 = step(u1 + u2, 0)
    second = first + (1.5 * u3 + 0.5 * v2) / 2
    # Round 3 is a step on release 1 + v2, ends at 7.5 s, stays on top of release 2, and is uploaded at last: release 3.
    v3 = step(first + v2, 1)
    np.testing.assert_allclose(done.weights(1), second + 0.5 * v3 / 2, **CLOSE)


def test_with_overlap_an_upload_carries_all_steps_since_the_one_before_and_none_twice() -> None:
    """An upload takes 2.2 s: the fast worker's carry several steps."""
    uploads: list[tuple[int, int, np.ndarray]] = []

    class Recorded(WBSPTrainer):
        def _send(self, message: Message, update: Arrays) -> Answer:
            uploads.append((self.membership.rank, message["report"].steps, update[-1].copy()))
            return super()._send(message, update)

    done = trained(True, rounds=6, link=WorkerLink(latency_s=2.2), samples=(3, 1), kind=Recorded)
    for rank in (0, 1):
        assert sum(steps for each, steps, _ in uploads if each == rank) == 6
    assert max(steps for _, steps, _ in uploads) >= 3
    # What was released last is the sum of all uploads; the slow worker ends last, and takes it.
    shares = {0: 1.5, 1: 0.5}
    expected = sum(update for _, _, update in uploads) / 2
    np.testing.assert_allclose(done.weights(1), expected, **CLOSE)
    first = next(update for rank, _, update in uploads if rank == 0)
    np.testing.assert_allclose(first, shares[0] * step(ZERO, 0), **CLOSE)


def test_a_worker_that_has_not_uploaded_for_half_a_minute_does_not_hold_up_the_releases() -> None:
    """The slow worker uploads at 2.5 and 5 s, and then for 100 s no more: from 36 s on the other one releases. All that
    in virtual time."""
    fast, _ = trained(False, rounds=50, slowdown=Slowdown(5.5, 200, 100)).pages
    assert [decision[0] for *_, decision in fast.told[1:]] == ["TRAIN"] * 35 + ["SYNC"] * 15


def test_batchnorms_statistics_are_uploaded_and_released_like_weights() -> None:
    """Running mean 0.5 * old + 0.5 * batch's, at each worker."""
    done = trained(False, rounds=1, network=normalised)
    means = [0.5 * (batch(rank).images / 255).mean() for rank in (0, 1)]
    running = done.trainers[1].parameters.statistics()[0][0]
    assert running == pytest.approx(sum(means) / 2, rel=1e-5)


def test_the_page_is_told_of_each_upload_the_round_the_steps_in_it_and_the_decision() -> None:
    fast, slow = trained(False, rounds=3).pages
    told = [(round_, steps, decision and decision[0]) for round_, steps, *_, decision in fast.told]
    assert told == [(1, 0, None), (1, 1, "TRAIN"), (1, 2, "TRAIN"), (2, 0, "TRAIN")]
    told = [(round_, steps, decision and decision[0]) for round_, steps, *_, decision in slow.told]
    assert told == [(1, 0, None), (2, 0, "SYNC"), (3, 0, "SYNC"), (4, 0, "SYNC")]
    assert slow.told[-1][4][1] == "is the slowest: reaches the server in 2.5 s"
    assert fast.left == slow.left == ()


LATENCY_S = 0.01
MODEL_BYTES = 2 * 4 * 4


def test_an_upload_and_its_answer_are_one_exchange_and_the_model_comes_only_where_it_is_new() -> None:
    """The slow worker releases with each upload, first at 2.5 and 5 s; the fast one's at 3 and 5.1 s bring these."""
    uploads: list[list[Any]] = [[], []]

    class Counted(WBSPTrainer):
        def _send(self, message: Message, update: Arrays) -> Answer:
            begin = self.clock.now()
            answer = super()._send(message, update)
            latencies = round((self.clock.now() - begin) / LATENCY_S)
            traffic = self.hub.take_traffic()
            uploads[self.membership.rank].append((latencies, traffic["bytes_pushed"], traffic["bytes_pulled"]))
            return answer

    trained(False, rounds=6, link=WorkerLink(latency_s=LATENCY_S), kind=Counted)
    without, with_model = (1, MODEL_BYTES, 0), (2, MODEL_BYTES, MODEL_BYTES)
    assert uploads == [[without, without, with_model, without, with_model, without], [with_model] * 6]
