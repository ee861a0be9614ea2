"""Sites: the kinds of blocks of a program on one mesh, in one number of micro-batches.

Blocks are planned alone, each with the values that it passes to others in given layouts, so plans
of neighbours fit together whatever else they decide. These layouts are those that the most frequent
kind of block chooses where memory costs nothing: one for each shape that passes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.program_profile import Emissions
from shardwright.cost_model.weighted.intervals import LEAST_WEIGHT, LINKS, ResourceWeights
from shardwright.cost_model.weighted.kinds import can_divide
from shardwright.dataflow.micro_batches import micro_batches, one_pass
from shardwright.dataflow.stretches import Line
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.planner.effort import limits_on
from shardwright.planner.fronts.narrow import narrowed
from shardwright.planner.fronts.problem import StageProblems
from shardwright.planner.options import CompileOptions
from shardwright.planner.plan.blocks import Blocks, cut_points
from shardwright.planner.search_request import SearchRequest, decided
from shardwright.search.options import SearchOptions
from shardwright.search.space.space import SearchSpace
from shardwright.solver.evaluate import cost_of
from shardwright.solver.methods import DEFAULT_SECONDS
from shardwright.solver.work import Budget

Floats = NDArray[np.float64]
REPEATED = 2  # blocks of each kind, in the mean: of fewer, the whole program is searched as one
_BOUND = 0.15
"""Weight of one link level alone, by which the further plans of fronts are found.

The best counts of Mixtral 8x7B on 64 H100, whose links bind, take 0.6 % more seconds by half of it,
by twice as much 0.3 %."""
_FORWARD = 0.4
"""Weight of one link level in the forward half alone."""
_MOST_LEVELS = 2
"""Levels of links of a mesh, up to which the halves of a step are told apart.

