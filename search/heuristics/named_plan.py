"""The plan of the degrees that the user names, built without a search.

ZeRO stages are storage options of parameters. Every parameter is stored as its reader uses it
(``zero=0``: gradients are all-reduced over the data ranks), or divided further over the data ranks:
then parameter, optimizer states and updates are divided, and the gradient is reduce-scattered. The
parameter is gathered once a step (``zero=1`` and ``zero=2``), or for every forward and backward
pass (``zero=3``). Over micro-batches the gradient is accumulated whole and reduced after the last
(``zero=1``), or reduced after each and accumulated divided (``zero=2`` and ``zero=3``). Without
micro-batches stages 1 and 2 are the same program.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from shardwright.cost_model.profile import REGATHERED
from shardwright.dataflow.samples import samples_of
from shardwright.ir.errors import InfeasibleError, OptionError, StrategyError
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout, Strategy, local_bytes
from shardwright.ir.mesh import Mesh
from shardwright.ir.units import bytes_text
from shardwright.operators.info import OperatorInfo, info_of
from shardwright.search.heuristics.completion import Preference, complete, replicated
from shardwright.search.heuristics.tensor_ranks import (
    Walk,
    attended_lengths,
    walk,
    weights_of_experts,
)
from shardwright.search.method import Heuristic, SearchResult
from shardwright.search.named_plan import NamedPlan
from shardwright.search.options import SearchOptions
from shardwright.search.plan_axes import PlanAxes
from shardwright.search.plan_dimensions import DIMENSIONS, ZERO_STAGES, Held, Word, word_text
from shardwright.search.space.space import Choice, RecomputedStrategy, SearchSpace, Storage
from shardwright.solver.problem import Identity


@dataclass(frozen=True)
class ByName(Heuristic):
    """Build a named plan.

    Parameters
    ----------
    plan : NamedPlan
        The plan, on the mesh of its degrees.
    named : NamedStrategies, optional
        Its strategies, if they are known, and the axes of the mesh; by default by their names.
    """

    plan: NamedPlan
    named: "NamedStrategies | None" = None

    name = "named_plan"

    def find(self, space: SearchSpace, options: SearchOptions) -> SearchResult:
        """Return the plan with its cost and memory.

        Raises
        ------
        InfeasibleError
            If it exceeds the memory limit: its program takes at least what the search counts.
        """
        plan = self.plan.on(space.mesh.size * self.plan.pipeline)
        result = replace(super().find(space, options), how=plan.text)
        limit = options.limit_bytes
        if result.memory_bytes > limit:
            raise InfeasibleError(
                f"the plan `{result.how}` takes at least {bytes_text(result.memory_bytes)} on each "
                f"device, the limit is {bytes_text(limit)}",
                hint=plan.hint,
                least_memory_bound=result.memory_bytes,
            )
        return result

    def assignment(self, space: SearchSpace) -> tuple[int, ...]:
        """Divide the batch, then the weights; store parameters by the ZeRO stage.

        Raises
        ------
        ShardwrightError
            If the model cannot be divided so.
        """
        named = self.named
        if named is None:
            axes = PlanAxes.of(space.mesh)
            named = NamedStrategies.of(self.plan, space.graph, space.mesh, axes)
        chosen = named.completed(space)
        self._check_storage(space, chosen, named)
        return chosen

    def _check_storage(
        self, space: SearchSpace, chosen: Sequence[int], named: "NamedStrategies"
    ) -> None:
        """Refuse a ZeRO stage that divides no parameter, or that the cost model does not allow."""
        divided = False
        for choice, position in zip(space.choices, chosen, strict=True):
            option = choice.options[position]
            if not isinstance(option, Storage):
                continue
            if not self.plan.held(space.graph.values[choice.name]).divided:
                continue
            storage = named.storage(choice.name)
            ranks = space.mesh.extent(storage)
            if not set(storage).isdisjoint(option.layout.split_axes):
                divided = True
                continue
            if ranks == 1:
                continue
            shape = space.graph.values[choice.name].type.shape
            slices = zip(shape, option.layout.counts(space.mesh), strict=True)
            if any(size >= count * ranks for size, count in slices):
                raise StrategyError(
                    f"`zero={self.plan.zero}` of the plan divides `{choice.name}`, which the cost "
                    "model does not allow",
                    hint="use the cost model `time`",
                )
        if self.plan.zero and not divided:
            why = "every dimension of every parameter is smaller than the data ranks"
            if others := ", ".join(f"`{word_text(*word)}`" for word in self.plan.more):
                why += f", or {others} leaves it whole"
            raise OptionError(
                f"`zero={self.plan.zero}` of the plan divides nothing: {why}",
                hint="leave `zero` out",
            )


@dataclass(frozen=True)
class NamedStrategies:
    """The strategies of a named plan for all operators of a program.

    Parameters
    ----------
    plan : NamedPlan
        The plan.
    axes : PlanAxes
        The axes of the mesh, by what they divide.
    strategies : mapping of str to Strategy
        The strategy of each operator.
    of_experts : collection of str
        Weights of experts.
    """

    plan: NamedPlan
    axes: PlanAxes
    strategies: Mapping[str, Strategy]
    of_experts: Collection[str] = frozenset()

    @staticmethod
    def of(
        plan: NamedPlan, graph: Graph, mesh: Mesh, axes: PlanAxes, *, alike: bool = False
    ) -> "NamedStrategies":
        """Divide a program by a plan; with `alike`, equal products of repeated blocks alike.

        Raises
        ------
        ShardwrightError
            If the model cannot be divided so.
        """
        self = NamedStrategies(plan, axes, {}, weights_of_experts(graph))
        self._check_batch(graph, mesh)
        found = walk(
            graph,
            mesh,
            axes,
            by_position=plan.sequence_parallel,
            ring=plan.ring,
            storage=lambda value: self.storage(value.name) if plan.held(value).divided else (),
            alike=alike,
        )
        self._check_divided(found)
        strategies = dict(found.strategies)
        for name, value in plan.more:
            strategies |= self._changed(name, value, graph, mesh, strategies)
        return replace(self, strategies=strategies)

    def _changed(
        self, name: str, value: Word, graph: Graph, mesh: Mesh, strategies: Mapping[str, Strategy]
    ) -> Mapping[str, Strategy]:
        """Return the strategies that a dimension changes; refuse one that changes nothing."""
        dimension = DIMENSIONS[name]
        changed = dimension.strategies(value, graph, mesh, self.axes, strategies)
        # What divides operators is asked for on tensor ranks alone, too, which have no ZeRO stage.
        stages = ZERO_STAGES if dimension.divides_operators() else (self.plan.zero_stage,)
        trained = [p.value for p in graph.parameters if p.trainable]
        is_same = all(dimension.held(value, p, one) == one for p in trained for one in stages)
        if not changed and is_same:
            raise OptionError(
                f"`{word_text(name, value)}` of the plan changes nothing: all parameters are held, "
                "and all operators divided, as without it",
                hint=f"leave `{name}` out",
            )
        return changed

    def by_operator(self, graph: Graph) -> Mapping[OperatorInfo, frozenset[Strategy]]:
        """Return the strategies of equal operators of the program."""
        found: dict[OperatorInfo, set[Strategy]] = {}
        for node in graph.nodes:
            found.setdefault(info_of(graph, node), set()).add(self.strategies[node.name])
        return {info: frozenset(strategies) for info, strategies in found.items()}

    def storage(self, parameter: str) -> tuple[str, ...]:
        """Return the axes over which ZeRO divides a parameter."""
        return self.axes.expert_storage if parameter in self.of_experts else self.axes.storage

    def completed(
        self, space: SearchSpace, received: Mapping[str, Layout] | None = None
    ) -> tuple[int, ...]:
        """Return the assignment of a problem of the program, or of a part of it.

        Parameters
        ----------
        space : SearchSpace
            The problem.
        received : mapping of str to Layout, optional
            Layouts of inputs; by default, the cheapest.

        Raises
        ------
        StrategyError
            If the cost model does not allow it.
        """
        for choice in space.choices:
            if choice.kind == "operator" and self.strategies[choice.name] not in choice.options:
                raise StrategyError(
                    f"the named plan splits `{choice.name}` by "
                    f"`{self.strategies[choice.name]}`, which the cost model does not allow",
                    hint="use the cost model `time`",
                )
        preference = self._preference(space)
        chosen = complete(space, self.strategies, preference, received)
        if self.plan.sequence_parallel:
            chosen = complete(space, with_regathered(space, chosen), preference, received)
        return chosen

    def _check_batch(self, graph: Graph, mesh: Mesh) -> None:
        ranks = mesh.extent(self.axes.data)
        batch = samples_of(graph)
        if batch is not None and batch % ranks:
            raise OptionError(
                f"the batch of {batch} cannot be split over `data={ranks}` of the plan",
                hint=f"use a batch that {ranks} divides",
            )
        ranks = mesh.extent(self.axes.context)
        for length in attended_lengths(graph):
            if length < ranks:
                raise OptionError(
                    f"the sequence of {length} positions cannot be split over `context={ranks}` of "
                    "the plan",
                    hint=f"use a sequence of at least {ranks}",
                )

    def _check_divided(self, found: Walk) -> None:
        """Refuse a degree with which nothing is divided."""
        expert = self.plan.expert
        if expert > 1 and found.experts and not found.with_experts:
            counts = " or ".join(map(str, sorted(found.experts)))
            raise OptionError(
                f"`expert={expert}` of the plan does not divide the {counts} experts of the model",
                hint=f"use a divisor of {max(found.experts)}",
            )
        unused = {
            f"expert_tensor={self.plan.expert_tensor}": self.plan.expert_tensor is not None
            and not found.experts,
            f"tensor={self.plan.tensor}": self.plan.tensor > 1 and not found.divided,
            f"expert={self.plan.expert}": self.plan.expert > 1 and not found.with_experts,
            f"context={self.plan.context}": self.plan.context > 1 and not found.with_context,
            "ring": self.plan.ring and not found.with_ring,
            "sequence_parallel": self.plan.sequence_parallel and not found.scattered,
        }
        missing = {
            "tensor": "product",
            "expert": "product of experts",
            "expert_tensor": "product of experts",
            "context": "attention over positions of an input [batch, position]",
            "ring": "attention without a mask operand",
        }
        for item, idle in unused.items():
            what = missing.get(item.partition("=")[0], "activation [batch, position, feature]")
            if idle:
                raise OptionError(
                    f"`{item}` of the plan divides nothing: the model has no {what} that can be "
                    "split so",
                    hint=f"leave `{item.partition('=')[0]}` out",
                )

    def _preference(self, space: SearchSpace) -> Preference:
        known: dict[object, Sequence[bool]] = {}  # equal parameters share their options

        def preferred(choice: Choice) -> Sequence[bool]:
            held = self.plan.held(space.graph.values[choice.name])
            axes = self.storage(choice.name) if held.divided else ()
            key = Identity(choice.options), axes, held
            if key not in known:
                divided = held.divided and _divided(choice, space.mesh, axes, held)
                known[key] = divided or replicated(choice)
            return known[key]

        return preferred


def with_regathered(space: SearchSpace, assignment: Sequence[int]) -> Mapping[str, Strategy]:
    """Return the strategies of a plan; results that are read in more bytes are regathered."""
    strategies = {
        choice.name: option
        for choice, position in zip(space.choices, assignment, strict=True)
        if isinstance(option := choice.options[position], Strategy)
    }
    for name in _gathered(space, assignment):  # also from the layout that readers share
        strategy = RecomputedStrategy(strategies[name].assignment, REGATHERED)
        if strategy in space.choices[space.position["operator", name]].options:
            strategies[name] = strategy
    return strategies


def _gathered(space: SearchSpace, assignment: Sequence[int]) -> Iterator[str]:
    """Yield the operators whose result a reader takes in more bytes than they leave."""
    for _, pair, edge in space.priced:
        made = edge.sources[assignment[pair.first]].layout
        read = edge.targets[assignment[pair.second]].layout
        less, more = (local_bytes(edge.tensor, layout, space.mesh) for layout in (made, read))
        choice = space.choices[pair.first]
        if less < more and ("operator", choice.name) in space.position:
            yield choice.name


def _divided(choice: Choice, mesh: Mesh, data: Sequence[str], held: Held) -> Sequence[bool]:
    """Prefer to divide a parameter further over the most data ranks, and over no others.

    Parameters
    ----------
    choice : Choice
        A parameter.
    mesh : Mesh
        The mesh.
    data : sequence of str
        The axes of the data ranks.
    held : Held
        When it is gathered, and its gradient reduced, as far as there is a choice.
    """
    when = held.in_passes, held.in_passes, held.reduced_in_passes

    def ranks(option: Storage) -> float:
        used = option.used.split_axes if option.used is not None else ()
        extra = set(option.layout.split_axes).difference(used)
        return mesh.extent(extra) if extra.issubset(data) else -inf

    options = [option for option in choice.options if isinstance(option, Storage)]
    most: dict[object, float] = {}
    for option in options:
        most[option.used] = max(ranks(option), most.get(option.used, 1))

    def differences(option: Storage) -> int:
        found = (option.regathered, option.in_passes, option.reduced_in_passes)
        return sum(a != b for a, b in zip(found, when, strict=True))

    least: dict[object, int] = {}
    for option in options:
        if ranks(option) == most[option.used]:
            known = least.get(option.used, len(when))
            least[option.used] = min(known, differences(option))
    return [
        ranks(option) == most[option.used] and differences(option) == least[option.used]
        for option in options
    ]
