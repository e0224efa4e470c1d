"""The algorithms once more, in numpy with 64 bits and without a line of the program: what each worker's weights are
after each of its steps, on machines of fixed step times and links that take no time.

w are the global weights, x those of a worker, n_k the samples that worker k holds; gradients are of the summed loss.
An algorithm is a generator of events: after each it has written the weights of the workers concerned.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

SHAPES = ((4, 3), (4,), (1, 4), (1,))  # of recorded_job.py's network


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of the summed half squared error of Dense(4, tanh), Dense(1), by hand; w and the result (21,)."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    first, first_bias, last, last_bias = arrays(w)
    hidden = np.tanh(x @ first.T + first_bias)
    error = hidden @ last.T + last_bias - y
    back = error @ last * (1 - hidden**2)
    parts = (back.T @ x, back.sum(axis=0), error.T @ hidden, error.sum(axis=0))
    return np.concatenate([part.ravel() for part in parts])


def arrays(w: np.ndarray) -> list[np.ndarray]:
    """The flat weights as the layers' arrays."""
    ends = np.cumsum([math.prod(shape) for shape in SHAPES])
    return [part.reshape(shape) for part, shape in zip(np.split(w, ends[:-1]), SHAPES, strict=True)]


@dataclass
class Worker:
    """A worker, the batches that it gets, and what its weights were after each step.

    Attributes:
        share: N * n_k / n.
    """

    x: np.ndarray
    y: np.ndarray
    w: np.ndarray
    step_s: float
    share: float
    rate: float = 0.0
    momentum: float = 0.0
    velocity: float | np.ndarray = 0.0
    after: list[np.ndarray] = field(default_factory=list)

    def gradient(self) -> np.ndarray:
        """Of the next batch, at this worker's weights."""
        at = len(self.after)
        return gradient(self.w, self.x[at], self.y[at])

    def local_step(self) -> None:
        """v <- mu v + g; w <- w - rate v."""
        self.velocity = self.momentum * self.velocity + self.gradient()
        self.w = self.w - self.rate * self.velocity

    def ends_step(self) -> None:
        """Notes the weights, as they are after the step and all that it led to."""
        self.after.append(self.w)


Workers = Sequence[Worker]


def steps(workers: Workers, limit_s: float) -> Iterator[tuple[float, int]]:
    """Moment and rank of each step that ends before the limit, in order."""
    ends = [(worker.step_s, rank) for rank, worker in enumerate(workers)]
    heapq.heapify(ends)
    while ends[0][0] < limit_s:
        now, rank = heapq.heappop(ends)
        yield now, rank
        workers[rank].ends_step()
        heapq.heappush(ends, (now + workers[rank].step_s, rank))


# ---------------------------------------------------------------------------------------------- all in one round


def sync(workers: Workers, limit_s: float, rate: float, momentum: float = 0.0) -> None:
    """SSGD: v <- mu v + mean of the gradients; w <- w - rate v."""
    velocity: float | np.ndarray = 0.0
    for _ in range(_rounds(workers, limit_s, 1)):
        velocity = momentum * velocity + _mean(workers, [worker.gradient() for worker in workers])
        for worker in workers:
            worker.w = worker.w - rate * velocity
            worker.ends_step()


def averaged(
    workers: Workers, limit_s: float, counts: Sequence[int], outer: float = 0.0, outer_rate: float = 1.0
) -> None:
    """Local SGD and ESync: each worker takes its number of local steps, then Delta = mean of the updates.

    Args:
        outer: v <- outer v + Delta; w <- w + outer_rate (Delta + outer v), which is Nesterov's.
    """
    velocity: float | np.ndarray = 0.0
    round_s = max(count * worker.step_s for count, worker in zip(counts, workers, strict=True))
    for _ in range(int(limit_s / round_s)):
        w = workers[0].w
        for count, worker in zip(counts, workers, strict=True):
            for step in range(count):
                worker.local_step()
                if step + 1 < count:
                    worker.ends_step()
        update = _mean(workers, [worker.w - w for worker in workers])
        velocity = outer * velocity + update
        for worker in workers:
            worker.w = w + outer_rate * (update + outer * velocity)
            worker.ends_step()


def counts_of_esync(workers: Workers, anchor: int = 1) -> list[int]:
    """The straggler's local steps of a round, and as many as fit into them of the others."""
    round_s = anchor * max(worker.step_s for worker in workers)
    return [anchor if worker.step_s * anchor == round_s else int(round_s / worker.step_s) for worker in workers]


def _rounds(workers: Workers, limit_s: float, count: int) -> int:
    return int(limit_s / (count * max(worker.step_s for worker in workers)))


def _mean(workers: Workers, each: Sequence[np.ndarray]) -> np.ndarray:
    """Weighed by n_k / n."""
    return sum(worker.share * array for worker, array in zip(workers, each, strict=True)) / len(workers)


# ------------------------------------------------------------------------------------------------ each by itself


