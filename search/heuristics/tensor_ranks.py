"""Strategies of a named plan: Megatron's way to divide a model, followed through any graph.

Walks through the program in order, as `batch.follow_batch` does. At the weight of a product the
tensor ranks take its columns; the operators behind follow, up to a product that contracts what is
split: it takes rows, and leaves a sum over the tensor ranks. Tables take rows, so the head of a
language model leaves the scores split by words, and so the loss. Columns whose split an operator
cannot follow (a softmax over them, fewer heads than ranks) stay whole: the walk is repeated without
them. So do those between two products in a row that narrow and widen, as adapters of LoRA do. With
`sequence_parallel` a sum over the tensor ranks is scattered over positions, and the operators up to
the next columns follow that split.

References
----------
Shoeybi et al., "Megatron-LM", 2019; Korthikanti et al., "Reducing activation recomputation in large
transformer models", 2022; Lepikhin et al., "GShard", 2020.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.ir.units import pattern
from shardwright.operators.attention.scaled_dot_product import Attention
from shardwright.operators.info import OperatorInfo, info_of
from shardwright.operators.rule import Rule
from shardwright.search.heuristics.batch import (
    batch_layout,
    can_split,
    followed,
    legal_strategy,
)
from shardwright.search.plan_axes import PlanAxes

Factors = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class _Visited:
    """What a walk found at an operator, and finds at equal ones again.

    Parameters
    ----------
    info : OperatorInfo
        The operator.
    strategy : Strategy
        Its strategy.
    column : tuple of str
        The axes over which it takes the columns of a weight.
    split, layouts : sequence of bool, of Layout
        Whether columns split each result, and the layout in which it goes on.
    of_expert : sequence of frozenset of int
        The dimensions of experts of each result.
    """

    info: OperatorInfo
    strategy: Strategy
    column: tuple[str, ...]
    split: Sequence[bool]
    layouts: Sequence[Layout]
    of_expert: Sequence[frozenset[int]]


@dataclass
class Walk:
    """One walk through a program.

    Parameters
    ----------
    graph, mesh : Graph, Mesh
        The whole program, and the mesh of the plan.
    axes : PlanAxes
        Its axes by what they divide.
    by_position : bool
        Whether sums over the tensor ranks are scattered over positions.
    ring : bool
        Whether keys pass round the context ranks; else they are gathered.
    whole : frozenset of str
        Products whose columns stay whole.
    storage : callable
        Returns the axes over which a parameter is divided further, and so is what is made of it.
    strategies : dict of str to Strategy
        The strategy of each operator.
    dropped : set of str
        Products whose columns an operator could not follow.
    experts : set of int
        How many experts there are at products of experts.
    divided, scattered, with_experts, with_context, with_ring : bool
        Whether a weight is divided over the tensor ranks, a sum is scattered, experts are divided,
        the queries of attention are, and its keys pass round.
    """

    graph: Graph
    mesh: Mesh
    axes: PlanAxes
    by_position: bool
    ring: bool = False
    whole: frozenset[str] = frozenset()
    storage: Callable[[Value], tuple[str, ...]] = lambda value: ()
    strategies: dict[str, Strategy] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    experts: set[int] = field(default_factory=set)
    divided: bool = False
    scattered: bool = False
    with_experts: bool = False
    with_context: bool = False
    with_ring: bool = False

    def __post_init__(self) -> None:
        lengths = attended_lengths(self.graph)
        self._layouts = {
            value.name: self._input_layout(value, lengths) for value in self.graph.inputs
        }
        self._known: dict[object, _Visited] = {}  # equal operators on equal layouts
        self._layout_once: dict[Layout, Layout] = {}  # equal ones are one object
        # The products whose columns split a tensor, each with the axes that do.
        self._columns: dict[str, Mapping[str, tuple[str, ...]]] = {}
        self._of_expert: dict[str, frozenset[int]] = {}  # the dimensions of experts that are split
        self._weights = {parameter.name for parameter in self.graph.parameters}
        made = []
        for node in self.graph.nodes:
            if node.operands and self._weights.issuperset(node.operands):
                self._weights.update(result.name for result in node.results)
                made.append(node)
            else:
                self._visit(node)
        for node in reversed(made):
            self._make(node)

    def _input_layout(self, value: Value, lengths: frozenset[int]) -> Layout:
        """Split the batch over the data ranks, and its sequences over the context ranks."""
        layout, shape = batch_layout(value, self.mesh, self.axes.data), value.type.shape
        if not self.axes.context or len(shape) < 2 or shape[1] not in lengths:
            return layout
        return Layout((layout.splits[0], self.axes.context, *layout.splits[2:]))

    # Operators on activations

    def _visit(self, node: Node) -> None:
        info = info_of(self.graph, node)
        key = (
            (id(info), node.name in self.whole),
            *[
                (
                    id(self._layouts.get(name)),
                    name in self._weights,
                    self._column_axes([name]),
                    self._of_expert.get(name),
                )
                for name in node.operands
            ],
        )
        if key not in self._known:
            self._known[key] = self._visited(info, node)
        known = self._known[key]
        self.strategies[node.name] = known.strategy
        self._note_dropped(info, node, known.strategy)
        origins = {node.name: known.column} if known.column else {}
        for name in node.operands:
            origins = {**origins, **self._columns.get(name, {})}
        every = zip(node.results, known.split, known.of_expert, known.layouts, strict=True)
        for result, split, of_expert, layout in every:
            self._columns[result.name] = origins if split else {}
            self._of_expert[result.name] = of_expert
            self._layouts[result.name] = layout

    def _visited(self, info: OperatorInfo, node: Node) -> "_Visited":
        factors = self._followed(info, node)
        if isinstance(info, Attention):
            self._split_queries(info, factors)
        weights = [i for i, name in enumerate(node.operands) if name in self._weights]
        of_experts = {f for i in weights for f in expert_factor(info, i)}
        column = self._at_weights(info, weights, node, factors)
        strategy = legal_strategy(info, factors, self.mesh)
        layouts = info.rule.result_layouts(strategy, self.mesh)
        results = zip(node.results, layouts, strict=True)
        left = [self._left(node, result, layout) for result, layout in results]
        left = [self._layout_once.setdefault(layout, layout) for layout in left]
        columns = {*column, *self._column_axes(node.operands)}
        split = [not columns.isdisjoint(layout.split_axes) for layout in layouts]
        divided = of_experts | {
            factor
            for name, dims in zip(node.operands, info.rule.operands, strict=True)
            for dim in self._of_expert.get(name, ())
            for factor in dims[dim]
        }
        of_expert = [
            frozenset(i for i, dim in enumerate(dims) if divided.intersection(dim))
            for dims in info.rule.results
        ]
        return _Visited(info, strategy, column, split, left, of_expert)

    def _column_axes(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the axes of columns that split some tensors."""
        found = (axes for name in names for axes in self._columns.get(name, {}).values())
        return tuple(dict.fromkeys(axis for axes in found for axis in axes))

    def _split_queries(self, info: Attention, factors: Factors) -> None:
        """Note whether context ranks share the queries; pass the keys round, or balance them."""
        split = factors.get("s", ())
        if not self.axes.context or not set(self.axes.context).issubset(split):
            return
        self.with_context = True
        marks = {"t": self.ring, "halves": not self.ring}
        for form in info.rule.forms:
            if marks[form.mark]:
                factors[form.mark] = split
                self.with_ring |= self.ring

    def _followed(self, info: OperatorInfo, node: Node) -> Factors:
        """Follow the operands; tokens return from the experts to the ranks of their batch."""
        layouts = [self._layouts.get(name) for name in node.operands]
        back = [self._contracts_experts(info, i, name) for i, name in enumerate(node.operands)]
        first = [None if b else layout for b, layout in zip(back, layouts, strict=True)]
        factors = followed(info, first, self.mesh, uneven=True)
        if any(back):
            rest = [self._without_experts(layout) for layout in layouts]
            used = {axis for axes in factors.values() for axis in axes}
            for factor, axes in followed(info, rest, self.mesh, uneven=True).items():
                if factor not in factors and used.isdisjoint(axes):
                    factors[factor] = axes
        return factors

    def _contracts_experts(self, info: OperatorInfo, operand: int, name: str) -> bool:
        dims, kinds = info.rule.operands[operand], info.rule.kinds
        return any(kinds[f] == "sum" for dim in self._of_expert.get(name, ()) for f in dims[dim])

    def _without_experts(self, layout: Layout | None) -> Layout | None:
        if layout is None:
            return None
        return Layout(
            tuple(tuple(a for a in axes if a not in self.axes.expert) for axes in layout.splits)
        )

    def _note_dropped(self, info: OperatorInfo, node: Node, strategy: Strategy) -> None:
        """Note the columns of operands that the operator reads whole."""
        for name, dims in zip(node.operands, info.rule.operands, strict=True):
            columns = self._columns.get(name)
            if not columns:
                continue
            for factors, axes in zip(dims, self._layouts[name].splits, strict=True):
                for origin, own in columns.items():
                    split = set(own).intersection(axes)
                    if not split.issubset(strategy.of_factors(factors)):
                        self.dropped.add(origin)

    # Weights

    def _at_weights(
        self, info: OperatorInfo, weights: Sequence[int], node: Node, factors: Factors
    ) -> tuple[str, ...]:
        """Divide the weights of an operator; return the axes over which it takes their columns."""
        for i in weights:
            axes = self.axes.tensor
            for factor in expert_factor(info, i):
                self._divide_experts(info, factor, factors)
                axes = self.axes.of_experts
            if self._take_columns(info, i, node, factors, axes):
                return axes
        return ()

    def _divide_experts(self, info: OperatorInfo, factor: str, factors: Factors) -> None:
        """Divide the products of experts between the expert ranks."""
        experts = self.axes.expert
        self.experts.add(info.rule.sizes[factor])
        if experts and can_split(info.rule, factor, experts, self.mesh):
            _remove(factors, experts)
            factors[factor] = experts
            self.with_experts = True

    def _take_columns(
        self,
        info: OperatorInfo,
        weight: int,
        node: Node,
        factors: Factors,
        tensor: tuple[str, ...],
    ) -> bool:
        """Split the columns of a weight, or the rows of a table, over the tensor ranks."""
        rule = info.rule
        if not tensor or info.operand_types[weight].rank not in (2, 3):
            return False
        if split := self._column_axes(node.operands):
            contracted = [f for f, axes in factors.items() if set(split).intersection(axes)]
            self.divided |= any(rule.kinds[f] == "sum" for f in contracted)
            return False
        factor = _column_factor(rule, weight, self._biases(node))
        if factor is None or not can_split(rule, factor, tensor, self.mesh, uneven=True):
            return False
        if node.name in self.whole:
            return False
        _remove(factors, tensor)
        factors[factor] = (*factors.get(factor, ()), *tensor)
        self.divided = True
        return True

    def _biases(self, node: Node) -> frozenset[int]:
        """Return the operands that are weights of one dimension: it is split as the columns are."""
        operands = enumerate(self.graph.operand_values(node))
        return frozenset(i for i, v in operands if v.name in self._weights and v.type.rank == 1)

    def _left(self, node: Node, result: Value, layout: Layout) -> Layout:
        """Return the layout in which a result goes on: a sum over tensor ranks may be scattered."""
        tensor = self.axes.tensor
        summed = tensor and set(tensor) <= set(layout.partial)
        layout = layout.reduced()
        matrix = any(
            name in self._weights and self.graph.values[name].type.rank == 2
            for name in node.operands
        )
        shape = result.type.shape
        if not (self.by_position and summed and matrix and len(shape) == 3):
            return layout
        positions = (*layout.splits[1], *tensor)
        others = set(layout.splits[1]).difference(self.axes.context)
        if others or shape[1] % self.mesh.extent(positions):
            return layout
        self.scattered = True
        return Layout((layout.splits[0], positions, layout.splits[2]))

    # Operators on weights alone, such as casts

    def _make(self, node: Node) -> None:
        """Split an operator that makes a weight as its reader takes it.

        A dimension that the operator keeps whole, such as columns that it cuts in parts, gives its
        axes to another one: ranks then exchange parts of the weight, and none makes all of it. The
        axes of the storage divide it, too, so that its gradient is reduced into parts.
        """
        info = info_of(self.graph, node)
        rule, wanted = info.rule, self._layout_at_reader(node.results[0])
        factors: Factors = {}
        left: list[tuple[str, ...]] = []
        for dims, axes in zip(rule.results[0], wanted.splits, strict=True):
            if len(dims) == 1 and rule.kinds[dims[0]] != "whole":
                factors[dims[0]] = axes
            else:
                left.append(axes)
        used = {axis for axes in wanted.splits for axis in axes}
        if node.operator != "cast":  # casts are divided as their parameters
            storage = self.storage(self.graph.values[node.operands[0]])
            left.append(tuple(axis for axis in storage if axis not in used))
        for axes in filter(None, left):
            self._divide_further(rule, factors, axes)
        self.strategies[node.name] = legal_strategy(info, factors, self.mesh)

    def _divide_further(self, rule: Rule, factors: Factors, axes: tuple[str, ...]) -> None:
        """Let axes divide the largest parts that they divide evenly."""
        parts = {f: rule.sizes[f] // self.mesh.extent(split) for f, split in factors.items()}
        for factor in sorted(parts, key=parts.__getitem__, reverse=True):
            if can_split(rule, factor, (*factors[factor], *axes), self.mesh):
                factors[factor] = (*factors[factor], *axes)
                return

    def _layout_at_reader(self, value: Value) -> Layout:
        for node, position in self.graph.uses[value.name]:
            if node.name in self.strategies:
                rule = info_of(self.graph, node).rule
                return rule.operand_layouts(self.strategies[node.name])[position]
        return Layout.replicated(value.type.rank)


def _remove(factors: Factors, axes: tuple[str, ...]) -> None:
    """Remove axes from every factor."""
    for factor in [*factors]:
        factors[factor] = tuple(axis for axis in factors[factor] if axis not in axes)


def walk(
    graph: Graph,
    mesh: Mesh,
    axes: PlanAxes,
    *,
    by_position: bool,
    ring: bool = False,
    storage: Callable[[Value], tuple[str, ...]] = lambda value: (),
    alike: bool = False,
) -> Walk:
    """Return the walk in which every split of columns is followed.

    With `alike`, what cannot be followed in one repeated block is not in any: fewer walks are made.
    """
    whole = _waists(graph)
    while True:
        found = Walk(graph, mesh, axes, by_position, ring, whole, storage)
        if found.dropped <= whole:
            return found
        whole |= _alike(graph, found.dropped) if alike else found.dropped


_DENSE = ("matmul", "quantized_matmul")


def _waists(graph: Graph) -> frozenset[str]:
    """Return products whose narrow results a product widens: splitting that one sends less."""

    def found() -> frozenset[str]:
        weights = {parameter.name for parameter in graph.parameters}
        narrow, waists = dict[str, int](), set[str]()
        for node in graph.nodes:
            if node.operands and weights.issuperset(node.operands):
                weights.update(result.name for result in node.results)
            elif node.operator in _DENSE and node.operands[1] in weights:
                name = node.operands[0]
                inputs, outputs = graph.values[name].type.shape[-1], node.results[0].type.shape[-1]
                if outputs > narrow.get(name, outputs):
                    waists.add(name)
                if outputs < inputs:
                    narrow[node.name] = outputs
        return frozenset(waists)

    return graph.analysed("waists", found)


def _alike(graph: Graph, operators: Collection[str]) -> frozenset[str]:
    """Return some operators with those of the same kind at the same place of other blocks."""
    kinds = {n.name: (n.operator, pattern(n.scope)) for n in graph.nodes}
    wanted = {kinds[name] for name in operators}
    return frozenset(name for name, kind in kinds.items() if kind in wanted)


def attended_lengths(graph: Graph) -> frozenset[int]:
    """Return the numbers of queries of the attention of a program."""

    def lengths() -> frozenset[int]:
        infos = (info_of(graph, node) for node in graph.nodes)
        return frozenset(info.rule.sizes["s"] for info in infos if isinstance(info, Attention))

    return graph.analysed("attended lengths", lengths)


def expert_factor(info: OperatorInfo, weight: int) -> tuple[str, ...]:
    """Return the factor of experts of their weights ``[expert, inputs, outputs]``, or none."""
    dims = info.rule.operands[weight]
    if not info.product_flops or len(dims) != 3 or len(dims[0]) != 1:
        return ()
    shared = dims[0][0] in _factors_of_others(info.rule, weight)
    return dims[0] if shared and info.rule.kinds[dims[0][0]] == "parallel" else ()


def weights_of_experts(graph: Graph) -> frozenset[str]:
    """Return the weights of products of experts, and what these are made of."""

    def found() -> frozenset[str]:
        weights = {parameter.name for parameter in graph.parameters}
        made, of_experts = list[Node](), set[str]()
        for node in graph.nodes:
            if node.operands and weights.issuperset(node.operands):
                weights.update(result.name for result in node.results)
                made.append(node)
                continue
            for i, name in enumerate(node.operands):
                if name in weights and expert_factor(info_of(graph, node), i):
                    of_experts.add(name)
        for node in reversed(made):
            if not of_experts.isdisjoint(result.name for result in node.results):
                of_experts.update(node.operands)
        return frozenset(of_experts)

    return graph.analysed("weights of experts", found)


def _column_factor(rule: Rule, weight: int, biases: Collection[int]) -> str | None:
    """Return the factor of a weight that no other operand has: columns, or rows of an embedding.

    Biases may have it.
    """
    others = _factors_of_others(rule, weight, biases)
    own = [f for factors in rule.operands[weight] for f in factors if f not in others]
    contracted = [factor for factor in own if rule.kinds[factor] == "sum"]
    return next(iter(contracted or own), None)


def _factors_of_others(rule: Rule, operand: int, but: Collection[int] = ()) -> set[str]:
    """Return the factors of all operands but one, and further ones."""
    tensors = (dims for i, dims in enumerate(rule.operands) if i != operand and i not in but)
    return {factor for dims in tensors for factors in dims for factor in factors}
