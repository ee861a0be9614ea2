"""The search for the plan of a program as one block, on one mesh.

Each round searches by some weights of the resources within some memory limit, emits the plan, and
simulates its step in the best buckets. The next weights are those by which the bound may rise most
(`weights`). First memory has no limit: that bounds every plan, and where memory does not bind, it
is the whole search. Else plans are searched that leave memory for what is early and late, and the
bound is raised within the limit. The plan of the shortest step is the answer, at any moment.

Of a small problem, plans of ever tighter limits are met, and then all others that may be faster, in
the order of their cost by weights: more memory does not take a faster plan away.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from math import inf

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.program_profile import Emissions
from shardwright.cost_model.timeline import seconds_in_any_memory
from shardwright.cost_model.weighted.intervals import ResourceWeights
from shardwright.cost_model.weighted.kinds import can_divide
from shardwright.cost_model.weighted.loads import least_loads
from shardwright.dataflow.micro_batches import MicroBatches, micro_batches
from shardwright.ir.errors import NoPlanError, NotFoundError, PassError
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.ir.rounding import EQUAL
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.planner.effort import FRONTIER, LARGE, ROUGH_WITHIN, SMALL, limits_on
from shardwright.planner.evaluation.programs import Programs
from shardwright.planner.evaluation.simulated_step import tolerance_of
from shardwright.planner.options import CompileOptions
from shardwright.planner.search_request import SearchRequest
from shardwright.planner.whole.blocks import plan_of_blocks, plans_blocks
from shardwright.planner.whole.buckets import Buckets
from shardwright.planner.whole.in_order import SHARE, cheapest_in_order, plans_in_order
from shardwright.planner.whole.last_resort import plan_by_rule
from shardwright.planner.whole.pin_prices import pin_prices
from shardwright.planner.whole.plan import Plan, is_near
from shardwright.planner.whole.problem import PlanProblem
from shardwright.planner.whole.weights import CuttingPlanes, Floats, StepWeights
from shardwright.search.budget_note import BY_WEIGHTS, BudgetNote
from shardwright.search.options import Progress, SearchOptions
from shardwright.search.space.space import SearchSpace
from shardwright.solver.methods import ROUGH
from shardwright.solver.solution import OPTIMALITY_GAP, relative_gap
from shardwright.solver.work import Budget

_ROUNDS = 8  # searches by weights, both with the memory limit and without
_ROUNDS_WITHIN = 4  # searches by weights of a large program within the limit: they take longer
_SHARE_WITHIN = 1 / 8  # share of the remaining budget that such a search may take
_SHARES = (1.0, 0.98, 0.95, 0.85)  # shares of the memory limit, tried in turn: windows need room
_ROOM = 0.01  # relative speed-up by a wider window that is worth another search
_WIDE = 0.02  # relative gap above which the links get more weight
_MORE_LINKS = (0.1, 0.2)  # weights of the links that are then tried


@dataclass(eq=False)
class WholeSearch:
    """The search for the plan of a program on a mesh, with one number of micro-batches.

    Parameters
    ----------
    source : Graph
        The whole program, in canonical form.
    cluster, mesh : Cluster, Mesh
        Where it runs.
    options : CompileOptions
        How to compile.
    budget : Budget
        What the search may spend.
    progress : callable or None
        Follows the search.
    emissions : dict
        Emitted operators, to share them with other searches for the same program and optimizer.
    known : SearchRequest, optional
        A problem of this configuration that has been searched before.
    best : Plan or None
        The plan of the shortest step so far, in its best buckets.
    """

    source: Graph
    cluster: Cluster
    mesh: Mesh
    options: CompileOptions
    budget: Budget
    progress: Progress | None = None
    emissions: Emissions = field(default_factory=dict)
    known: SearchRequest | None = None
    best: Plan | None = None
    searches: int = 0
    is_short: bool = False  # of memory, by the account of a search or by a program
    _programs: Programs = field(default_factory=Programs)
    _problems: dict[ResourceWeights | None, PlanProblem] = field(default_factory=dict)
    _spaces: dict[ResourceWeights | None, Mapping[str, SearchSpace]] = field(default_factory=dict)
    _searched: list[object] = field(default_factory=list)  # weights and memory limits
    _met: list[Graph] = field(default_factory=list)
    _shortest_alone: float = inf  # step without buckets

    def run(self) -> Plan:
        """Return the best plan that was found and fits, with the memory of its step.

        Raises
        ------
        InfeasibleError
            If it is proven that no plan fits.
        NotFoundError
            If none was found.
        """
        try:
            found = self._fastest() if self.minimizes_step else self._cheapest()
        except NotFoundError:
            by_rule = self._by_rule()
            if by_rule is None:
                raise
            found = by_rule
        result = self.note.noted_in(found.result)
        return replace(found, result=replace(result, seconds=self.budget.spent))

    @property
    def minimizes_step(self) -> bool:
        """Whether the overlapped step is minimised, with a bound."""
        request = self._serial.request
        return request.simulates_step and request.minimizes_step

    def pin_prices(self, plan: Plan) -> Mapping[str, float]:
        """Return the price of each pin; of the serial step where the overlapped one is minimised.

        Parameters
        ----------
        plan : Plan
            The answer.
        """
        if not self.options.pins:
            return {}
        if self.minimizes_step:
            try:
                plan = self._serial.fit()
            except NoPlanError:  # nothing is left
                return {}
        return pin_prices(self._serial.request, plan, self.searching)

    # The cheapest plan

    def _cheapest(self) -> Plan:
        """Return the plan of the least cost, or of a method that does not minimise the step."""
        found, problem = self._serial.fit(), self._serial
        is_near_bound = is_near(found.result.cost, found.result.lower_bound, self.options.gap)
        if problem.request.method.minimizes_step and not is_near_bound and self._is_small(problem):
            found = cheapest_in_order(problem, found)
        if problem.request.simulates_step:
            found = self.buckets.in_least_memory(
                self.buckets.best(found), tolerance_of(self.options.gap)
            )
            return _by_step(found)
        return self.buckets.of_all_layers(replace(found, fusion=self.options.fusion))

    # The fastest plan

    def _fastest(self) -> Plan:
        """Return the plan with the shortest overlapped step."""
        self._search_by_weights(None)
        if self.is_short:
            self.planes.within(self.limits.limit_bytes)
            self._fill_memory()
            self._search_by_weights(self.limits.memory_limit)
        elif not self._is_large and not self._is_done:
            self._meet_fitting(self._serial, self.limits.limit_bytes)
        if self.best is None:
            self._meet(self._serial.fit())  # or it says why nothing fits
        self._give_links_more_weight()
        self._meet_all_that_may_be_faster()
        assert self.best is not None
        if self.options.rewrites_programs:  # what they do to the step is not bounded
            self.planes.bound = 0.0
        return self._answer(self.buckets.in_least_memory(self.best, self._tolerance))

    def _search_by_weights(self, memory_limit: float | None) -> None:
        """Search by ever other weights, as long as the bound may rise.

        Raises
        ------
        NoPlanError
            If the first search finds nothing: why it does not fit is known elsewhere.
        """
        is_limited = memory_limit is not None
        for _ in range(_ROUNDS_WITHIN if is_limited and self._is_large else _ROUNDS):
            weights = None if self._is_late else self.planes.next(self.step, is_short=is_limited)
            # The second search by the same weights is no rough one, and a third finds no more.
            if weights is None or self._count(weights, memory_limit) > 1:
                return
            try:
                self._search(weights, memory_limit)
            except NoPlanError:
                self.note.note(BY_WEIGHTS)
                if not self.searches:
                    raise
                return

    def _count(self, weights: Floats, memory_limit: float | None) -> int:
        """Return how many searches were made by some weights within a limit."""
        return self._searched.count((self.planes.weighting.of_all(weights), memory_limit))

    def _search(self, weights: Floats, memory_limit: float | None) -> None:
        """Search by weights, for a bound on all plans that fit, and meet the plan."""
        problem = self._problem(self.planes.weighting.of_all(weights))
        recomputes = memory_limit is not None and problem.request.recomputes
        is_rough = self.searches and not self._count(weights, memory_limit)
        plans = problem.tighter(memory_limit, recomputes, ROUGH if is_rough else 0.0)
        self._searched.append((problem.request.weights, memory_limit))
        first = next(plans)
        self.searches += 1
        self.planes.rise(first.result.lower_bound, weights)
        self._meet(first)
        if memory_limit is not None and not first.fits(memory_limit):
            others = plans if problem.is_fine(recomputes) and not self._is_done else ()
            fitting = (plan for plan in others if plan.fits(memory_limit))
            for plan in islice(fitting, 1):
                self._meet(plan)

    def _fill_memory(self) -> None:
        """Meet plans of the best weights that leave memory for the window.

        Raises
        ------
        NoPlanError
            If none fits, or none was found.
        """
        if self._is_large and plans_blocks(self.source, self.options):
            where = self.source, self.cluster, self.mesh, self.options
            with suppress(NotFoundError):
                self._meet(plan_of_blocks(*where, self.searching))
        weighted = self._problem(self.planes.weighting.of_all(self.planes.center))
        problems = (weighted,) if self._is_large else (self._serial, weighted)
        for share in _SHARES:
            for problem in problems:
                if self._is_late or self._is_done:
                    break
                self._meet_fitting(problem, share * self.limits.limit_bytes)
            if self._has_room:
                break

    def _meet_fitting(self, problem: PlanProblem, memory_limit: float) -> None:
        """Meet the plans within a limit that recompute nothing, and those that do."""
        limit = None if memory_limit == inf else memory_limit
        for recomputes in problem.ways if self.is_short else problem.ways[:1]:
            with suppress(NoPlanError):
                plans = problem.tighter(limit, recomputes, ROUGH_WITHIN, _SHARE_WITHIN)
                self.searches += 1
                for plan in plans:
                    self._meet(plan)
                    if plan.fits(self.limits.limit_bytes):
                        break

    @property
    def _has_room(self) -> bool:
        """Whether the fastest plan leaves all the memory for the window that matters to it."""
        if self.best is None:
            return False
        least = seconds_in_any_memory(self.best.program, self.cluster)
        return self.step <= least * (1 + _ROOM)

    def _give_links_more_weight(self) -> None:
        """Search by greater weights of the links, where the gap is wide even in buckets.

        Links hardly matter to the first weights, and the bound hardly rises, but plans that
        communicate less may be faster.
        """
        for links in _MORE_LINKS:
            is_wide = self.step > self.planes.bound * (1 + _WIDE) and not self._is_done
            if self.is_short or self._is_late or not is_wide:
                return
            with suppress(NoPlanError):
                self._search(self.planes.weighting.equal(links), None)

    def _meet_all_that_may_be_faster(self) -> None:
        """Meet plans of tighter limits, then all in the order of their cost, of small problems."""
        weighted = self._problem(self._first_weights)
        if self._is_done or not self._is_small(weighted):
            return
        limit, budget = self.limits.memory_limit, self.searching.share(SHARE)
        alone = replace(weighted, limits=replace(self.limits, budget=budget))
        with suppress(NoPlanError):
            for plan in islice(alone.tighter(limit, alone.ways[-1]), FRONTIER):
                self._meet(plan)
                if is_near(self.step, plan.result.lower_bound, self.options.gap):
                    break
        centered = self._problem(self.planes.weighting.of_all(self.planes.center))
        if self._is_small(centered) and self._is_small(self._serial):
            recomputes = self.is_short and centered.ways[-1]
            for plan in plans_in_order(centered, self._serial, lambda: self.step, recomputes):
                self._meet(plan)

    def _is_small(self, problem: PlanProblem) -> bool:
        try:
            spaces = [problem.space(recomputes) for recomputes in problem.ways]
        except NotFoundError:
            return False
        return all(sum(space.problem.sizes) <= SMALL for space in spaces)

    # What was met

    def _meet(self, plan: Plan) -> None:
        """Take what a plan says of all weights, and the plan, if it is the fastest that fits."""
        if any(plan.program is known for known in self._met):
            return
        self._met.append(plan.program)
        before = self.best
        self._judge(plan)
        if before is not None and self.best is not before:
            before.emitted.forget()
        if self.best is before:
            plan.emitted.forget()

    def _judge(self, plan: Plan) -> None:
        loads = least_loads(plan.program, self.cluster, self.planes.weighting.intervals)
        self.planes.add(loads, plan.result.memory_bytes)
        limit = self.limits.limit_bytes
        self.is_short |= max(plan.result.memory_bytes, plan.memory.peak_bytes) > limit
        if not plan.fits(limit) or loads.total.max() >= self.step:
            return
        plan = self.buckets.simulated(plan)
        least = max(self.planes.bound, self.buckets.least_step(plan, loads))
        self.planes.least = min(self.planes.least, least)
        if least < self.step:
            # How short buckets make others is an estimate: the fastest one without is worth a try.
            is_fastest = plan.step_seconds < self._shortest_alone
            self._shortest_alone = min(self._shortest_alone, plan.step_seconds)
            plan = self.buckets.best(plan, least, inf if is_fastest else self.step)
            if plan.step_seconds < self.step:
                self.best = plan

    @property
    def step(self) -> float:
        """The shortest step so far."""
        return inf if self.best is None else self.best.step_seconds

    @property
    def _is_done(self) -> bool:
        return is_near(self.step, self.planes.bound, self.options.gap)

    @property
    def _is_late(self) -> bool:
        return self.note.is_late(self.searching, BY_WEIGHTS)

    # The answer

    @property
    def _tolerance(self) -> float:
        """How much longer a step in less memory may be: a gap that is met stays met."""
        tolerance = tolerance_of(self.options.gap)
        for met in (OPTIMALITY_GAP, self.options.gap):
            if relative_gap(self.step, self.planes.bound) <= met < 1:
                longest = self.planes.bound / (1 - met)
                return max(0.0, min(tolerance, longest / self.step - 1))
        return tolerance

    def _answer(self, plan: Plan) -> Plan:
        """Return the plan with its step for a cost, and the bound.

        Raises
        ------
        PassError
            If the step is below the bound.
        """
        step, bound = plan.result.cost, self.planes.bound
        if step < bound * (1 - EQUAL):
            raise PassError(
                f"the overlapped step takes {step:.9g} s, the search said that every plan takes "
                f"at least {bound:.9g} s"
            )
        searches = "one search" if self.searches == 1 else f"{self.searches} searches"
        how = f"{plan.result.how}, {searches} by weights of compute and links"
        return replace(plan, result=replace(plan.result, how=how)).with_bound(bound)

    def _by_rule(self) -> Plan | None:
        """Return a plan that a rule builds and that fits, where the search has none."""
        found = plan_by_rule(self._serial)
        if found is None or not self.minimizes_step:
            return found
        return _by_step(self.buckets.in_least_memory(self.buckets.simulated(found), 0.0))

    # Problems

    @cached_property
    def limits(self) -> SearchOptions:
        """The limits of the user."""
        return limits_on(self.cluster, self.options, self.searching, self.progress)

    @cached_property
    def searching(self) -> Budget:
        """What all searches may spend; the first problem is built before, with as much at most."""
        with suppress(NoPlanError):  # the search says why
            self._request(self._first_weights).space  # noqa: B018
        return self.budget.beyond(self.budget.seconds)

    @cached_property
    def note(self) -> BudgetNote:
        """Notes whether the budget ended a search."""
        return BudgetNote(self.budget)

    @cached_property
    def buckets(self) -> Buckets:
        """What chooses buckets."""
        where = self.source, self.cluster, self.options, self.limits.limit_bytes, self.searching
        return Buckets(*where, self.note)

    @cached_property
    def planes(self) -> CuttingPlanes:
        """The bound, and the weights that raise it."""
        where = self.mesh, self.cluster, self._intervals, self.options.passes
        return CuttingPlanes(StepWeights(*where), self.options.gap)

    @property
    def _first_weights(self) -> ResourceWeights | None:
        request = self._request(None)
        overlaps = request.simulates_step and request.minimizes_step
        return self.planes.weighting.of_all(self.planes.weighting.first) if overlaps else None

    @property
    def _serial(self) -> PlanProblem:
        return self._problem(None)

    def _problem(self, weights: ResourceWeights | None) -> PlanProblem:
        """Return the problem by weights, or of the cost model; the same in every call."""
        if weights not in self._problems:
            limits, request = self.limits, self._request(weights)
            self._problems[weights] = PlanProblem(
                request, self._lowering(weights), limits, self.note, self._programs
            )
        return self._problems[weights]

    def _lowering(self, weights: ResourceWeights | None) -> LowerRedistributions:
        return LowerRedistributions(self.cluster, self.options.cost_model, weights)

    def _request(self, weights: ResourceWeights | None) -> SearchRequest:
        """Return the problem by weights: without the first ones there is no plan."""
        if weights not in self._requests:
            planner = self._lowering(weights).planner(self.mesh)
            is_first = weights is None or weights == self._first_weights
            known = self.known if self.known and self.known.weights == weights else None
            request = SearchRequest(
                *(self.source, self.cluster, planner, self.options, weights, self.emissions),
                known_micro=self._micro,
                budget=self.budget if is_first else self.searching,
                is_needed=is_first,
                prices=None if known is None else known.profile,
                known=known,
                others=self._spaces,
            )
            self._requests[weights], self._spaces[weights] = request, request.spaces
        return self._requests[weights]

    @cached_property
    def _requests(self) -> dict[ResourceWeights | None, SearchRequest]:
        return {}

    @cached_property
    def _micro(self) -> MicroBatches | None:
        passes = self.options.passes
        return None if passes == 1 else micro_batches(self.source, passes)

    @cached_property
    def _intervals(self) -> int:
        """Number of intervals of a step that are bounded one by one."""
        if not can_divide(self.source, self._micro):
            return 1
        return 2 if self._micro is None else 3

    @property
    def _is_large(self) -> bool:
        return len(self.source) > LARGE


def _by_step(plan: Plan) -> Plan:
    """Return a plan that was not searched for its step, with that for a cost, and no bound."""
    return replace(plan, result=replace(plan.result, lower_bound=0.0, status="feasible"))
