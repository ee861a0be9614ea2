"""What the operands of an operator may be, and what its results have of them by its rule."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardwright.ir.errors import IRError
from shardwright.ir.types import Ragged, TensorType
from shardwright.operators.rule import Dims, Rule, base


def check_operands(
    name: str,
    operands: Sequence[TensorType],
    *,
    of_reals: bool,
    reads_host: bool,
    positions: Sequence[int] = (),
) -> None:
    """Refuse operands that an operator cannot compute with.

    Parameters
    ----------
    name : str
        Name of the operator.
    operands : sequence of TensorType
        Their types.
    of_reals : bool
        Whether the first is of real numbers: of integers, its results would be cut to integers.
    reads_host : bool
        Whether it may be in host memory.
    positions : sequence of int
        Those that are positions in other tensors.

    Raises
    ------
    IRError
        If one is in host memory, where no operator computes, or of integers; or positions are not.
    """
    hosted = next((operand for operand in operands if operand.in_host), None)
    if hosted is not None and not reads_host:
        what = f"`{name}` reads {hosted}, expected the memory of the devices"
        raise IRError(what, hint="copy it with `from_host` first")
    if of_reals and operands and not operands[0].is_float:
        what = f"`{name}` computes with real numbers, the operand is {operands[0]}"
        raise IRError(what, hint="cast it to float32 first")
    for place in positions:
        for kind in operands[place : place + 1]:
            if kind.is_float or kind.dtype == "bool":
                raise IRError(f"{name}: operand {place} is {kind}, positions are integers")


def check_whole(name: str, attribute: str, number: Any, dtype: str) -> None:
    """Refuse a number among integers, or truths, that is none of them.

    Parameters
    ----------
    name, attribute : str
        The operator, and its attribute that has the number.
    number : Any
        The number.
    dtype : str
        The element type that it meets.

    Raises
    ------
    IRError
        If it would be cut.
    """
    if TensorType(dtype, ()).is_float:
        return
    is_whole = isinstance(number, int) or float(number).is_integer()
    if is_whole and (dtype != "bool" or number in (0, 1)):
        return
    raise IRError(
        f"`{name}`: `{attribute}` is {number:g}, which no element of {dtype} is",
        hint="cast the tensor to float32 first",
    )


def check_windows(name: str, rule: Rule, known: Collection[str]) -> None:
    """Refuse factors ``h~`` without windows: their halos could not be exchanged.

    Parameters
    ----------
    name, rule
        The operator and its rule.
    known : collection of str
        The factors whose windows or runs the operator tells.

    Raises
    ------
    IRError
        If one is not among them.
    """
    for factor, kind in rule.kinds.items():
        if kind == "halo" and base(factor) not in known:
            raise IRError(
                f"the rule of `{name}` has the factor `{factor}`, and `halos` does not tell the "
                f"windows of `{base(factor)}`",
                hint="derive the operator from `operators.windows.windowed.Windowed`",
            )


def ragged_results(rule: Rule, operands: Sequence[TensorType]) -> tuple[Ragged | None, ...]:
    """Return which entries of each result are filled, where some operand is ragged.

    A result with a row for each row of the operand, and with the dimension of which few entries are
    filled, has the same few; one that lacks a factor of either is a sum over the rows or the
    entries, all of whose entries are filled. So are all where another operand with these rows and
    entries has all of them.
    """
    for operand, dims in zip(operands, rule.operands, strict=True):
        if operand.ragged is not None:
            marked = operand.ragged
            entry = dims[marked.dimension]
            rows = {f: rule.sizes[f] for d in marked.rows for f in dims[d]}
            others = [d for t, d in zip(operands, rule.operands, strict=True) if t.ragged is None]
            if not any(_carried(marked, entry, rows, other) for other in others):
                return tuple(_carried(marked, entry, rows, result) for result in rule.results)
            break
    return (None,) * len(rule.results)


def _carried(
    marked: Ragged, entry: tuple[str, ...], rows: Mapping[str, int], dims: Dims
) -> Ragged | None:
    """Return which entries of a result of some factors are filled, if not all.

    It has the factors of all rows, but for those of size 1, which it may lack.
    """
    places = [place for place, factors in enumerate(dims) if factors == entry]
    held = [place for place, factors in enumerate(dims) if factors and rows.keys() >= {*factors}]
    found = {f for place in held for f in dims[place]}
    if len(places) != 1 or any(size > 1 for f, size in rows.items() if f not in found):
        return None
    return replace(marked, dimension=places[0], rows=tuple(held))
