"""Schedules of exchanges between workers: pure functions of the number of workers and the rank.

Every worker has a flat buffer, cut into the schedule's number of equal parts. An exchange sends a span of parts to one
worker and at the same time receives one from another, which is added to the present numbers or replaces them. At the
end every worker's buffer holds the sum. The schedule fixes the order in which a part is summed, and the sum is copied
from then on: so all ranks get the same bits in every run.

- `ring` (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2),
  2009): 2 (N - 1) exchanges; each worker sends 2 (N - 1) / N of the buffer, which is optimal.
- `butterfly` (Rabenseifner, "Optimization of collective reduction operations", ICCS 2004: recursive halving, then
  recursive doubling): 2 lg N exchanges and as many bytes as the ring, where N is a power of two. Else neighbours are
  folded into one until p, the nearest power below, remain: 2 lg p + 3 exchanges; a worker that another was folded into
  sends 3.5 - 2 / p buffers.
- `binary_blocks` (the same paper): blocks of the powers of two that N consists of halve on their own; the smallest
  passes its sums on to the next larger block, and so on; the sums come back the same way. No worker is folded, and none
  sends more than 2 buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple


class Span(NamedTuple):
    """Neighbouring parts of the buffer: from `begin` to before `end`."""

    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin

    def cut(self, pieces: int, index: int) -> Span:
        """The piece of this index, of equal ones."""
        size = self.size // pieces
        return Span(self.begin + index * size, self.begin + (index + 1) * size)


NOTHING = Span(0, 0)


class Exchange(NamedTuple):
    """One worker sends, receives, or both at once."""

    to: int | None = None  # rank that gets the parts `out`
    out: Span = NOTHING
    source: int | None = None  # rank whose message goes into the parts `into`
    into: Span = NOTHING
    adds: bool = False  # the message is added to the parts; else it replaces them


class ExchangeSchedule(NamedTuple):
    """One worker's exchanges in their order."""

    parts: int  # of the buffer; at least 1
    steps: tuple[Exchange, ...]


def ring(num_workers: int, rank: int) -> ExchangeSchedule:
    """Each worker sends to the next one: N - 1 times a part to be added to, then N - 1 times a sum."""
    following, before = (rank + 1) % num_workers, (rank - 1) % num_workers

    def part(index: int) -> Span:
        return Span(index % num_workers, index % num_workers + 1)

    steps = [
        Exchange(following, part(rank + is_sum - number), before, part(rank + is_sum - number - 1), adds=not is_sum)
        for is_sum in (False, True)
        for number in range(num_workers - 1)
    ]
    return ExchangeSchedule(num_workers, tuple(steps))


