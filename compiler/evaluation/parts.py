"""What the parts of a model take on some ranks: told by the program of few of its layers.

The parts are a layer, what is before all layers, and what is after. Their passes, the elements that
they train, what they save for the gradient and what they hold beside that are those of a program of
tensor and expert ranks, of one micro-batch size. `compiler.fit.estimates` puts them together for
any number of stages, data ranks and micro-batches, to say which plans are worth an evaluation.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwright.cost_model.buffers import Buffers, buffer_kinds, buffers
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.efficiency.memory_as_run import buffers_as_run, workspace_bytes
from shardwright.cost_model.memory import live_memory
from shardwright.cost_model.roofline import value_bytes
from shardwright.cost_model.streams import Task
from shardwright.cost_model.tasks import TaskMaker
from shardwright.dataflow.segments import block_of
from shardwright.ir.graph import Graph, Node
from shardwright.ir.liveness import loop_of
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import item_bytes
from shardwright.search.heuristics.tensor_ranks import weights_of_experts

LAYERS, FIRST, LAST = range(3)
_NOT_SAVED = ("parameters", "optimizer states", "gradients")  # kinds of memory that last


@dataclass(frozen=True)
class Part:
    """What a part takes on a rank, for a micro-batch.

    Parameters
    ----------
    compute : float
        Seconds of a pass, forward and backward, in which operators run.
    links : tuple of float
        Seconds for which a pass waits for the links of each level of the cluster.
    host : float
        Seconds in which the host of a training software launches a pass.
    elements, of_experts : float
        Trained elements, and those of them that experts have.
    saved : float
        Bytes that are saved for the gradient.
    peak : float
        Bytes that are held at most beside what layers save and what lasts.
    """

    compute: float
    links: tuple[float, ...]
    host: float
    elements: float
    of_experts: float
    saved: float
    peak: float

    def toward(self, other: "Part", share: float) -> "Part":
        """Return the part a share of the way to another; see `Parts.toward`."""

        def at(one: float, two: float) -> float:
            return max(one + share * (two - one), 0.0)

        return Part(
            at(self.compute, other.compute),
            tuple(map(at, self.links, other.links)),
            at(self.host, other.host),
            at(self.elements, other.elements),
            at(self.of_experts, other.of_experts),
            at(self.saved, other.saved),
            at(self.peak, other.peak),
        )

    def times(self, samples: int) -> "Part":
        """Return the part of so many samples, each of which takes as much."""
        return replace(
            self,
            compute=samples * self.compute,
            links=tuple(samples * one for one in self.links),
            saved=samples * self.saved,
            peak=samples * self.peak,
        )


@dataclass(frozen=True)
class Parts:
    """The parts of a model.

    Parameters
    ----------
    layer : Part
        One of its layers, the mean of all; its peak is that of the largest.
    first, last : Part
        What is before all layers, and after.
    workspace : float
        Bytes that a training software takes beside tensors.
    """

    layer: Part
    first: Part
    last: Part
    workspace: float

    def toward(self, other: "Parts", share: float) -> "Parts":
        """Return the parts a share of the way to others: of more samples, for shares above 1."""
        workspace = self.workspace + share * (other.workspace - self.workspace)
        return Parts(
            self.layer.toward(other.layer, share),
            self.first.toward(other.first, share),
            self.last.toward(other.last, share),
            workspace,
        )

    def times(self, samples: int) -> "Parts":
        """Return the parts of so many samples, each of which takes as much."""
        layer, first, last = (one.times(samples) for one in (self.layer, self.first, self.last))
        return Parts(layer, first, last, self.workspace)


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
    """A program, of each of whose nodes the part is known."""

    def __init__(self, program: Graph, source: Graph, cluster: Cluster) -> None:
        self.program, self.source, self.cluster = program, source, cluster
        self.levels = {level.name: i for i, level in enumerate(cluster.levels)}
        inside = [i for i, node in enumerate(source.nodes) if block_of(node.scope)]
        self.last, self.order = inside[-1], {n.name: i for i, n in enumerate(source.nodes)}
        self.layers = len({block_of(source.nodes[i].scope) for i in inside})
        self.where = [self._part_of(node) for node in program.nodes]

    def _part_of(self, node: Node) -> int:
        if block_of(node.scope):
            return LAYERS
        return LAST if self.order.get(node.provenance.operator, -1) > self.last else FIRST

    def parts(self) -> Parts:
        """Return the parts."""
        found = [self._with_times(number) for number in (LAYERS, FIRST, LAST)]
        elements = self._elements()
        own = self._held(buffers(self.program))
        software, workspace = self.cluster.software, 0.0
        if software is not None and software.memory is not None:
            own = self._more(own, self._held(buffers_as_run(self.program, software)))
            workspace = workspace_bytes(self.program, software, self.cluster.device)
        layers, first, last = (
            replace(one, elements=all_of, of_experts=experts, saved=saved, peak=peak)
            for one, (all_of, experts), (saved, peak) in zip(found, elements, own, strict=True)
        )
        layer = self._nothing.toward(layers, 1 / self.layers)
        return Parts(replace(layer, peak=layers.peak), first, last, workspace)

    @property
    def _nothing(self) -> Part:
        return Part(0.0, (0.0,) * len(self.levels), 0.0, 0.0, 0.0, 0.0, 0.0)

    @staticmethod
    def _more(
        own: list[tuple[float, float]], other: list[tuple[float, float]]
    ) -> list[tuple[float, float]]:
        return [(max(a, c), max(b, d)) for (a, b), (c, d) in zip(own, other, strict=True)]

    def _with_times(self, part: int) -> Part:
        compute, host, links = 0.0, 0.0, [0.0] * len(self.levels)
        for task in self._tasks_of(part):
            compute += 0.0 if task.placement.levels else task.seconds
            host += task.host
            if task.placement.levels:
                links[self.levels[task.placement.levels[-1]]] += task.seconds * task.exposed
        return replace(self._nothing, compute=compute, links=tuple(links), host=host)

    def _tasks_of(self, part: int) -> Iterator[Task]:
        """Yield what a pass runs in line in a part."""
        program, loop = self.program, loop_of(self.program)
        body = range(len(program)) if loop is None else range(loop.start, loop.stop)
        order = [(position, 0) for position in body]
        tasks = TaskMaker(program, self.cluster).tasks(program, order)
        for (position, _), task in zip(order, tasks, strict=True):
            if self.where[position] == part and task.in_line:
                yield task

    def _elements(self) -> list[tuple[float, float]]:
        """Return the trained elements of the parts on a rank, and those of experts."""
        program, mesh = self.program, self.program.mesh or Mesh(())
        of_experts = weights_of_experts(self.source)
        part: dict[str, int] = {}
        for node, where in zip(program.nodes, self.where, strict=True):
            for name in node.operands:
                part.setdefault(name, where)
        found = [[0.0, 0.0] for _ in range(3)]
        for parameter in program.parameters:
            if parameter.trainable:
                value = parameter.value
                count = value_bytes(value, mesh) / item_bytes(value.type.dtype)
                mine = found[part.get(value.name, FIRST)]
                mine[0] += count
                mine[1] += count if value.name in of_experts else 0.0
        return [(one, experts) for one, experts in found]

    def _held(self, held: Buffers) -> list[tuple[float, float]]:
        """Return what the parts save for the gradient, and hold at most beside that."""
        turn, kinds_of = self._turn, buffer_kinds(self.program)
        saved = [0.0, 0.0, 0.0]
        position = {r.name: i for i, node in enumerate(self.program.nodes) for r in node.results}
        kept: dict[int, float] = {}
        for name, uses in held.live.freed():
            made = position.get(name, turn)
            if made < turn <= uses[-1] and kinds_of[name] not in _NOT_SAVED:
                saved[self.where[made]] += held.sizes[name]
                if self.where[made] == LAYERS:
                    kept[made] = kept.get(made, 0.0) + held.sizes[name]
                    kept[uses[-1] + 1] = kept.get(uses[-1] + 1, 0.0) - held.sizes[name]
        peaks, of_layers, at = [0.0, 0.0, 0.0], 0.0, 0
        for node, total, kinds in live_memory(self.program, held):
            if node is not None:
                of_layers += kept.get(at, 0.0)
                beside = total - sum(kinds[kind] for kind in _NOT_SAVED) - of_layers
                where = self.where[at]
                peaks[where] = max(peaks[where], beside)
                at += 1
        return list(zip(saved, peaks, strict=True))

    @property
    def _turn(self) -> int:
        """The position of the first gradient of an operator in a pass."""
        loop, roles = loop_of(self.program), [n.provenance.role for n in self.program.nodes]
        begin = 0 if loop is None else loop.start
        return begin + [*roles[begin:], "backward"].index("backward")
