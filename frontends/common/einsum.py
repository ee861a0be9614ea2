"""Sums of products in Einstein's notation: every legal equation in the form of our operator.

Our operator takes each letter once in a term. Here `...` may stand anywhere, a letter may stand
twice in a term, and dimensions of size one are broadcast.
"""

from collections.abc import Sequence
from string import ascii_letters

from shardwright.frontends.common.call import Emits
from shardwright.frontends.common.errors import UnsupportedError
from shardwright.ir.graph import Value

DOTS = "..."


def emit_einsum(call: Emits, equation: str, operands: Sequence[Value]) -> Value:
    """Emit the sum of products that an equation describes.

    Parameters
    ----------
    call : Emits
        Emits operators.
    equation : str
        The equation: `b...,b->b...`. Without ``->`` the result has the dimensions of `...`, then
        the letters that occur once, in alphabetical order. Where the result lacks `...`, its
        dimensions are summed over.
    operands : sequence of Value
        The operands, with a dimension for each letter.

    Raises
    ------
    UnsupportedError
        If the equation is not legal for the operands.
    """
    terms, result = plain_equation(equation, [value.type.rank for value in operands])
    pairs = [_once(call, equation, x, term) for x, term in zip(operands, terms, strict=True)]
    sizes: dict[str, int] = {}
    for x, term in pairs:
        for letter, size in zip(term, x.type.shape, strict=True):
            before = sizes.setdefault(letter, size)
            if 1 not in (before, size) and before != size:
                sides = f"{before} and {size}"
                raise UnsupportedError(f"the einsum `{equation}` where `{letter}` is {sides}")
            sizes[letter] = max(size, before)
    pairs = [_without_ones(call, x, term, sizes) for x, term in pairs]
    left = ",".join(term for _, term in pairs)
    return call.emit("einsum", *(x for x, _ in pairs), equation=f"{left}->{result}")


def plain_equation(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the terms of operands and result, with a letter for each dimension.

    Parameters
    ----------
    equation : str
        The equation; see `emit_einsum`.
    ranks : sequence of int
        The number of dimensions of each operand.

    Raises
    ------
    UnsupportedError
        If the equation is not legal.

    Examples
    --------
    >>> plain_equation("b...,b->b...", (3, 1))
    (['bBA', 'b'], 'bBA')
    """
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise UnsupportedError(f"the einsum `{equation}` of {len(ranks)} operands")
    unused = sorted(set(ascii_letters) - set(equation))
    extra = [rank - len(term.replace(DOTS, "")) for term, rank in zip(terms, ranks, strict=True)]
    for term, more in zip(terms, extra, strict=True):
        if more < 0 or (more and DOTS not in term):
            raise UnsupportedError(f"the einsum `{equation}` of operands of ranks {tuple(ranks)}")
    dots = "".join(reversed(unused[: max(extra)]))  # aligned at their last dimension
    if not arrow:
        letters = left.replace(DOTS, "").replace(",", "")
        result = DOTS + "".join(c for c in sorted(set(letters)) if letters.count(c) == 1)
    found = [t.replace(DOTS, dots[len(dots) - n :]) for t, n in zip(terms, extra, strict=True)]
    dotted, result = result, result.replace(DOTS, dots)
    known = set("".join(found))
    if (
        any(term.count(DOTS) > 1 for term in (*terms, dotted))
        or len(set(result)) != len(result)
        or not set(result) <= known
        or not known <= set(ascii_letters)
    ):
        raise UnsupportedError(f"the einsum `{equation}`")
    return found, result


def _once(call: Emits, equation: str, x: Value, term: str) -> tuple[Value, str]:
    """Return the diagonal of dimensions that have one letter, and the letters that are left."""
    for letter in term:
        first, last = term.index(letter), term.rindex(letter)
        if first != last:
            sides = x.type.shape[first], x.type.shape[last]
            if sides[0] != sides[1]:
                where = f"where `{letter}` is {sides[0]} and {sides[1]} in one operand"
                raise UnsupportedError(f"the einsum `{equation}` {where}")
            rest = [d for d in range(len(term)) if d not in (first, last)]
            left = "".join(term[d] for d in rest) + letter
            return _once(call, equation, diagonal(call, x, first, last), left)
    return x, term


def _without_ones(call: Emits, x: Value, term: str, sizes: dict[str, int]) -> tuple[Value, str]:
    """Return an operand without the dimensions of size one that others stretch."""
    pairs = zip(term, x.type.shape, strict=True)
    kept = [(letter, size) for letter, size in pairs if size == sizes[letter]]
    return call.reshape(x, [size for _, size in kept]), "".join(letter for letter, _ in kept)


def diagonal(call: Emits, x: Value, row: int, column: int, offset: int = 0) -> Value:
    """Return the diagonal of two dimensions, as a last one; `offset` counts from the main one."""
    rest = [d for d in range(x.type.rank) if d not in (row, column)]
    moved = call.transpose(x, [*rest, row, column])
    *outer, rows, columns = moved.type.shape
    flat = call.reshape(moved, (*outer, rows * columns))
    return call.emit(
        "slice",
        flat,
        begin=(*[0] * len(outer), offset if offset >= 0 else -offset * columns),
        size=(*outer, min(rows + min(offset, 0), columns - max(offset, 0))),
        strides=(*[1] * len(outer), columns + 1),
    )
