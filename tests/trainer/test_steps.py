"""Momentum, weight decay, other optimizers and schedules by hand, with small numbers: in SSGD, in local steps and on
the parameter server. The real trainers in the memory of this process. Arithmetic by pieces, to the bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from contexts import by_flags
from memory_cluster import CLOSE, ZERO, Trained, Worker, batch, dense, gradient, train
from one_worker import a_context, some_batch

from algorithms import TransportKind
from config import Config
from esync.progress import Limits
from flag_values import parse_schedule
from trainer.array_tree import copied
from trainer.context import Context
from trainer.datasets.samples import Samples
from trainer.engine import mx
from trainer.from_flags import run_settings
from trainer.loop import Loop
from trainer.steps import PIECE, PLAIN, Rule, Stepper, pieces, sum_of, which_decay
from trainer.trainer import Trainer

ETA, MU, DECAY, B = 0.5, 0.9, 0.02, 2
WITH_ALL = Rule(momentum=MU, weight_decay=DECAY, batch_size=B)


def of(rank: int) -> Samples:
    """A batch of B samples."""
    return batch(rank, B)


def run(
    kind: TransportKind,
    build: Callable[[Context], Trainer],
    rounds: int,
    rule: Rule,
    batches: Sequence[Sequence[Samples]] = ((of(0),), (of(1),)),
    steps_s: Sequence[float] = (1.0, 1.0),
    config: Config | None = None,
) -> Trained:
    def ruled(context: Context) -> Trainer:
        context.run.rule = rule
        return build(context)

    workers = [Worker(mine, step_s=step_s) for mine, step_s in zip(batches, steps_s, strict=True)]
    return train(kind, workers, ruled, rounds, config=config)


def asgd(rounds: int, steps_s: Sequence[float] = (1.0, 2.5), **flags: Any) -> Trained:
    """By default the slow worker's first gradient is of the initial weights, and arrives third."""
    config = Config(mode="async", **{"learning_rate": ETA, "batch_size": B, **flags})
    batches = [[of(rank)] for rank in range(len(steps_s))]
    return run(TransportKind.HUB, by_flags("async"), rounds, run_settings(config).rule, batches, steps_s, config)


def mean(weight: np.ndarray, samples: Samples) -> np.ndarray:
    """The gradient that a user of weight decay thinks of: of the mean loss, plus lambda * w."""
    return gradient(weight, samples) / len(samples.labels) + DECAY * weight


def test_ssgd_with_momentum_and_weight_decay_is_that_of_the_mean_loss_with_b_times_the_step_size() -> None:
    trained = run(TransportKind.SUM, by_flags("sync", learning_rate=ETA), 3, WITH_ALL)
    weight, velocity = ZERO, ZERO
    for _ in range(3):
        velocity = MU * velocity + (mean(weight, of(0)) + mean(weight, of(1))) / 2
        weight = weight - ETA * B * velocity
    np.testing.assert_allclose(trained.weights(0), weight, **CLOSE)
    np.testing.assert_array_equal(trained.weights(0), trained.weights(1))


def test_the_velocity_does_not_depend_on_how_many_batches_a_step_sums() -> None:
    """A mean gradient of 3 each time, of two batches and then of half a batch more."""
    stepper, weight = Stepper(Rule(momentum=MU), [True]), np.float32([[1.0]])
    for num_batches in (2, 2.5):
        stepper.step([weight], [np.float32([[3.0 * num_batches]])], 0.1, num_batches)
    assert weight.item() == pytest.approx(1 - 0.1 * 3 - 0.1 * (MU * 3 + 3))


def test_each_worker_keeps_the_velocity_of_its_local_steps_when_the_models_are_averaged() -> None:
    trained = run(
        TransportKind.SUM,
        by_flags("local-sgd", local_lr=ETA, global_lr=1.0, sync_every=2),
        2,
        WITH_ALL,
    )
    everywhere, velocities = ZERO, [ZERO, ZERO]
    for _ in range(2):
        locals_ = [everywhere, everywhere]
        for rank in (0, 1):
            for _ in range(2):
                velocities[rank] = MU * velocities[rank] + mean(locals_[rank], of(rank))
                locals_[rank] = locals_[rank] - ETA * B * velocities[rank]
        everywhere = sum(locals_) / 2
    np.testing.assert_allclose(trained.weights(1), everywhere, **CLOSE)


