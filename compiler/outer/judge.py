"""Bounds and plans of configurations, by exact searches of one program."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Protocol

from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.compiler.evaluation.evaluator import Shared
from shardwright.compiler.outer.block_prices import BlockPricing, PipelineOf
from shardwright.compiler.outer.kept_prices import KeptPricing
from shardwright.compiler.outer.least_computation import ALONE, LeastComputation
from shardwright.compiler.outer.named_plans import NamedPlans
from shardwright.compiler.plans.compiled import Compiled
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.weighted.intervals import LINKS, ResourceWeights
from shardwright.ir.errors import (
    NoPlanError,
    NotFoundError,
    OptionError,
    ShardwrightError,
    StrategyError,
)
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.planner.bounds.chunk_floors import Halves
from shardwright.planner.bounds.floors import ComputationFloor
from shardwright.planner.choice.configuration import Configuration, is_large
from shardwright.planner.choice.questions import Found, Prices
from shardwright.planner.effort import ROUGH_WITHIN
from shardwright.planner.option_checks import SEARCHED
from shardwright.planner.options import CompileOptions
from shardwright.planner.search_request import SearchRequest
from shardwright.planner.whole.blocks import plans_blocks
from shardwright.search.named_plan import NamedPlan
from shardwright.search.options import SearchOptions
from shardwright.solver.work import Budget

WITHOUT_LIMIT = "search without the memory limit"
WITHIN_LIMIT = "rough search within the memory limit"
_KEPT = 2  # problems that a process keeps for the next task

LayoutsOn = Callable[[Mesh | None], Mapping[str, Layout]]
"""Returns the layouts of the inputs on a mesh, as far as the user decides them."""


class CompileOne(Protocol):
    """Compiles one configuration."""

    def __call__(
        self,
        options: CompileOptions,
        mesh: Mesh | None,
        budget: Budget,
        known: SearchRequest | None,
        *,
        below: float | None = None,
    ) -> Found[Compiled]:
        """Return its best plan; or one that is made block by block, if it may undercut a cost."""
        ...


class BuildNamed(Protocol):
    """Builds a named plan."""

    def __call__(self, options: CompileOptions, budget: Budget) -> Found[Compiled]:
        """Return the plan that the options name, which ask for its number of micro-batches."""
        ...


@dataclass(frozen=True)
class PricesOfWhole:
    """Bounds by searches of a whole program in one stage.

    A plan in more micro-batches is one in fewer, of no greater cost: layouts that divide a slice of
    the batch divide the batch, and a pass costs no less than its part of one pass over all, by the
    roofline and by every algorithm of a collective. A plan on a mesh that merges axes of one level
    is one on the finer mesh, whose collectives over them cost the same.

    Parameters
    ----------
    configuration : Configuration
        The configuration.
    cost : float
        A bound of its plans within any memory.
    limited_cost : float
        The same within the memory limit.
    proof : str
        What proved that.
    is_in_seconds : bool
        Whether costs are seconds.
    is_one_program : bool
        Whether other numbers of micro-batches have the same program.
    """

    configuration: Configuration
    cost: float
    limited_cost: float
    proof: str
    is_in_seconds: bool
    is_one_program: bool

    @property
    def known(self) -> Mapping[Hashable, object]:
        """Nothing that other prices may begin with."""
        return {}

    def bound(self, other: Configuration) -> float:
        """Return a bound of every plan of a configuration; 0 where nothing is known of it."""
        own = self.configuration
        if own == other:
            return self.limited_cost
        one = own.micro_batches == other.micro_batches or self.is_one_program
        return self.cost if self.is_in_seconds and one and own.divides(other) else 0.0

    def estimate(self, other: Configuration) -> float | None:
        """Return the bound of the configuration itself, which exact plans are close to."""
        return self.limited_cost if other == self.configuration else None

    def is_short_of_memory(self, other: Configuration) -> bool:
        """Return whether the search for a plan is to be left out, since blocks have a better one.

        There is no other plan here.
        """
        return False


@dataclass
class ProgramJudge:
    """Judges the configurations of one program.

    Parameters
    ----------
    graph : Graph
        The whole program, as the user gives it.
    source_of : callable
        Returns it in a number of micro-batches, in canonical form.
    cluster : Cluster
        The devices.
    devices : int
        Number of ranks.
    options : CompileOptions
        How to compile; the number of micro-batches is of no account.
    layouts_on : callable
        The layouts of the inputs on a mesh.
    compile_one : callable
        Compiles with options on a mesh, from the problem that is searched if it is given.
    build_named : callable
        Builds the named plan of some options.
    pipeline_of : callable
        Returns the search of a pipeline with options on the mesh of a device group.
    """

    graph: Graph
    source_of: Callable[[int], Graph]
    cluster: Cluster
    devices: int
    options: CompileOptions
    layouts_on: LayoutsOn
    compile_one: CompileOne
    build_named: BuildNamed
    pipeline_of: PipelineOf
    requests: OrderedDict[Configuration, SearchRequest] = field(default_factory=OrderedDict)
    _halves: Halves = field(default_factory=Halves)

    @property
    def prices(self) -> bool:
        """Whether configurations are priced: the method minimises the cost to a proof."""
        return self._is_bounded

    @property
    def _is_bounded(self) -> bool:
        options = self.options
        exact = options.mode == "auto_parallel" and options.search == "exact"
        unchanged = options.objective == "serial" or not options.rewrites_programs
        staged = bool(self.source_of(1).cuts)
        if options.stages != 1 and options.rewrites_programs:
            return False
        return exact and unchanged and options.plan is None and not staged

    def floor(self, stages: Collection[int], budget: Budget) -> ComputationFloor:
        """Return what one device computes, which bounds every configuration.

        Passes over micro-batches compute no less than one over the whole batch.

        Parameters
        ----------
        stages : collection of int
            Numbers of device groups of the configurations.
        budget : Budget
            What the searches may spend.
        """
        is_one = self.options.micro_batches == 1 or self._is_one_program
        known = self._is_bounded and self._is_in_seconds and is_one
        if not known or not isinstance(self.cluster, Cluster):
            return ComputationFloor(self.devices, 0.0)
        options = replace(
            self.options.in_one_stage(),
            micro_batches=1,
            objective="serial",
            pins={},
            result_pins={},
        )
        where = self.source_of(1), self.cluster, options
        alone = self.pipeline_of(options, ALONE, budget)
        floor = LeastComputation(*where, alone, budget).floor(self.devices, stages)
        self._halves = floor.halves
        return floor

    @cached_property
    def _prices_blocks(self) -> bool:
        """Whether prices are those of blocks alone, instead of searches of the whole program.

        Of pipelines they are, and of large programs in several numbers of micro-batches.
        """
        several = self.options.micro_batches == SEARCHED and self.is_large
        many = self.options.stages != 1 or several
        return many and self._is_bounded and self._is_in_seconds

    @property
    def is_large(self) -> bool:
        """Whether the searches of the whole program take long.

        Then one micro-batch in several device groups is not tried.
        """
        return is_large(self.source_of(1))

    def plans_blocks(self, configuration: Configuration) -> bool:
        """Return whether a plan is put together from plans of blocks, before a search.

        In one stage that is one of a large program of repeated blocks. Not where tensors may be
        offloaded: blocks alone do not tell when that pays.
        """
        return self._prices_blocks and (configuration.stages > 1 or self._repeats_blocks)

    @cached_property
    def _repeats_blocks(self) -> bool:
        return self.is_large and plans_blocks(self.source_of(1), self.options)

    @property
    def _names_plans(self) -> bool:
        """Whether named plans are among those that are searched: they decide all that may be."""
        options = self.options
        given = options.pins or options.result_pins or options.input_layouts
        free = not given and not options.optimizer_parallel and options.recompute == SEARCHED
        bounded = self._is_bounded and self._is_in_seconds
        return bounded and free and not self.layouts_on(ALONE)

    def name(
        self, configurations: Sequence[Configuration], budget: Budget
    ) -> tuple[Configuration, Found[Compiled]] | None:
        """Return a named plan that fits, and whose plans it is among; None without one.

        Nothing is searched for it, so it is built whatever that takes.
        """
        if not self._names_plans:
            return None
        with suppress(NoPlanError, StrategyError, OptionError):
            named = NamedPlans(self._model(budget), self.devices, configurations).best()
            if named is not None:
                configuration = named[0]
                return configuration, self._build(*named, budget)
        return None

    def _model(self, budget: Budget) -> EvaluatedModel:
        """Return the model, whose named plans are compared by their overlapped steps.

        Raises
        ------
        OptionError
            If its plans have no bounds.
        """
        options = self.options.in_one_stage()
        options = replace(options, micro_batches=1, objective="overlapped")
        where = self.graph, self.cluster.without_host(), options
        return EvaluatedModel(*where, shared=Shared(budget))

    def _build(
        self, configuration: Configuration, plan: NamedPlan, budget: Budget
    ) -> Found[Compiled]:
        """Return a named plan.

        Raises
        ------
        ShardwrightError
            If it does not fit, or the model cannot be divided so.
        """
        count = configuration.micro_batches
        options = replace(self.options.in_one_stage(), micro_batches=count, plan=plan)
        return self.build_named(options, budget)

    def price(
        self,
        configuration: Configuration,
        budget: Budget,
        below: float = inf,
        known: Mapping[Hashable, object] | None = None,
    ) -> Prices:
        """Return bounds on a mesh in a number of micro-batches, and an estimate.

        Raises
        ------
        ShardwrightError
            If the program has no form in so many, or no price was found within the budget.
        """
        if not self._prices_blocks:
            return self._price_of_whole(configuration, budget)
        alone = Configuration(configuration.mesh, configuration.micro_batches)
        options = self.options_of(alone)
        try:
            return self._pricing.prices(configuration, options, budget, below, known or {})
        except ShardwrightError as error:  # of blocks alone: whole programs may have a plan
            raise NotFoundError(f"there is no price of {configuration}") from error

    @cached_property
    def _pricing(self) -> KeptPricing:
        levels, overlaps = len(self.cluster.levels), self.options.objective != "serial"
        known = self._is_one_program, self._halves
        return KeptPricing(BlockPricing(self.pipeline_of, levels, overlaps, *known))

    @property
    def _is_in_seconds(self) -> bool:
        return self.options.cost_model == "time"

    def covers(self, one: Configuration, other: Configuration) -> bool:
        """Return whether the plans of another configuration are among those of a first one.

        A plan on a mesh that merges axes of one level is one on the finer mesh, whose collectives
        over them cost the same.
        """
        same = one.micro_batches == other.micro_batches
        return self._is_in_seconds and same and one.divides(other)

    @cached_property
    def _is_one_program(self) -> bool:
        """Whether the program is the same for any number of micro-batches, without statistics."""
        try:
            return self.source_of(1) == self.source_of(2)
        except ShardwrightError:  # it has no form in two
            return False

    def _price_of_whole(self, configuration: Configuration, budget: Budget) -> "PricesOfWhole":
        """Return bounds by searches of the whole program: without the memory limit, and within it.

        Raises
        ------
        ShardwrightError
            If the configuration has no plan, or no bound was found within the budget.
        """
        request = self._request(configuration, budget)
        gap = max(self.options.gap, ROUGH_WITHIN) * (self.options.gap > 0)
        limits = SearchOptions(None, budget.beyond(budget.seconds), gap)
        free = request.solve(request.space, limits)
        limit, within = self.options.memory_on(self.cluster), free.lower_bound
        proof = WITHOUT_LIMIT
        if free.memory_bytes > limit:
            proof = WITHIN_LIMIT
            space = request.recompute_space if request.recomputes else request.space
            limits = replace(limits, memory_limit=limit, budget=budget.beyond(budget.seconds))
            within = max(within, request.solve(space, limits).lower_bound)
        where = configuration, free.lower_bound, within, proof
        return PricesOfWhole(*where, self._is_in_seconds, self._is_one_program)

    def search(self, configuration: Configuration, budget: Budget) -> Found[Compiled]:
        """Return the best plan of a configuration within the memory limit."""
        options, known = self.options_of(configuration), self.requests.get(configuration)
        return self.compile_one(options, configuration.mesh, budget, known)

    def plan(
        self, configuration: Configuration, budget: Budget, below: float = inf
    ) -> Found[Compiled]:
        """Return a plan that is put together from plans of blocks, without a bound.

        Raises
        ------
        NotFoundError
            If it does not fit, or is not expected to cost less than `below`.
        """
        options = self.options_of(configuration)
        return self.compile_one(options, configuration.mesh, budget, None, below=below)

    def options_of(self, configuration: Configuration) -> CompileOptions:
        """Return the options of a compilation of one configuration."""
        given = {**self.layouts_on(configuration.mesh), **self.options.input_layouts}
        return replace(
            self.options,
            micro_batches=configuration.micro_batches,
            stages=configuration.stages,
            chunks=configuration.chunks,
            schedule=configuration.schedule,
            input_layouts=given,
        )

    def _request(self, configuration: Configuration, budget: Budget) -> SearchRequest:
        """Return the problem of a configuration, which may have been built for another bound."""
        known = self.requests.pop(configuration, None)
        assert configuration.mesh is not None
        options, weights = self.options_of(configuration), self._weights()
        request = self._request_on(configuration.mesh, options, weights, budget, known)
        self.requests[configuration] = request
        while len(self.requests) > _KEPT:
            self.requests.popitem(last=False)
        return request

    def _weights(self) -> ResourceWeights | None:
        """Return the weights of a bound on the overlapped step; None for the serial one."""
        if self.options.objective == "serial":
            return None
        levels = len(self.cluster.levels)
        return ResourceWeights(1 - LINKS, (LINKS / levels,) * levels)

    def _request_on(
        self,
        mesh: Mesh,
        options: CompileOptions,
        weights: ResourceWeights | None,
        budget: Budget,
        known: SearchRequest | None,
    ) -> SearchRequest:
        lowering = LowerRedistributions(self.cluster, options.cost_model, weights)
        planner = lowering.planner(mesh)
        source = self.source_of(options.passes)
        prices = None if known is None else known.profile
        where = source, self.cluster, planner, options, weights
        return SearchRequest(*where, prices=prices, budget=budget, known=known)
