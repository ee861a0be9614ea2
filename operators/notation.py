"""The notation of sharding rules, and the rule that it denotes for operands of known shapes.

Operands and results list the factors of each dimension::

    ... m k+, ... k+ n -> ... m n

``k``      a factor: split the same way wherever its name stands; in a result, it splits the result
``k+``     contracted: splitting it leaves partial sums in every result without it
           (``k+max``, ``k+min``: partial maxima, minima)
``c^``     whole: never split
``h~``     the elements under ``h`` windows: split like ``h``, and each rank also reads the halo of
           its slice (`operators.halo`)
``(a b)``  one dimension of two factors, major to minor
``...``    leading dimensions, aligned from the right and broadcast as numpy does
``1``      a dimension of size one

It unites the factors of Shardy with the marks of nnScaler.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.operators.rule import KINDS, Dims, Rule, Shape

_TOKEN = re.compile(r"\([^)]*\)|\S+")
_FACTOR = re.compile(r"([A-Za-z_]\w*)(\^|~|\+(?:max|min)?)?$")


@lru_cache(maxsize=4096)
def _tokens(side: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(_TOKEN.findall(tensor)) for tensor in side.split(","))


def resolve(notation: str, shapes: Sequence[Shape], sizes: Mapping[str, int] | None = None) -> Rule:
    """Return the rule that `notation` denotes for operands of the given shapes.

    Parameters
    ----------
    notation : str
        The notation, as in the docstring of the module.
    shapes : sequence of tuple of int
        Whole shapes of the operands.
    sizes : mapping, optional
        Sizes of factors that the operands do not determine: parts of compound dimensions, and
        factors that only results have.

    Raises
    ------
    IRError
        If the operands do not fit the notation or each other; names the factor and both sizes.
    """
    left, _, right = notation.partition("->")
    operands, results = _tokens(left) if shapes or left.strip() else (), _tokens(right)
    if len(operands) != len(shapes):
        raise IRError(f"{len(shapes)} operands were given, `{notation}` takes {len(operands)}")
    known: dict[str, int] = dict(sizes or {})
    _check_sizes(known, notation)
    kinds: dict[str, str] = dict.fromkeys(known, "parallel")
    leading = max(
        (len(s) - len(t) + 1 for t, s in zip(operands, shapes, strict=True) if "..." in t),
        default=0,
    )
    operand_dims = tuple(
        _operand_dims(tokens, shape, leading, known, kinds, f"operand {i} of `{notation}`")
        for i, (tokens, shape) in enumerate(zip(operands, shapes, strict=True))
    )
    operand_dims = tuple(
        _drop_broadcast(dims, shape, known)
        for dims, shape in zip(operand_dims, shapes, strict=True)
    )
    result_dims = tuple(
        tuple(_factors(token, kinds) for token in _expand(tokens, leading, leading))
        for tokens in results
    )
    missing = [f for dims in result_dims for fs in dims for f in fs if f not in known]
    if missing:
        raise IRError(f"the size of factor `{missing[0]}` of `{notation}` is not given")
    return Rule(operand_dims, result_dims, known, kinds)


def summed(shape: Shape) -> Rule:
    """Return the rule of a scalar that is a sum over all dimensions of an operand.

    Examples
    --------
    >>> summed((4, 6)).results
    ((),)
    """
    dims = " ".join(f"i{d}+" for d in range(len(shape)))
    return resolve(f"{dims} ->", [shape])


def _check_sizes(sizes: Mapping[str, Any], notation: str) -> None:
    """Refuse sizes from attributes that are not positive integers."""
    for factor, size in sizes.items():
        if not isinstance(size, (int, np.integer)) or size < 1:
            raise IRError(
                f"the size of factor `{factor}` of `{notation}` is {size!r}, expected an integer "
                "of at least 1"
            )


def _expand(tokens: tuple[str, ...], leading: int, count: int) -> tuple[str, ...]:
    """Replace ``...`` by the last `count` of `leading` leading factors."""
    if "..." not in tokens:
        return tokens
    at = tokens.index("...")
    names = tuple(f"d{i}" for i in range(leading - count, leading))
    return tokens[:at] + names + tokens[at + 1 :]


def _factors(token: str, kinds: dict[str, str]) -> tuple[str, ...]:
    """Return the factors of one dimension, and record the kind of each."""
    found = []
    for word in token.strip("()").split():
        if word == "1":
            continue
        match = _FACTOR.match(word)
        if not match:
            raise IRError(
                f"`{word}` is not a factor", hint="write a name with `^`, `~`, `+` or nothing"
            )
        name = f"{match[1]}~" if match[2] == "~" else match[1]
        if match[2] or name not in kinds:
            kinds[name] = KINDS[match[2]]
        found.append(name)
    return tuple(found)


def _operand_dims(
    tokens: tuple[str, ...],
    shape: Shape,
    leading: int,
    known: dict[str, int],
    kinds: dict[str, str],
    where: str,
) -> Dims:
    expanded = _expand(tokens, leading, len(shape) - len(tokens) + 1)
    if len(expanded) != len(shape):
        raise IRError(
            f"the shape {shape} has {len(shape)} dimensions, {len(expanded)} expected", where
        )
    dims = []
    for token, size in zip(expanded, shape, strict=True):
        factors = _factors(token, kinds)
        if len(factors) == 1:
            _bind(factors[0], size, known, token in _leading_names(leading), where)
        elif prod(known.get(f, 0) for f in factors) != size:
            parts = {f: known.get(f) for f in factors}
            raise IRError(f"a dimension of size {size} does not consist of {parts}", where)
        dims.append(factors)
    return tuple(dims)


def _leading_names(leading: int) -> set[str]:
    return {f"d{i}" for i in range(leading)}


def _bind(factor: str, size: int, known: dict[str, int], broadcast: bool, where: str) -> None:
    before = known.get(factor)
    if before is None or (broadcast and before == 1):
        known[factor] = size
    elif before != size and not (broadcast and size == 1):
        raise IRError(f"factor `{factor}` is {before} elsewhere but {size} here", where)


def _drop_broadcast(dims: Dims, shape: Shape, known: Mapping[str, int]) -> Dims:
    """Return the dimensions without the factors of broadcast dimensions of size one."""
    return tuple(
        () if size == 1 and len(factors) == 1 and known[factors[0]] != 1 else factors
        for factors, size in zip(dims, shape, strict=True)
    )
