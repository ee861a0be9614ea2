"""Operators that pass parts round: they compute an operator on whole tensors.

Trusted, and tested for every split of every example: from slices of its operands, such an operator
computes the slices of what the operator `RingOperator.whole` computes. A gradient also reads the
results of the forward operator; they must be the results for the same operands.
"""

from collections.abc import Sequence

from shardwright.ir.graph import Value
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.operators.communication.rings import RingOperator
from shardwright.operators.info import operator_info
from shardwright.proof.terms import Term, applied


class RingError(Exception):
    """An operator that passes parts round reads what it should not."""


def passed_round(
    info: RingOperator, operands: Sequence[Value], terms: Sequence[Term], mesh: Mesh | None
) -> list[Term]:
    """Return the terms of the results of an operator that passes parts round.

    Raises
    ------
    RingError
        If nothing is split, or a gradient reads results for other operands.
    """
    if mesh is None:
        raise RingError(f"`{info.name}` passes parts round, and nothing is split")
    read = list(zip([value.type for value in operands], terms, strict=True))
    taken, more = read[: info.reads], read[info.reads :]
    if info.after:
        types = [kind for kind, _ in taken[info.past :]]
        before = operator_info(info.after, types, info.attributes)
        assert isinstance(before, RingOperator)
        if _terms(before, taken[info.past :]) != [term for _, term in more]:
            raise RingError(f"`{info.name}` reads results of `{info.after}` for other operands")
    return _terms(info, taken)


def _terms(info: RingOperator, read: Sequence[tuple[TensorType, Term]]) -> list[Term]:
    """Return the terms of the results: first those of the operator on whole tensors."""
    whole = operator_info(info.whole, [kind for kind, _ in read], info.whole_attributes)
    count = len(whole.result_types)
    if whole.result_types != info.result_types[:count]:
        raise RingError(f"`{info.name}` has other results than `{info.whole}`")
    text = repr(sorted(whole.attributes.items()))
    more = applied(info.name, text, read, len(info.result_types) - count)
    return [*applied(whole.name, text, read, count), *more]