def butterfly(num_workers: int, rank: int) -> ExchangeSchedule:
    """Recursive halving and doubling. Where N is no power of two, the first neighbours are folded into one."""
    size = _power_below(num_workers)
    folded = num_workers - size  # pairs, from rank 0 on
    whole = Span(0, size)
    if rank >= 2 * folded:
        return ExchangeSchedule(size, tuple(_halve_and_double(size, rank - folded, _unfold(folded), ())))
    neighbour = rank ^ 1
    lower, upper = whole.cut(2, 0), whole.cut(2, 1)
    if rank % 2:  # sums the upper half of the two, sends it, and waits for the result
        steps = (
            Exchange(neighbour, lower, neighbour, upper, adds=True),
            Exchange(to=neighbour, out=upper),
            Exchange(source=neighbour, into=whole),
        )
        return ExchangeSchedule(size, steps)
    first = (Exchange(neighbour, upper, neighbour, lower, adds=True), Exchange(source=neighbour, into=upper))
    middle = _halve_and_double(size, rank // 2, _unfold(folded), ())
    return ExchangeSchedule(size, (*first, *middle, Exchange(to=neighbour, out=whole)))


def binary_blocks(num_workers: int, rank: int) -> ExchangeSchedule:
    """Recursive halving and doubling in blocks of powers of two; the blocks pass on their sums."""
    sizes = [1 << bit for bit in reversed(range(num_workers.bit_length())) if num_workers >> bit & 1]
    parts = sizes[0]
    bases = [sum(sizes[:index]) for index in range(len(sizes))]
    mine = max(index for index, base in enumerate(bases) if base <= rank)
    size, base = sizes[mine], bases[mine]
    place = rank - base
    own = Span(0, parts).cut(size, place)  # the part that this worker has once its block has halved
    between: list[Exchange] = []
    below: list[Exchange] = []
    if mine + 1 < len(sizes):
        source = bases[mine + 1] + place * sizes[mine + 1] // size
        between.append(Exchange(source=source, into=own, adds=True))
        below.append(Exchange(to=source, out=own))
    if mine > 0:
        above = sizes[mine - 1] // size  # workers of the larger block for each of this one
        targets = [(bases[mine - 1] + place * above + index, own.cut(above, index)) for index in range(above)]
        between += [Exchange(to=target, out=piece) for target, piece in targets]
        between += [Exchange(source=target, into=piece) for target, piece in targets]
    return ExchangeSchedule(
        parts, tuple(_halve_and_double(size, place, lambda other: base + other, (*between, *below), parts))
    )


def broadcast(num_workers: int, rank: int, source: int = 0) -> ExchangeSchedule:
    """The buffer of rank `source` goes to all by a binomial tree: all that have it pass it on, lg N times."""
    whole = Span(0, 1)
    place = (rank - source) % num_workers  # from the source on

    def at(place: int) -> int:
        return (place + source) % num_workers

    # Place p gets it in round p.bit_length() - 1, when the places below that power of two have it.
    steps = [Exchange(source=at(place - _power_below(place)), into=whole)] if place else []
    distance = 1 << place.bit_length()
    while place + distance < num_workers:
        steps.append(Exchange(to=at(place + distance), out=whole))
        distance *= 2
    return ExchangeSchedule(1, tuple(steps))


def barrier(num_workers: int, rank: int) -> ExchangeSchedule:
    """Dissemination barrier (Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988): in round
    k each worker tells the one 2^k ranks on, so at the end each has heard of all. No parts are exchanged."""
    distances = [1 << bit for bit in range((num_workers - 1).bit_length())]
    steps = [Exchange(to=(rank + away) % num_workers, source=(rank - away) % num_workers) for away in distances]
    return ExchangeSchedule(1, tuple(steps))


ScheduleMaker = Callable[[int, int], ExchangeSchedule]  # of the number of workers and the rank
SUMS: dict[str, ScheduleMaker] = {"ring": ring, "butterfly": butterfly, "binary-blocks": binary_blocks}


def _power_below(number: int) -> int:
    """The greatest power of two up to `number`."""
    return 1 << (number.bit_length() - 1)


def _unfold(folded: int) -> Callable[[int], int]:
    """Maps a place among the remaining workers to the rank: of a folded pair, the even one."""
    return lambda place: 2 * place if place < folded else place + folded


def _halve_and_double(
    size: int, place: int, rank_of: Callable[[int], int], between: tuple[Exchange, ...], parts: int = 0
) -> Iterator[Exchange]:
    """Halving among `size` workers, a power of two; then `between`; then doubling. This worker has `place` among them;
    the buffer has `parts`, or `size` where that is 0."""
    whole = Span(0, parts or size)
    distances = [1 << bit for bit in range(size.bit_length() - 1)]

    def of(other: int, distance: int) -> Span:
        """The part that a worker keeps while the one at this distance has the rest of their common part."""
        return whole.cut(size // distance, other // distance)

    for distance in reversed(distances):
        other = place ^ distance
        yield Exchange(rank_of(other), of(other, distance), rank_of(other), of(place, distance), adds=True)
    yield from between
    for distance in distances:
        other = place ^ distance
        yield Exchange(rank_of(other), of(place, distance), rank_of(other), of(other, distance))