With three, fronts take twice the work: one of Llama 3 405B on 8 x 256 x 8 H100 took half of that of
a search, and its plan takes longer than twice the best one."""


def _blocks_of(source: Graph, options: CompileOptions) -> Blocks:
    """Return the blocks of a program."""
    passes, line = options.passes, Line(source)
    loop = one_pass(source) if passes == 1 else micro_batches(source, passes)
    return Blocks(line, loop, cut_points(line, loop, 1), decided(options))


def is_repeated(source: Graph, options: CompileOptions) -> bool:
    """Return whether most blocks of a program are equal to others."""
    blocks = _blocks_of(source, replace(options, micro_batches=1))
    kinds = {blocks.key(block, block + 1) for block in range(len(blocks))}
    return len(blocks) >= REPEATED * len(kinds)


@dataclass
class Kind:
    """Equal blocks.

    Parameters
    ----------
    places : tuple of int
        The blocks, in the order of the program.
    """

    places: tuple[int, ...]

    @property
    def first(self) -> int:
        """The first of them, whose problem is that of all."""
        return self.places[0]


@dataclass(eq=False)
class Site:
    """The blocks of a program on a mesh.

    Parameters
    ----------
    source : Graph
        The whole program, in canonical form.
    cluster, mesh : Cluster, Mesh
        Where it runs, in one stage.
    options : CompileOptions
        How to compile; the number of micro-batches is given.
    blocks : Blocks
        Its blocks.
    budget : Budget
        Pays for the searches; they are small, and each has a budget of its own.
    """

    source: Graph
    cluster: Cluster
    mesh: Mesh
    options: CompileOptions
    blocks: Blocks
    budget: Budget
    _emissions: Emissions = field(default_factory=dict)
    _problems: dict[ResourceWeights, StageProblems] = field(default_factory=dict)
    _requests: dict[tuple[int, ResourceWeights], SearchRequest] = field(default_factory=dict)

    @classmethod
    def of(
        cls, source: Graph, cluster: Cluster, mesh: Mesh, options: CompileOptions, budget: Budget
    ) -> "Site":
        """Return the blocks of a program on a mesh."""
        where = source, cluster, mesh, options
        return cls(*where, _blocks_of(source, options), budget.beyond())

    @property
    def words(self) -> str:
        """How many blocks there are, in words."""
        return f"{len(self.blocks)} blocks of {len(self.kinds)} kinds"

    @property
    def limits(self) -> SearchOptions:
        """The limits of one search."""
        return limits_on(self.cluster, self.options, self.patience, None)

    @property
    def patience(self) -> Budget:
        """What one search may spend: that of a layer takes less than a second."""
        return self.budget.beyond(DEFAULT_SECONDS)

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of blocks, in the order of the program."""
        places: dict[object, list[int]] = {}
        for block in range(len(self.blocks)):
            places.setdefault(self.blocks.key(block, block + 1), []).append(block)
        return tuple(Kind(tuple(found)) for found in places.values())

    @cached_property
    def most_frequent(self) -> Kind:
        """The kind of which there are the most blocks."""
        return max(self.kinds, key=lambda kind: len(kind.places))

    # Weights

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """The levels of the cluster whose links the mesh uses."""
        return tuple(sorted({axis.level for axis in self.mesh.axes if axis.size > 1}))

    @cached_property
    def intervals(self) -> int:
        """Number of intervals of a step whose loads are told: its halves, where links bind one.

        Where computation binds both, its seconds are those of the step, whatever the halves.
        """
        is_one = self.blocks.loop.passes == 1 and self.options.stages == 1
        if not is_one or not 0 < len(self.levels) <= _MOST_LEVELS or not can_divide(self.source):
            return 1
        request = self._request(self.most_frequent, self._of_halves[0], self.boundary)
        free = request.solve(request.space, replace(self.limits, memory_limit=None)).assignment
        requests = (self.request(self.most_frequent, one) for one in self._of_halves)
        costs = [float(cost_of(one.space.problem, free)) for one in requests]
        seconds = np.linalg.solve(self._rows(self._of_halves), np.array(costs)).reshape(2, -1)
        return 2 if seconds.argmax(axis=1).any() else 1

    @cached_property
    def weights(self) -> tuple[ResourceWeights, ...]:
        """The weights by which plans are found: of all links, then more of each level, by halves.

        Of one interval they are as many as there are resources.
        """
        return self.measures if self.intervals == 1 else self.measures[:-1]

    @cached_property
    def measures(self) -> tuple[ResourceWeights, ...]:
        """The weights by whose costs the seconds of a plan are told, as many as these are."""
        if self.intervals == 2:
            return self._of_halves
        return tuple(self._weights_of(row) for row in self._shares)

    @cached_property
    def _shares(self) -> list[dict[int, float]]:
        """The weights of the links: of all, then more of each level."""
        count = max(len(self.levels), 1)
        first = dict.fromkeys(self.levels, LINKS / count)
        return [first, *({**first, level: _BOUND} for level in self.levels)]

    @cached_property
    def _of_halves(self) -> tuple[ResourceWeights, ...]:
        """Weights of both halves, by which the seconds of each resource in each of them are told.

        Links weigh no less in the first half. What may run in either counts in the second: it is
        gathered again to save memory, so not long before.
        """
        every = dict.fromkeys(self.levels, _BOUND)
        pairs = [(row, row) for row in self._shares]
        for level in self.levels:
            others = {other: share for other, share in every.items() if other != level}
            pairs.append(({**others, level: _FORWARD}, others))
        found = [
            replace(self._weights_of(one), later=(self._weights_of(two),)) for one, two in pairs
        ]
        half = replace(found[0].later[0], compute=found[0].compute / 2)
        half = replace(half, levels=tuple(share / 2 for share in half.levels))
        return (*found, replace(found[0], later=(half,)))

    def _weights_of(self, links: Mapping[int, float]) -> ResourceWeights:
        every = tuple(links.get(level, LEAST_WEIGHT) for level in range(len(self.cluster.links)))
        return ResourceWeights(1 - sum(every), every)

    @cached_property
    def matrix(self) -> Floats:
        """For each of the weights, those of the compute stream and of each level that is used."""
        return self._rows(self.measures)

    def _rows(self, weights: Sequence[ResourceWeights]) -> Floats:
        used = [0, *(1 + level for level in self.levels)]
        rows = [[interval[i] for interval in one.intervals for i in used] for one in weights]
        return np.array(rows)

    # Problems

    def problems(self, weights: ResourceWeights) -> StageProblems:
        """Return the problems of stretches of blocks by some weights."""
        if weights not in self._problems:
            lowering = LowerRedistributions(self.cluster, self.options.cost_model, weights)
            request = SearchRequest(
                *(self.source, self.cluster, lowering.planner(self.mesh), self.options, weights),
                self._emissions,
                budget=self.budget,
            )
            self._problems[weights] = StageProblems(
                request, self.blocks, self.limits, self.budget, alone=True
            )
        return self._problems[weights]

    def request(self, kind: Kind, weights: ResourceWeights) -> SearchRequest:
        """Return the problem of a kind of blocks whose passed values have their layouts."""
        return self._request(kind, weights, self.boundary)

    def _request(
        self, kind: Kind, weights: ResourceWeights, boundary: Mapping[tuple[int, ...], Layout]
    ) -> SearchRequest:
        problems, passes = self.problems(weights), self.blocks.loop.passes
        block = kind.first
        found = problems.request_of(block, block + 1, 1, passes if passes > 1 else None)
        shapes = self.shapes(kind)
        given = {name: boundary[s] for name, s in shapes.items() if s in boundary}
        others: dict[ResourceWeights | None, Mapping[str, SearchSpace]] = {
            known: one.spaces for (first, known), one in self._requests.items() if first == block
        }
        request = replace(problems.receiving(found, given), others=others)
        if boundary:
            request = self._requests.setdefault((block, weights), request)
        return request

    def shapes(self, kind: Kind) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the passing values of a kind, in the whole batch."""
        return {name: self.source.values[name].type.shape for name in self.passing(kind)}

    def passing(self, kind: Kind) -> list[str]:
        """Return the values with samples that the first block of a kind receives or sends."""
        part = self.blocks.stretch(kind.first, kind.first + 1, alone=True)
        received = [v.name for v in part.graph.inputs if v.name in part.received]
        return [name for name in (*received, *part.sent) if self._has_samples(name)]

    def _has_samples(self, name: str) -> bool:
        """Return whether a value is no scalar, nor made of parameters alone."""
        loop, tensor = self.blocks.loop, self.source.values[name].type
        return tensor.rank > 1 and loop.is_split(name)

    @cached_property
    def boundary(self) -> dict[tuple[int, ...], Layout]:
        """The layout in which values pass between blocks, by their shape in the whole batch."""
        found: dict[tuple[int, ...], Layout] = {}
        for kind in sorted(self.kinds, key=lambda kind: -len(kind.places)):
            shapes = self.shapes(kind)
            if all(shape in found for shape in shapes.values()):
                continue
            request = self._request(kind, self._weights_of(self._shares[0]), {})
            free = request.solve(request.space, replace(self.limits, memory_limit=None))
            for name in reversed(shapes):
                if name in free.decisions.stored:
                    found.setdefault(shapes[name], free.decisions.stored[name])
        return found

    def narrow(self, request: SearchRequest, space: SearchSpace) -> SearchSpace:
        """Return a space of the strategies that are best without a price on memory.

        On a mesh that divides a level; the others are small. On a mesh of three axes the plans of a
        layer of Llama 3 70B are the same for all prices as in the whole space.
        """
        if len(self.mesh.axes) <= len(self.levels):
            return space
        free = request.solve(request.space, replace(self.limits, memory_limit=None))
        return narrowed(space, request.planner, free.decisions.strategies)
