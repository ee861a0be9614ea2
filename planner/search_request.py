"""What a compilation asks of the search: the program, its costs on the mesh, and the options."""

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.profile import CostProfile, ProfileRequest, UpdateRule
from shardwright.cost_model.profiles import PROFILES
from shardwright.cost_model.program_profile import Emissions
from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.cost_model.time_profile import TimeProfile
from shardwright.cost_model.weighted.intervals import ResourceWeights
from shardwright.cost_model.weighted_profile import WeightedPlanner, WeightedProfile
from shardwright.dataflow.cotangents import cotangent_flow
from shardwright.dataflow.micro_batches import MicroBatches, micro_batches
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph, Value
from shardwright.ir.layout import Layout
from shardwright.operators.info import SplitCounts
from shardwright.operators.models.loss_scale import DynamicLossScale
from shardwright.operators.reduction.global_norm import sum_type
from shardwright.planner.option_checks import SEARCHED
from shardwright.planner.options import CompileOptions, Mode
from shardwright.search.driver import SEARCHES, search
from shardwright.search.heuristics.named_plan import ByName, NamedStrategies
from shardwright.search.method import SearchMethod, SearchResult
from shardwright.search.options import SearchOptions
from shardwright.search.space.builder import build_search_space
from shardwright.search.space.context import StagePart
from shardwright.search.space.interning import Interner
from shardwright.search.space.memory import HostMemory
from shardwright.search.space.repricing import repriced
from shardwright.search.space.space import SearchSpace
from shardwright.search.space.steps import RepriceableSpace
from shardwright.solver.work import Budget

_SEARCH_OF_MODE: dict[Mode, str] = {
    "data_parallel": "data_parallel",
    "semi_auto_parallel": "sharding_propagation",
}


