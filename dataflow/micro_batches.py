"""Micro-batches: which part of a program each of them computes.

The batch is split over a mesh axis that is run in time (`batch_split`): an operator on samples runs
in every pass, one on parameters alone runs once, and a sum over the batch is partial over the axis,
so its readers run after the last pass. The search sees the program of one micro-batch on the ranks;
its decisions are lifted to the mesh with the axis.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from shardwright.dataflow.batch_split import AXIS, BatchSplit
from shardwright.dataflow.cotangents import cotangent_flow
from shardwright.ir.attributes import Attributes
from shardwright.ir.decisions import Decisions
from shardwright.ir.errors import IRError, OptionError, ShardwrightError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout, SharedLayout, Strategy
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.text import node_text
from shardwright.ir.types import TensorType
from shardwright.operators.info import info_of, operator_info


def check_axes(ranks: Mesh) -> None:
    """Check that no axis of a mesh of ranks has the name of the one that is run in time.

    Raises
    ------
    OptionError
        If one has.
    """
    if AXIS in ranks.names:
        raise OptionError(
            f"the mesh has an axis `{AXIS}`, the name of the axis that micro-batches are split "
            "over",
            hint="give it another name",
        )


@dataclass(frozen=True)
class MicroBatches:
    """A program in micro-batches.

    Parameters
    ----------
    whole : Graph
        The program of the whole batch.
    passes : int
        Number of micro-batches.
    layouts : mapping of str to Layout
        The layout of every value over the axis alone: split, partial, or neither.
    strategies : mapping of str to Strategy
        The strategy of every operator over the axis alone.
    """

    whole: Graph
    passes: int
    layouts: Mapping[str, Layout]
    strategies: Mapping[str, Strategy]

    @cached_property
    def graph(self) -> Graph:
        """The program of one micro-batch, with the names of the whole one."""
        whole = self.whole
        return replace(
            whole,
            inputs=tuple(self._local(value) for value in whole.inputs),
            parameters=tuple(replace(p, value=self._local(p.value)) for p in whole.parameters),
            nodes=tuple(self._local_node(node) for node in whole.nodes),
            recomputed=tuple(name for name in whole.recomputed if self.is_repeated(name)),
            offloaded=tuple(name for name in whole.offloaded if self.is_repeated(name)),
        )

    @cached_property
    def outside(self) -> frozenset[str]:
        """The operators that run once."""
        return frozenset(n.name for n in self.whole.nodes if not self.is_repeated(n.name))

    def is_repeated(self, operator: str) -> bool:
        """Return whether an operator runs in every pass."""
        return bool(self.strategies[operator].assignment)

    def is_split(self, value: str) -> bool:
        """Return whether each pass has its own slice of a value."""
        return bool(self.layouts[value].split_axes)

    def is_partial(self, value: str) -> bool:
        """Return whether a value is a sum over the passes, or another reduction."""
        return bool(self.layouts[value].partial)

    @cached_property
    def late(self) -> frozenset[str]:
        """The values that depend on what the passes accumulate."""
        late: set[str] = set()
        for node in self.whole.nodes:
            sums = any(self.is_partial(name) or name in late for name in node.operands)
            if sums and not self.is_repeated(node.name):
                late.update(result.name for result in node.results)
        return frozenset(late)

    # The program of one micro-batch

    def _local(self, value: Value) -> Value:
        layout = self.layouts[value.name]
        return replace(value, type=_slice_type(value.type, layout, self.passes))

    def _local_node(self, node: Node) -> Node:
        if not self.is_repeated(node.name):
            return node
        operands = [self._local(value).type for value in self.whole.operand_values(node)]
        results = tuple(self._local(result) for result in node.results)
        wanted = tuple(result.type for result in results)
        attributes = _slice_attributes(self.whole, node, operands, wanted)
        return replace(node, results=results, attributes=attributes)

    # The decisions

    def mesh_over(self, ranks: Mesh) -> Mesh:
        """Return the mesh of the program: the passes, and the ranks."""
        return Mesh((MeshAxis(AXIS, self.passes, in_time=True), *ranks.axes))

    def lifted(self, decisions: Decisions) -> Decisions:
        """Return the decisions for the whole program, from those for one micro-batch."""
        mesh = self.mesh_over(decisions.mesh)
        chosen = decisions.strategies
        strategies = {n.name: self._strategy(n, chosen[n.name], mesh) for n in self.whole.nodes}
        shared = decisions.shared_layouts
        return replace(
            decisions,
            mesh=mesh,
            strategies=strategies,
            recomputed=decisions.recomputed - self.outside,
            offloaded=decisions.offloaded - self.outside,
            stored={name: self._layout(name, held) for name, held in decisions.stored.items()},
            shared_layouts={name: self._shared(name, item, mesh) for name, item in shared.items()},
        )

    def _layout(self, value: str, layout: Layout) -> Layout:
        """Return the layout of a value without partial axes, from that in one micro-batch."""
        splits = zip(self.layouts[value].splits, layout.splits, strict=True)
        return Layout(tuple((*outer, *inner) for outer, inner in splits))

    def _strategy(self, node: Node, strategy: Strategy, mesh: Mesh) -> Strategy:
        if not self.is_repeated(node.name):
            return strategy
        local = self._local_nodes[node.name]
        rule = info_of(self.graph, local).rule
        whole = info_of(self.whole, node)
        taken, left = rule.operand_layouts(strategy), rule.result_layouts(strategy, mesh)
        operands = [self._layout(*pair) for pair in zip(node.operands, taken, strict=True)]
        results = [
            self._layout(result.name, layout)
            for result, layout in zip(node.results, left, strict=True)
        ]
        found = whole.rule.strategy_from(operands, mesh, results)
        form = rule.form_of(strategy)  # a mark that no tensor shows
        marked = {} if form is None else {form.mark: found.axes.get(form.factor, ())}
        found = Strategy.of({**found.axes, **marked})
        return _with_contracted(found, self.strategies[node.name])

    @cached_property
    def _local_nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.graph.nodes}

    def _shared(self, name: str, shared: SharedLayout, mesh: Mesh) -> SharedLayout:
        layout, gradient = shared.layout, shared.gradient
        if self.is_split(name):
            layout = self._layout(name, layout)
        elif self.shares_gradient(name):
            gradient = mesh.ordered((AXIS, *gradient))
        return replace(shared, layout=layout, gradient=gradient)

    def shares_gradient(self, name: str) -> bool:
        """Return whether all readers of a value that is known before the loop run in every pass.

        Then the passes add up its gradients before the sum is reduced.
        """
        if self.layouts[name].mentions((AXIS,)):
            return False
        readers = self.whole.uses[name]
        returned = {*self.whole.outputs, *(new for _, new in self.whole.updates)}
        return name not in returned and all(self.is_repeated(node.name) for node, _ in readers)


@dataclass(frozen=True)
class OnePass(MicroBatches):
    """A program whose whole batch is one micro-batch: nothing is split, and there is no loop."""

    @cached_property
    def graph(self) -> Graph:
        """The program itself."""
        return self.whole

    def is_repeated(self, operator: str) -> bool:
        """Return whether an operator depends on inputs."""
        return operator in self._fed_operators

    def is_split(self, value: str) -> bool:
        """Return whether a value depends on inputs."""
        return value in self._fed

    def is_partial(self, value: str) -> bool:
        """Return that no value is a sum over passes."""
        return False

    def lifted(self, decisions: Decisions) -> Decisions:
        """Return the decisions themselves."""
        return decisions

    @cached_property
    def _fed(self) -> frozenset[str]:
        fed = {value.name for value in self.whole.inputs}
        for node in self.whole.nodes:
            if not fed.isdisjoint(node.operands):
                fed.update(result.name for result in node.results)
        return frozenset(fed)

    @cached_property
    def _fed_operators(self) -> frozenset[str]:
        return frozenset(n.name for n in self.whole.nodes if not self._fed.isdisjoint(n.operands))


def one_pass(graph: Graph) -> OnePass:
    """Return a program as one micro-batch."""
    layouts = {name: Layout.replicated(v.type.rank) for name, v in graph.values.items()}
    return OnePass(graph, 1, layouts, {node.name: Strategy() for node in graph.nodes})


def _with_contracted(found: Strategy, over: Strategy) -> Strategy:
    """Return a strategy with the axis on its factor, where no tensor shows it."""
    missing = {f: axes for f, axes in over.assignment if f not in found.axes}
    return Strategy.of({**missing, **found.axes}) if missing else found


def undivided(graph: Graph) -> Decisions:
    """Return the decisions of a program on one device, which divide nothing."""
    stored = (*graph.inputs, *(parameter.value for parameter in graph.parameters))
    whole = {value.name: Layout.replicated(value.type.rank) for value in stored}
    strategies = {node.name: Strategy() for node in graph.nodes}
    marked = frozenset(graph.recomputed), frozenset(graph.offloaded)
    return Decisions(Mesh(()), strategies, whole, recomputed=marked[0], offloaded=marked[1])


def micro_batches(graph: Graph, passes: int) -> MicroBatches:
    """Return a program in micro-batches.

    Parameters
    ----------
    graph : Graph
        The program of the whole batch, in canonical form.
    passes : int
        Number of micro-batches.

    Raises
    ------
    OptionError
        If the batch cannot be divided, an operator in the loop needs the whole batch, or state
        that is read moves with every pass.
    """
    _refuse_moving_state(graph)
    found = _followed(graph, passes)
    _ = found.graph  # refuses what has no program of one micro-batch
    return found


def _refuse_moving_state(graph: Graph) -> None:
    """Refuse state that is read after an update that no sample enters.

    The loop has the update once. Other frameworks accumulate gradients over forward passes that
    each have one, such as a step of the power iteration of a spectral norm.
    """
    sampled = {value.name for value in graph.inputs}
    read = set(graph.outputs)
    for node in graph.nodes:
        read.update(node.operands)
        if not sampled.isdisjoint(node.operands):
            sampled.update(result.name for result in node.results)
    for state, following in graph.updates:
        if following in read and following not in sampled:
            raise OptionError(
                f"the state `{state}` moves once in a step, and once for each micro-batch where "
                "gradients are accumulated",
                hint="train with one micro-batch",
            )


def _followed(graph: Graph, passes: int, *, allows_statistics: bool = False) -> MicroBatches:
    split = BatchSplit(graph, passes, allows_statistics)
    split.follow()
    return MicroBatches(graph, passes, split.layouts, split.strategies)


@dataclass(frozen=True)
class BatchStatistics:
    """The values of a program that each micro-batch must have its own of, and the batch has one.

    They are computed of all samples, and an operator on samples reads them (the means of a batch
    normalization), or an operator that is not linear computes the loss of them (the shares of
    experts of a balance loss).

    Parameters
    ----------
    micro : MicroBatches
        The split of the batch, which ends at these values.
    values : frozenset of str
        The values.
    """

    micro: MicroBatches
    values: frozenset[str]

    def is_split_first(self, value: str) -> bool:
        """Return whether the first dimension of a value is that of the samples."""
        return self.micro.layouts[value].splits[:1] == ((AXIS,),)


def batch_statistics(graph: Graph, passes: int) -> BatchStatistics | None:
    """Return the statistics of a program; None if its batch cannot be divided."""
    try:
        found = _followed(graph, passes, allows_statistics=True)
    except ShardwrightError:
        return None
    return BatchStatistics(found, _statistics(found))


def _statistics(micro: MicroBatches) -> frozenset[str]:
    graph, found = micro.whole, set[str]()
    flow, sums = cotangent_flow(graph), {*micro.late, *filter(micro.is_partial, micro.layouts)}
    for node in reversed(graph.nodes):
        results = [result.name for result in node.results]
        read = [name in sums for name in node.operands]
        if not any(read):
            continue
        in_passes = micro.is_repeated(node.name)
        mixes = not in_passes and flow.enters(node) and not _is_linear(graph, node, read)
        if in_passes or mixes or not found.isdisjoint(results):
            found.update(name for name in node.operands if name in sums)
            found.update(name for name in results if mixes or (in_passes and name in sums))
    return frozenset(found)


def _is_linear(graph: Graph, node: Node, read: Sequence[bool]) -> bool:
    """Return whether a node is linear, up to a constant, in all operands that are read as sums."""
    info = info_of(graph, node)
    positions = {i for i, flag in enumerate(read) if flag}
    shifts = info.is_scaling or node.operator == "add_scalar"
    return shifts or any(positions <= {*linear} for linear in info.linear_sets)


# Slices of a micro-batch


def _slice_type(kind: TensorType, layout: Layout, passes: int) -> TensorType:
    pairs = zip(kind.shape, layout.splits, strict=True)
    return kind.with_shape(tuple(n // passes if axes else n for n, axes in pairs))


def _slice_attributes(
    graph: Graph, node: Node, operands: Sequence[TensorType], results: tuple[TensorType, ...]
) -> Attributes:
    """Return the attributes with which an operator makes slices of its results from slices.

    A shape among the attributes is that of a result, or has the sizes of an operand; a number may
    be the first size. Types, such as those of `on_gradient`, are element types and sizes.
    """
    whole = [value.type.shape for value in graph.operand_values(node)]
    whole += [result.type.shape for result in node.results]
    local = [kind.shape for kind in (*operands, *results)]
    for attributes in _candidates(node.attributes, dict(zip(whole, local, strict=True))):
        try:
            if operator_info(node.operator, operands, attributes).result_types == results:
                return attributes
        except ShardwrightError:
            continue
    raise IRError(
        f"`{node.operator}` has no form for one micro-batch",
        node_text(node),
        "train with one micro-batch",
    )


def _candidates(attributes: Attributes, shapes: Mapping[tuple[int, ...], tuple[int, ...]]) -> Any:
    """Yield the attributes, and variants with whole sizes replaced by those of slices."""
    yield dict(attributes)
    yield {key: _with_sizes(value, shapes) for key, value in attributes.items()}
    for before, after in shapes.items():
        changed: dict[str, Any] = {}
        for key, value in attributes.items():
            if isinstance(value, int) and (value,) == before[:1] != after[:1]:
                changed[key] = after[0]
            if isinstance(value, tuple) and len(value) == len(before) and value != after:
                sizes = zip(value, before, after, strict=True)
                changed[key] = tuple(new if v == old else v for v, old, new in sizes)
        if changed:
            yield {**attributes, **changed}
            for key, value in changed.items():
                yield {**attributes, key: value}


def _with_sizes(value: Any, shapes: Mapping[tuple[int, ...], tuple[int, ...]]) -> Any:
    """Return an attribute with other sizes in all of its types."""
    if not isinstance(value, tuple) or not all(isinstance(item, tuple) for item in value):
        return value
    return tuple((*item[:1], *shapes.get(item[1:], item[1:])) for item in value)
