"""Groups of ranks that MindSpore forms on servers of eight Ascend devices, by its own rule."""

from collections.abc import Sequence
from itertools import product
from math import prod

HOST = 8  # ranks of a server: an axis of a mesh is within one, or between them


def can_form(ranks: Sequence[int]) -> bool:
    """Return whether ranks can form a group, which are in order.

    They have the same places in every server: one, all, two of which both are in one half or half a
    server apart, or four that are a half, or two of each half at the same places there.
    """
    places: dict[int, list[int]] = {}
    for rank in ranks:
        places.setdefault(rank // HOST, []).append(rank % HOST)
    first, *others = places.values()
    if any(other != first for other in others):
        return False
    half = HOST // 2
    halves = [[at % half for at in first if at // half == which] for which in range(2)]
    aligned = not all(halves) or halves[0] == halves[1]
    return len(first) in (1, HOST) or (len(first) in (2, half) and aligned)


def group_of(rank: int, sizes: Sequence[int], along: Sequence[int]) -> list[int]:
    """Return the ranks of an arrangement that differ from a rank in some dimensions alone.

    Parameters
    ----------
    rank : int
        The rank.
    sizes : sequence of int
        The sizes of the arrangement, in which ranks are numbered row by row.
    along : sequence of int
        The dimensions.
    """
    steps = [prod(sizes[d + 1 :]) for d in range(len(sizes))]
    base = rank - sum(rank // steps[d] % sizes[d] * steps[d] for d in along)
    places = product(*(range(sizes[d]) for d in sorted(along)))
    return sorted(
        base + sum(i * steps[d] for i, d in zip(place, sorted(along), strict=True))
        for place in places
    )
