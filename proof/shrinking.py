"""Operators on small shapes: the same factors, split the same way."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from shardwright.ir.attributes import Attributes
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.elementwise.conversion import Convert
from shardwright.operators.info import OperatorInfo, operator_info
from shardwright.operators.rule import base
from shardwright.operators.windows.windowed import Windowed

_REFUSED = (ShardwrightError, ArithmeticError, LookupError, TypeError, ValueError)
_WINDOWS = 4  # windows over a slice
_MOST = (4, 6, 12)  # sizes of unsplit factors, tried in order


def shrunken(
    info: OperatorInfo,
    strategy: Strategy,
    taken: Sequence[Layout],
    left: Sequence[Layout],
    mesh: Mesh,
    full: Mesh,
) -> OperatorInfo | None:
    """Return an operator on small shapes; None if its attributes do not allow it.

    Parameters
    ----------
    info : OperatorInfo
        The operator on shapes of full size.
    strategy : Strategy
        Its strategy.
    taken, left : sequence of Layout
        Layouts of the operands and the results.
    mesh : Mesh
        The axes of the strategy, each of size 2.
    full : Mesh
        The mesh of the program.
    """
    if isinstance(info, Convert):  # its rounding is not part of the comparison
        info = operator_info(info.name, info.operand_types, {"dtype": "float64"})
    if isinstance(info, Communication):
        return _small_communication(info, taken[0], left[0], mesh)
    for most in _MOST:
        sizes = dict(_small_sizes(info, strategy, mesh, full, most))
        types = [
            _real(kind).with_shape(_shape(dims, sizes))
            for kind, dims in zip(info.operand_types, info.rule.operands, strict=True)
        ]
        for attributes in _small_attributes(info, sizes):
            try:
                small = operator_info(info.name, types, attributes)
            except _REFUSED:
                continue
            if _factors(small) == _factors(info):
                return small
    return None


def _factors(info: OperatorInfo) -> object:
    return info.rule.operands, info.rule.results


def _real(kind: TensorType) -> TensorType:
    return TensorType("float64", kind.shape) if kind.is_float else kind


def _shape(dims: Sequence[Sequence[str]], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(prod(sizes[factor] for factor in factors) for factors in dims)


def _small_sizes(
    info: OperatorInfo, strategy: Strategy, mesh: Mesh, full: Mesh, most: int
) -> Iterator[tuple[str, int]]:
    """Yield a small size of each factor, split evenly or unevenly like the original."""
    compound = {
        factor
        for dims in (*info.rule.operands, *info.rule.results)
        for factors in dims
        if len(factors) > 1
        for factor in factors
    }
    read = {factor for dims in info.rule.operands for factors in dims for factor in factors}
    windows = _small_windows(info, strategy, mesh) if isinstance(info, Windowed) else {}
    for factor, size in info.rule.sizes.items():
        axes = strategy.axes.get(base(factor), ())
        slices = mesh.extent(axes)
        if factor in windows or (isinstance(info, Windowed) and factor.startswith("k")):
            yield factor, windows.get(factor, size)
        elif slices == 1:
            yield factor, min(size, most - size % 2 if factor in read else 2)
        elif factor in compound and size == full.extent(axes):
            yield factor, slices
        else:
            uneven = factor not in compound and size % slices != 0
            yield factor, slices * 2 + uneven


def _small_windows(info: Windowed, strategy: Strategy, mesh: Mesh) -> dict[str, int]:
    """Return the numbers of windows, and of elements that exactly so many windows slide over."""
    found, windows = {}, info.windows
    for d in range(len(info.space)):
        slices = mesh.extent(strategy.axes.get(f"s{d}", ()))
        count = slices * _WINDOWS + (info.rule.sizes[f"s{d}"] % slices != 0)
        reach = (count - 1) * windows.stride[d] + windows.span[d]
        found[f"s{d}"], found[f"s{d}~"] = count, reach - sum(windows.padding[d])
    return found


def _small_attributes(info: OperatorInfo, sizes: Mapping[str, int]) -> Iterator[Attributes]:
    """Yield the attributes with the sizes of tensors and factors replaced by small ones."""
    shapes = {}
    for dims in (*info.rule.operands, *info.rule.results):
        shapes[_shape(dims, info.rule.sizes)] = _shape(dims, sizes)
        shapes[_shape(dims[2:], info.rule.sizes)] = _shape(dims[2:], sizes)
    numbers: dict[int, int] = {}
    for factor, size in info.rule.sizes.items():
        numbers.setdefault(size, sizes[factor])
    options: list[list[tuple[str, Any]]] = []
    for key, value in info.attributes.items():
        found = [value]
        if isinstance(value, tuple) and value in shapes:
            found.insert(0, shapes[value])
        elif isinstance(value, tuple):
            found.append(tuple(numbers.get(v, v) if isinstance(v, int) else v for v in value))
        elif isinstance(value, int) and not isinstance(value, bool) and value in numbers:
            found.append(numbers[value])
        options.append([(key, item) for item in dict.fromkeys(found)])
    for choice in product(*options):
        yield dict(choice)


def _small_communication(
    info: Communication, taken: Layout, left: Layout, mesh: Mesh
) -> OperatorInfo:
    """Return a collective on a small tensor that both layouts can split."""
    (kind,) = info.operand_types
    shape = tuple(
        max(mesh.extent(a), mesh.extent(b)) * 2
        + (bool(a or b) and info.name != "collective_permute" and size % 2 == 1)
        for size, a, b in zip(kind.shape, taken.splits, left.splits, strict=True)
    )
    return operator_info(info.name, [_real(kind).with_shape(shape)], info.attributes)
