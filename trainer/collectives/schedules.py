"""Who exchanges which piece with whom in which step: pure functions of the number of workers and the rank.

Every worker has a flat buffer, cut into as many equal parts as a schedule says. A step sends a span of parts to one
worker and receives one from another at the same time: what comes is added to what is there, or replaces it. At the end
every worker's buffer holds the sum. Each part is added up by one worker after the other in an order that the schedule
fixes, and its sum is copied from then on: so all ranks get the same bits, and every run gets them again.

- `ring` (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2),
  2009): 2 (N - 1) steps; each worker sends 2 (N - 1) / N of the buffer, which is the least there can be.
- `butterfly` (Rabenseifner, "Optimization of collective reduction operations", ICCS 2004: recursive halving, then
  recursive doubling): 2 lg N steps and as many bytes as the ring, where N is a power of two. Else the nearest one
  below, p, is what remains after neighbours have been folded into one: 2 lg p + 3 steps; a worker that another was
  folded into sends 3.5 - 2 / p buffers.
- `binary_blocks` (the same paper): blocks of the powers of two that N consists of halve on their own; the smallest
  passes its sums on to the next larger block, and so on; the sums come back the same way. Nobody is folded away, and
  nobody sends more than 2 buffers.
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
        """How many parts."""
        return self.end - self.begin

    def cut(self, pieces: int, index: int) -> Span:
        """One of so many equal pieces of it."""
        size = self.size // pieces
        return Span(self.begin + index * size, self.begin + (index + 1) * size)


NOTHING = Span(0, 0)


class Step(NamedTuple):
    """What one worker does at one moment: it sends, receives, or both.

    Attributes:
        to: rank that gets the parts `out`; None: nobody does.
        source: rank whose message goes into the parts `into`; None: there is none.
        adds: what comes is added to what is there; else it replaces it.
    """

    to: int | None = None
    out: Span = NOTHING
    source: int | None = None
    into: Span = NOTHING
    adds: bool = False


class Schedule(NamedTuple):
    """One worker's steps in their order.

    Attributes:
        parts: into how many the buffer is cut; at least 1.
    """

    parts: int
    steps: tuple[Step, ...]


def ring(num_workers: int, rank: int) -> Schedule:
    """Everybody sends to the next one: N - 1 times a part to be added to, then N - 1 times a sum."""
    following, before = (rank + 1) % num_workers, (rank - 1) % num_workers

    def part(index: int) -> Span:
        return Span(index % num_workers, index % num_workers + 1)

    steps = [
        Step(following, part(rank + is_sum - number), before, part(rank + is_sum - number - 1), adds=not is_sum)
        for is_sum in (False, True)
        for number in range(num_workers - 1)
    ]
    return Schedule(num_workers, tuple(steps))


def butterfly(num_workers: int, rank: int) -> Schedule:
    """Recursive halving and doubling. Of a number that is no power of two, the first neighbours are folded into one."""
    size = _power_below(num_workers)
    folded = num_workers - size  # so many pairs, from rank 0 on
    whole = Span(0, size)
    if rank >= 2 * folded:
        return Schedule(size, tuple(_halve_and_double(size, rank - folded, _unfold(folded), ())))
    neighbour = rank ^ 1
    lower, upper = whole.cut(2, 0), whole.cut(2, 1)
    if rank % 2:  # adds up the upper half of the two, gives it away, and has no part in what follows
        steps = (
            Step(neighbour, lower, neighbour, upper, adds=True),
            Step(to=neighbour, out=upper),
            Step(source=neighbour, into=whole),
        )
        return Schedule(size, steps)
    first = (Step(neighbour, upper, neighbour, lower, adds=True), Step(source=neighbour, into=upper))
    middle = _halve_and_double(size, rank // 2, _unfold(folded), ())
    return Schedule(size, (*first, *middle, Step(to=neighbour, out=whole)))


def binary_blocks(num_workers: int, rank: int) -> Schedule:
    """Recursive halving and doubling in blocks of powers of two; the blocks pass on what they have added up."""
    sizes = [1 << bit for bit in reversed(range(num_workers.bit_length())) if num_workers >> bit & 1]
    parts = sizes[0]
    bases = [sum(sizes[:index]) for index in range(len(sizes))]
    mine = max(index for index, base in enumerate(bases) if base <= rank)
    size, base = sizes[mine], bases[mine]
    place = rank - base
    own = Span(0, parts).cut(size, place)  # that this worker has when its block has halved
    between: list[Step] = []
    below: list[Step] = []
    if mine + 1 < len(sizes):
        source = bases[mine + 1] + place * sizes[mine + 1] // size
        between.append(Step(source=source, into=own, adds=True))
        below.append(Step(to=source, out=own))
    if mine > 0:
        above = sizes[mine - 1] // size  # workers of the larger block for each of this one
        targets = [(bases[mine - 1] + place * above + index, own.cut(above, index)) for index in range(above)]
        between += [Step(to=target, out=piece) for target, piece in targets]
        between += [Step(source=target, into=piece) for target, piece in targets]
    return Schedule(parts, tuple(_halve_and_double(size, place, lambda other: base + other, (*between, *below), parts)))


def broadcast(num_workers: int, rank: int, source: int = 0) -> Schedule:
    """The buffer of rank `source` goes to all, as a binomial tree: whoever has it passes it on, lg N times."""
    whole = Span(0, 1)
    place = (rank - source) % num_workers  # from the source on

    def at(place: int) -> int:
        return (place + source) % num_workers

    # Place p gets it in round p.bit_length() - 1, when the places below that power of two have it.
    steps = [Step(source=at(place - _power_below(place)), into=whole)] if place else []
    distance = 1 << place.bit_length()
    while place + distance < num_workers:
        steps.append(Step(to=at(place + distance), out=whole))
        distance *= 2
    return Schedule(1, tuple(steps))


def meeting(num_workers: int, rank: int) -> Schedule:
    """After these messages each worker has heard of all, through others or not (Hensgen, Finkel and Manber, "Two
    algorithms for barrier synchronization", 1988): in round k it tells the one 2^k places on. No piece is exchanged."""
    distances = [1 << bit for bit in range((num_workers - 1).bit_length())]
    steps = [Step(to=(rank + away) % num_workers, source=(rank - away) % num_workers) for away in distances]
    return Schedule(1, tuple(steps))


Algorithm = Callable[[int, int], Schedule]  # of the number of workers and the rank
SUMS: dict[str, Algorithm] = {"ring": ring, "butterfly": butterfly, "binary-blocks": binary_blocks}


def _power_below(number: int) -> int:
    """The greatest power of two that is no greater."""
    return 1 << (number.bit_length() - 1)


def _unfold(folded: int) -> Callable[[int], int]:
    """From a place among those that remain to the rank: of a folded pair, the even one."""
    return lambda place: 2 * place if place < folded else place + folded


def _halve_and_double(
    size: int, place: int, rank_of: Callable[[int], int], between: tuple[Step, ...], parts: int = 0
) -> Iterator[Step]:
    """Halving among `size` workers, a power of two; then `between`; then doubling.

    Args:
        place: of this worker among them.
        parts: of the buffer; `size` where it is 0.
    """
    whole = Span(0, parts or size)
    distances = [1 << bit for bit in range(size.bit_length() - 1)]

    def of(other: int, distance: int) -> Span:
        """What a worker has while the one so far away has the rest of what both had."""
        return whole.cut(size // distance, other // distance)

    for distance in reversed(distances):
        other = place ^ distance
        yield Step(rank_of(other), of(other, distance), rank_of(other), of(place, distance), adds=True)
    yield from between
    for distance in distances:
        other = place ^ distance
        yield Step(rank_of(other), of(place, distance), rank_of(other), of(other, distance))
