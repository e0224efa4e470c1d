"""Which workers train together, where not all can exchange with all: a pure function.

A cut is a pair of workers of which one has not reached the other, whatever the direction: an exchange needs both. The
heaviest set without a cut trains; of equally heavy ones that with the first worker, then with the second, and so on.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping

EXACT = 16  # workers with cuts, up to which the set is the heaviest; of more it is one that nothing can be added to

Cut = frozenset[str]  # of the names of two workers


def heaviest_group(weights: Mapping[str, int], cuts: Collection[Cut]) -> frozenset[str]:
    """Picks the workers that train together. The weights, above 0, are of all workers by name, the first ones first;
    cuts of others than these do not count."""
    return _heaviest_group(tuple(weights.items()), frozenset(cuts))


@functools.lru_cache(maxsize=64)  # workers that wait ask many times a second
def _heaviest_group(weighted: tuple[tuple[str, int], ...], cuts: frozenset[Cut]) -> frozenset[str]:
    weights = [weight for _, weight in weighted]
    places = {name: place for place, (name, _) in enumerate(weighted)}
    apart = [0] * len(weighted)  # by place: a bit for each one from which it is cut
    for cut in cuts:
        if cut <= places.keys():
            one, other = (places[name] for name in cut)
            apart[one] |= 1 << other
            apart[other] |= 1 << one
    torn = [place for place, bits in enumerate(apart) if bits]

    def worst(left: int) -> int | None:
        """The one to leave out first of a set, a bit for each place: light, with many cuts, late."""
        found = [place for place in torn if left >> place & 1 and apart[place] & left]
        return max(found, key=lambda one: (-weights[one], (apart[one] & left).bit_count(), one), default=None)

    def value(left: int) -> tuple[int, list[int]]:
        return sum(weights[place] for place in torn if left >> place & 1), [left >> place & 1 for place in torn]

    @functools.cache
    def heaviest(left: int) -> int:
        one = worst(left)
        if one is None:
            return left
        return max(heaviest(left & ~(1 << one)), 1 << one | heaviest(left & ~apart[one] & ~(1 << one)), key=value)

    def full(left: int) -> int:
        while (one := worst(left)) is not None:
            left &= ~(1 << one)
        for place in torn:
            if not apart[place] & left:
                left |= 1 << place
        return left

    all_torn = sum(1 << place for place in torn)
    chosen = heaviest(all_torn) if len(torn) <= EXACT else full(all_torn)
    return frozenset(name for name, place in places.items() if not apart[place] or chosen >> place & 1)