def asynchronous(
    workers: Workers,
    limit_s: float,
    rate: float,
    momentum: float = 0.0,
    max_delay: float = math.inf,
    rescale: bool = False,
) -> None:
    """ASGD: v <- mu v + g; w <- w - rate v, at each gradient.

    Args:
        max_delay: a gradient is dropped where so many were applied since this worker's last pull.
        rescale: gradients are multiplied by the worker's step time over the mean of all.
    """
    w, velocity, applied = workers[0].w, 0.0 * workers[0].w, 0
    pulled = [0 for _ in workers]
    mean_s = sum(worker.step_s for worker in workers) / len(workers)
    for _, rank in steps(workers, limit_s):
        worker = workers[rank]
        g = worker.share * worker.gradient() * (worker.step_s / mean_s if rescale else 1.0)
        if applied - pulled[rank] < max_delay:
            velocity = momentum * velocity + g
            w = w - rate * velocity
            applied += 1
        worker.w, pulled[rank] = w, applied


def ringleader(workers: Workers, limit_s: float, rate: float, momentum: float = 0.0) -> None:
    """Ringleader ASGD: v <- mu v + mean of G_i / b_i; w <- w - rate v, one step for each worker in each round.

    G_i and b_i are the sum and the number of the gradients of worker i. No step is taken until each worker has an
    entry; then each worker's next gradient is added and leads to a step. What a worker sends after its step counts for
    the next round.
    """
    n, w, velocity = len(workers), workers[0].w, 0.0 * workers[0].w
    sums, counts = np.zeros((2, n, w.size)), np.zeros((2, n))  # of this round and of the next
    had_step = set[int]()
    for _, rank in steps(workers, limit_s):
        worker = workers[rank]
        was_full = counts[0].all()
        table = 1 if rank in had_step else 0
        sums[table, rank] += worker.share * worker.gradient()
        counts[table, rank] += 1
        if not was_full or rank in had_step:
            continue
        velocity = momentum * velocity + (sums[0] / counts[0][:, None]).mean(axis=0)
        w = w - rate * velocity
        worker.w = w
        had_step.add(rank)
        if len(had_step) == n:
            sums, counts = np.stack([sums[1], 0.0 * sums[1]]), np.stack([counts[1], 0.0 * counts[1]])
            had_step = set()


def async_local(
    workers: Workers,
    limit_s: float,
    every: int,
    outer: float,
    outer_rate: float,
    dylu: bool = True,
    delay_momentum: bool = True,
) -> None:
    """Asynchronous local SGD with delayed Nesterov (P = N, else 1) and dynamic local updates."""
    w, m, buffer, uploads = workers[0].w, 0.0 * workers[0].w, 0.0 * workers[0].w, 0
    base, left = [w for _ in workers], [1 if dylu else every for _ in workers]
    period, speeds = len(workers) if delay_momentum else 1, dict[int, float]()
    for _, rank in steps(workers, limit_s):
        worker = workers[rank]
        worker.local_step()
        left[rank] -= 1
        if left[rank]:
            continue
        g = -worker.share * (worker.w - base[rank])
        buffer, uploads = buffer + g, uploads + 1
        if uploads % period == 0:
            m = outer * m + buffer / period
            w = w - outer_rate * (outer * m + g / period)
            buffer = 0.0 * w
        else:
            w = w - outer_rate * g / period
        worker.w = base[rank] = w
        speeds[rank] = 1 / worker.step_s
        left[rank] = max(1, math.floor(every * speeds[rank] / max(speeds.values()))) if dylu else every


@dataclass
class _Inbox:
    update: np.ndarray
    samples: int = 0
    steps: int = 0


def decoupled(
    workers: Workers,
    limit_s: float,
    every: int,
    quorum: int,
    grace_s: float | None,
    outer: float,
    outer_rate: float,
) -> int:
    """Quorum merge; returns how many merges there were.

    Args:
        grace_s: None: until a worker that was in before uploads again.
    """
    w, velocity, version = workers[0].w, 0.0 * workers[0].w, 0
    base, has, inbox, reached_s = [w for _ in workers], [0 for _ in workers], dict[int, _Inbox](), math.nan
    for now, rank in steps(workers, limit_s):
        worker = workers[rank]
        worker.local_step()
        if (len(worker.after) + 1) % every:
            continue
        was_in = rank in inbox
        mine = inbox.setdefault(rank, _Inbox(0.0 * w))
        mine.update = mine.update + worker.share * (worker.w - base[rank])
        mine.samples += every * len(worker.y[0])
        mine.steps += every
        if len(inbox) == quorum and not was_in:
            reached_s = now
        is_over = was_in if grace_s is None else now - reached_s >= grace_s
        if len(inbox) >= quorum and (len(inbox) == len(workers) or is_over):
            weights = [each.samples * (each.samples / each.steps) for each in inbox.values()]
            updates = [weight * each.update for weight, each in zip(weights, inbox.values(), strict=True)]
            merged = sum(updates) / sum(weights)
            velocity = outer * velocity + merged
            w = w + outer_rate * (merged + outer * velocity)
            inbox, version = {}, version + 1
        if has[rank] < version:
            worker.w, has[rank] = w, version
        base[rank] = worker.w
    return version