@dataclass(frozen=True)
class SearchRequest:
    """A search for the decisions of one program.

    Parameters
    ----------
    source : Graph
        The whole program, in canonical form.
    cluster : Cluster
        The devices.
    planner : RedistributionPlanner
        The redistributions on the mesh of the cluster.
    options : CompileOptions
        How to compile.
    weights : ResourceWeights, optional
        The costs are the loads of the resources of a rank by these weights; by default those of
        the cost model.
    emissions : dict
        Emitted operators, to share them between weights.
    part : StagePart, optional
        The pipeline stage that the program is.
    loop : MicroBatches, optional
        The micro-batches of the whole program, where this one is a pipeline stage.
    prices : CostProfile, optional
        The costs, to share them with the searches for other stages.
    known_micro : MicroBatches, optional
        The micro-batches of the program, where they are known.
    budget : Budget
        Pays for building problems.
    is_needed : bool
        Whether there is no plan without the problems: each of them may then spend as much as the
        whole budget, whatever is left of it.
    interners : dict, optional
        What the problems of other stages share with this one, where they have the same options.
    known : SearchRequest, optional
        An equal request of another search, which may have built the problems.
    others : mapping
        The `spaces` of the searches by other weights: what one has built, this one only prices.
    named : NamedStrategies, optional
        The strategies of a named plan: the problem is built with these alone.
    """

    source: Graph
    cluster: Cluster
    planner: RedistributionPlanner
    options: CompileOptions
    weights: ResourceWeights | None = None
    emissions: Emissions = field(default_factory=dict)
    part: StagePart | None = None
    loop: MicroBatches | None = None
    prices: CostProfile | None = None
    known_micro: MicroBatches | None = None
    budget: Budget = field(default_factory=Budget)
    is_needed: bool = True
    interners: dict[Hashable, Interner] | None = None
    known: "SearchRequest | None" = field(default=None, repr=False, compare=False)
    others: Mapping[ResourceWeights | None, Mapping[str, SearchSpace]] = field(
        default_factory=dict, repr=False, compare=False
    )
    named: NamedStrategies | None = None
    spaces: dict[str, SearchSpace] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # that were built so far
    _spent: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def search(self) -> str:
        """The name of the search that the mode stands for, or of the named plan."""
        if self.options.named_plan is not None:
            return ByName.name
        return _SEARCH_OF_MODE.get(self.options.mode, self.options.search)

    @property
    def method(self) -> type[SearchMethod]:
        """The method of that name."""
        return ByName if self.options.named_plan is not None else SEARCHES[self.search]

    @property
    def simulates_step(self) -> bool:
        """Whether the cost of a plan is its overlapped step, in the fastest buckets."""
        in_seconds = self.options.cost_model == TimeProfile.name
        known = self.minimizes_step or self.options.named_plan is not None
        return known and in_seconds and self.options.objective == "overlapped"

    @property
    def minimizes_step(self) -> bool:
        """Whether the search method can minimise the overlapped step."""
        return self.method.minimizes_step

    @cached_property
    def micro(self) -> MicroBatches | None:
        """The micro-batches of a step; None where the whole batch is one."""
        if self.known_micro is not None:
            return self.known_micro
        if self.part is not None and self.loop is not None:
            return self.part.stretch.in_micro_batches(self.loop)
        passes = self.options.passes
        return None if passes == 1 else micro_batches(self.source, passes)

    @property
    def micro_source(self) -> Graph:
        """The program of one micro-batch."""
        return self.source if self.micro is None else self.micro.graph

    def decisions(self, result: SearchResult) -> Decisions:
        """Return the decisions of a search, for the program of the whole batch."""
        return result.decisions if self.micro is None else self.micro.lifted(result.decisions)

    @cached_property
    def profile(self) -> CostProfile:
        """The costs."""
        if self.prices is not None:
            return self.prices
        if self.weights is not None:
            assert isinstance(self.planner, WeightedPlanner)
            return WeightedProfile(
                self.weights,
                self.planner,
                self.cluster,
                update_rule(self.options, self.source),
                self.method.by_orbit,
                self.emissions,
            )
        request = ProfileRequest(
            self.planner,
            self.cluster,
            update_rule(self.options, self.source),
            by_orbit=self.method.by_orbit,
            minimizes_cost=self.method.minimizes_cost,
            scattered=self.options.sharding is not None,
            weights=self.options.cost_weights,
            among={} if self.named is None else self.named.by_operator(self.micro_source),
        )
        return PROFILES[self.options.cost_model].create(request)

    @cached_property
    def space(self) -> SearchSpace:
        """The problem, with all pins."""
        return self._built("space", lambda: self.space_with(self.options.pins))

    @property
    def is_built(self) -> bool:
        """Whether the problem was built: the budget may have ended that."""
        return "space" in self.spaces

    @cached_property
    def recompute_space(self) -> SearchSpace:
        """The problem, with all pins, in which the search decides what is saved for backward."""
        own = self.options.pins
        return self._built("recompute_space", lambda: self.space_with(own, recompute=True))

    def _built(self, which: str, build: Callable[[], SearchSpace]) -> SearchSpace:
        """Return a problem, and note the work of building it.

        A problem that is known is paid for as if it were built: what a process happens to know
        changes no plan.
        """
        begin = self.budget.spent
        space = self._repriced(which) or self._known(which) or build()
        self.spaces[which] = space
        self._spent[which] = self.budget.spent - begin
        return space

    def _known(self, which: str) -> SearchSpace | None:
        """Return a problem that is known, if the budget suffices to build it."""
        if self.known is None or self.known._spent.get(which, math.inf) >= self._budget.left:
            return None
        self.budget.charge(self.known._spent[which])
        return self.known.spaces[which]

    def _repriced(self, which: str) -> SearchSpace | None:
        """Return the problem that a search by other weights has built, by these; else None."""
        for weights, spaces in self.others.items():
            space = spaces.get(which)
            if isinstance(space, RepriceableSpace) and self._tells_no_more_than(weights):
                shared = self._interner(which == "recompute_space", regather=False)
                return repriced(space, self.profile, self._budget, self.options.effort, shared)
        return None

    def _tells_no_more_than(self, weights: ResourceWeights | None) -> bool:
        """Return whether other weights tell at least the kinds of nodes apart that these do."""
        own = self.weights
        if own is None or weights is None:
            return False
        same = (len(own.intervals), own.passes) == (len(weights.intervals), weights.passes)
        return same or len(own.intervals) == 1

    @property
    def recomputes(self) -> bool:
        """Whether the search decides what is saved for backward, where memory is short.

        Tensors may be regathered, and operators recomputed where the options leave that open.
        """
        return self.method.recomputes and self.profile.prices_recomputation

    def space_with(
        self, pins: Mapping[str, SplitCounts], *, recompute: bool = False, regather: bool = False
    ) -> SearchSpace:
        """Return the problem with some pins.

        Parameters
        ----------
        pins : mapping of str to split counts
            The pins.
        recompute : bool
            Whether the search decides what is saved for backward.
        regather : bool
            Whether tensors may be regathered, in any case.
        """
        plan = self.options.named_plan
        if self.options.sharding is not None:
            self.options.sharding.check_mesh(self.planner.mesh)
        return build_search_space(
            self.micro_source,
            self.profile,
            optimizer=self.options.optimizer,
            pins=pins,
            result_pins=self.options.result_pins,
            input_layouts=self._input_layouts(),
            sharding=self.options.sharding,
            budget=self._budget,
            effort=self.options.effort,
            recompute=recompute and self.options.recompute == "search",
            regather=regather or recompute or (plan is not None and plan.sequence_parallel),
            micro=self.micro,
            part=self.part,
            interner=self._interner(recompute, regather),
            host=self._host_memory(recompute),
        )

    @property
    def _budget(self) -> Budget:
        whole = self.budget.seconds
        return self.budget.beyond(whole) if self.is_needed else self.budget.within(whole)

    def _interner(self, recompute: bool, regather: bool) -> Interner:
        """Return what the problem shares with others of as many passes and the same choices."""
        if self.interners is None or self.part is None:
            return Interner()
        part, in_loop = self.part, self.loop is not None
        key = recompute, regather, in_loop, part.passes, part.free_ends, part.accumulates
        return self.interners.setdefault(key, Interner())

    def _host_memory(self, offered: bool) -> HostMemory | None:
        """Return the host memory; `offered` where the search decides what is saved for backward."""
        host, options = self.cluster.host, self.options
        if host is None:
            return None
        offered = offered and options.offload == SEARCHED
        return HostMemory(offered, host.memory_bytes, options.memory_on(self.cluster))

    def _input_layouts(self) -> Mapping[str, Layout]:
        """Return the layouts of the inputs that are not chosen by the search."""
        if not self.profile.rules.whole_inputs:
            return self.options.input_layouts
        whole = {value.name: Layout.replicated(value.type.rank) for value in self.source.inputs}
        return {**whole, **self.options.input_layouts}

    def solve(self, space: SearchSpace, limits: SearchOptions) -> SearchResult:
        """Search a problem of this request within limits."""
        plan = self.options.named_plan
        return search(space, self.search if plan is None else ByName(plan, self.named), limits)


