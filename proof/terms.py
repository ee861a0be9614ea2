"""Terms: fingerprints of how values are computed.

The fingerprint of an operator's result is a hash of the operator, its attributes, the types of its
operands and their fingerprints. Sums, differences and products with constants are linear
combinations of fingerprints modulo a prime, so that they are equal in any order and grouping. Two
values of one type with equal fingerprints are equal, up to a collision probability of about n^2 /
2^128 among n terms.

Knows no graphs.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from math import isfinite

from shardwright.ir.types import TensorType

Term = int
# A prime modulo which no small power of two is one: a product with 2.0**127 is not the identity.
PRIME = 2**128 - 159
ZERO: Term = 0


def hashed(text: str) -> Term:
    """Return the fingerprint of a text."""
    return int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "big") % PRIME


def applied(
    operator: str,
    attributes: str,
    operands: Sequence[tuple[TensorType, Term]],
    results: int,
    is_commutative: bool = False,
) -> list[Term]:
    """Return the terms of the results of an operator.

    Parameters
    ----------
    operator : str
        Name of the operator.
    attributes : str
        Its attributes, defaults included.
    operands : sequence of (TensorType, Term)
        What it reads.
    results : int
        The number of its results.
    is_commutative : bool
        Whether its operands can change places.
    """
    read = [f"{kind} {term}" for kind, term in operands]
    if is_commutative:
        read.sort()
    text = f"{operator}({', '.join(read)}){attributes}"
    return [hashed(f"{text}.{i} of {results}") for i in range(results)]


def combination(parts: Iterable[tuple[float, Term]]) -> Term:
    """Return the sum of terms times factors."""
    return sum(_residue(factor) * term for factor, term in parts) % PRIME


def is_constant(factor: object) -> bool:
    """Return whether `factor` is a number by which a term can be multiplied."""
    return isinstance(factor, int | float) and isfinite(factor)


@lru_cache(maxsize=4096)
def _residue(factor: float) -> int:
    exact = Fraction(factor)
    return exact.numerator * pow(exact.denominator, -1, PRIME) % PRIME


def converted(term: Term, source: str, target: str) -> Term:
    """Return the term of a tensor whose element type is converted, before or after it is added.

    Conversion is linear over the real numbers, so it is a factor, and there and back is none.
    """
    inverse = pow(hashed(f"element type {source}"), -1, PRIME)
    return hashed(f"element type {target}") * inverse * term % PRIME


def broadcast(term: Term, shape: tuple[int, ...], target: tuple[int, ...]) -> Term:
    """Return the term of a tensor of shape `shape` that is broadcast to the shape `target`.

    Broadcasting is linear, so it is a factor. Factors commute, and broadcasts do: their shapes
    leave one order only.
    """
    return term if shape == target else hashed(f"broadcast {shape} {target}") * term % PRIME