def test_a_step_of_one_device_alone_is_the_same_as_mxnets_own_sgd() -> None:
    """With a constant step size MXNet's v, which holds steps, is minus eta times this one's."""
    network = a_context(some_batch()).task.network
    start, random = [weight.copy() for weight in network.weights], np.random.default_rng(0)
    gradients = [random.standard_normal(weight.shape, np.float32) for weight in start]
    stepper = Stepper(dataclasses.replace(WITH_ALL, batch_size=16), which_decay(start))
    theirs = mx.optimizer.SGD(learning_rate=0.01, momentum=MU, wd=16 * DECAY)
    is_decayed = [name.endswith("weight") for name in network.names]
    theirs.set_wd_mult({index: float(yes) for index, yes in enumerate(is_decayed)})
    assert any(is_decayed) and not all(is_decayed)  # neither biases nor BatchNorm's gamma and beta are
    expected = [mx.nd.array(weight) for weight in start]
    states = [theirs.create_state(index, weight) for index, weight in enumerate(expected)]
    for _ in range(3):
        stepper.step(start, gradients, 0.01)
        for index, (weight, state) in enumerate(zip(expected, states, strict=True)):
            theirs.update(index, weight, mx.nd.array(gradients[index]), state)
    for ours, other in zip(start, expected, strict=True):
        np.testing.assert_allclose(ours, other.asnumpy(), rtol=1e-5, atol=1e-6)


def test_without_the_flags_a_step_is_to_the_bit_what_it_was() -> None:
    random = np.random.default_rng(0)
    for rate, num_batches in ((0.001, 1), (0.0005, 3), (0.0123, 12)):
        ours, slope = (np.float32(random.normal(size=(64, 32, 3, 3)) * size) for size in (1, 30))
        before, on_server, theirs = map(mx.nd.array, (ours, ours, slope))
        Stepper(PLAIN, [True]).step([ours], [slope], rate, num_batches)
        mx.nd.sgd_update(before, theirs, lr=rate / num_batches, out=before)
        mx.optimizer.SGD(learning_rate=rate / num_batches, wd=0.0).update(0, on_server, theirs, None)
        np.testing.assert_array_equal(ours, before.asnumpy())
        np.testing.assert_array_equal(ours, on_server.asnumpy())


CLIPPED = Rule(batch_size=B, clip_norm=0.1)


def clipped(slope: np.ndarray) -> np.ndarray:
    """A gradient of a mean loss, no longer than CLIPPED allows."""
    return slope * min(1.0, 0.1 / float(np.linalg.norm(slope)))


def test_ssgd_clips_the_mean_of_all_workers_and_local_steps_each_their_own() -> None:
    summed = run(TransportKind.SUM, by_flags("sync", learning_rate=ETA), 3, CLIPPED)
    local = run(
        TransportKind.SUM,
        by_flags("local-sgd", local_lr=ETA, global_lr=1.0, sync_every=1),
        3,
        CLIPPED,
    )
    both = averaged = ZERO
    for _ in range(3):
        slopes = [[gradient(weight, of(rank)) / B for rank in (0, 1)] for weight in (both, averaged)]
        assert all(np.linalg.norm(slope) > 0.15 for each in slopes for slope in each)
        both = both - ETA * B * clipped(sum(slopes[0]) / 2)
        averaged = averaged - ETA * B * sum(map(clipped, slopes[1])) / 2
    np.testing.assert_allclose(summed.weights(0), both, **CLOSE)
    np.testing.assert_allclose(local.weights(0), averaged, **CLOSE)


def test_a_gradient_is_clipped_before_the_server_takes_the_step() -> None:
    trained = asgd(2, [1.0], clip_norm=CLIPPED.clip_norm)
    weight = ZERO
    for _ in range(2):
        weight = weight - ETA * B * clipped(gradient(weight, of(0)) / B)
    np.testing.assert_allclose(trained.weights(0), weight, **CLOSE)


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
@pytest.mark.parametrize("num_batches", [1, 3])
def test_steps_of_another_optimizer_with_weight_decay_are_mxnets_own_however_many_batches_a_step_sums(
    name: str, num_batches: int
) -> None:
    random, size = np.random.default_rng(0), 4
    ours = random.standard_normal((300, 400), np.float32)  # more than a piece
    stepper, theirs = Stepper(Rule(name, weight_decay=DECAY, batch_size=size), [True]), mx.nd.array(ours)
    optimizer = mx.optimizer.create(name, learning_rate=0.01, wd=size * DECAY)
    state = optimizer.create_state(0, theirs)
    for _ in range(5):
        slope = np.float32(random.choice([-1, 1], ours.shape) * random.uniform(1, 2, ours.shape))  # far from 0
        stepper.step([ours], [num_batches * slope], 0.01, num_batches)
        optimizer.update(0, theirs, mx.nd.array(slope), state)
    np.testing.assert_allclose(ours, theirs.asnumpy(), rtol=0, atol=1e-6)


