"""One operator and its gradient, emitted under one strategy: what a profile prices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardwright.cost_model.backward_memory import Work, work_of
from shardwright.cost_model.profile import EdgeLayout
from shardwright.cost_model.roofline import value_bytes
from shardwright.ir.graph import Node, Value
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.ir.reachability import live
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.elementwise.conversion import Cast
from shardwright.operators.info import OperatorInfo
from shardwright.operators.windows.halo_exchange import (
    SplitOperator,
    emit_split,
    split_gradient,
)

Emitted = list[tuple[Node, list[Value]]]
"""Nodes with their operands."""


@dataclass(frozen=True)
class Emission:
    """An operator and its gradient under one strategy.

    Parameters
    ----------
    forward, backward : list of (Node, list of Value)
        The emitted nodes, with their operands.
    operands : tuple of EdgeLayout
        The layout of each operand, and of its gradient.
    results : tuple of Layout
        The layout of each result.
    saved_operands, saved_results : tuple of float
        Bytes of each that are saved for backward; 0 where it is not.
    work : Work
        Memory of the gradient while it runs.
    kept : tuple of (float, float)
        Bytes that only the gradient of a form saves: of the results of the operator, and of the
        further results of the form.
    """

    forward: Emitted
    backward: Emitted
    operands: tuple[EdgeLayout, ...]
    results: tuple[Layout, ...]
    saved_operands: tuple[float, ...]
    saved_results: tuple[float, ...]
    work: Work
    kept: tuple[float, float] = (0.0, 0.0)

    def renamed(self, names: Mapping[str, str], mesh: Mesh) -> "Emission":
        """Return the layouts under a permutation of axes; the nodes stay, they cost the same."""
        return replace(
            self,
            operands=tuple(layout.renamed(names, mesh) for layout in self.operands),
            results=tuple(layout.renamed(names, mesh) for layout in self.results),
        )


def emit(info: OperatorInfo, strategy: Strategy, wanted: tuple[bool, ...], mesh: Mesh) -> Emission:
    """Emit an operator and its gradient under one strategy.

    Parameters
    ----------
    info : OperatorInfo
        The operator.
    strategy : Strategy
        How it is split.
    wanted : tuple of bool
        Which operands need a gradient.
    mesh : Mesh
        The mesh.
    """
    taken, left = info.infer_tensor_layouts(strategy, mesh)
    operands = _values("operand", info.operand_types, taken)
    build = Builder(mesh)
    node = Node(
        info.name,
        tuple(value.name for value in operands),
        _values("result", info.result_types, left),
        info.stated,
    )
    split = emit_split(build, node, operands, strategy)
    forward = _with_operands(build.nodes, operands)
    if any(wanted):
        return _with_gradient(forward, split, taken, left, wanted, mesh)
    layouts = tuple(EdgeLayout(layout, None) for layout in taken)
    none = Work((), (False,) * len(taken))
    return Emission(forward, [], layouts, left, (0.0,) * len(taken), (0.0,) * len(left), none)


def _with_gradient(
    forward: Emitted,
    split: SplitOperator,
    taken: Sequence[Layout],
    left: tuple[Layout, ...],
    wanted: Sequence[bool],
    mesh: Mesh,
) -> Emission:
    build = Builder(mesh)
    types = [value.type for value in split.results]
    if isinstance(split.info, Cast):
        types = [split.info.cotangent_type]
    cotangents = _values("cotangent", types, [layout.reduced() for layout in left])
    gradient = split_gradient(build, split, cotangents)
    gradients = [
        value if want else None for value, want in zip(gradient.gradients, wanted, strict=True)
    ]
    nodes, read = live(build.nodes, [v.name for v in gradients if v is not None])
    saved = [value_bytes(v, mesh) if v.name in read else 0.0 for v in split.made]
    is_form, count = len(split.made) > len(left), len(left)
    backward = _with_operands(nodes, [*split.read, *split.made, *cotangents])
    return Emission(
        forward,
        backward,
        tuple(
            EdgeLayout(layout, None if value is None else value.layout)
            for layout, value in zip(taken, gradients, strict=True)
        ),
        left,
        tuple(value_bytes(v, mesh) if v.name in read else 0.0 for v in split.read),
        (0.0,) * count if is_form else tuple(saved),
        work_of(split, gradient, wanted, mesh),
        (sum(saved[:count]), sum(saved[count:])) if is_form else (0.0, 0.0),
    )


def _with_operands(nodes: Sequence[Node], known: Sequence[Value]) -> Emitted:
    values = {value.name: value for value in known}
    values |= {result.name: result for node in nodes for result in node.results}
    return [(node, [values[name] for name in node.operands]) for node in nodes]


def _values(kind: str, types: Sequence[TensorType], layouts: Sequence[Layout]) -> tuple[Value, ...]:
    pairs = zip(types, layouts, strict=True)
    return tuple(Value(f"{kind}.{i}", tensor, layout) for i, (tensor, layout) in enumerate(pairs))
