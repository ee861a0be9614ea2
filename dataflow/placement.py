"""Places in a pipeline: the stage of every operator and parameter, from the cuts of a program.

A cut is the first operator of a stage in program order. What depends on inputs and constants alone
has no place of its own: it is computed in the one stage that reads it, or on every stage. What
depends on parameters alone, such as a cast of a weight, is computed in the first stage that reads
it. A parameter has a home, the stage of its first reader; one that is not trained and follows from
such values, as the number of a step does, is kept on every stage where several read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise, takewhile

from shardwright.dataflow.orders import SCHEDULES
from shardwright.dataflow.segments import block_of
from shardwright.ir.decisions import Decisions
from shardwright.ir.errors import OptionError
from shardwright.ir.graph import Graph, Node
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.text import node_text

AXIS = "stage"
"""The name of the mesh axis of pipeline stages."""


def in_stages(
    decisions: Decisions,
    groups: int,
    stages: Mapping[str, int],
    schedule: str = "",
    level: int = 0,
) -> Decisions:
    """Return decisions for the ranks of one stage as those of a pipeline.

    Parameters
    ----------
    decisions : Decisions
        The decisions, on the mesh of one stage.
    groups : int
        Number of device groups.
    stages : mapping of str to int
        The stage of every operator.
    schedule : str
        The name of the schedule.
    level : int
        Level of the cluster whose links the stages use.
    """
    in_v = bool(schedule) and SCHEDULES[schedule].in_v
    mesh = mesh_of_stages(decisions.mesh, groups, level, in_v)
    return replace(decisions, mesh=mesh, stages=stages, schedule=schedule)


def mesh_of_stages(mesh: Mesh, groups: int, level: int = 0, in_v: bool = False) -> Mesh:
    """Return the mesh of several device groups, each with the ranks of a mesh.

    Raises
    ------
    OptionError
        If the mesh has an axis of that name.
    """
    if AXIS in mesh.names:
        raise OptionError(
            f"the mesh has an axis `{AXIS}`, the name of the axis of pipeline stages",
            hint="give it another name",
        )
    first = len(mesh.in_time)
    axis = MeshAxis(AXIS, groups, level, of_stages=True, in_v=in_v)
    return Mesh((*mesh.axes[:first], axis, *mesh.axes[first:]))


def cuts_of(graph: Graph, stages: Mapping[str, int], groups: int) -> tuple[str, ...]:
    """Return the first operators of the stages 1, 2, ...

    Parameters
    ----------
    graph : Graph
        The program.
    stages : mapping of str to int
        The stage of every operator; empty without stages.
    groups : int
        Number of device groups.

    Raises
    ------
    OptionError
        If the stages are not in program order, one is empty, or their number is no multiple of the
        number of device groups.
    """
    if not stages:
        return ()
    for before, node in pairwise(graph.nodes):
        if stages[node.name] < stages[before.name]:
            raise OptionError(
                f"`{node.name}` is in stage {stages[node.name]} and comes after `{before.name}`, "
                f"which is in stage {stages[before.name]}: stages must be in program order",
                node_text(node),
                "give it the stage of what comes before, or a later one",
            )
    first: dict[int, str] = {}
    for node in graph.nodes:
        first.setdefault(stages[node.name], node.name)
    count = max(first) + 1
    missing = sorted(set(range(count)) - set(first))
    if missing:
        raise OptionError(f"no operator is in stage {missing[0]} of the {count} stages")
    if count % groups:
        raise OptionError(
            f"the program has {count} stages, expected a multiple of the {groups} device groups"
        )
    return tuple(first[stage] for stage in range(1, count))


def stages_of(graph: Graph) -> dict[str, int]:
    """Return the stage of every operator by the cuts of a program; empty without cuts."""
    if not graph.cuts:
        return {}
    cuts, stage, found = set(graph.cuts), 0, {}
    for node in graph.nodes:
        stage += node.name in cuts
        found[node.name] = stage
    return found


@dataclass(frozen=True)
class Placement:
    """The places of a program with cuts.

    Parameters
    ----------
    graph : Graph
        The program, before it is partitioned.
    """

    graph: Graph

    @cached_property
    def cut(self) -> dict[str, int]:
        """The stage of every operator by the cuts alone."""
        return stages_of(self.graph)

    @cached_property
    def free(self) -> frozenset[str]:
        """The values that follow from inputs and from parameters that are not trained.

        A parameter is not among them where its next value does not follow so.
        """
        names = {p.name for p in self.graph.parameters if not p.trainable}
        while True:
            free = self._following(names)
            bound = {name for name, new in self.graph.updates if name in names and new not in free}
            if not bound:
                return frozenset(free)
            names -= bound

    def _following(self, parameters: set[str]) -> set[str]:
        free = {value.name for value in self.graph.inputs} | parameters
        for node in self.graph.nodes:
            if free.issuperset(node.operands):
                free.update(result.name for result in node.results)
        return free

    @cached_property
    def operators(self) -> dict[str, int | None]:
        """The stage of every operator, None for every stage; empty without cuts."""
        found: dict[str, int | None] = {}
        for node in reversed(self.graph.nodes if self.cut else ()):
            own: int | None = self.cut[node.name]
            if node.name in self.free:
                read = self._readers(node, found)
                own = own if not read else read.pop() if len(read) == 1 else None
            elif node.name in self._stored:
                staged = [stage for stage in self._readers(node, found) if stage is not None]
                own = min(staged, default=own)
            found[node.name] = own
        return found

    @cached_property
    def _stored(self) -> frozenset[str]:
        """The values that depend on parameters alone."""
        stored = {parameter.name for parameter in self.graph.parameters}
        for node in self.graph.nodes:
            if stored.issuperset(node.operands):
                stored.update(result.name for result in node.results)
        return frozenset(stored)

    def _readers(self, node: Node, found: Mapping[str, int | None]) -> set[int | None]:
        """Return the places in which the results of a node are read."""
        names = [result.name for result in node.results]
        read = {found[reader.name] for name in names for reader, _ in self.graph.uses[name]}
        if any(name in self.graph.outputs for name in names):
            read.add(self.cut[node.name])
        read |= {None for name, new in self.graph.updates if new in names and name in self.free}
        return read

    @cached_property
    def homes(self) -> dict[str, int | None]:
        """The place of every parameter, None for every stage; empty without cuts."""
        return {p.name: self._home(p.name) for p in self.graph.parameters} if self.cut else {}

    def _home(self, parameter: str) -> int | None:
        read = {self.operators[node.name] for node, _ in self.graph.uses[parameter]}
        if parameter in self.free and (len(read) > 1 or None in read):
            return None
        return min((stage for stage in read if stage is not None), default=0)


def even_cuts(graph: Graph, stages: int) -> tuple[str, ...]:
    """Return the cuts that give every stage as many of the model's repeated blocks.

    What comes before the first block is in the first stage, what comes after the last in the last.
    Where the blocks cannot be divided evenly, some stages have one more than others: never the
    last, which has the head, and the first, which has the embedding and the most micro-batches in
    flight, only if all others have (Llama Team, "The Llama 3 herd of models", 2024, section 3.3.2).

    Parameters
    ----------
    graph : Graph
        The program.
    stages : int
        Number of stages.

    Raises
    ------
    OptionError
        If the blocks cannot be divided so.
    """
    begins, last = _block_begins(graph, stages), ""
    for node in reversed(graph.nodes):
        if block_of(node.scope):
            break
        last = node.name
    sizes = even_sizes(len(begins), stages)
    idle = (not sizes[0] and not _is_fed_before(graph, begins[0])) if begins else True
    if idle or 0 in sizes[1:-1] or not (sizes[-1] or last):
        found = f"{len(begins)} repeated blocks" if begins else "no repeated blocks"
        raise OptionError(
            f"the model has {found}, which cannot be divided between {stages} stages",
            hint="use fewer stages, or give the stages yourself, with `cell.pipeline_stage`",
        )
    return tuple([*begins, last][begin] for begin in accumulate(sizes[:-1]))


def _is_fed_before(graph: Graph, begin: str) -> bool:
    """Return whether an operator before another one reads an input."""
    inputs = {value.name for value in graph.inputs}
    before = takewhile(lambda node: node.name != begin, graph.nodes)
    return any(not inputs.isdisjoint(node.operands) for node in before)


def _block_begins(graph: Graph, stages: int) -> list[str]:
    """Return the first operators of the repeated blocks.

    Raises
    ------
    OptionError
        If the blocks are not in program order.
    """
    first: dict[str, str] = {}
    current = ""
    for node in graph.nodes:
        block = block_of(node.scope)
        if block and block != current:
            if block in first:
                raise OptionError(
                    f"`{node.name}` of the block `{block}` comes after the block `{current}` has "
                    f"begun: blocks are not in program order, and cannot be cut into {stages} "
                    "stages",
                    node_text(node),
                    "give the stages yourself, with `cell.pipeline_stage`",
                )
            first[block], current = node.name, block
    return list(first.values())


def block_count(graph: Graph) -> int:
    """Return the number of repeated blocks of a program."""
    return len(dict.fromkeys(block for node in graph.nodes if (block := block_of(node.scope))))


def even_sizes(blocks: int, stages: int) -> tuple[int, ...]:
    """Return the numbers of blocks of stages that differ by one at most.

    Examples
    --------
    >>> even_sizes(6, 3), even_sizes(6, 4), even_sizes(7, 4), even_sizes(2, 4)
    ((2, 2, 2), (1, 2, 2, 1), (2, 2, 2, 1), (0, 1, 1, 0))
    """
    least, more = divmod(blocks, stages)
    longer = [*range(stages - 2, 0, -1), 0][:more]
    return tuple(least + (stage in longer) for stage in range(stages))
