"""The shrunken run: the assumptions of a proof, tested on every operator of a program.

A program of full size may be too large to run. Its distinct nodes are few: an operator, with its
operands and results in some layouts. Each is run on a mesh whose axes all have size 2, on small
shapes split like in the program, and compared with the operator on whole tensors; so are
collectives. Together with the proof, which covers the composition of nodes, it covers the kernels
and rules that the program uses.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardwright.ir.attributes import Attribute, Attributes
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.graph import Graph, Node
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.rounding import EQUAL
from shardwright.ir.types import TensorType, numpy_dtype
from shardwright.operators.checks.spmd import Parts, assemble, exchange, run_shards
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.communication.fusion import Unpack, buffer_length
from shardwright.operators.info import (
    Array,
    OperatorInfo,
    operator_class,
    operator_info,
    whole_kernel,
)
from shardwright.operators.rule import Shape
from shardwright.operators.windows.halo_exchange import OverHalo
from shardwright.operators.windows.windowed import Windowed
from shardwright.proof.shrinking import shrunken
from shardwright.proof.windows import of_slices

_MOST_RANKS = 256  # of a sample, of two for each axis; of more axes nothing is run
_SIZE = 8  # attributes of at least this number are sizes
_FAILURES = (ArithmeticError, LookupError, TypeError, ValueError, ShardwrightError)
_WITH_OTHERS = (OverHalo, Unpack)  # run together with their readers or producers
_EMPTY = {"sum": 0.0, "max": -1e9, "min": 1e9}


@dataclass(frozen=True)
class Samples:
    """The result of a shrunken run.

    Parameters
    ----------
    compared : int
        Number of distinct operators and layouts that were run.
    skipped : tuple of str
        Nodes, one of each kind, that could not be shrunk.
    max_relative_error : float
        The largest error among those compared.
    first_difference : str or None
        The first node whose assembled slices differ from the whole.
    """

    compared: int
    skipped: tuple[str, ...]
    max_relative_error: float
    first_difference: str | None

    @property
    def equal(self) -> bool:
        """Whether all compared operators agree."""
        return self.first_difference is None


@dataclass
class _Case:
    """A shrunken node.

    Parameters
    ----------
    info : OperatorInfo
        The operator on small shapes.
    mesh : Mesh
        The axes that the node uses, each of size 2.
    strategy : Strategy
        Its strategy.
    taken, left : sequence of Layout
        Layouts of the operands and the results.
    """

    info: OperatorInfo
    mesh: Mesh
    strategy: Strategy
    taken: Sequence[Layout]
    left: Sequence[Layout]
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def error(self) -> float:
        """Return the largest relative error of the slices of all ranks.

        Raises
        ------
        ShardwrightError
            If slices differ from their layouts.
        """
        operands, whole = self._operands()
        held = [self._spread(x, layout) for x, layout in zip(operands, self.taken, strict=True)]
        if isinstance(self.info, Communication):
            found = [exchange(self.info, held[0], self.mesh)]
        else:
            found = run_shards(self.info, self.strategy, self.mesh, held)
        return max(
            _relative(assemble(parts, layout, right.shape, self.mesh), right)
            for parts, layout, right in zip(found, self.left, whole, strict=True)
        )

    def _operands(self) -> tuple[list[Array], tuple[Array, ...]]:
        """Return random operands that the operator accepts, and its results."""
        sizes = sorted({size for size in self.info.rule.sizes.values() if size > 1}, reverse=True)
        highs = [*dict.fromkeys((*sizes, 2))]
        for low in (-2.0, 0.1):
            for high in highs:
                operands = [
                    _drawn(kind.dtype, kind.shape, low, high, self.random)
                    for kind in self.info.operand_types
                ]
                try:
                    whole = whole_kernel(self.info, *operands)
                except _FAILURES:
                    continue
                if all(np.isfinite(np.asarray(x, float)).all() for x in whole):
                    return operands, whole
        raise ValueError("the operator accepts none of the random operands")

    def _spread(self, whole: Array, layout: Layout) -> Parts:
        """Return slices; for a partial layout, slices of random terms of the whole."""
        mesh, count = self.mesh, self.mesh.extent(layout.partial)
        terms = np.stack([whole] * count)
        if layout.partial and layout.reduction == "sum":
            rest = self.random.integers(-3, 4, (count - 1, *whole.shape)).astype(whole.dtype)
            terms = np.concatenate([rest, (whole - rest.sum(axis=0))[None]])
        elif layout.partial:
            owner = self.random.integers(0, count, whole.shape)
            for i in range(count):
                terms[i] = np.where(owner == i, whole, _EMPTY[layout.reduction])
        return [
            terms[mesh.index(rank, layout.partial)][layout.slices(whole.shape, mesh, rank)]
            for rank in range(mesh.size)
        ]


def _drawn(
    dtype: str, shape: tuple[int, ...], low: float, high: int, random: np.random.Generator
) -> Array:
    kind = numpy_dtype(dtype)
    if kind.kind == "f":
        return np.asarray(random.uniform(low, 2.0, shape), kind)
    if kind.kind == "b":
        return np.asarray(random.integers(0, 2, shape), kind)
    return np.asarray(random.integers(0 if shape else 1, high, shape), kind)


class _Buffer(_Case):
    """A flat buffer, packed and unpacked."""

    def error(self) -> float:
        """Return the largest relative error of the results."""
        mesh, layouts = self.mesh, self.taken
        shapes: list[Shape] = [tuple(2 * mesh.extent(a) for a in p.splits) for p in layouts]
        whole = [np.asarray(self.random.uniform(-2, 2, shape)) for shape in shapes]
        held = [self._spread(x, layout) for x, layout in zip(whole, layouts, strict=True)]
        length = buffer_length(shapes, layouts, mesh)
        types = [TensorType("float64", shape) for shape in shapes]
        pack = operator_info("pack", types, {"length": length})
        strategy, (layout,) = pack.infer_layouts(layouts, mesh)
        buffers = run_shards(pack, strategy, mesh, held)
        splits = tuple(part.splits for part in layouts)
        attributes: Attributes = {"shapes": tuple(shapes), "splits": splits}
        unpack = operator_info("unpack", [TensorType("float64", (length,))], attributes)
        strategy, left = unpack.infer_layouts([layout], mesh)
        found = run_shards(unpack, strategy, mesh, buffers)
        return max(
            _relative(assemble(parts, part, right.shape, mesh), right)
            for parts, part, right in zip(found, left, whole, strict=True)
        )


def _relative(found: Array, whole: Array) -> float:
    a, b = np.asarray(found, float), np.asarray(whole, float)
    scale = max(float(np.max(np.abs(b), initial=0.0)), 1e-3)
    return float(np.max(np.abs(a - b), initial=0.0)) / scale


def run_samples(program: Graph) -> Samples:
    """Run every distinct operator of a program, in its layouts, on small shapes.

    Parameters
    ----------
    program : Graph
        A proven program with layouts.
    """
    compared, worst, first = 0, 0.0, None
    skipped = []
    for node in _distinct(program):
        case = _case(program, node)
        if case is None:
            skipped.append(node.name)
            continue
        try:
            with np.errstate(all="ignore"):
                error = case.error()
        except ValueError:
            skipped.append(node.name)
            continue
        except _FAILURES:
            error = float("inf")
        compared += 1
        worst = max(worst, error)
        if first is None and not error <= EQUAL:
            first = node.name
    return Samples(compared, tuple(skipped), worst, first)


def _distinct(program: Graph) -> Iterator[Node]:
    """Yield the first node of every operator in every combination of layouts."""
    seen = set()
    for node in program.nodes:
        values = (*program.operand_values(node), *node.results)
        ranks = tuple(value.type.rank for value in values)
        layouts = tuple(value.layout for value in values)
        key = node.operator, ranks, layouts, _switches(node.attributes)
        if key not in seen and not issubclass(operator_class(node.operator), _WITH_OTHERS):
            seen.add(key)
            yield node


def _switches(attributes: Attributes) -> str:
    """Return the attributes that are not sizes: dimensions, axes, names, switches."""

    def is_size(value: Attribute) -> bool:
        if isinstance(value, tuple):
            return any(map(is_size, value))
        return isinstance(value, float) or (isinstance(value, int) and value >= _SIZE)

    return repr(sorted((k, v) for k, v in attributes.items() if not is_size(v)))


def _case(program: Graph, node: Node) -> _Case | None:
    """Return a node on small shapes; None if it cannot be shrunk."""
    assert program.mesh is not None
    operands = program.operand_values(node)
    taken = [value.layout for value in operands if value.layout is not None]
    left = [value.layout for value in node.results if value.layout is not None]
    info = operator_info(node.operator, [value.type for value in operands], node.attributes)
    axes = _axes_of(taken, left, info)
    mesh = Mesh(
        tuple(MeshAxis(a.name, min(a.size, 2)) for a in program.mesh.axes if a.name in axes)
    )
    if mesh.size > _MOST_RANKS or isinstance(info, OverHalo):
        return None
    if node.operator == "pack":
        return _Buffer(info, mesh, Strategy(), taken, left)
    strategy, _ = info.infer_layouts(taken, program.mesh, [layout.reduced() for layout in left])
    if isinstance(info, Windowed) and info.attributes["slices"]:
        info = of_slices(info, [_whole_type(program, name) for name in node.operands])
    try:
        small = shrunken(info, strategy, taken, left, mesh, program.mesh)
        if small is None:
            return None
        return _laid_out(small, strategy, taken, left, mesh)
    except _FAILURES:
        return None


def _whole_type(program: Graph, name: str) -> TensorType:
    """Return the type of a value, or of the tensor whose runs it has."""
    producer = program.producers.get(name)
    while producer is not None and producer.operator == "halo_exchange":
        name = producer.operands[0]
        producer = program.producers.get(name)
    return program.values[name].type


def _axes_of(taken: Sequence[Layout], left: Sequence[Layout], info: OperatorInfo) -> frozenset[str]:
    used = {axis for layout in (*taken, *left) for axis in (*layout.split_axes, *layout.partial)}
    return frozenset(used | (set(info.axes) if isinstance(info, Communication) else set()))


def _laid_out(
    info: OperatorInfo,
    strategy: Strategy,
    taken: Sequence[Layout],
    left: Sequence[Layout],
    mesh: Mesh,
) -> _Case:
    """Return the case, with layouts inferred again on small shapes."""
    if isinstance(info, Communication):
        return _Case(info, mesh, strategy, taken, info.infer_layouts(taken, mesh)[1])
    info.check_strategy(strategy, mesh)
    expected = info.rule.operand_layouts(strategy)
    carried = tuple(dict.fromkeys(axis for layout in taken for axis in layout.partial))
    results = info.rule.result_layouts(strategy, mesh)
    if carried:
        results = tuple(
            layout.with_partial(mesh.ordered(layout.partial + carried)) for layout in results
        )
        expected = tuple(
            layout.with_partial(other.partial)
            for layout, other in zip(expected, taken, strict=True)
        )
    return _Case(info, mesh, strategy, expected, results)
