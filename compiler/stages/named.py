"""Stage plans by name: those of Megatron's degrees, with as little recomputation as fits.

A named plan of the whole program decides about every stage. Its degrees are those of the axes of
the mesh: the inner axes are tensor ranks, the others data ranks. Such plans are candidates beside
those that are searched, and answers where the searches find nothing within the memory limit.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

from shardwright.ir.decisions import Decisions
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.passes.recompute import recomputations
from shardwright.planner.fronts.problem import StageProblems
from shardwright.planner.plan.stage_plans import StagePlan, renamed
from shardwright.search.heuristics.named_plan import NamedStrategies
from shardwright.search.named_plan import ZERO, NamedPlan
from shardwright.search.plan_axes import PlanAxes
from shardwright.search.space.space import SearchSpace
from shardwright.solver.evaluate import evaluate
from shardwright.solver.problem import FORBIDDEN

_DEGREES = ("tensor", "expert", "shard", "data", "context")


@dataclass(eq=False)
class NamedProblems:
    """The problems of stages in which named plans are points.

    Parameters
    ----------
    problems : StageProblems
        The stage problems, whose options are no orbits.
    source : Graph
        The whole program.
    """

    problems: StageProblems
    source: Graph
    _spaces: dict[Hashable, tuple[int, SearchSpace]] = field(default_factory=dict)

    @cached_property
    def levels(self) -> tuple[frozenset[str], ...]:
        """The operators that are recomputed, by each level that may be, the least first."""
        if self.problems.request.options.recompute != "search":
            return (frozenset(self.source.recomputed),)
        return tuple(recomputations(self.source).values())

    def space(
        self, begin: int, end: int, in_flight: int, level: frozenset[str], *, regather: bool
    ) -> tuple[int, SearchSpace]:
        """Return the problem of a stage, or of an equal one, with the first block of that.

        `regather` says that tensors may be regathered.
        """
        key = self.problems.blocks.key(begin, end), in_flight, level, regather
        if key not in self._spaces:
            request = self.problems.request_of(begin, end, in_flight, recomputed=level)
            space = request.space_with(request.options.pins, regather=regather)
            self._spaces[key] = begin, space
        return self._spaces[key]

    def plans(self, mesh: Mesh) -> Iterator[list["NamedStages"]]:
        """Yield the named plans of a mesh that the model allows: those of equal degrees."""
        graph = self.problems.loop.graph
        for axes, by_position, ring in product(_axes(mesh, graph), (False, True), (False, True)):
            found: list[NamedStages] = []
            for zero in sorted(ZERO, key=lambda zero: zero != 1):  # degrees are compared by ZeRO-1
                try:
                    plan = _plan(mesh, axes, zero, by_position=by_position, ring=ring)
                    if found:
                        named = replace(found[0].named, plan=plan)
                    else:
                        named = NamedStrategies.of(plan, graph, mesh, axes, alike=True)
                except ShardwrightError:  # it divides nothing, or is no plan
                    continue
                found.append(NamedStages(self, named))
            if found:
                yield found


def plans_by_stage(
    problems: Sequence[NamedProblems], mesh: Mesh
) -> Iterator[list[tuple["NamedStages", ...]]]:
    """Yield the named plans of a mesh, as `NamedProblems.plans`, of each stage by its problems."""
    of_parts = {id(one): one.plans(mesh) for one in problems}
    for found in zip(*of_parts.values(), strict=True):
        of_part = dict(zip(of_parts, found, strict=True))
        by_stage = [of_part[id(one)] for one in problems]
        yield list(zip(*by_stage, strict=True))


@dataclass(frozen=True, eq=False)
class _Chosen:
    """The assignment of a stage, with its first block, what it decides, and its cost."""

    begin: int
    assignment: tuple[int, ...]
    decisions: Decisions
    seconds: float


@dataclass(eq=False)
class NamedStages:
    """The stage plans of one named plan.

    Parameters
    ----------
    problems : NamedProblems
        The problems of stages.
    named : NamedStrategies
        The plan, and its strategies for all operators.
    """

    problems: NamedProblems
    named: NamedStrategies
    _chosen: dict[Hashable, _Chosen | None] = field(default_factory=dict)

    def plan(
        self,
        begin: int,
        end: int,
        in_flight: int,
        memory_limit: float | None,
        received: Mapping[str, Layout] | None = None,
    ) -> StagePlan | None:
        """Return the plan of a stage with the least recomputation that fits; None without one.

        With sequence parallelism, what fits without regathering is not regathered.
        """
        limits = self.problems.problems.limits
        limit = limits.limit_bytes if memory_limit is None else memory_limit
        for level in self.problems.levels:
            for regather in self.regathers:
                found = self.at(level, begin, end, in_flight, received or {}, regather=regather)
                if found is not None and found.memory_bytes <= limit:
                    return found
        return None

    @property
    def regathers(self) -> tuple[bool, ...]:
        """Whether tensors are saved as they are made and regathered: only where that may fit."""
        return (False, True) if self.named.plan.sequence_parallel else (False,)

    def at_level(self, level: frozenset[str]) -> "NamedStagesAtLevel":
        """Return the plans that recompute some operators."""
        return NamedStagesAtLevel(self, level)

    def at(
        self,
        level: frozenset[str],
        begin: int,
        end: int,
        in_flight: int,
        received: Mapping[str, Layout],
        *,
        regather: bool,
    ) -> StagePlan | None:
        """Return the plan of a stage that recomputes some operators; None where there is none."""
        blocks = self.problems.problems.blocks
        first, space = self.problems.space(begin, end, in_flight, level, regather=regather)
        names = blocks.names(first, begin, end - begin)
        inputs = (value.name for value in space.graph.inputs)
        fixed = {name: received[names[name]] for name in inputs if names[name] in received}
        key = blocks.key(begin, end), level, regather, tuple(fixed.values())
        if key not in self._chosen:
            self._chosen[key] = self._completed(first, space, fixed)
        chosen = self._chosen[key]
        if chosen is None:
            return None
        memory = float(evaluate(space.problem, chosen.assignment).peak_usage)
        decisions = renamed(chosen.decisions, blocks.names(chosen.begin, begin, end - begin))
        return StagePlan(decisions, chosen.seconds, memory, unlimited=False)

    def _completed(
        self, begin: int, space: SearchSpace, received: Mapping[str, Layout]
    ) -> _Chosen | None:
        try:
            assignment = self.named.completed(space, received)
        except ShardwrightError:  # a layout that it receives, or the storage, does not allow it
            return None
        cost = float(evaluate(space.problem, assignment).cost)
        if cost >= FORBIDDEN:
            return None
        return _Chosen(begin, assignment, space.decisions(assignment), cost + space.constant)


@dataclass(frozen=True, eq=False)
class NamedStagesAtLevel:
    """The stage plans of one named plan that recompute some operators.

    Parameters
    ----------
    stages : NamedStages
        The stage plans.
    level : frozenset of str
        The operators.
    """

    stages: NamedStages
    level: frozenset[str]

    def plan(
        self,
        begin: int,
        end: int,
        in_flight: int,
        memory_limit: float | None,
        received: Mapping[str, Layout] | None = None,
    ) -> StagePlan | None:
        """Return the plan of a stage, whatever memory it takes; None where there is none."""
        regather = self.stages.named.plan.sequence_parallel
        return self.stages.at(self.level, begin, end, in_flight, received or {}, regather=regather)


def _axes(mesh: Mesh, graph: Graph) -> Iterator[PlanAxes]:
    """Yield what the axes of a mesh can divide in a named plan."""
    names = mesh.of_ranks.names
    if names and all(name.partition("_")[0] in _DEGREES for name in names):
        yield PlanAxes.of(mesh.of_ranks)
        return
    experts = any(node.operator == "dispatch" for node in graph.nodes)
    for count in range(len(names) + 1):
        data, tensor = names[:count], names[count:]
        yield PlanAxes(data, (), tensor)
        if experts and data:
            yield PlanAxes(data, data, tensor)
        if experts and tensor:
            yield PlanAxes(data, names, tensor, within=())


def _plan(mesh: Mesh, axes: PlanAxes, zero: int, *, by_position: bool, ring: bool) -> NamedPlan:
    """Return the named plan of some axes.

    Raises
    ------
    OptionError
        If there is none.
    """
    return NamedPlan(
        tensor=mesh.extent(axes.tensor),
        data=mesh.extent(axes.data),
        context=mesh.extent(axes.context),
        expert=mesh.extent(axes.expert),
        expert_tensor=mesh.extent(axes.of_experts),
        ring=ring,
        zero=zero,
        sequence_parallel=by_position,
    )
