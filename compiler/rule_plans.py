"""Plans built by rule: candidates beside those of the exact searches.

Expert plans (data and tensor ranks with every ZeRO stage, sequence parallel, context and expert
ranks where the model has them) are built on the axes of any mesh. Where memory is short, plans of
the heuristics are candidates, too, and so are all plans with recomputation of attention, of cheap
operators or of whole blocks; what a plan leaves of the memory is filled by recomputing less in its
last blocks. They are points of the search space, so bounds on all plans hold for them.

A plan is estimated from below before its program is emitted: by its serial cost, or by the loads of
its resources, weighted as in searches that were made.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from shardwright.compiler.saved.marks import MARKS, Mark, MarkedPrograms
from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.ir.errors import ShardwrightError, StrategyError, TimeLimitError
from shardwright.ir.layout import Strategy
from shardwright.ir.mesh import Mesh
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.planner.search_request import SearchRequest
from shardwright.search.budget_note import BY_RULE, BudgetNote
from shardwright.search.driver import search
from shardwright.search.heuristics.completion import complete
from shardwright.search.heuristics.expert_plans import ExpertMesh, ExpertWalk, expert_walks
from shardwright.search.heuristics.named_plan import ByName
from shardwright.search.heuristics.propagation import ShardingPropagation
from shardwright.search.loads import least_cost_in
from shardwright.search.method import SearchMethod, SearchResult
from shardwright.search.space.memory_shares import parameter_bytes
from shardwright.search.space.space import Option, SearchSpace
from shardwright.solver.evaluate import cost_of
from shardwright.solver.problem import Identity
from shardwright.solver.work import Budget

_WORTHWHILE = 1 / 20  # of the blocks, in which less is recomputed
_BY_RULE = ("fully_sharded", "data_parallel", "tensor_parallel", ShardingPropagation.name)
_FILLED = 0.8  # of the memory that a plan leaves: gathers ahead and late reductions take some


@dataclass(frozen=True)
class RulePlan:
    """A plan built by rule.

    Parameters
    ----------
    least_cost : float
        Its cost, from below.
    result : SearchResult
        The plan, with its serial cost.
    on : ExpertMesh or None
        The axes that it was built on, where some were merged.
    thriftier : callable
        Returns the same plan with more recomputation; None where there is no more, or where its
        parameters alone take more than so many bytes.
    richer : callable
        Returns the same plan with less recomputation, which takes about so many bytes more; None
        where there is none.
    """

    least_cost: float
    result: SearchResult
    on: ExpertMesh | None
    thriftier: "Callable[[float], RulePlan | None]"
    richer: "Callable[[float], RulePlan | None]" = lambda _: None


class PlanQueue:
    """Plans by cost, least first, as long as they may be good enough.

    Parameters
    ----------
    plans : sequence of RulePlan
        The plans.
    below : callable
        Returns the cost that a plan must be able to undercut.
    """

    def __init__(self, plans: Iterable[RulePlan], below: Callable[[], float]) -> None:
        self.below, self._number = below, count()
        self._queue: list[tuple[float, int, RulePlan]] = []
        for plan in plans:
            self.add(plan)

    def add(self, plan: RulePlan | None) -> None:
        """Add a plan, if there is one."""
        if plan is not None:
            heappush(self._queue, (plan.least_cost, next(self._number), plan))

    def __iter__(self) -> Iterator[RulePlan]:
        """Yield and remove the plans, with those that are added meanwhile."""
        while self._queue and self._queue[0][0] < self.below():
            yield heappop(self._queue)[-1]


@dataclass(frozen=True)
class RulePlans:
    """The plans that rules build for one program and mesh.

    Parameters
    ----------
    request : SearchRequest
        The exact search that they are candidates of.
    budget : Budget
        What building them may spend.
    budget_note : BudgetNote
        Notes whether the budget left some out.
    """

    request: SearchRequest
    budget: Budget
    budget_note: BudgetNote = field(default_factory=BudgetNote)
    _spaces: dict[object, SearchSpace | None] = field(default_factory=dict)
    _results: dict[object, SearchResult | None] = field(default_factory=dict)
    _least: dict[object, float] = field(default_factory=dict)
    _found_walks: dict[str, ExpertWalk] = field(default_factory=dict)
    _is_built: list[bool] = field(default_factory=list)
    _too_large: set[object] = field(default_factory=set)  # spaces not built

    @cached_property
    def are_allowed(self) -> bool:
        """Whether the plans are points of the search space, at the same cost."""
        options = self.request.options
        decided = options.pins or options.result_pins or options.input_layouts
        exact = self.request.method.minimizes_step and options.cost_model == "time"
        free = not decided and not options.optimizer_parallel
        return exact and free and self.request.weights is None

    def build(self, budget: Budget) -> None:
        """Build the plans within a budget; those that are built are not built again."""
        if self.are_allowed and not self._is_built:
            self._is_built.append(True)
            built = replace(self, budget=budget, budget_note=BudgetNote())
            built.cheapest(math.inf)

    def cheapest(self, below: float) -> PlanQueue:
        """Return the plans whose serial cost is less."""

        def limit() -> float:
            return below

        return PlanQueue([*self._by_heuristics(()), *self._experts((), limit)], limit)

    def fastest(
        self,
        searched: Sequence[SearchRequest],
        shortest: Callable[[], float],
        *,
        with_heuristics: bool,
    ) -> PlanQueue:
        """Return the plans whose overlapped step may be shorter.

        Parameters
        ----------
        searched : sequence of SearchRequest
            Searches by weights that were made; their weighted loads bound the step of a plan.
        shortest : callable
            Returns the shortest step so far.
        with_heuristics : bool
            Whether plans of the heuristics are among them, beside the expert plans.
        """
        found = [*self._experts(searched, shortest)]
        if with_heuristics:
            found += self._by_heuristics(searched)
        return PlanQueue(found, shortest)

    def thriftiest(self, memory_limit: float) -> Iterator[RulePlan]:
        """Yield plans with the most recomputation, of each expert the cheapest that may fit.

        The budget is spent: they are built with as much again.

        Parameters
        ----------
        memory_limit : float
            Bytes of a device; a plan takes more than it counts.
        """
        again = Budget(self.budget.seconds)
        late = replace(self, budget=again, _spaces={}, _too_large=set())
        mark = len(MARKS) - 1 if self._recomputes else 0
        for walk in late._walks():
            methods = walk.methods(self.request.options.passes)
            plans = (late._plan(_by_name(walk, method), (), mark) for method in methods)
            fitting = [p for p in plans if p and p.result.memory_bytes <= memory_limit]
            if fitting:
                yield min(fitting, key=lambda plan: plan.least_cost)

    # Experts

    def _experts(
        self, searched: Sequence[SearchRequest], shortest: Callable[[], float]
    ) -> Iterator[RulePlan]:
        walks = []
        for walk in self._walks():
            least = self._least_cost(walk, searched, shortest)
            if least < shortest():
                walks.append((least, walk))
        for _, walk in sorted(walks, key=lambda pair: pair[0]):
            for method in walk.methods(self.request.options.passes):
                plan = self._plan(_by_name(walk, method), searched, 0)
                if plan is not None:
                    yield plan

    def _walks(self) -> Iterator[ExpertWalk]:
        """Yield the plans in which every degree divides something, until the budget is spent."""
        request, known = self.request, self._found_walks
        graph = request.source if request.micro is None else request.micro.graph
        for walk in expert_walks(graph, self._mesh) if self.are_allowed else ():
            if walk.plan.text not in known and self._is_late:
                break
            walk = known.setdefault(walk.plan.text, walk)
            if walk.named is not None:
                yield walk

    def _plan(
        self, rule: "_Rule", searched: Sequence[SearchRequest], position: int
    ) -> RulePlan | None:
        """Return a plan with so much recomputation, or with the next more that there is."""
        marks = MARKS if self._recomputes else MARKS[:1]
        for at, mark in enumerate(marks[position:], position):
            result = self._result(rule, mark)
            if result is not None:
                following = partial(self._thriftier, rule, searched, at)
                richer = partial(self._filled, rule, searched, at)
                return self._made(rule, searched, result, mark, following, richer)
        return None

    def _thriftier(
        self, rule: "_Rule", searched: Sequence[SearchRequest], position: int, limit: float
    ) -> RulePlan | None:
        """Return a plan with more recomputation; None if its parameters do not fit a limit."""
        space, found = self._space_of(rule, MARKS[position]), self._result(rule, MARKS[position])
        if space and found and parameter_bytes(space, found.assignment) > limit:
            return None
        return self._plan(rule, searched, position + 1)

    def _made(
        self,
        rule: "_Rule",
        searched: Sequence[SearchRequest],
        result: SearchResult,
        mark: Mark,
        thriftier: Callable[[float], RulePlan | None],
        richer: Callable[[float], RulePlan | None] = lambda _: None,
    ) -> RulePlan:
        walk = rule.walk
        if walk is None:
            space = self._space(rule.mesh, mark, regather=False) if searched else None
            least = result.cost if space is None else self._least_of(space, searched, result)
            return RulePlan(least, result, None, thriftier, richer)
        on = walk.on
        least = max(self._weighted_costs(walk, mark, searched, result), default=result.cost)
        decisions = on.refined(result.decisions, self._mesh)
        merged = on if on.mesh != self._mesh else None
        return RulePlan(least, replace(result, decisions=decisions), merged, thriftier, richer)

    def _filled(
        self, rule: "_Rule", searched: Sequence[SearchRequest], position: int, spare_bytes: float
    ) -> RulePlan | None:
        """Return a plan that recomputes less in as many blocks as the memory has room for."""
        for other in reversed(MARKS[:position]):
            if self._result(rule, other) is not None:
                mixed = Mark(MARKS[position].rule, other.rule)
                return self._more_filled(rule, searched, mixed, spare_bytes)
        return None

    def _more_filled(
        self, rule: "_Rule", searched: Sequence[SearchRequest], mark: Mark, spare_bytes: float
    ) -> RulePlan | None:
        blocks = len(self._sources.blocks)
        most, least = (self._result(rule, Mark(name)) for name in (mark.rule, mark.other))
        if most is None or least is None or not blocks:
            return None
        each = (least.memory_bytes - most.memory_bytes) / blocks
        room = int(_FILLED * spare_bytes / each) if each > 0 else 0
        if room < blocks * _WORTHWHILE:
            return None
        return self._with_less(rule, searched, mark, mark.last, min(mark.last + room, blocks - 1))

    def _with_less(
        self, rule: "_Rule", searched: Sequence[SearchRequest], mark: Mark, fits: int, last: int
    ) -> RulePlan | None:
        """Return a plan that recomputes less in the last blocks; in fewer, where that is much.

        It is known to fit with so many as `fits`.
        """
        mixed = mark._replace(last=last)
        result = self._result(rule, mixed) if last > fits else None
        if result is None:
            return None
        fewer = partial(self._with_less, rule, searched, mark, fits, (fits + last) // 2)
        more = partial(self._more_filled, rule, searched, mixed)
        return self._made(rule, searched, result, mixed, lambda _: fewer(), more)

    def _least_cost(
        self,
        walk: ExpertWalk,
        searched: Sequence[SearchRequest],
        enough: Callable[[], float] = lambda: math.inf,
    ) -> float:
        """Return the least weighted loads of a plan, however its parameters are stored.

        The search that was last raised the bound most, so it tells first; a bound that is high
        enough is not raised.
        """
        found = 0.0
        for request in reversed(searched):
            key = walk.plan, request.weights
            if found < enough() and not self._is_late:
                if key not in self._least:
                    self._least[key] = self._least_in(request.space, walk)
                found = max(found, self._least[key])
        return found

    def _least_in(self, space: SearchSpace, walk: ExpertWalk) -> float:
        """Return the least cost in a space with the strategies of a plan, or orbits of them."""
        strategies = self._in_space(space, walk)
        if strategies is None:
            return 0.0
        chosen = complete(space, strategies)
        return cost_of(space.problem, chosen) + space.constant

    def _in_space(self, space: SearchSpace, walk: ExpertWalk) -> dict[str, Strategy] | None:
        """Return the strategies of a plan as a space has them; None if one is not among them."""
        assert walk.named is not None
        known: dict[tuple[Identity, Identity], Strategy | None] = {}
        found = {}
        for choice in space.choices:
            if choice.kind == "operator":
                strategy = walk.named.strategies[choice.name]
                key = Identity(choice.options), Identity(strategy)
                if key not in known:
                    known[key] = self._element(choice.options, walk.on.refined_strategy(strategy))
                element = known[key]
                if element is None:
                    return None
                found[choice.name] = element
        return found

    def _element(self, options: Sequence[Option], strategy: Strategy) -> Strategy | None:
        """Return the option whose orbit has a strategy."""
        planner = self.request.planner
        images = (strategy.renamed(names, self._mesh) for names in planner.axis_permutations)
        return next((image for image in images if image in options), None)

    def _weighted_costs(
        self,
        walk: ExpertWalk,
        mark: Mark,
        searched: Sequence[SearchRequest],
        result: SearchResult,
    ) -> list[float]:
        """Return bounds of the weighted loads of a plan, from below."""
        if not searched:
            return []
        if walk.on.mesh != self._mesh or self._has_orbits:
            return [self._least_cost(walk, searched)]
        space = self._space(walk.on.mesh, mark, regather=walk.plan.sequence_parallel)
        assert space is not None
        return [self._least_of(space, searched, result)]

    def _least_of(
        self, space: SearchSpace, searched: Sequence[SearchRequest], result: SearchResult
    ) -> float:
        """Return a bound of the weighted loads of a plan, from below; 0 where none is known."""
        if self._has_orbits:
            return 0.0
        costs = [least_cost_in(one.space, space, result.assignment) for one in searched]
        return max(costs, default=0.0)

    @property
    def _has_orbits(self) -> bool:
        return len(self.request.planner.axis_permutations) > 1

    # Heuristics

    def _by_heuristics(self, searched: Sequence[SearchRequest]) -> Iterator[RulePlan]:
        for name in _BY_RULE if self.are_allowed else ():
            plan = self._plan(_Rule(self._mesh, name, name), searched, 0)
            if plan is not None:
                yield plan

    def _result(self, rule: "_Rule", mark: Mark) -> SearchResult | None:
        """Return the plan of a rule; None where the model forbids it, or the budget is spent."""
        key = rule.key, rule.mesh, mark
        if key not in self._results and not self._is_late:
            space = self._space_of(rule, mark)
            if space is None:
                return None
            try:
                found = search(space, rule.method)
            except ShardwrightError:
                self._results[key] = None
            else:
                how = f"{found.how}, recompute={mark.text}" if mark.rule else found.how
                self._results[key] = replace(found, how=how)
        return self._results.get(key)

    # Spaces

    @property
    def _recomputes(self) -> bool:
        """Whether more may be recomputed than is marked."""
        return self.request.options.recompute == "search" and self.request.recomputes

    @property
    def _mesh(self) -> Mesh:
        return self.request.planner.mesh

    @property
    def _is_late(self) -> bool:
        return self.budget_note.is_late(self.budget, BY_RULE)

    @cached_property
    def _sources(self) -> MarkedPrograms:
        return MarkedPrograms(self.request.source)

    def _space_of(self, rule: "_Rule", mark: Mark) -> SearchSpace | None:
        """Return the space in which a rule builds its plan."""
        method = rule.method
        regather = isinstance(method, ByName) and method.plan.sequence_parallel
        return self._space(rule.mesh, mark, regather=regather)

    def _space(self, mesh: Mesh, mark: Mark, *, regather: bool) -> SearchSpace | None:
        """Return the space of all options; None if the mesh is too fine, or the budget is spent."""
        key = mesh, mark, regather
        if key not in self._spaces:
            source = self._sources.of(mark)
            if source is None or self._is_late:
                return None
            options = replace(self.request.options, search=_BY_RULE[0], objective="serial")
            request = replace(
                self.request,
                source=source,
                planner=self._planner(mesh),
                options=options,
                known_micro=None if mark.rule else self.request.micro,
                emissions={},
                budget=self.budget,
                is_needed=False,
            )
            try:
                self._spaces[key] = request.space_with({}, regather=regather)
            except TimeLimitError:
                self._spaces[key] = None
                self._too_large.add(key)
            except StrategyError:
                self._spaces[key] = None
        if key in self._too_large:
            self.budget_note.note(BY_RULE)
        return self._spaces[key]

    def _planner(self, mesh: Mesh) -> RedistributionPlanner:
        request = self.request
        if mesh == self._mesh:
            return request.planner
        lowering = LowerRedistributions(request.cluster, request.options.cost_model)
        return lowering.planner(mesh)


class _Rule(NamedTuple):
    """A rule that builds plans.

    Parameters
    ----------
    mesh : Mesh
        The axes that it builds them on.
    method : str or SearchMethod
        The rule.
    key : object
        What tells it from others.
    walk : ExpertWalk, optional
        The degrees of an expert plan.
    """

    mesh: Mesh
    method: str | SearchMethod
    key: object
    walk: ExpertWalk | None = None


def _by_name(walk: ExpertWalk, method: ByName) -> _Rule:
    """Return the rule of an expert plan."""
    return _Rule(walk.on.mesh, method, method.plan, walk)
