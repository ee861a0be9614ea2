"""What takes the memory of an assignment where it is at its peak."""

from collections import defaultdict
from collections.abc import Mapping
from itertools import accumulate

from shardwright.ir.units import MOST_NAMES, bytes_text, pattern
from shardwright.search.space.space import Choice, SearchSpace

_ENOUGH = 0.8  # part of the memory that is named


def largest_shares(space: SearchSpace, assignment: tuple[int, ...]) -> str:
    """Return the largest shares of the memory, repeated layers together, in one sentence.

    Parameters
    ----------
    space : SearchSpace
        What was searched.
    assignment : tuple of int
        An option for each choice.
    """
    shares = _shares(space, assignment)
    total = sum(size for size, _ in shares.values())
    named = 0.0
    rows: list[str] = []
    for label, (size, count) in sorted(shares.items(), key=lambda item: (-item[1][0], item[0])):
        if named >= _ENOUGH * total or len(rows) == MOST_NAMES:
            break
        named += size
        times = f"{count}x " if count > 1 else ""
        rows.append(f"{times}{label} {bytes_text(size)}")
    return f"{named / total:.0%} of it is taken by {', '.join(rows)}"


def _shares(space: SearchSpace, assignment: tuple[int, ...]) -> Mapping[str, tuple[float, int]]:
    """Return the bytes at peak memory, and the number of choices, of each group of choices."""
    uses = [
        (choice, float(use.usage[chosen]), use.start, use.end)
        for choice, variable, chosen in zip(
            space.choices, space.problem.variables, assignment, strict=True
        )
        for use in variable.memory
    ]
    change: dict[int, float] = defaultdict(float)
    for _, size, start, end in uses:
        change[start] += size
        change[end] -= size
    moments = sorted(change)
    held = list(accumulate(change[moment] for moment in moments))
    peak = moments[held.index(max(held))]
    sizes: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for choice, size, start, end in uses:
        if start <= peak < end and size:
            sizes[_label(space, choice)][choice.name] += size
    return {label: (sum(of.values()), len(of)) for label, of in sizes.items()}


def _label(space: SearchSpace, choice: Choice) -> str:
    """Return the name of a choice, without the numbers of layers."""
    producer = space.graph.producers.get(choice.name)
    if producer is None:
        return pattern(choice.name)
    return pattern(f"{producer.scope}/{producer.operator}" if producer.scope else producer.operator)
