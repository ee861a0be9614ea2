"""Which gradients are reduced together: MindSpore's algorithms for all-reduce fusion.

One all-reduce of many gradients costs less than many of one, but it starts only when the last of
them is there. The algorithms give each parameter a fusion id; gradients with equal ids are reduced
together. Id 1 is the *tail*: the gradients that the backward phase computes last.

``depend`` of an operator is the forward computation, in bytes, between it and the loss, summed over
all paths; the greater, the later its parameters' gradients.

Knows when gradients arrive, and no communication: `shardwright.passes.allreduce_fusion` rewrites
programs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import accumulate, pairwise, repeat
from math import prod

from shardwright.cost_model.mindspore.conventions import conventions_of
from shardwright.cost_model.mindspore.costs import operator_volume
from shardwright.ir.errors import PassError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Strategy
from shardwright.ir.mesh import Mesh
from shardwright.ir.reachability import live
from shardwright.ir.values import Range
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import operator_class, operator_info

FusionIds = dict[str, int]
LOSS = ""  # stands for the loss among the operators of a `FusionGraph`
_ELEMENTS_PER_MEGABYTE = 1 << 18  # elements of 4 bytes, as MindSpore counts for every type


@dataclass(frozen=True)
class FusionGraph:
    """Operators with trained parameters, and the computation between them.

    Parameters
    ----------
    parameters : mapping of str to mapping of str to int
        For each operator its parameters and the elements of their slices. Every operator stands
        after those between it and the loss.
    edges : sequence of (str, str, float)
        An operator or ``LOSS``, one that its operands depend on with no other in between, and the
        bytes computed on from there: those of the latter included, those of the former not.
    """

    parameters: Mapping[str, Mapping[str, int]]
    edges: Sequence[tuple[str, str, float]]

    @cached_property
    def depend(self) -> dict[str, float]:
        """Bytes that are computed on between each operator and the loss, over all paths."""
        into: dict[str, list[tuple[str, float]]] = {name: [] for name in self.parameters}
        for near, far, distance in self.edges:
            into[far].append((near, distance))
        depend = {LOSS: 0.0}
        for name, edges in into.items():
            depend[name] = sum((depend[near] + distance for near, distance in edges), 0.0)
        return depend

    @cached_property
    def latest(self) -> float:
        """The greatest ``depend``."""
        return max(self.depend.values())


@dataclass(frozen=True)
class FusionSettings:
    """MindSpore's settings of all-reduce fusion, with its names and defaults.

    Parameters
    ----------
    algorithm : int
        0: none. 1: by backward computation. 2: by backward computation and all-reduce time.
    times : int
        Algorithm 1: number of groups, at least 2.
    tail_percent : float
        Algorithm 1: share of the backward computation that belongs to the tail, in [0, 1).
    tail_time : float
        Algorithm 2: seconds that the tail may take to reduce.
    inherent_time : float
        Algorithm 2: seconds that every all-reduce takes; less than `tail_time`.
    bandwidth : float
        Algorithm 2: seconds for each element reduced, MindSpore's name notwithstanding.
    computation_parameter : float
        Algorithm 2: seconds for each byte that is computed on.

    Raises
    ------
    PassError
        If the algorithm's settings are out of range.
    """

    algorithm: int = 0
    times: int = 0
    tail_percent: float = 0.1
    tail_time: float = 0.1
    inherent_time: float = 0.1
    bandwidth: float = 0.1
    computation_parameter: float = 0.1

    def __post_init__(self) -> None:
        for item in fields(self):
            Range(whole=item.name in ("algorithm", "times")).check(
                item.name, getattr(self, item.name)
            )
        if self.algorithm not in (0, 1, 2):
            raise PassError(f"all-reduce fusion has no algorithm {self.algorithm}, only 0, 1 and 2")
        if self.algorithm == 1:
            self._require(self.times >= 2, "times", "at least 2")
            self._require(0 <= self.tail_percent < 1, "tail_percent", "at least 0 and less than 1")
        if self.algorithm == 2:
            self._require(self.inherent_time > 0, "inherent_time", "greater than 0")
            more = f"greater than `inherent_time`, {self.inherent_time}"
            self._require(self.tail_time > self.inherent_time, "tail_time", more)
            self._require(self.bandwidth > 0, "bandwidth", "greater than 0")
            positive = self.computation_parameter > 0
            self._require(positive, "computation_parameter", "greater than 0")

    def _require(self, holds: bool, name: str, bound: str) -> None:
        if not holds:
            raise PassError(
                f"`{name}` of all-reduce fusion is {getattr(self, name)}, it must be {bound}"
            )


Fusion = FusionSettings | float | tuple[int, ...]
"""Settings of an algorithm, megabytes, or the parameters that begin a new group by their number."""


def fusion_ids_by_index(parameters: Sequence[str], begins: Sequence[int]) -> FusionIds:
    """Return the fusion ids of parameters that are fused in groups of neighbours.

    Examples
    --------
    >>> fusion_ids_by_index(["a", "b", "c", "d"], (1, 3))
    {'a': 1, 'b': 2, 'c': 2, 'd': 3}
    """
    return {
        name: 1 + sum(begin <= number for begin in begins) for number, name in enumerate(parameters)
    }


def fusion_ids(graph: FusionGraph, settings: FusionSettings) -> FusionIds:
    """Return the fusion id of every parameter whose gradient reaches the loss.

    A parameter of several operators has the least of their ids.
    """
    if settings.algorithm == 1:
        return _by_computation(graph, settings)
    if settings.algorithm == 2:
        return _by_time(graph, settings)
    return {}


def _by_computation(graph: FusionGraph, settings: FusionSettings) -> FusionIds:
    """Cut the backward computation into a tail and equal intervals before it, latest first."""
    body = graph.latest * (1 - settings.tail_percent)
    steps = repeat(body / (settings.times - 1), settings.times - 2)
    bounds = [*accumulate(steps, initial=0.0), body, graph.latest]
    ids: FusionIds = {}
    for fusion, (below, above) in enumerate(reversed(list(pairwise(bounds))), start=1):
        for name, parameters in graph.parameters.items():
            if below < graph.depend[name] <= above:
                _assign(ids, parameters, fusion)
    return ids


def _by_time(graph: FusionGraph, settings: FusionSettings) -> FusionIds:
    """Fill groups, latest gradients first, while each can be reduced during the group before it."""
    operators = _latest_first(graph)
    elements = (settings.tail_time - settings.inherent_time) / settings.bandwidth
    until, fusion = graph.latest, 1
    ids: FusionIds = {}
    while until > 0:
        parameters, start = _take(operators, graph.latest, until, elements)
        _assign(ids, parameters, fusion)
        seconds = (until - start) * settings.computation_parameter
        elements = (seconds - settings.inherent_time) / settings.bandwidth
        until, fusion = start, fusion + 1
    return ids


def _latest_first(graph: FusionGraph) -> list[tuple[float, dict[str, int]]]:
    """Return depend and parameters of the operators and the loss; each parameter only once."""
    seen: set[str] = set()
    operators = []
    for name in sorted(graph.depend, key=lambda name: -graph.depend[name]):
        parameters = graph.parameters.get(name, {})
        operators.append(
            (graph.depend[name], {p: n for p, n in parameters.items() if p not in seen})
        )
        seen.update(parameters)
    return operators


def _take(
    operators: Iterable[tuple[float, dict[str, int]]], latest: float, until: float, elements: float
) -> tuple[list[str], float]:
    """Return the parameters of a group, and the depend at which it ends.

    As in MindSpore, the very latest operators are counted in every group anew; they keep their
    first id.
    """
    taken: list[str] = []
    count, start = 0, until
    for depend, parameters in operators:
        if depend >= until and depend != latest:
            continue
        if 0 < elements <= count and depend < start:
            break
        taken += parameters
        count += sum(parameters.values())
        start = depend
    return taken, start


def _assign(ids: FusionIds, parameters: Iterable[str], fusion: int) -> None:
    for parameter in parameters:
        ids[parameter] = min(fusion, ids.get(parameter, fusion))


def fusion_ids_by_size(elements: Mapping[str, int], megabytes: float = 64) -> FusionIds:
    """Return fusion ids that fill groups up to a size: MindSpore's rule since 2021.

    Parameters
    ----------
    elements : mapping of str to int
        Parameters in the order in which their gradients are found from the outputs backwards, and
        the elements that each reduces.
    megabytes : float
        Size of a group, elements taken to have 4 bytes. The gradient that opens a group is not
        counted into it, but for the very first.
    """
    room = limit = megabytes * _ELEMENTS_PER_MEGABYTE
    ids: FusionIds = {}
    fusion = 1
    for parameter, count in elements.items():
        if not ids or count < room:
            room -= count
        else:
            room, fusion = limit, fusion + 1
        ids[parameter] = fusion
    return ids


# From a program


def fusion_graph(graph: Graph) -> FusionGraph:
    """Return the operators with trained parameters of a program whose first output is the loss.

    Parameters
    ----------
    graph : Graph
        A partitioned program, or a whole one, which is taken to run whole on every device. Its
        backward part, if it has one, is ignored. Parameters are followed through casts and
        changes of layout to the operators that use them.
    """
    carried = {
        p.name: {p.name: _slice_elements(p.value, graph.mesh)}
        for p in graph.parameters
        if p.trainable
    }
    walk = _Walk(graph, carried)
    for node in live(graph.nodes, graph.outputs[:1]).nodes:
        walk.visit(node)
    nearest = walk.reached.get(graph.outputs[0], {})
    edges = [(LOSS, far, distance) for far, distance in nearest.items()]
    for name in walk.parameters:
        edges += [(name, far, distance) for far, distance in walk.inward[name].items()]
    outwards = {name: walk.parameters[name] for name in reversed(walk.parameters)}
    return FusionGraph(outwards, edges)


def _slice_elements(value: Value, mesh: Mesh | None) -> int:
    if value.layout is None or mesh is None:
        return value.type.elements
    return prod(value.layout.slice_shape(value.type.shape, mesh))


@dataclass
class _Walk:
    """What is known while nodes are visited in order.

    ``carried`` are the parameters that a value is a copy of; ``reached`` the operators with
    parameters that a value depends on directly, and the bytes computed on from there; ``inward``
    the same for the operands of an operator with parameters. Of several paths between two operators
    the first counts.
    """

    graph: Graph
    carried: dict[str, dict[str, int]]
    parameters: dict[str, dict[str, int]] = field(default_factory=dict)
    reached: dict[str, dict[str, float]] = field(default_factory=dict)
    inward: dict[str, dict[str, float]] = field(default_factory=dict)

    def visit(self, node: Node) -> None:
        """Note what the results of a node carry and reach."""
        kind = operator_class(node.operator)
        moves = issubclass(kind, Communication)
        used = {p: n for name in node.operands for p, n in self.carried.get(name, {}).items()}
        if used and (moves or conventions_of(kind).carries_parameter):
            self.carried[node.name] = used
            return
        behind: dict[str, float] = {}
        for name in node.operands:
            behind = self.reached.get(name, {}) | behind
        cost = 0.0 if moves else _forward_bytes(self.graph, node)
        if used:
            self.parameters[node.name], self.inward[node.name] = used, behind
            ahead = {node.name: cost}
        else:
            ahead = {far: distance + cost for far, distance in behind.items()}
        self.reached.update((result.name, ahead) for result in node.results)


def _forward_bytes(graph: Graph, node: Node) -> float:
    """Return the bytes that a device computes on in a node."""
    operands = graph.operand_values(node)
    info = operator_info(node.operator, [value.type for value in operands], node.attributes)
    mesh, strategy = graph.mesh, Strategy()
    taken = [value.layout for value in operands if value.layout is not None]
    if mesh is not None and len(taken) == len(operands):
        left = [result.layout and result.layout.reduced() for result in node.results]
        strategy = info.infer_layouts(taken, mesh, left)[0]
    no_parameters = (False,) * len(operands)
    return operator_volume(info, strategy, mesh or Mesh(()), no_parameters).computation