# ------------------------------------------------------------------------------------------ on the parameter server


def test_the_server_of_asgd_has_one_velocity_for_all() -> None:
    """Steps of 1 s and 2.5 s: the slow worker's gradient is of the initial weights, and arrives third."""
    trained = asgd(2, momentum=MU, weight_decay=DECAY)
    first = mean(ZERO, of(0))
    w1 = ZERO - ETA * B * first
    second = MU * first + mean(w1, of(0))
    w2 = w1 - ETA * B * second
    # Decay is of the weights that are there when the step is taken.
    third = MU * second + gradient(ZERO, of(1)) / B + DECAY * w2
    w3 = w2 - ETA * B * third
    w4 = w3 - ETA * B * (MU * third + mean(w3, of(1)))
    np.testing.assert_allclose(trained.weights(0), w2, **CLOSE)
    np.testing.assert_allclose(trained.weights(1), w4, **CLOSE)


def test_dc_asgd_compensates_first() -> None:
    strength = 0.7
    trained = asgd(2, use_dcasgd=1, dcasgd_lambda=strength, momentum=MU, weight_decay=DECAY)
    weight, velocity = ZERO, ZERO
    backups = [ZERO, ZERO]
    for rank in (0, 0, 1, 1):
        slope = gradient(backups[rank], of(rank))
        compensated = slope + strength * slope * slope * (weight - backups[rank])
        velocity = MU * velocity + compensated + B * DECAY * weight
        weight = backups[rank] = weight - ETA * velocity
    np.testing.assert_allclose(trained.weights(1), weight, **CLOSE)


# ------------------------------------------------------------------------------------------------------ schedules


def scheduled(text: str) -> Rule:
    return Rule(batch_size=B, schedule=parse_schedule(text))


def test_a_warm_up_of_one_device_alone_counts_the_samples_of_the_step_itself(tmp_path: Any) -> None:
    context = a_context(batch(0, B), network=dense())
    context.run.rule = scheduled("warmup:8")
    context.run.limits = Limits(5)
    trainer = by_flags("local", learning_rate=ETA)(context)
    Loop(trainer).run(lambda: tmp_path)
    weight = ZERO
    for factor in (0.25, 0.5, 0.75, 1, 1):
        weight = weight - ETA * factor * gradient(weight, of(0))
    np.testing.assert_allclose(trainer.parameters.weights[0], weight, **CLOSE)


UNEQUAL = ((of(0),), (batch(1, 3 * B),))  # the second worker's batches have three times the samples


def test_the_schedule_of_ssgd_follows_the_samples_of_all_workers() -> None:
    """A round is 2 + 6 samples: a tenth behind 8, so from the second round on."""
    rule = scheduled("step:8x0.1")
    trained = run(TransportKind.SUM, by_flags("sync", learning_rate=ETA), 3, rule, UNEQUAL)
    weight = ZERO
    for factor in (1, 0.1, 0.1):
        weight = weight - ETA * factor / 2 * sum(gradient(weight, mine[0]) for mine in UNEQUAL)
    np.testing.assert_allclose(trained.weights(0), weight, **CLOSE)
    np.testing.assert_array_equal(trained.weights(0), trained.weights(1))


def test_the_schedule_of_local_steps_knows_all_samples_up_to_the_round_and_the_workers_own_in_it() -> None:
    """Two local steps a round: worker 0 is at 2, 4, then 16 + 2, 16 + 4; worker 1 at 6, 12, then 22, 28."""
    rule = scheduled("warmup:20")
    build = by_flags("local-sgd", local_lr=ETA, global_lr=1.0, sync_every=2)
    trained = run(TransportKind.SUM, build, 2, rule, UNEQUAL)
    factors = [[(0.1, 0.2), (0.3, 0.6)], [(0.9, 1.0), (1.0, 1.0)]]  # by round and rank
    everywhere = ZERO
    for of_round in factors:
        locals_ = []
        for mine, of_rank in zip(UNEQUAL, of_round, strict=True):
            local = everywhere
            for factor in of_rank:
                local = local - ETA * factor * gradient(local, mine[0])
            locals_.append(local)
        everywhere = sum(locals_) / 2
    np.testing.assert_allclose(trained.weights(0), everywhere, **CLOSE)


