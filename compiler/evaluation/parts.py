"""What the parts of a model take at least on some ranks: told by the program of few of its layers.

The parts are a layer, what is before all layers, and what is after. What a pass over them computes
and waits for, the elements that they train and what they save for the gradient are those of a
program of tensor and expert ranks, of one micro-batch size; data ranks and stages add to it.
`compiler.evaluation.bounds` puts them together to bounds of plans of any degrees.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

from shardwright.cost_model.buffers import buffer_kinds, buffers
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.roofline import value_bytes
from shardwright.cost_model.streams import Task, parameter_tensors
from shardwright.cost_model.tasks import TaskMaker
from shardwright.dataflow.segments import block_of
from shardwright.ir.graph import Graph, Node
from shardwright.ir.liveness import loop_of
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import item_bytes
from shardwright.search.heuristics.tensor_ranks import weights_of_experts

_NOT_SAVED = ("parameters", "optimizer states", "gradients")  # kinds of memory that last
_FIRST, _LAST = "before all layers", "after them"


@dataclass(frozen=True)
class Times:
    """What a pass over a part runs in line, forward or backward.

    Parameters
    ----------
    compute : float
        Seconds in which operators run.
    links : tuple of float
        Seconds for which it waits for the links of each level of the cluster.
    host : float
        Seconds in which the host of a training software launches it.
    """

    compute: float
    links: tuple[float, ...]
    host: float

    def least(self, other: "Times") -> "Times":
        """Return the smaller ones of both."""
        links = tuple(map(min, self.links, other.links))
        return Times(min(self.compute, other.compute), links, min(self.host, other.host))


@dataclass(frozen=True)
class Part:
    """What a part takes on a rank, for a micro-batch.

    Parameters
    ----------
    forward, backward : Times
        What a pass runs in line.
    elements, of_experts : float
        Trained elements, and those of them that experts have.
    saved : float
        Bytes that are saved for the gradient.
    frozen : float
        Bytes of parameters that are not trained.
    """

    forward: Times
    backward: Times
    elements: float
    of_experts: float
    saved: float
    frozen: float

    def least(self, other: "Part") -> "Part":
        """Return the smaller ones of both."""
        return Part(
            self.forward.least(other.forward),
            self.backward.least(other.backward),
            min(self.elements, other.elements),
            min(self.of_experts, other.of_experts),
            min(self.saved, other.saved),
            min(self.frozen, other.frozen),
        )


@dataclass(frozen=True)
class Parts:
    """The parts of a model.

    Parameters
    ----------
    layer : Part
        What each of its layers takes at least.
    first, last : Part
        What is before all layers, and after.
    """

    layer: Part
    first: Part
    last: Part


def parts_of(program: Graph, source: Graph, cluster: Cluster) -> Parts:
    """Return the parts of a model.

    Parameters
    ----------
    program : Graph
        The program of some tensor and expert ranks, of few layers.
    source : Graph
        The model that it trains.
    cluster : Cluster
        The devices, as a training software runs programs on them if there is one.
    """
    return _Program(program, source, cluster).parts()


class _Program:
    """A program, of each of whose nodes the part is known: a layer by its name, or an end."""

    def __init__(self, program: Graph, source: Graph, cluster: Cluster) -> None:
        self.program, self.source, self.cluster = program, source, cluster
        self.levels = {level.name: i for i, level in enumerate(cluster.levels)}
        inside = [i for i, node in enumerate(source.nodes) if block_of(node.scope)]
        self.last, self.order = inside[-1], {n.name: i for i, n in enumerate(source.nodes)}
        self.layers = list(dict.fromkeys(block_of(source.nodes[i].scope) for i in inside))
        self.where = [self._part_of(node) for node in program.nodes]

    def _part_of(self, node: Node) -> str:
        if block_of(node.scope):
            return block_of(node.scope)
        return _LAST if self.order.get(node.provenance.operator, -1) > self.last else _FIRST

    def parts(self) -> Parts:
        """Return the parts."""
        tasks, elements, saved = self._tasks(), self._elements(), self._saved()

        def part(where: str) -> Part:
            forward, backward = (self._times(tasks.get((where, which), ())) for which in (0, 1))
            own, experts, frozen = elements.get(where, (0.0, 0.0, 0.0))
            return Part(forward, backward, own, experts, saved.get(where, 0.0), frozen)

        layer = reduce(Part.least, map(part, self.layers))
        return Parts(layer, part(_FIRST), part(_LAST))

    def _times(self, tasks: Iterable[Task]) -> Times:
        compute, host, links = 0.0, 0.0, [0.0] * len(self.levels)
        for task in tasks:
            compute += 0.0 if task.placement.levels else task.seconds
            host += task.host
            if task.placement.levels:
                links[self.levels[task.placement.levels[-1]]] += task.seconds * task.exposed
        return Times(compute, tuple(links), host)

    def _tasks(self) -> dict[tuple[str, int], list[Task]]:
        """Return what a pass runs in line in each part, forward and backward.

        What is made of parameters alone and what is added to gradients is left out: with ZeRO that
        is of parts of them.
        """
        program, loop = self.program, loop_of(self.program)
        body = range(len(program)) if loop is None else range(loop.start, loop.stop)
        order = [(position, 0) for position in body]
        tasks, live = TaskMaker(program, self.cluster).tasks(order), buffers(program).live
        stored = parameter_tensors(program.nodes, (p.name for p in program.parameters))
        found: dict[tuple[str, int], list[Task]] = {}
        for (position, _), task in zip(order, tasks, strict=True):
            node = program.nodes[position]
            added = node.provenance.role == "accumulation" or live.is_accumulator(node.name)
            if task.in_line and node.name not in stored and not added:
                which = int(node.provenance.phase != "forward")
                found.setdefault((self.where[position], which), []).append(task)
        return found

    def _elements(self) -> dict[str, tuple[float, float, float]]:
        """Return trained elements of the parts on a rank, those of experts, and frozen bytes."""
        program, mesh = self.program, self.program.mesh or Mesh(())
        of_experts = weights_of_experts(self.source)
        part: dict[str, str] = {}
        for node, where in zip(program.nodes, self.where, strict=True):
            for name in node.operands:
                part.setdefault(name, where)
        found: dict[str, tuple[float, float, float]] = {}
        for parameter in program.parameters:
            value = parameter.value
            where, nbytes = part.get(value.name, _FIRST), value_bytes(value, mesh)
            before, experts, frozen = found.get(where, (0.0, 0.0, 0.0))
            if parameter.trainable:
                count = nbytes / item_bytes(value.type.dtype)
                own = count if value.name in of_experts else 0.0
                found[where] = before + count, experts + own, frozen
            elif parameter.role == "buffer":
                found[where] = before, experts, frozen + nbytes
        return found

    def _saved(self) -> dict[str, float]:
        """Return what the parts save for the gradient."""
        held, turn, kinds_of = buffers(self.program), self._turn, buffer_kinds(self.program)
        saved: dict[str, float] = {}
        position = {r.name: i for i, node in enumerate(self.program.nodes) for r in node.results}
        for name, uses in held.live.freed():
            made = position.get(name, turn)
            if made < turn <= uses[-1] and kinds_of[name] not in _NOT_SAVED:
                where = self.where[made]
                saved[where] = saved.get(where, 0.0) + held.sizes[name]
        return saved

    @property
    def _turn(self) -> int:
        """The position of the first gradient of an operator in a pass."""
        loop, roles = loop_of(self.program), [n.provenance.role for n in self.program.nodes]
        begin = 0 if loop is None else loop.start
        return begin + [*roles[begin:], "backward"].index("backward")
