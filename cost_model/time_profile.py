"""The profile that minimises seconds: what will be emitted, priced as the emitted program is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.backward_memory import (
    BackwardMemory,
    Work,
    work_of,
)
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.profile import EdgeLayout, OperatorTable
from shardwright.cost_model.redistribution.layout_graph import kinds_of
from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.cost_model.roofline import emitted_seconds, operator_seconds, value_bytes
from shardwright.ir.graph import Attribute, Node, Value
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.ir.reachability import live
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.info import OperatorInfo, operator_info
from shardwright.operators.models.optimizer import state_type
from shardwright.operators.windows.halo_exchange import emit_split, emit_split_gradient

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class UpdateRule:
    """The optimizer's operator, as far as its cost matters.

    Parameters
    ----------
    operator : str
        Name of the operator.
    states : int
        Number of tensors that it keeps for each parameter.
    counts_steps : bool
        Whether it reads the number of the step.
    settings : tuple of (str, attribute)
        Attributes of the operator.
    unscales : bool
        Whether gradients carry a factor that is divided out first.
    """

    operator: str
    states: int
    counts_steps: bool
    settings: tuple[tuple[str, Attribute], ...] = ()
    unscales: bool = False


class TimeProfile:
    """Seconds of the emitted program on a cluster.

    Parameters
    ----------
    planner : RedistributionPlanner
        Prices and plans changes of layout.
    update_rule : UpdateRule, optional
        The optimizer; None where parameters are not updated.
    by_orbit : bool
        Whether one strategy stands for all that differ by axes that are alike. Edges then cost what
        they cost at least: as much as between the nearest of two classes.
    """

    name = "time"

    def __init__(
        self,
        planner: RedistributionPlanner,
        update_rule: UpdateRule | None = None,
        by_orbit: bool = False,
    ) -> None:
        self.planner = planner
        self.mesh: Mesh = planner.mesh
        self.cluster: Cluster = planner.cluster
        self.update_rule = update_rule
        self.kinds = kinds_of(self.mesh) if by_orbit else None
        self.orbit_planner = planner if by_orbit else None
        self._seconds = planner.orbit_seconds if by_orbit else planner.seconds
        self._tables: dict[tuple[OperatorInfo, tuple[bool, ...]], OperatorTable] = {}

    def readers_share_layout(self) -> bool:
        """Return True: a tensor is brought to a layout once."""
        return True

    def stays(self, maker: OperatorInfo | None) -> bool:
        """Return False: everything may be redistributed."""
        return False

    def stored_freely(self) -> bool:
        """Return True: storing is a choice of its own."""
        return True

    def constant(self) -> float:
        """Return the seconds of counting the steps, where the optimizer does."""
        if self.update_rule is None or not self.update_rule.counts_steps:
            return 0.0
        info = operator_info("add_scalar", (TensorType("int64", ()),), {"value": 1})
        scalar = (Layout.replicated(0),)
        return operator_seconds(info, scalar, scalar, self.mesh, self.cluster)

    def table(
        self,
        info: OperatorInfo,
        wanted: tuple[bool, ...],
        stored: tuple[bool, ...],
        pinned: bool = False,
    ) -> OperatorTable:
        """Return the strategies of an operator with the seconds of each."""
        key = (info, wanted)
        if key not in self._tables:
            self._tables[key] = self._make_table(info, wanted)
        return self._tables[key]

    def _make_table(self, info: OperatorInfo, wanted: tuple[bool, ...]) -> OperatorTable:
        strategies = info.generate_strategies(self.mesh, self.kinds)
        sides = self._all_sides(info, strategies, wanted)
        return OperatorTable(
            info,
            strategies,
            np.array([side.seconds for side in sides]),
            tuple(zip(*(side.operands for side in sides), strict=True)),
            tuple(zip(*(side.results for side in sides), strict=True)),
            BackwardMemory(
                tuple(map(np.array, zip(*(side.saved_operands for side in sides), strict=True))),
                tuple(map(np.array, zip(*(side.saved_results for side in sides), strict=True))),
                tuple(side.work.moments for side in sides),
                tuple(map(all, zip(*(side.work.separate for side in sides), strict=True))),
            ),
        )

    def _all_sides(
        self, info: OperatorInfo, strategies: Sequence[Strategy], wanted: tuple[bool, ...]
    ) -> list["_Sides"]:
        """Price each strategy, but those that differ only by equal axes of one level once."""
        first: dict[object, tuple[Strategy, _Sides]] = {}
        found = []
        for strategy in strategies:
            key = tuple(
                (factor, tuple((axis.size, axis.level) for axis in map(self.mesh.axis, axes)))
                for factor, axes in strategy.assignment
            )
            if key not in first:
                first[key] = strategy, self._both_sides(info, strategy, wanted)
            twin, sides = first[key]
            factors = info.rule.sizes
            pairs = zip(twin.of_factors(factors), strategy.of_factors(factors), strict=True)
            found.append(sides if twin is strategy else sides.renamed(dict(pairs), self.mesh))
        return found

    def _both_sides(
        self, info: OperatorInfo, strategy: Strategy, wanted: tuple[bool, ...]
    ) -> "_Sides":
        """Price an operator and its gradient under one strategy, by emitting the gradient."""
        taken, left = info.infer_tensor_layouts(strategy, self.mesh)
        operands = _values("operand", info.operand_types, taken)
        forward = Builder(self.mesh)
        node = Node(
            info.name,
            tuple(value.name for value in operands),
            _values("result", info.result_types, left),
            info.attributes,
        )
        split = emit_split(forward, node, operands, strategy)
        seconds = self._all_seconds(forward.nodes, operands)
        if not any(wanted):
            ports = tuple(EdgeLayout(layout, None) for layout in taken)
            none = Work((), (False,) * len(taken))
            return _Sides(seconds, ports, left, (0.0,) * len(taken), (0.0,) * len(left), none)
        build = Builder(self.mesh)
        reduced = tuple(layout.reduced() for layout in left)
        cotangents = _values("cotangent", info.result_types, reduced)
        gradients = [
            value if want else None
            for value, want in zip(
                emit_split_gradient(build, split, cotangents), wanted, strict=True
            )
        ]
        ends = [value.name for value in gradients if value is not None]
        nodes, read = live(build.nodes, ends)
        seconds += self._all_seconds(nodes, [*split.read, *split.made, *cotangents])
        ports = tuple(
            EdgeLayout(layout, None if value is None else value.layout)
            for layout, value in zip(taken, gradients, strict=True)
        )
        return _Sides(
            seconds,
            ports,
            left,
            tuple(value_bytes(v, self.mesh) if v.name in read else 0.0 for v in split.read),
            tuple(value_bytes(v, self.mesh) if v.name in read else 0.0 for v in split.made),
            work_of(split, wanted, self.mesh),
        )

    def _all_seconds(self, nodes: Sequence[Node], given: Sequence[Value]) -> float:
        table = {value.name: value for value in given}
        table |= {result.name: result for node in nodes for result in node.results}
        return sum(
            emitted_seconds(node, [table[n] for n in node.operands], self.mesh, self.cluster)
            for node in nodes
        )

    def edges(
        self, tensor: TensorType, sources: Sequence[EdgeLayout], targets: Sequence[EdgeLayout]
    ) -> Floats:
        """Return the seconds to bring a tensor and to return its cotangent."""
        starts = [port.layout for port in sources]
        ends = [port.layout for port in targets]
        seconds = self._seconds(tensor, starts, ends)
        back = [i for i, port in enumerate(targets) if port.cotangent is not None]
        if back and all(port.cotangent is not None for port in sources):
            cotangents = [c for port in targets if (c := port.cotangent) is not None]
            due = [c for port in sources if (c := port.cotangent) is not None]
            seconds[:, back] += self._seconds(tensor, cotangents, due).T
        return seconds

    def again(
        self, tensor: TensorType, sources: Sequence[Layout], targets: Sequence[Layout]
    ) -> Floats:
        """Return the seconds to bring a tensor a second time."""
        return self._seconds(tensor, list(sources), list(targets))

    def leaving(
        self, tensor: TensorType, sources: Sequence[EdgeLayout], target: EdgeLayout
    ) -> Floats:
        """Return the seconds to make an output whole."""
        return self.edges(tensor, sources, (target,))

    def accumulation(self, tensor: TensorType, layout: Layout) -> float:
        """Return the seconds to add two cotangents."""
        info = operator_info("add", (tensor, tensor), {})
        return operator_seconds(info, (layout, layout), (layout,), self.mesh, self.cluster)

    def update(self, tensor: TensorType, layout: Layout) -> float:
        """Return the seconds of the optimizer's update."""
        rule = self.update_rule
        if rule is None:
            return 0.0
        types = [tensor] * 2 + [state_type(tensor)] * rule.states
        types += [TensorType("int64", ())] * rule.counts_steps
        layouts = [layout] * (2 + rule.states) + [Layout.replicated(0)] * rule.counts_steps
        info = operator_info(rule.operator, types, dict(rule.settings))
        results = [layout] * len(info.result_types)
        seconds = operator_seconds(info, layouts, results, self.mesh, self.cluster)
        if rule.unscales:
            scale = operator_info("scale", (tensor,), {})
            seconds += operator_seconds(scale, (layout,), (layout,), self.mesh, self.cluster)
        return seconds


@dataclass(frozen=True)
class _Sides:
    """An operator and its gradient under one strategy."""

    seconds: float
    operands: tuple[EdgeLayout, ...]
    results: tuple[Layout, ...]
    saved_operands: tuple[float, ...]
    saved_results: tuple[float, ...]
    work: Work

    def renamed(self, names: Mapping[str, str], mesh: Mesh) -> "_Sides":
        """Return the same with other mesh axes."""
        return replace(
            self,
            operands=tuple(port.renamed(names, mesh) for port in self.operands),
            results=tuple(layout.renamed(names, mesh) for layout in self.results),
        )


def _values(kind: str, types: Sequence[TensorType], layouts: Sequence[Layout]) -> tuple[Value, ...]:
    pairs = zip(types, layouts, strict=True)
    return tuple(Value(f"{kind}.{i}", tensor, layout) for i, (tensor, layout) in enumerate(pairs))
