"""Halo exchange, its transpose, and operators on the exchanged runs.

An operator over windows reads what its rule writes ``h~``. Where ``h`` is split, every rank needs
the run of elements that its windows read: its slice and a halo. `halo_exchange` returns the
concatenated runs of all ranks, equally long and split evenly: elements that two ranks read occur
twice. The operator then runs on each rank alone. `halo_sum` adds runs that an operator makes up to
slices; the two are transposes of each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from shardwright.ir.attributes import Attributes
from shardwright.ir.errors import IRError, StrategyError
from shardwright.ir.graph import Node, Value
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.ir.provenance import Provenance
from shardwright.operators.builder import Builder
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.halo import Halo, deal
from shardwright.operators.info import (
    Array,
    Emitter,
    Gradients,
    Linearization,
    OperatorInfo,
    operator_info,
    register,
)
from shardwright.operators.rule import Dims, Form

_NO_HALO = {"size": 1, "windows": 1, "stride": 1, "before": 0, "span": 1}


class OverHalo(Communication):
    """The base of moves between ``slices`` slices along ``dimension`` and their runs.

    The other attributes are those of a `Halo`.
    """

    defaults: ClassVar = {"axes": (), "dimension": 0, "slices": 1, **_NO_HALO}
    priced_as = "permute"
    keeps_tensor = False  # runs overlap
    transpose: ClassVar[str]

    @property
    def halo(self) -> Halo:
        """The windows."""
        return Halo(**{name: self.attributes[name] for name in _NO_HALO})

    def moved(self, layout: Layout, mesh: Mesh) -> Layout:
        """Keep the layout: slices of the tensor become runs, or runs become slices.

        Raises
        ------
        StrategyError
            If the dimension has another split or size than the move.
        """
        at, slices = self.attributes["dimension"], self.attributes["slices"]
        if layout.splits[at] != self.axes or mesh.extent(self.axes) != slices:
            raise StrategyError(
                f"{self.name}: dimension {at} is split over {list(layout.splits[at])}, it must be "
                f"split over {list(self.axes)}, {slices} ways"
            )
        size, expected = self.operand_types[0].shape[at], self.taken_size()
        if size != expected:
            raise StrategyError(
                f"{self.name}: dimension {at} has the size {size}, expected {expected}"
            )
        return layout

    def taken_size(self) -> int:
        """Return the size of the dimension in the operand."""
        raise NotImplementedError

    def run_elements(self) -> int:
        """Return the size of the dimension of the concatenated runs."""
        slices: int = self.attributes["slices"]
        return slices * self.halo.length(slices)

    def with_size(self, shape: tuple[int, ...], size: int) -> tuple[int, ...]:
        """Return a shape with another size of the dimension."""
        at = self.attributes["dimension"]
        return (*shape[:at], size, *shape[at + 1 :])

    def sent_share(self, mesh: Mesh) -> float:
        """Return the fraction of the operand that is sent: the margins."""
        margins = self.halo.margins([mesh.sizes[axis] for axis in self.axes])
        if margins is None:
            raise IRError(f"{self.name}: windows reach beyond the neighbouring slices")
        held = -(
            -self.operand_types[0].shape[self.attributes["dimension"]] // mesh.extent(self.axes)
        )
        return sum(margins) / held

    def along(self, start: int, length: int) -> Any:
        """Return the index of a run of the dimension."""
        return (*(slice(None),) * self.attributes["dimension"], slice(start, start + length))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Apply the transpose."""
        return [build.emit(self.transpose, at.cotangents[0], **self.attributes)]