def test_the_schedule_on_the_server_counts_its_updates() -> None:
    """Steps of 1 s and 2.5 s: updates at 1, 2, 2.5 and 5 s, of B samples each."""
    trained = asgd(2, lr_schedule="step:4x0.1,6x0.5")
    w1 = ZERO - ETA * gradient(ZERO, of(0))
    w2 = w1 - ETA * gradient(w1, of(0))
    w3 = w2 - 0.1 * ETA * gradient(ZERO, of(1))
    w4 = w3 - 0.05 * ETA * gradient(w3, of(1))
    np.testing.assert_allclose(trained.weights(0), w2, **CLOSE)
    np.testing.assert_allclose(trained.weights(1), w4, **CLOSE)


@pytest.mark.parametrize("rule", [Rule(momentum=0.9), Rule(optimizer="adam"), Rule(optimizer="rmsprop"), Rule()])
def test_a_replica_that_gets_what_another_one_keeps_goes_on_as_it_does(rule: Rule) -> None:
    """As a worker does that comes to a job at work."""

    gradients = [np.float32([[0.5, -1.0]]), np.float32([2.0])]
    first, late = ([np.float32([[1.0, 2.0]]), np.float32([3.0])] for _ in range(2))
    steppers = [Stepper(rule, which_decay(first)) for _ in range(2)]
    for _ in range(3):
        steppers[0].step(first, gradients, 0.1)
    given, taken = steppers[0].arrays(first), steppers[1].arrays(late)
    assert len(given) == len(taken)
    for source, target in zip([*first, *given], [*late, *taken], strict=True):
        target[:] = source
    steppers[1].updates = steppers[0].updates
    for stepper, mine in zip(steppers, (first, late), strict=True):
        stepper.step(mine, gradients, 0.1)
    for here, there in zip(first, late, strict=True):
        assert here.tobytes() == there.tobytes()


@pytest.mark.parametrize("rule", [Rule(momentum=0.9), Rule("adam"), Rule("rmsprop"), Rule()])
def test_a_checkpoint_is_restored_also_in_the_form_of_version_0_6_0(rule: Rule) -> None:
    """There SGD has its velocity without a list around it, and nothing without momentum."""
    weight, slope = np.float32([[1.0, 2.0]]), np.float32([[0.5, -1.0]])
    first, *restored = (Stepper(rule, [True]) for _ in range(3))
    for _ in range(3):
        first.step([weight], [slope], 0.1)
    state = first.state()
    ((_, arrays),) = state["kept"]
    kept = [[0, arrays]] if rule.optimizer else [[0, arrays[0]]] if arrays else []
    for stepper, saved in zip(restored, (state, {**state, "kept": kept}), strict=True):
        stepper.restore(copied(saved))
        assert stepper.updates == first.updates == (3 if rule.optimizer else 0)
    ends = [weight.copy() for _ in range(3)]
    for stepper, end in zip((first, *restored), ends, strict=True):
        stepper.step([end], [slope], 0.1)
    assert ends[0].tobytes() == ends[1].tobytes() == ends[2].tobytes() != weight.tobytes()


# ------------------------------------------------------------------------------------------------ by pieces


@pytest.mark.parametrize("size", [1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_the_pieces_of_two_arrays_are_their_own_memory_in_turn(size: int) -> None:
    first, second = np.zeros((size, 1), np.float32), np.arange(size).reshape(size, 1)
    lengths = []
    for number, (mine, other) in enumerate(pieces(first, second)):
        assert mine.shape == other.shape
        lengths.append(mine.size)
        mine += other
        mine += number
    np.testing.assert_array_equal(first, second + second // PIECE)
    assert lengths == [PIECE] * (size // PIECE) + [size % PIECE] * (size % PIECE > 0)


def test_a_large_array_whose_pieces_would_be_copies_is_refused() -> None:
    array = np.zeros((PIECE, 4))
    for other in (array.T, array[:, :2]):
        with pytest.raises(AttributeError):
            next(pieces(other))


@pytest.mark.parametrize("number", range(1, 9))
def test_a_sum_is_mxnets_to_the_bit_in_an_array_of_its_own(number: int) -> None:
    random = np.random.default_rng(number)
    arrays = [random.standard_normal((3, 500), np.float32) for _ in range(number)]
    before = [array.copy() for array in arrays]
    total = sum_of(arrays)
    np.testing.assert_array_equal(total, mx.nd.add_n(*map(mx.nd.array, arrays)).asnumpy())
    assert not any(np.shares_memory(total, array) for array in arrays)
    np.testing.assert_array_equal(arrays, before)
