"""Cost profiles: what a search minimises.

A profile prices the forward *and* the backward side of each choice, so that a search over the
forward program minimises the whole step. `program_profile.ProgramProfile` is the base class of
profiles that price the emitted program node by node; most profiles derive from it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.backward_memory import BackwardMemory
from shardwright.cost_model.cluster import Cluster, mesh_for
from shardwright.cost_model.redistribution.layout_graph import kinds_of
from shardwright.cost_model.redistribution.moves import Kinds
from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.ir.errors import PassError
from shardwright.ir.graph import Graph, Value
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.operators.info import OperatorInfo
from shardwright.operators.models.optimizer import Optimizer

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
ONCE, WHEN_READ, WHEN_ENTERED, REGATHERED, OFFLOADED = range(5)
"""Whether and when a result is made a second time for the gradient: never; when a gradient reads
it; when backward enters its segment; by its redistribution alone; or from host memory."""


@dataclass(frozen=True)
class EdgeLayout:
    """One end of an edge: the layout of a tensor there, and of its cotangent.

    Parameters
    ----------
    layout : Layout
        The layout of the tensor.
    cotangent : Layout or None
        The layout of its gradient; None where there is none.
    """

    layout: Layout
    cotangent: Layout | None

    def renamed(self, names: Mapping[str, str], mesh: Mesh) -> "EdgeLayout":
        """Return the layouts under a permutation of axes."""
        gradient = None if self.cotangent is None else self.cotangent.renamed(names, mesh)
        return EdgeLayout(self.layout.renamed(names, mesh), gradient)


@dataclass(frozen=True, eq=False)
class RecomputeCost:
    """The cost of computing an operator a second time, for each of its strategies.

    Parameters
    ----------
    operator : array of shape (strategies,)
        The operator itself, and the sums of halos of its results.
    exchanges : tuple of (array of shape (strategies,))
        For each operand, the exchange of its halos; it is paid where the operand is recomputed.
    of_parameters : array of shape (strategies,)
        The cost of `operator` where all operands are parameters, or made of them.
    """

    operator: Floats
    exchanges: tuple[Floats, ...]
    of_parameters: Floats

    def and_again(self, strategies: Sequence[int]) -> "RecomputeCost":
        """Return the costs of the strategies, and of second copies of some."""
        some = list(strategies)
        return RecomputeCost(
            np.concatenate([self.operator, self.operator[some]]),
            tuple(np.concatenate([cost, cost[some]]) for cost in self.exchanges),
            np.concatenate([self.of_parameters, self.of_parameters[some]]),
        )


@dataclass(frozen=True, eq=False)
class OperatorTable:
    """One operator under each of its strategies; equal operators share one table.

    Parameters
    ----------
    info : OperatorInfo
        The operator.
    strategies : tuple of Strategy
        The choices.
    cost : array of shape (strategies,)
        Forward and backward cost of the operator itself.
    operands : tuple of tuple of EdgeLayout
        For each operand, for each strategy, its layout.
    results : tuple of tuple of Layout
        For each result, for each strategy, its layout.
    memory : BackwardMemory
        Memory of its gradient.
    recompute : RecomputeCost, optional
        The cost of a second computation; None where the profile does not price it.
    recomputed : array of shape (strategies,), optional
        Whether and when it is computed a second time for the gradient: `ONCE`, `WHEN_READ` or
        `WHEN_ENTERED`; None for never.
    regathered : array of shape (strategies,), optional
        Whether its result is saved as it leaves it and redistributed a second time for the
        gradient; None for never.
    offloaded : array of shape (strategies,), optional
        Whether its result is saved in host memory as it leaves it; None for never.
    """

    info: OperatorInfo
    strategies: tuple[Strategy, ...]
    cost: Floats
    operands: tuple[tuple[EdgeLayout, ...], ...]
    results: tuple[tuple[Layout, ...], ...]
    memory: BackwardMemory
    recompute: RecomputeCost | None = None
    recomputed: Integers | None = None
    regathered: NDArray[np.bool_] | None = None
    offloaded: NDArray[np.bool_] | None = None

    @cached_property
    def remade(self) -> Integers | None:
        """Whether and when its result is made a second time; None for never.

        As `recomputed`, `REGATHERED` or `OFFLOADED`.
        """
        if self.regathered is None and self.offloaded is None:
            return self.recomputed
        remade = np.zeros(len(self.cost), dtype=np.int64)
        remade += 0 if self.recomputed is None else self.recomputed
        remade += 0 if self.regathered is None else REGATHERED * self.regathered
        remade += 0 if self.offloaded is None else OFFLOADED * self.offloaded
        return remade

    @cached_property
    def position(self) -> dict[Strategy, int]:
        """Position of each strategy."""
        return {strategy: i for i, strategy in enumerate(self.strategies)}


@dataclass(frozen=True)
class UpdateRule:
    """The optimizer, as far as its cost matters.

    Parameters
    ----------
    optimizer : Optimizer
        The rule of every parameter.
    unscales : bool
        Whether gradients carry a loss scale that is divided out first.
    guarded : int
        Number of parameters whose updates are skipped where gradients overflow: under a dynamic
        loss scale all that are trained, else 0.
    rates : int
        Number of learning rates that follow the step, and are read; 0 where they are attributes.
    clipped : int
        Number of parameters whose gradients are scaled down together; 0 where none are.
    sum_dtype : str
        The type in which their squares are added up.
    """

    optimizer: Optimizer
    unscales: bool = False
    guarded: int = 0
    rates: int = 0
    clipped: int = 0
    sum_dtype: str = "float32"


@dataclass(frozen=True)
class ProfileRequest:
    """The facts of a compilation from which a profile is made.

    Parameters
    ----------
    planner : RedistributionPlanner
        The planner of `CostProfile.make_planner`, on the mesh.
    cluster : Cluster
        The devices.
    update_rule : UpdateRule, optional
        The optimizer; None where parameters are not updated.
    by_orbit : bool
        Whether the search method can search orbits.
    minimizes_cost : bool
        Whether the search method minimises the cost.
    scattered : bool
        Whether parameters are stored as finely split as they can be.
    weights : object
        The weights of the profile, where it has some that can be set.
    among : mapping of OperatorInfo to (frozenset of Strategy)
        The only strategies that are priced of some operators.
    """

    planner: RedistributionPlanner
    cluster: Cluster
    update_rule: UpdateRule | None = None
    by_orbit: bool = False
    minimizes_cost: bool = True
    scattered: bool = False
    weights: object = None
    among: Mapping[OperatorInfo, frozenset[Strategy]] = field(default_factory=dict)


def never(info: OperatorInfo) -> bool:
    """Return False."""
    return False


@dataclass(frozen=True)
class SpaceRules:
    """What a search space may hold. The defaults allow everything that can be emitted.

    Parameters
    ----------
    share_layouts : bool
        Whether a tensor is redistributed once for several readers, to a shared layout.
    free_storage : bool
        Whether a parameter may be stored in another layout than its readers use.
    whole_inputs : bool
        Whether every rank is fed whole inputs.
    parameters_agree : bool
        Whether all readers of a parameter use the layout in which it is stored, where they can.
    fixes_consumers : callable
        Says of an operator whether all consumers must use the layout of its results.
    """

    share_layouts: bool = True
    free_storage: bool = True
    whole_inputs: bool = False
    parameters_agree: bool = False
    fixes_consumers: Callable[[OperatorInfo], bool] = never


class CostProfile(ABC):
    """Prices the choices of a search.

    A subclass sets `name` and `mesh`, and overrides `create`, `make_planner`, `table`, `edges` and
    `program_cost`.
    The other prices are 0 unless they are overridden.

    Attributes
    ----------
    name : str
        The value of the option ``cost_model``.
    priced_after : str
        The pass whose program `program_cost` prices.
    prices_passes : bool
        Whether a node costs the same in every pass over micro-batches, and `program_cost` counts
        all passes.
    prices_conversions : bool
        Whether gradients are priced that are added up in another type than operators return.
    mesh : Mesh
        The mesh.
    rules : SpaceRules
        What the search space may hold.
    prices_recomputation : bool
        Whether the tables of operators price a second computation.
    orbit_planner : RedistributionPlanner or None
        The planner, where one strategy stands for its orbit: all strategies that differ by a
        permutation of equal axes.
    """

    name: ClassVar[str]
    priced_after: ClassVar[str] = "clean_up"
    prices_recomputation: ClassVar[bool] = False
    prices_passes: ClassVar[bool] = False
    prices_conversions: ClassVar[bool] = False
    mesh: Mesh
    rules: SpaceRules = SpaceRules()
    orbit_planner: RedistributionPlanner | None = None

    @classmethod
    @abstractmethod
    def create(cls, request: ProfileRequest) -> Self:
        """Return the profile of a compilation."""

    @classmethod
    @abstractmethod
    def make_planner(cls, mesh: Mesh, cluster: Cluster) -> RedistributionPlanner:
        """Return the planner of the redistributions in the emitted program."""

    @classmethod
    def default_mesh(cls, cluster: Cluster, devices: int) -> Mesh:
        """Return the mesh of a compilation whose user gives none."""
        return mesh_for(cluster, devices)

    @abstractmethod
    def table(
        self,
        info: OperatorInfo,
        wanted: tuple[bool, ...],
        stored: tuple[bool, ...],
        pinned: bool = False,
    ) -> OperatorTable:
        """Return the strategies of an operator; of a pinned one all that the user may ask for.

        `wanted` says which operands need a gradient, `stored` which are parameters.
        """

    @abstractmethod
    def edges(
        self, tensor: TensorType, sources: Sequence[EdgeLayout], targets: Sequence[EdgeLayout]
    ) -> Floats:
        """Return the cost of redistributing a tensor, and its gradient back, as a table."""

    @abstractmethod
    def program_cost(self, program: Graph) -> float:
        """Return the cost of the program after the pass `priced_after`.

        The compiler refuses a program whose cost is not that of the search.
        """

    def host_copies(self, tensor: TensorType, layouts: Sequence[Layout]) -> Floats:
        """Return the cost of copying a tensor to host memory and back, in several layouts."""
        return np.zeros(len(layouts))

    @property
    def of_parameters(self) -> Self:
        """The prices of redistributing parameters: those of all tensors."""
        return self

    @property
    def of_gradients(self) -> Self:
        """The prices of the backward pass, and of redistributing gradients: those of forward."""
        return self

    @property
    def second(self) -> Self:
        """The prices of redistributing a tensor again for the gradient: those of the first time."""
        return self

    @property
    def of_updates(self) -> Self:
        """The prices of the optimizer: those of gradients."""
        return self.of_gradients

    def in_step(self, times: float, of_parameters: bool) -> Self:
        """Return the prices of what runs so often in a step: the same.

        `of_parameters` says that it is made of parameters alone, or belongs to their gradients.
        """
        return self

    def output(
        self, tensor: TensorType, sources: Sequence[EdgeLayout], target: EdgeLayout
    ) -> Floats:
        """Return the cost of making an output of the program whole, from each of `sources`."""
        return self.edges(tensor, sources, (target,))

    def accumulation(self, tensor: TensorType, layout: Layout) -> float:
        """Return the cost of adding two cotangents."""
        return 0.0

    def addition(self, tensor: TensorType, layout: Layout) -> float:
        """Return the cost of adding two values of the forward pass."""
        return self.accumulation(tensor, layout)

    def copy(self, tensor: TensorType, layout: Layout) -> float:
        """Return the cost of copying a tensor on every rank."""
        return 0.0

    def update(self, parameter: Value, gradient: str) -> float:
        """Return the cost of the optimizer's update of a parameter.

        Parameters
        ----------
        parameter : Value
            The parameter, in the layout in which it is stored.
        gradient : str
            The element type of its gradient.
        """
        return 0.0

    def cast(self, tensor: TensorType, dtype: str, layout: Layout) -> float:
        """Return the cost of casting a parameter to the element type in which it is read."""
        return 0.0

    def convert(self, tensor: TensorType, dtype: str, layout: Layout) -> float:
        """Return the cost of converting a gradient to the type in which it is added up."""
        return 0.0

    def conversion(self, tensor: TensorType, dtype: str, layout: Layout) -> float:
        """Return the cost of converting a value of the forward pass that passes add up."""
        return self.convert(tensor, dtype, layout)

    def constant(self) -> float:
        """Return the cost of a step that no choice changes."""
        return 0.0

    @cached_property
    def kinds(self) -> Kinds | None:
        """A kind for each axis, where strategies stand for orbits: equal axes are of one kind."""
        return None if self.orbit_planner is None else kinds_of(self.mesh)


def check_cost(profile: str, operator: str, cost: object) -> float:
    """Return the cost of an operator as a profile gives it.

    Raises
    ------
    PassError
        If it is no number, negative or infinite: bounds rely on that it is none of these.
    """
    if isinstance(cost, Real) and 0 <= float(cost) < math.inf:
        return float(cost)
    raise PassError(
        f"the cost profile `{profile}` gives `{operator}` the cost {cost!r}, expected a finite "
        "number of at least 0"
    )


def check_costs(profile: str, operator: str, costs: object, count: int) -> Floats:
    """Return several costs of an operator as a profile gives them; see `check_cost`.

    Raises
    ------
    PassError
        If they are no array of `count` finite numbers of at least 0.
    """
    array = np.asarray(costs)
    if array.shape != (count,) or array.dtype.kind not in "fiu":
        raise PassError(
            f"the cost profile `{profile}` gives `{operator}` costs of shape {array.shape} and "
            f"type {array.dtype}, expected numbers of shape ({count},)",
            hint="return an array, one cost for each entry of `local_bytes`",
        )
    worst = array[~((array >= 0) & (array < math.inf))]
    if worst.size:
        check_cost(profile, operator, worst[0].item())
    return array


def operator_table(
    info: OperatorInfo,
    strategies: tuple[Strategy, ...],
    cost: Floats,
    wanted: tuple[bool, ...],
    mesh: Mesh,
) -> OperatorTable:
    """Return the table of an operator whose layouts follow from its rule."""
    taken = [info.rule.operand_layouts(strategy) for strategy in strategies]
    mirrors = [info.infer_mirror_ops(strategy, mesh) for strategy in strategies]
    operands = tuple(
        tuple(
            EdgeLayout(layouts[i], layouts[i].with_partial(axes[i]) if want else None)
            for layouts, axes in zip(taken, mirrors, strict=True)
        )
        for i, want in enumerate(wanted)
    )
    left = [info.rule.result_layouts(strategy, mesh) for strategy in strategies]
    results = tuple(zip(*left, strict=True))
    memory = BackwardMemory.none(len(operands), len(results), len(strategies))
    return OperatorTable(info, strategies, cost, operands, results, memory)


def check_cotangents(table: OperatorTable, mesh: Mesh) -> None:
    """Check that gradients have the layouts of the rule: split like the operand, partial elsewhere.

    Raises
    ------
    PassError
        At the first that does not.
    """
    for i, layouts in enumerate(table.operands):
        for strategy, edge in zip(table.strategies, layouts, strict=True):
            expected = edge.layout.with_partial(table.info.rule.mirror_axes(i, strategy, mesh))
            if edge.cotangent not in (None, expected):
                raise PassError(
                    f"`{table.info.name}` split by `{strategy}` returns the gradient of operand "
                    f"{i} as {edge.cotangent}, its rule says {expected}"
                )
