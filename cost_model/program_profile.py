"""Profiles that price the emitted program, node by node."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.backward_memory import BackwardMemory
from shardwright.cost_model.cluster import HOST_LINKS, Cluster
from shardwright.cost_model.emission import Emission, OperatorEmitter, Placed
from shardwright.cost_model.profile import (
    CostProfile,
    EdgeLayout,
    OperatorTable,
    ProfileRequest,
    RecomputeCost,
    UpdateRule,
    check_cost,
    check_costs,
)
from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.cost_model.roofline import node_costs, placed_cost
from shardwright.ir.errors import PassError
from shardwright.ir.graph import Graph, Value
from shardwright.ir.layout import Layout, Strategy, local_bytes
from shardwright.ir.liveness import times_run
from shardwright.ir.mesh import Mesh
from shardwright.ir.registry import explained
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.info import OperatorInfo, operator_info
from shardwright.operators.models.update_steps import (
    UpdateScalars,
    emit_update,
    state_values,
)

Floats = NDArray[np.float64]
Emissions = dict[tuple[OperatorInfo, tuple[bool, ...]], list[tuple[Emission, int]]]
"""Each strategy of an operator emitted, with the position of the one that costs the same."""
Tables = dict[tuple[OperatorInfo, tuple[bool, ...]], OperatorTable]
"""The strategies of operators, by the gradients that are wanted of their operands."""


@lru_cache(maxsize=4096)  # equal operators share their information
def every_strategy(info: OperatorInfo, mesh: Mesh) -> tuple[Strategy, ...]:
    """Return every legal strategy of an operator."""
    return info.generate_strategies(mesh)


class ProgramProfile(CostProfile):
    """The cost of a program is the sum of the costs of its emitted nodes.

    A subclass sets `name` and overrides `operator_cost` and `move_costs`. Both must depend on the
    size and the level of mesh axes alone, not on their names.

    Parameters
    ----------
    mesh, cluster : Mesh, Cluster
        Where the program runs.
    update_rule : UpdateRule, optional
        The optimizer; None where parameters are not updated.
    by_orbit : bool
        Whether one strategy stands for its orbit. Edges then cost what they cost between the
        nearest elements of two orbits.
    planner : RedistributionPlanner, optional
        A planner of `make_planner`, to share its paths; a new one if not given.
    emissions : dict, optional
        Emitted operators by operator and wanted gradients, to share them between profiles.
    """

    prices_recomputation = True
    prices_passes = True
    prices_conversions = True

    def __init__(
        self,
        mesh: Mesh,
        cluster: Cluster,
        update_rule: UpdateRule | None = None,
        by_orbit: bool = False,
        planner: RedistributionPlanner | None = None,
        emissions: Emissions | None = None,
    ) -> None:
        self.mesh, self.cluster, self.update_rule = mesh, cluster, update_rule
        self.planner = planner or RedistributionPlanner(
            mesh, self._checked_moves, self.packing_costs
        )
        self.orbit_planner = self.planner if by_orbit else None
        self._move = self.planner.orbit_costs if by_orbit else self.planner.costs
        back = self.planner.of_gradients
        self._move_back = back.orbit_costs if by_orbit else back.costs
        self._tables: Tables = {}
        # What the forward nodes of the emissions cost the second time, of the table that is made.
        self._forward: dict[int, list[tuple[float, float]]] = {}
        self._emissions: Emissions = {} if emissions is None else emissions
        self._among: Mapping[OperatorInfo, frozenset[Strategy]] = {}

    @classmethod
    def create(cls, request: ProfileRequest) -> Self:
        """Return the profile of a compilation."""
        planner = request.planner
        found = cls(planner.mesh, request.cluster, request.update_rule, request.by_orbit, planner)
        found._among = request.among
        return found

    @classmethod
    def make_planner(cls, mesh: Mesh, cluster: Cluster) -> RedistributionPlanner:
        """Return the planner of the cheapest paths by `move_costs`.

        Its prices have another planner, so that its paths are no part of a reference cycle.
        """
        prices = cls(mesh, cluster)
        return RedistributionPlanner(mesh, prices._checked_moves, prices.packing_costs)

    @abstractmethod
    def operator_cost(
        self, info: OperatorInfo, operands: Sequence[Layout], results: Sequence[Layout]
    ) -> float:
        """Return the cost of a computing operator, with its operands and results so laid out."""

    @abstractmethod
    def move_costs(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        """Return the cost of a communication operator over axes, for several sizes of its operand.

        ``local_copy``, ``local_slice`` and ``to_partial`` stay on the rank.
        """

    def packing_costs(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        """Return the further cost of an operator whose parts are copied (`moves.is_packed`).

        Those are gathered or reduced along a later dimension than the first. Nothing by default.
        """
        return np.zeros(len(local_bytes))

    def _checked_moves(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        with explained(self, f"the cost profile `{self.name}`", PassError):
            costs = self.move_costs(operator, axes, local_bytes.copy())
        return check_costs(self.name, operator, costs, len(local_bytes))

    def program_cost(self, program: Graph) -> float:
        """Return the sum of the costs of all nodes: a step without any overlap."""
        mesh = program.mesh or self.mesh
        prices = self if mesh == self.mesh else self._on(mesh)
        costs = node_costs(program, mesh, prices)
        return sum(times * cost for cost, times in zip(costs, times_run(program), strict=True))

    def _on(self, mesh: Mesh) -> Self:
        """Return the prices on the mesh with an axis that is run in time."""
        prices = copy(self)
        prices.mesh = mesh
        return prices

    # Operators

    def table(
        self,
        info: OperatorInfo,
        wanted: tuple[bool, ...],
        stored: tuple[bool, ...],
        pinned: bool = False,
    ) -> OperatorTable:
        """Return the strategies of an operator with their costs."""
        key = (info, wanted)
        if key not in self._tables:
            self._tables[key] = self._make_table(info, wanted)
        return self._tables[key]

    def _make_table(self, info: OperatorInfo, wanted: tuple[bool, ...]) -> OperatorTable:
        strategies = self._strategies(info)
        priced = self._priced(info, strategies, wanted)
        emissions = [emission for _, emission in priced]
        return OperatorTable(
            info,
            strategies,
            np.array([cost for cost, _ in priced]),
            tuple(zip(*(emission.operands for emission in emissions), strict=True)),
            tuple(zip(*(emission.results for emission in emissions), strict=True)),
            BackwardMemory(
                tuple(map(np.array, zip(*(e.saved_operands for e in emissions), strict=True))),
                tuple(map(np.array, zip(*(e.saved_results for e in emissions), strict=True))),
                tuple(emission.work.moments for emission in emissions),
                tuple(map(all, zip(*(e.work.separate for e in emissions), strict=True))),
                _kept(emissions),
            ),
            self._recompute_cost(emissions),
        )

    def _strategies(self, info: OperatorInfo) -> tuple[Strategy, ...]:
        """Return the strategies of an operator; all, if it has none of those asked for."""
        if not (asked := self._among.get(info, frozenset())):
            return info.generate_strategies(self.mesh, self.kinds)
        found = every_strategy(info, self.mesh)
        return tuple(strategy for strategy in found if strategy in asked) or found

    def _recompute_cost(self, emissions: Sequence[Emission]) -> RecomputeCost:
        """Price the forward nodes of each strategy, exchanges of halos by operand."""
        known: dict[int, list[float]] = {}  # emissions under permuted axes share their nodes
        for emission in emissions:
            if id(emission.forward) not in known:
                known[id(emission.forward)] = self._forward_costs(emission)
        costs = np.array([known[id(emission.forward)] for emission in emissions])
        self._forward.clear()
        return RecomputeCost(costs[:, 1], tuple(costs[:, 2:].T), costs[:, 0])

    def _forward_costs(self, emission: Emission) -> list[float]:
        """Return the cost of a second computation, from parameters alone and from anything.

        Then that of the exchanges for each operand.
        """
        costs = [0.0] * (2 + len(emission.operands))
        priced = self._forward[id(emission.forward)]
        for placed, (cost, of_parameters) in zip(emission.forward, priced, strict=True):
            if placed.exchanged is not None:
                costs[2 + placed.exchanged] += cost
                continue
            costs[1] += cost
            costs[0] += of_parameters
        return costs

    def _priced(
        self, info: OperatorInfo, strategies: Sequence[Strategy], wanted: tuple[bool, ...]
    ) -> list[tuple[float, Emission]]:
        """Emit and price each strategy, but only one of those that differ by equal axes."""
        if (info, wanted) not in self._emissions:
            self._emissions[info, wanted] = self._emitted(info, strategies, wanted)
        emitted, costs = self._emissions[info, wanted], dict[int, float]()
        for emission, twin in emitted:
            if twin not in costs:
                with explained(self, f"the cost profile `{self.name}`", PassError):
                    costs[twin] = self._emission_cost(emission)
        return [(costs[twin], emission) for emission, twin in emitted]

    def _emitted(
        self, info: OperatorInfo, strategies: Sequence[Strategy], wanted: tuple[bool, ...]
    ) -> list[tuple[Emission, int]]:
        first: dict[object, int] = {}
        emitted: list[tuple[Emission, int]] = []
        emitter = OperatorEmitter(info, wanted, self.mesh)
        for position, strategy in enumerate(strategies):
            key = tuple(
                (factor, tuple((axis.size, axis.level) for axis in map(self.mesh.axis, axes)))
                for factor, axes in strategy.assignment
            )
            twin = first.setdefault(key, position)
            if twin == position:
                emission = emitter.emit(strategy)
            else:
                factors = info.rule.sizes
                ends = strategies[twin].of_factors(factors), strategy.of_factors(factors)
                pairs = zip(*ends, strict=True)
                emission = emitted[twin][0].renamed(dict(pairs), self.mesh)
            emitted.append((emission, twin))
        return emitted

    def _emission_cost(self, emission: Emission) -> float:
        forward = [self._placed_cost(placed) for placed in emission.forward]
        prices = self.of_gradients
        backward = [prices._placed_cost(placed) for placed in emission.backward]
        self._forward[id(emission.forward)] = self._second_costs(emission, forward)
        return sum(forward) + sum(backward)

    def _second_costs(self, emission: Emission, forward: list[float]) -> list[tuple[float, float]]:
        """Return what the forward nodes cost where they are computed a second time.

        For any operands, and for such as are made of parameters alone.
        """
        prices, early = self.of_gradients, self.of_parameters.second
        if prices is self:
            return [(cost, cost) for cost in forward]
        found = []
        for placed in emission.forward:
            cost = least = prices._placed_cost(placed)
            if not placed.info.is_collective:
                least = early._placed_cost(placed)
            found.append((cost, least))
        return found

    def _placed_cost(self, placed: Placed) -> float:
        cost = placed_cost(placed.info, placed.operands, placed.results, self.mesh, self)
        return check_cost(self.name, placed.info.name, cost)

    # Tensors

    def edges(
        self, tensor: TensorType, sources: Sequence[EdgeLayout], targets: Sequence[EdgeLayout]
    ) -> Floats:
        """Return the cost of redistributing a tensor, and its cotangent back."""
        starts = [edge.layout for edge in sources]
        ends = [edge.layout for edge in targets]
        costs = self._move(tensor, starts, ends)
        back = [i for i, edge in enumerate(targets) if edge.cotangent is not None]
        if back and all(edge.cotangent is not None for edge in sources):
            cotangents = [c for edge in targets if (c := edge.cotangent) is not None]
            due = [c for edge in sources if (c := edge.cotangent) is not None]
            costs[:, back] += self._move_back(tensor, cotangents, due).T
        return costs

    def accumulation(self, tensor: TensorType, layout: Layout) -> float:
        """Return the cost of adding two cotangents."""
        return self.of_gradients.addition(tensor, layout)

    def addition(self, tensor: TensorType, layout: Layout) -> float:
        """Return the cost of adding two values of the forward pass."""
        info = operator_info("add", (tensor, tensor), {})
        return self.operator_cost(info, (layout, layout), (layout,))

    def copy(self, tensor: TensorType, layout: Layout) -> float:
        """Return the cost of copying a tensor on every rank."""
        size = np.array([local_bytes(tensor, layout, self.mesh)])
        return float(self.move_costs("local_copy", (), size)[0])

    def host_copies(self, tensor: TensorType, layouts: Sequence[Layout]) -> Floats:
        """Return the cost of copying a tensor to host memory and back, in several layouts."""
        sizes = np.array([local_bytes(tensor, layout, self.mesh) for layout in layouts])
        out, back = (self.host_copy(operator, sizes) for operator in HOST_LINKS)
        return out + back

    def host_copy(self, operator: str, local_bytes: Floats) -> Floats:
        """Return the cost of a copy to or from host memory, for several sizes."""
        return self.move_costs(operator, (), local_bytes)

    # The optimizer

    def constant(self) -> float:
        """Return the cost of scalars: steps, learning rates, and a dynamic loss scale."""
        rule, prices = self.update_rule, self.of_updates
        if rule is None:
            return 0.0
        if prices is not self:
            return prices.constant()
        cost, step = self._totals(rule), TensorType("int64", ())
        if rule.optimizer.counts_steps:
            counts = ("add", step, step) if rule.guarded else ("add_scalar", step)
            cost += self._of_scalars(*counts)
        return cost + rule.rates * self._of_scalars("learning_rate", step)

    def update(self, parameter: Value, gradient: str) -> float:
        """Return the cost of the optimizer's update."""
        rule, prices, layout = self.update_rule, self.of_updates, parameter.layout
        if rule is None or layout is None:
            return 0.0
        if prices is not self:
            return prices.update(parameter, gradient)
        tensor, cost = parameter.type, 0.0
        narrow = replace(tensor, dtype=gradient)
        if rule.unscales:
            if narrow != tensor:
                cost += self.cast(narrow, tensor.dtype, layout)
            narrow = tensor
            scale = operator_info("scale", (tensor,), {})
            cost += self.operator_cost(scale, (layout,), (layout,))
        if rule.guarded:
            cost += self._part(operator_info("count_nonfinite", (narrow,), {}), layout)
        if rule.clipped:
            summed = operator_info("sum_squares", (narrow,), {"dtype": rule.sum_dtype})
            clip = operator_info("clip_by_norm", (narrow, *summed.result_types), {})
            cost += self._part(summed, layout)
            cost += self.operator_cost(clip, (layout, Layout.replicated(0)), (layout,))
        return cost + self._emitted_update(rule, parameter, Value("gradient", narrow, layout))

    def _emitted_update(self, rule: UpdateRule, parameter: Value, gradient: Value) -> float:
        """Return the cost of the operators that update a parameter from its gradient."""
        build, optimizer = Builder(self.mesh), rule.optimizer
        states = [value for _, value in state_values(optimizer, parameter, self.mesh)]
        scalars = UpdateScalars(
            _scalar("step", "int64") if optimizer.reads_step(parameter.name) else None,
            _scalar("rate", "float64") if rule.rates else None,
            _scalar("scale", "float32") if rule.guarded else None,
            _scalar("nonfinite", "int64") if rule.guarded else None,
        )
        emit_update(build, optimizer, parameter, gradient, states, scalars)
        given = (parameter, gradient, *states, *scalars.operands)
        values = {value.name: value for value in given}
        cost = 0.0
        for node in build.nodes:
            values.update((result.name, result) for result in node.results)
            operands = [values[name] for name in node.operands]
            types = [value.type for value in operands]
            taken = [value.known_layout for value in operands]
            left = [value.known_layout for value in node.results]
            if node.operator == "redistribute":
                cost += float(self._move(types[0], taken, left)[0, 0])
            else:
                info = operator_info(node.operator, types, node.attributes)
                cost += self.operator_cost(info, taken, left)
        return cost

    def _totals(self, rule: UpdateRule) -> float:
        """Return the cost of adding up overflows and squares, and of what follows from the sums."""
        count, square = TensorType("int64", ()), TensorType(rule.sum_dtype, ())
        cost = self._total(count, rule.guarded) + self._total(square, rule.clipped)
        if rule.guarded:
            cost += self._of_scalars("loss_scale_update", TensorType("float32", ()), count, count)
        if rule.guarded and rule.clipped:
            cost += 2 * self._of_scalars("div", square, square)
        return cost

    def _total(self, kind: TensorType, gradients: int) -> float:
        """Return the cost of adding up a scalar of each gradient, on all ranks."""
        if not gradients:
            return 0.0
        cost = (gradients - 1) * self._of_scalars("add", kind, kind)
        return cost + self._scalar_move("all_reduce", kind, ())

    def _of_scalars(self, operator: str, *types: TensorType) -> float:
        """Return the cost of an operator on scalars that every rank has."""
        info, scalar = operator_info(operator, types, {}), Layout.replicated(0)
        return self.operator_cost(info, (scalar,) * len(types), (scalar,) * len(info.result_types))

    def _part(self, info: OperatorInfo, layout: Layout) -> float:
        """Return the cost of a scalar that is made of a gradient; what ranks share counts once."""
        cost = self.operator_cost(info, (layout,), (Layout.replicated(0),))
        return cost + self._scalar_move("to_partial", info.result_types[0], layout.split_axes)

    def _scalar_move(self, operator: str, kind: TensorType, split: Sequence[str]) -> float:
        ranks = (axis.name for axis in self.mesh.of_ranks.axes if axis.size > 1)
        axes = tuple(name for name in ranks if name not in split)
        size = np.array([float(kind.nbytes)])
        return float(self.move_costs(operator, axes, size)[0]) if axes else 0.0

    def convert(self, tensor: TensorType, dtype: str, layout: Layout) -> float:
        """Return the cost of converting a gradient to the type in which it is added up."""
        return self.of_gradients.conversion(tensor, dtype, layout)

    def conversion(self, tensor: TensorType, dtype: str, layout: Layout) -> float:
        """Return the cost of converting a value of the forward pass that passes add up."""
        info = operator_info("convert", (tensor,), {"dtype": dtype})
        return self.operator_cost(info, (layout,), (layout,))

    def cast(self, tensor: TensorType, dtype: str, layout: Layout) -> float:
        """Return the cost of casting a parameter, or its gradient, where it is stored."""
        info = operator_info("cast", (tensor,), {"dtype": dtype})
        return self.operator_cost(info, (layout,), (layout,))


def _scalar(name: str, dtype: str) -> Value:
    return Value(name, TensorType(dtype, ()), Layout.replicated(0))


def _kept(emissions: Sequence[Emission]) -> tuple[Floats, Floats] | None:
    """Return the bytes that only gradients of forms save; None where there are none."""
    results, more = np.array([emission.kept for emission in emissions]).T
    return (results, more) if more.any() else None