@register
class HaloExchange(OverHalo):
    """Send every member the run of elements that its windows read, with zeros in the padding."""

    name = "halo_exchange"
    transpose = "halo_sum"

    def own_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the concatenated runs."""
        return self.with_size(shape, self.run_elements())

    def taken_size(self) -> int:
        """Return the shape or size of the space."""
        return self.halo.size

    def exchange(self, parts: Sequence[Array], extents: Sequence[int]) -> list[Array]:
        """Assemble each run from its pieces."""
        length, found = self.halo.length(len(parts)), []
        for member in range(len(parts)):
            run = np.zeros(self.with_size(parts[0].shape, length), parts[0].dtype)
            for piece in self.halo.pieces(extents, member):
                read = parts[piece.owner][self.along(piece.start, piece.length)]
                run[self.along(piece.place, piece.length)] = read
            found.append(run)
        return found


@register
class HaloSum(OverHalo):
    """Sum the runs to slices: each element is the sum of its copies."""

    name = "halo_sum"
    transpose = "halo_exchange"

    def own_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape or size of the space."""
        return self.with_size(shape, self.attributes["size"])

    def taken_size(self) -> int:
        """Return the shape of the concatenated runs."""
        return self.run_elements()

    def moved(self, layout: Layout, mesh: Mesh) -> Layout:
        """Keep the layout; a partial operand must be partial sums, since elements are added."""
        if layout.partial and layout.reduction != "sum":
            raise StrategyError(
                f"halo_sum: the operand is partial over {list(layout.partial)} "
                f"({layout.reduction}), expected partial sums"
            )
        return super().moved(layout, mesh)

    def exchange(self, parts: Sequence[Array], extents: Sequence[int]) -> list[Array]:
        """Add the pieces of each run to the slices."""
        found = [
            np.zeros(self.with_size(parts[0].shape, count), parts[0].dtype)
            for _, count in deal(self.halo.size, tuple(extents))
        ]
        for member, run in enumerate(parts):
            for piece in self.halo.pieces(extents, member):
                read = run[self.along(piece.place, piece.length)]
                found[piece.owner][self.along(piece.start, piece.length)] += read
        return found


# Operators over windows


@dataclass(frozen=True)
class HaloPlan:
    """The exchanges and sums around an operator whose windows are split.

    Parameters
    ----------
    attributes : mapping
        Attributes of the operator on runs.
    operands, results : mapping of int to tuple of attributes
        The exchanges before each operand and the sums after each result, by dimension.
    """

    attributes: Attributes
    operands: Mapping[int, tuple[Attributes, ...]]
    results: Mapping[int, tuple[Attributes, ...]]


def halo_plan(
    info: OperatorInfo, attributes: Attributes, strategy: Strategy, mesh: Mesh
) -> HaloPlan:
    """Return the exchanges and sums of an operator under a strategy; none without split windows.

    Nothing is exchanged where every rank reads its own slice alone.
    """
    if not info.halos:
        return HaloPlan(attributes, {}, {})
    split = {f: axes for f, axes in strategy.assignment if f in info.halos}
    slices = {factor: mesh.extent(axes) for factor, axes in split.items()}
    sent = {
        factor: vars(info.halos[factor])
        for factor, axes in split.items()
        if not info.halos[factor].is_local([mesh.sizes[axis] for axis in axes])
    }

    def moves(dims: Dims) -> tuple[Attributes, ...]:
        return tuple(
            {
                "axes": split[factor],
                "dimension": dimension,
                "slices": slices[factor],
                **sent[factor],
            }
            for factor in sent
            for dimension, factors in enumerate(dims)
            if factors == (f"{factor}~",)
        )

    def some(tensors: Sequence[Dims]) -> dict[int, tuple[Attributes, ...]]:
        return {i: found for i, dims in enumerate(tensors) if (found := moves(dims))}

    attributes = info.on_runs(slices) if split else attributes
    return HaloPlan(attributes, some(info.rule.operands), some(info.rule.results))


@dataclass(frozen=True)
class SplitOperator:
    """An operator as it was emitted under a strategy.

    Parameters
    ----------
    info : OperatorInfo
        The emitted operator; another than that of the model under a strategy with a form.
    plan : HaloPlan
        Its exchanges and sums.
    read, made : tuple of Value
        Operands and results of the operator itself.
    results : tuple of Value
        Results of the operator of the model, after the sums.
    """

    info: OperatorInfo
    plan: HaloPlan
    read: tuple[Value, ...]
    made: tuple[Value, ...]
    results: tuple[Value, ...]


