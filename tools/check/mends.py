"""Changes of one line that are tried on a program that is wrong, until one mends it."""

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TypeVar

from shardwright.ir.errors import ModelError
from shardwright.ir.units import MOST_NAMES
from shardwright.tools.check.rank import Answer
from shardwright.tools.check.watch import Conversion, Mend

# What is wrong: kinds and names of values.
Wrong = frozenset[tuple[str, str]]
_Entry = TypeVar("_Entry", bound=Hashable)


def search(
    wrong: Wrong,
    answers: Sequence[Answer],
    mesh: Mapping[str, int],
    left: Callable[[Mend, int, float], Wrong],
    seconds: float,
) -> tuple[bool, tuple[str, ...]]:
    """Return whether all changes were tried, and those after which nothing, or least, is wrong.

    `left` runs the program with a change, from one or two starts, and returns what stays wrong.
    """
    if any(answer.operators != answers[0].operators for answer in answers):
        return False, ()
    end, first = time.monotonic() + seconds, wrong
    best: list[str] = []
    forward = any(what == "loss" for what, _ in wrong)
    for mend, text in _candidates(answers[0], mesh, forward):
        if text in best:
            continue
        if (rest := end - time.monotonic()) <= 0:
            return False, tuple(best[:MOST_NAMES])
        try:
            now = left(mend, 1, rest)
            if now <= wrong:
                now |= left(mend, 2, rest)
        except ModelError:
            continue  # this change does not run
        if now < wrong:
            best, wrong = [], now
        if now == wrong and now < first:
            best.append(text)
        if not wrong:
            break
    rest_text = f" ({len(wrong)} values stay wrong)" if wrong else ""
    return True, tuple(text + rest_text for text in best[:MOST_NAMES])


def _candidates(
    answer: Answer, mesh: Mapping[str, int], forward: bool
) -> Iterator[tuple[Mend, str]]:
    for (line, ranks), places, often in _places(answer.reductions):
        text = f"line {line}: leave out the all-reduce over {ranks} ranks{often}"
        yield Mend("drop", places), text
    for conversion, places, often in _places(answer.conversions):
        for mend, text in _other_placements(conversion, places, forward):
            yield mend, f"line {conversion.line}: {text}{often}"
    kind = "forward" if forward else "backward"
    for (line, name, count), places, often in _places(answer.operators):
        if name.startswith("__") and name != "__matmul__":
            continue
        for axis in (axis for axis, size in mesh.items() if size > 1):
            if forward:
                text = f"line {line}: sum the result of `{name}` over `{axis}`{often}"
                yield Mend(kind, places, axis), text
                continue
            for at in range(count):
                text = f"line {line}: sum the gradient of input {at} of `{name}` over `{axis}`"
                yield Mend(kind, places, axis, at), text + often


def _places(entries: Sequence[_Entry]) -> Iterator[tuple[_Entry, frozenset[int], str]]:
    """Yield what a line does with all places where it does so, and then with each of several."""
    places: dict[_Entry, list[int]] = {}
    for index, entry in enumerate(entries):
        places.setdefault(entry, []).append(index)
    for entry, indices in places.items():
        yield entry, frozenset(indices), ""
    for entry, indices in places.items():
        for number, index in enumerate(indices, 1) if len(indices) > 1 else ():
            yield entry, frozenset({index}), f", time {number} of the {len(indices)} that it runs"


def _other_placements(
    conversion: Conversion, places: frozenset[int], forward: bool
) -> Iterator[tuple[Mend, str]]:
    """Yield a conversion with sums taken for whole values, or the reverse, over some axes."""
    name, letters = conversion.name, conversion.gradients
    if forward:
        letters = conversion.values
        if name != "from_local":
            # Leaving a DTensor, a sum can be made; a whole value is no sum.
            letters = letters.replace("R", "S") if name == "to_local" else ""
    free = [dimension for dimension, letter in enumerate(letters) if letter != "S"]
    for count in range(1, len(free) + 1):
        for dimensions in combinations(free, count):
            words = [
                f"`{'Replicate' if letters[d] == 'P' else 'Partial'}()` over `{conversion.axes[d]}`"
                for d in dimensions
            ]
            told = " and ".join(words)
            if not forward:
                text = f"give `{name}` `grad_placements` with {told}"
            elif name == "from_local":
                text = f"give `from_local` the placement {told}"
            else:
                text = f"redistribute to {told} before `to_local`"
            yield Mend("value" if forward else "gradient", places, dimensions=dimensions), text
    if name == "to_local" and "S" in conversion.values:
        yield Mend("gather", places), "call `full_tensor` in place of `to_local`"
