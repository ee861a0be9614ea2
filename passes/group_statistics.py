"""Statistics of a batch in micro-batches: each has its own."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated

from shardwright.dataflow.input_sums import with_input_sums
from shardwright.dataflow.micro_batches import BatchStatistics, batch_statistics
from shardwright.dataflow.properties import WHOLE
from shardwright.ir.errors import IRError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.provenance import Provenance
from shardwright.ir.values import POSITIVE_INTEGER
from shardwright.operators.builder import Builder
from shardwright.operators.elementwise.functions import Binary, Unary
from shardwright.operators.info import OperatorInfo, info_of, operator_class
from shardwright.operators.reduction.reduce import Reduction
from shardwright.passes.base import Pass, register_pass


@register_pass
@dataclass(frozen=True)
class GroupStatistics(Pass):
    """Compute statistics of a batch by groups of samples, each of which will be a micro-batch.

    Where samples are normalized by means over the batch, or the loss is not linear in such means,
    they get the groups as first dimension, and so does what is computed of them. In the end they
    are averaged over the groups; a moving average moves to those of one group after the other, and
    one of unbiased variances to those that are unbiased for a group.
    A program without such statistics stays as it is, and so does one whose statistics cannot be
    computed by groups: it has no form in micro-batches. Sums that depend on inputs alone, such as
    the number of labels that are not ignored, are computed of the whole batch instead, before the
    loop.

    Before::

        mean: f32[4] = channel_mean(x)
        y: f32[8, 4] = batch_normalize(x, mean, variance, gamma, beta)

    After::

        mean: f32[2, 4] = channel_mean(x) {groups=2}
        y: f32[8, 4] = batch_normalize(x, mean, variance, gamma, beta)

    Parameters
    ----------
    groups : int
        The number of groups.
    """

    name = "group_statistics"
    requires = (WHOLE,)
    ensures = (WHOLE,)

    groups: Annotated[int, POSITIVE_INTEGER] = 1

    def run(self, graph: Graph) -> Graph:
        """Return the program with statistics of groups."""
        found = batch_statistics(graph, self.groups) if self.groups > 1 else None
        if found is not None and (own := with_input_sums(graph, found.values)) is not graph:
            graph, found = own, batch_statistics(own, self.groups)
        if found is None or not found.values:
            return graph
        try:
            return _Grouping(graph, self.groups, found).graph()
        except (_NoGroupsError, IRError):
            return graph


class _NoGroupsError(Exception):
    """An operator has no form for groups."""


@dataclass(frozen=True)
class _Moving:
    """A moving average of a statistic: ``old * kept + linear(statistic)``.

    Parameters
    ----------
    statistic : str
        The statistic.
    reader : str
        The node that reads the statistic for the average.
    scaling : str
        The node that scales the old average.
    kept : float
        The factor of the old average.
    """

    statistic: str
    reader: str
    scaling: str
    kept: float


def _moving_averages(graph: Graph, apart: frozenset[str]) -> Iterator[_Moving]:
    """Yield the moving averages of statistics among the updates of a program."""
    for old, new in graph.updates:
        total = graph.producers.get(new)
        if total is None or total.operator != "add":
            continue
        for first, second in (total.operands, total.operands[::-1]):
            scaling, found = graph.producers.get(first), _source(graph, second, apart)
            if scaling is None or found is None or _readers(graph, first) != 1:
                continue
            if scaling.operator == "scale" and scaling.operands == (old,):
                kept = scaling.attributes.get("factor", 1.0)
                assert isinstance(kept, int | float)
                yield _Moving(*found, scaling.name, float(kept))


def _unbiased(count: int) -> float:
    """Return the factor that makes a variance over some elements unbiased."""
    return count / max(count - 1, 1)


def _readers(graph: Graph, name: str) -> int:
    """Return how often a value is read: by nodes, as an output or as an update."""
    outside = [*graph.outputs, *(new for _, new in graph.updates)]
    return len(graph.uses[name]) + outside.count(name)


def _source(graph: Graph, name: str, apart: frozenset[str]) -> tuple[str, str] | None:
    """Return the statistic that a value is a multiple of, and its reader; None if there is none."""
    node = graph.producers.get(name)
    while node is not None and _readers(graph, name) == 1 and len(node.operands) == 1:
        kind = operator_class(node.operator)
        if not (kind.is_scaling or kind.stops_gradient):
            return None
        (name,) = node.operands
        if name in apart:
            return name, node.name
        node = graph.producers.get(name)
    return None


@dataclass
class _Grouping:
    """A walk over a program that computes some values by groups.

    Parameters
    ----------
    whole : Graph
        The program.
    groups : int
        The number of groups.
    found : BatchStatistics
        The values that each group has one of.
    """

    whole: Graph
    groups: int
    found: BatchStatistics
    _held: dict[str, Value] = field(default_factory=dict)  # the values of the program
    _parts: dict[str, Value] = field(default_factory=dict)  # those with groups

    def __post_init__(self) -> None:
        self.build = Builder.rewriting(self.whole)
        self._held.update((value.name, value) for value in self.whole.inputs)
        self._held.update((p.name, p.value) for p in self.whole.parameters)
        moving = [*_moving_averages(self.whole, self.found.values)]
        self.readers = {(each.statistic, each.reader): each for each in moving}
        self.scalings = {each.scaling: each for each in moving}

    def graph(self) -> Graph:
        """Return the program with values in groups."""
        for node in self.whole.nodes:
            self._visit(node)
        self.build.scope = ""
        outputs = tuple(self._whole(name).name for name in self.whole.outputs)
        self.build.updates = [(old, self._whole(new).name) for old, new in self.whole.updates]
        graph = self.build.graph(self.whole.name, outputs)
        marked = self.whole.recomputed, self.whole.offloaded
        return replace(graph, recomputed=marked[0], offloaded=marked[1], cuts=self.whole.cuts)

    def _visit(self, node: Node) -> None:
        self.build.scope = node.scope  # each emitted node is an operator of its own
        if any(result.name in self.found.values for result in node.results):
            self._visit_apart(node)
        elif self.found.micro.is_repeated(node.name) and self._reads_parts(node):
            self._normalize(node)
        else:
            attributes = node.attributes
            if node.name in self.scalings:
                attributes = {**attributes, "factor": self.scalings[node.name].kept ** self.groups}
            elif self._is_unbiased(node):
                attributes = {**attributes, "factor": _unbiased(self._count(node) // self.groups)}
            operands = [self._whole(name, node.name) for name in node.operands]
            self._append(replace(node, attributes=attributes), operands)

    def _is_unbiased(self, node: Node) -> bool:
        """Return whether a moving average reads a variance so, as one of one element less."""
        if node.operator != "scale" or (node.operands[0], node.name) not in self.readers:
            return False
        count = self._count(node)
        return count > 1 and node.attributes.get("factor") == _unbiased(count)

    def _count(self, node: Node) -> int:
        """Return the number of elements of the variance that a node reads; 0 for other values."""
        producer = self.whole.producers[node.operands[0]]
        if producer.operator != "channel_variance":
            return 0
        x = self.whole.values[producer.operands[0]].type
        return x.elements // x.shape[1]

    def _reads_parts(self, node: Node) -> bool:
        return not self._parts.keys().isdisjoint(node.operands)

    def _normalize(self, node: Node) -> None:
        """Emit the normalization of samples by the statistics of their group.

        Raises
        ------
        _NoGroupsError
            If another operator on samples reads statistics.
        """
        if node.operator != "batch_normalize" or not self._parts.keys() >= {*node.operands[1:3]}:
            raise _NoGroupsError
        statistics = [self._parts[name] for name in node.operands[1:3]]
        others = [self._held[name] for name in (node.operands[0], *node.operands[3:])]
        self._append(node, [others[0], *statistics, *others[1:]])

    def _append(self, node: Node, operands: list[Value]) -> None:
        names = tuple(value.name for value in operands)
        self.build.append(replace(node, operands=names))
        self._held.update((result.name, result) for result in node.results)

    # Values of groups

    def _visit_apart(self, node: Node) -> None:
        """Emit a node whose result each group has one of.

        Raises
        ------
        _NoGroupsError
            If the operator has no form for groups.
        """
        emitted = self._emitted(node, info_of(self.whole, node))
        shape = (self.groups, *node.results[0].type.shape)
        if emitted.type.shape != shape:
            emitted = self.build.emit("reshape", emitted, shape=shape)
        kept = node.name in self.whole.outputs
        name = self.build.unique_name(f"{node.name}.parts") if kept else node.name
        self._parts[node.name] = self._named_last(name)

    def _emitted(self, node: Node, info: OperatorInfo) -> Value:
        emit, held = self.build.emit, self._held
        read = [self._parts[name] for name in node.operands if name in self._parts]
        if node.operator == "channel_variance" and read and node.operands[1] in self._parts:
            return emit("channel_variance", held[node.operands[0]], read[0])
        if isinstance(info, Unary | Binary) and read:
            rank = info.result_types[0].rank
            operands = [self._aligned(name, rank) for name in node.operands]
            return emit(node.operator, *operands, **dict(node.attributes))  # type: ignore[arg-type]
        if isinstance(info, Reduction) and read and info.axes:
            axis = tuple(a + 1 for a in info.axes)
            return emit(node.operator, read[0], axis=axis, keep_dims=info.attributes["keep_dims"])
        if read or not self.found.is_split_first(node.operands[0]):
            raise _NoGroupsError
        x = held[node.operands[0]]
        if node.operator == "channel_mean" and not info.attributes["groups"]:
            return emit("channel_mean", x, groups=self.groups)
        if node.operator == "reduce_mean" and isinstance(info, Reduction) and 0 in info.axes:
            cut = (self.groups, x.type.shape[0] // self.groups, *x.type.shape[1:])
            axis = tuple(a + 1 for a in info.axes)
            return emit("reduce_mean", emit("reshape", x, shape=cut), axis=axis)
        raise _NoGroupsError

    def _aligned(self, name: str, rank: int) -> Value:
        """Return an operand of an elementwise operator, with groups before `rank` dimensions."""
        value = self._parts.get(name)
        if value is None:
            return self._held[name]
        groups, *behind = value.type.shape
        if len(behind) == rank:
            return value
        shape = (groups, *(1,) * (rank - len(behind)), *behind)
        return self.build.emit("reshape", value, shape=shape)

    def _named_last(self, name: str) -> Value:
        """Name the value that was emitted last, and return it."""
        last = self.build.nodes[-1]
        named = replace(last.results[0], name=name)
        self.build.nodes[-1] = replace(last, results=(named,), provenance=Provenance())
        return named

    # Values of the whole batch

    def _whole(self, name: str, reader: str = "") -> Value:
        """Return a value of the whole batch: of one with groups their mean, or their sum.

        Parameters
        ----------
        name : str
            The value.
        reader : str
            The node that reads it.
        """
        parts = self._parts.get(name)
        if parts is None:
            return self._held[name]
        moving = self.readers.get((name, reader))
        if moving is not None:
            return self._moved(parts, moving.kept)
        if name not in self._held:
            self.build.emit("reduce_mean", parts, axis=(0,))
            kept = name in self.whole.outputs
            own = name if kept else self.build.unique_name(f"{name}.mean")
            self._held[name] = self._named_last(own)
        return self._held[name]

    def _moved(self, parts: Value, kept: float) -> Value:
        """Return the sum by which a moving average moves to one group after the other."""
        shape = (self.groups, *(1,) * (parts.type.rank - 1))
        weights = self.build.emit(
            "moving_weights", shape=shape, dtype=parts.type.dtype, factor=kept
        )
        return self.build.emit("reduce_sum", self.build.emit("mul", parts, weights), axis=(0,))