def emit_split(
    build: Builder,
    node: Node,
    operands: Sequence[Value],
    strategy: Strategy,
    stage: int | None = None,
) -> SplitOperator:
    """Emit an operator under a strategy, with its exchanges and sums.

    Parameters
    ----------
    build : Builder
        The builder, with a mesh.
    node : Node
        The operator in the whole program.
    operands : sequence of Value
        Its operands, in the layouts of the strategy.
    strategy : Strategy
        How it is split.
    stage : int, optional
        The pipeline stage that runs it.
    """
    assert build.mesh is not None
    types = [value.type for value in operands]
    info = operator_info(node.operator, types, node.attributes)
    if (form := info.rule.form_of(strategy)) is not None:
        return _emit_form(build, node, operands, strategy, form, stage)
    plan = halo_plan(info, node.attributes, strategy, build.mesh)
    read = []
    for i, (name, value) in enumerate(zip(node.operands, operands, strict=True)):
        build.provenance = Provenance(node.provenance.operator, "redistribution", name)
        read.append(_moved(build, "halo_exchange", value, plan.operands.get(i, ())))
    inner = info
    if info.halos:
        inner = operator_info(node.operator, [value.type for value in read], plan.attributes)
    left = [x.at(stage) for x in inner.rule.result_layouts(strategy, build.mesh)]
    made = tuple(
        Value(build.unique_name(f"{r.name}.runs") if i in plan.results else r.name, kind, layout)
        for i, (r, kind, layout) in enumerate(
            zip(node.results, inner.result_types, left, strict=True)
        )
    )
    names = tuple(value.name for value in read)
    build.append(
        replace(node, operands=names, results=made, attributes=plan.attributes, strategy=strategy)
    )
    results = []
    for i, (value, result) in enumerate(zip(made, node.results, strict=True)):
        build.provenance = Provenance(node.provenance.operator, "redistribution", result.name)
        results.append(_moved(build, "halo_sum", value, plan.results.get(i, ()), result.name))
    return SplitOperator(inner, plan, tuple(read), made, tuple(results))


def _emit_form(
    build: Builder,
    node: Node,
    operands: Sequence[Value],
    strategy: Strategy,
    form: Form,
    stage: int | None,
) -> SplitOperator:
    """Emit an operator in a form in which ranks send to each other."""
    assert build.mesh is not None
    attributes, strategy = form.along(strategy)
    info = operator_info(form.operator, [value.type for value in operands], attributes)
    more = [build.unique_name(f"{node.name}.{name}") for name in form.more]
    names = [*(result.name for result in node.results), *more]
    left = [x.at(stage) for x in info.rule.result_layouts(strategy, build.mesh)]
    made = tuple(map(Value, names, info.result_types, left))
    build.append(
        replace(
            node,
            operator=form.operator,
            operands=tuple(value.name for value in operands),
            results=made,
            attributes=attributes,
            strategy=strategy,
        )
    )
    plan = HaloPlan(attributes, {}, {})
    return SplitOperator(info, plan, tuple(operands), made, made[: len(node.results)])


@dataclass(frozen=True)
class SplitGradient:
    """The gradient of a `SplitOperator` as it was emitted.

    Parameters
    ----------
    cotangents : tuple of Value
        The cotangents that the gradient itself reads, after their halos were exchanged.
    nodes : tuple of Node
        The gradient itself, without the exchanges and sums around it.
    returned : tuple of (Value or None)
        The gradient by each operand, before halos are summed.
    gradients : tuple of (Value or None)
        The gradient by each operand in the end.
    """

    cotangents: tuple[Value, ...]
    nodes: tuple[Node, ...]
    returned: tuple[Value | None, ...]
    gradients: tuple[Value | None, ...]


def split_gradient(
    build: Builder, operator: SplitOperator, cotangents: Sequence[Value]
) -> SplitGradient:
    """Emit the gradient of the nodes of `emit_split`, and return its parts."""
    plan = operator.plan
    pulled = tuple(
        _moved(build, "halo_exchange", dy, plan.results.get(i, ()))
        for i, dy in enumerate(cotangents)
    )
    begin = len(build.nodes)
    at = Linearization(operator.read, operator.made, pulled)
    returned = tuple(build.gradients(operator.info, at))
    nodes = tuple(build.nodes[begin:])
    gradients = tuple(
        None if value is None else _moved(build, "halo_sum", value, plan.operands.get(i, ()))
        for i, value in enumerate(returned)
    )
    return SplitGradient(pulled, nodes, returned, gradients)


def emit_split_gradient(
    build: Builder, operator: SplitOperator, cotangents: Sequence[Value]
) -> list[Value | None]:
    """Emit the gradient of an operator from `emit_split` by each operand."""
    return list(split_gradient(build, operator, cotangents).gradients)


def _moved(
    build: Builder, operator: str, value: Value, moves: Sequence[Attributes], name: str = ""
) -> Value:
    """Emit exchanges in the order of dimensions, or sums in reverse order."""
    order = list(moves) if operator == "halo_exchange" else list(reversed(moves))
    for i, attributes in enumerate(order):
        how: dict[str, Any] = dict(attributes)
        last = name if i == len(order) - 1 else ""
        value = build.emit(operator, value, name=last or None, **how)
    return value