def update_rule(options: CompileOptions, source: Graph) -> UpdateRule:
    """Return the optimizer as far as its cost matters."""
    optimizer, guarded, rates, clipped = options.optimizer, 0, 0, 0
    is_guarded, clips = isinstance(options.loss_scale, DynamicLossScale), optimizer.clip_norm
    trained: list[Value] = []
    if is_guarded or clips is not None or optimizer.is_scheduled:
        carrying = cotangent_flow(source).values
        trained = [p.value for p in source.parameters if p.trainable and p.name in carrying]
        guarded = len(trained) if is_guarded else 0
        clipped = 0 if clips is None else len(trained)
        if optimizer.is_scheduled:
            rates = len({optimizer.rate_of(value.name) for value in trained})
    unscales = not guarded and options.loss_scale != 1.0
    dtype = "float32" if guarded else sum_type(value.type for value in trained)
    return UpdateRule(optimizer, unscales, guarded, rates, clipped, dtype)


def decided(options: CompileOptions) -> dict[str, tuple[str, ...]]:
    """Return what the user decided about operators and inputs, as something to compare."""
    found: dict[str, tuple[str, ...]] = {}
    for kind in ("pins", "result_pins", "input_layouts"):
        for name, pin in getattr(options, kind).items():
            found[name] = (*found.get(name, ()), f"{kind} {pin}")
    return found
