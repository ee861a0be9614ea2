"""Plans built by rule: further candidates where memory is short and the search proves no optimum.

They are points of the search space, so bounds on all plans hold for them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from shardwright.compiler.search_request import SearchRequest
from shardwright.ir.errors import ShardwrightError, StrategyError
from shardwright.passes.recompute import Recompute
from shardwright.search.driver import search
from shardwright.search.heuristics.named_plan import ByName
from shardwright.search.heuristics.propagation import ShardingPropagation
from shardwright.search.method import SearchMethod, SearchResult
from shardwright.search.named_plan import ZERO, NamedPlan
from shardwright.search.space.space import SearchSpace

_BY_RULE = ("fully_sharded", "data_parallel", "tensor_parallel", ShardingPropagation.name)
_DEGREES = ("tensor", "expert", "data", "context")


@dataclass(frozen=True)
class RulePlans:
    """The plans that rules build for one program and mesh.

    Parameters
    ----------
    request : SearchRequest
        The exact search that they are candidates of.
    """

    request: SearchRequest

    @property
    def are_allowed(self) -> bool:
        """Whether the plans are points of the search space, at the same cost."""
        options = self.request.options
        decided = options.pins or options.result_pins or options.input_layouts
        exact = self.request.method.minimizes_step and options.cost_model == "time"
        free = not decided and not options.optimizer_parallel
        return exact and free and self.request.weights is None

    @cached_property
    def results(self) -> tuple[SearchResult, ...]:
        """The plans, cheapest first; those that the model does not allow are left out."""
        if not self.are_allowed:
            return ()
        found = {(one.cost, one.memory_bytes): one for one in self._built()}
        return tuple(sorted(found.values(), key=lambda one: one.cost))

    def _built(self) -> Iterator[SearchResult]:
        for request, mark in self._requests():
            try:
                space = request.space
            except StrategyError:  # the mesh is too fine for the time
                continue
            methods: list[str | SearchMethod] = [*_BY_RULE, *self._named()]
            for method in methods:
                yield from _result(space, method, mark)

    def _requests(self) -> Iterator[tuple[SearchRequest, str]]:
        """Yield the requests of a search by rule: as marked, and with recomputation of blocks."""
        request = self.request
        options = replace(request.options, search=_BY_RULE[0], objective="serial")
        yield replace(request, options=options, emissions={}), ""
        if request.options.recompute != "search" or not request.recomputes:
            return
        try:
            marked = Recompute("full").run(request.source)
        except StrategyError:  # the model has no repeated block
            return
        yield replace(request, source=marked, options=options, emissions={}), ", recompute=full"

    def _named(self) -> Iterator[SearchMethod]:
        """Yield the named plans of the mesh, where its axes have the names of degrees."""
        degrees = dict.fromkeys(_DEGREES, 1)
        for axis in self.request.planner.mesh.of_ranks.axes:
            kind = axis.name.partition("_")[0]
            if kind not in degrees:
                return
            degrees[kind] *= axis.size
        tensor, expert = degrees["tensor"], degrees["expert"]
        context, data = degrees["context"], degrees["data"] * expert
        plain = NamedPlan(tensor=tensor, context=context, expert=expert, data=data)
        for zero, by_position, ring in product(ZERO, (False, True), (False, True)):
            if (data == context == 1 and zero) or (tensor == 1 and by_position):
                continue
            if context > 1 or not ring:
                yield ByName(replace(plain, zero=zero, sequence_parallel=by_position, ring=ring))


def _result(space: SearchSpace, method: str | SearchMethod, mark: str) -> Iterator[SearchResult]:
    """Yield the plan of a rule, if the model allows it."""
    try:
        found = search(space, method)
    except ShardwrightError:
        return
    yield replace(found, how=f"{found.how}{mark}")
