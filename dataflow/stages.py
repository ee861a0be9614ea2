"""Pipeline stages of a program: what each device group runs before, in and after the loop.

A node runs in the stage of its results, a node on every stage in each group that needs it. A
``transfer`` is a send in one group and a receive in another. Within a pass over a micro-batch the
nodes of a stage are divided in segments: the forward pass, the backward pass, and for zero-bubble
schedules the weights, which are the backward nodes that no transfer of the loop waits for. The
groups run their segments in the order of the program's schedule (`schedules`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from shardwright.dataflow.schedule_paths import Transfer
from shardwright.dataflow.schedules import (
    BACKWARD,
    FORWARD,
    WEIGHTS,
    Schedule,
    Segment,
    forward_only,
    make_schedule,
    one_at_a_time,
)
from shardwright.ir.errors import IRError
from shardwright.ir.graph import Graph, Node
from shardwright.ir.liveness import Loop, check_loop, loop_of
from shardwright.ir.text import node_text

Place = Literal["before", "after"] | Segment
"""Where a device group runs a node: before the loop, in a segment of it, or after it."""


class Run(NamedTuple):
    """A node that a device group runs.

    Parameters
    ----------
    position : int
        The node.
    kind : str
        ``run``; for a transfer ``send`` or ``receive``.
    dead : tuple of str
        Values of the group that no node needs after it; in the loop, those of its micro-batch.
    """

    position: int
    kind: str = "run"
    dead: tuple[str, ...] = ()


@dataclass(frozen=True)
class GroupProgram:
    """The program of a device group.

    Parameters
    ----------
    group : int
        The device group.
    inputs, parameters : tuple of str
        The inputs that it reads, and the parameters that it has.
    before, after : tuple of Run
        What it runs before and after the loop over micro-batches.
    segments : mapping of (int, str) to (tuple of Run)
        What it runs of every micro-batch, in the order of one micro-batch.
    accumulated : tuple of str
        What its passes accumulate.
    dead_after_loop : tuple of str
        Values that no node needs after the loop, and that every pass may read.
    """

    group: int
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    before: tuple[Run, ...]
    segments: Mapping[Segment, tuple[Run, ...]]
    after: tuple[Run, ...]
    accumulated: tuple[str, ...] = ()
    dead_after_loop: tuple[str, ...] = ()

    def runs(self) -> Iterator[Run]:
        """Yield all nodes that it runs, those of the loop once."""
        yield from self.before
        for runs in self.segments.values():
            yield from runs
        yield from self.after


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A program with stages, by device group.

    Parameters
    ----------
    graph : Graph
        The program.
    loop : Loop or None
        The loop over micro-batches; without one, everything runs before it.
    schedule : Schedule
        The order of the segments.
    groups : tuple of GroupProgram
        The program of each device group.
    transfers : mapping of int to (segment, segment)
        The segments that each transfer of the loop connects, by its position.
    """

    graph: Graph
    loop: Loop | None
    schedule: Schedule
    groups: tuple[GroupProgram, ...]
    transfers: Mapping[int, Transfer]


@lru_cache(maxsize=8)
def _by_identity(key: "_Identity") -> Pipeline:
    return _Division(key.graph).pipeline()


@dataclass(frozen=True)
class _Identity:
    """A graph that is compared by identity, since comparing all its nodes is slow."""

    graph: Graph

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.graph is self.graph

    def __hash__(self) -> int:
        return id(self.graph)


def pipeline_of(graph: Graph) -> Pipeline | None:
    """Return the division of a program in stages; None for a mesh without an axis of stages.

    Raises
    ------
    IRError
        If a node waits for a later segment, or the stages are not a multiple of the groups.
    OptionError
        If the program's schedule does not exist for its stages and micro-batches.
    """
    if graph.mesh is None or not graph.mesh.of_stages:
        return None
    return _by_identity(_Identity(graph))


@dataclass
class _Division:
    """The division of a program: the stage and the part of every node."""

    graph: Graph
    parts: dict[str, str] = field(default_factory=dict)  # of values made in the loop

    def __post_init__(self) -> None:
        # Of each node the stage, and the stage that a transfer sends from.
        self.placed = {n.name: (self.graph.stage_of(n), self._sender(n)) for n in self.graph.nodes}

    def pipeline(self) -> Pipeline:
        """Return the programs of all groups."""
        graph = self.graph
        assert graph.mesh is not None
        check_loop(graph)
        self.count, self.loop = graph.mesh.stages, loop_of(graph)
        self.where = graph.mesh.stage_map
        self.stages = max(graph.stages, self.count)
        if self.stages % self.count:
            raise IRError(
                f"the program has {self.stages} stages on {self.count} device groups",
                f"graph {graph.name}",
                f"its stages must be a multiple of {self.count}",
            )
        self._find_parts()
        schedule = self._schedule()
        if WEIGHTS in schedule.parts:
            self._find_weights()
        transfers = dict(self._transfers(schedule))
        groups = tuple(self._group(group, schedule) for group in range(self.count))
        return Pipeline(graph, self.loop, schedule, groups, transfers)

    def _schedule(self) -> Schedule:
        passes = self.loop.passes if self.loop else 1
        chunks = self.stages // self.count
        if self.graph.schedule:
            schedule = make_schedule(self.graph.schedule, self.count, chunks, passes)
        else:
            schedule = one_at_a_time(self.count, chunks, passes)
        if schedule.in_v != self.where.in_v:
            shape = "in a V" if schedule.in_v else "in rounds"
            raise IRError(
                f"the schedule `{schedule.name}` has stages {shape}, and the mesh is "
                f"{self.graph.mesh}",
                f"graph {self.graph.name}",
                "`v_stages` in the text of a mesh is a V, `stages` is in rounds",
            )
        return schedule if BACKWARD in self.parts.values() else forward_only(schedule)

    # Parts

    def _body(self) -> Sequence[Node]:
        return self.graph.nodes[self.loop.start : self.loop.stop] if self.loop else ()

    def _find_parts(self) -> None:
        for node in self._body():
            reads_backward = any(self.parts.get(name) == BACKWARD for name in node.operands)
            backward = reads_backward or node.provenance.phase != "forward"
            part = BACKWARD if backward else FORWARD
            self.parts.update((result.name, part) for result in node.results)

    def _find_weights(self) -> None:
        """Move the backward nodes that no transfer waits for to the weights of their stage."""
        awaited: set[str] = set()
        for node in reversed(self._body()):
            sends = self._source(node) is not None and self.parts[node.name] == BACKWARD
            if sends or any(result.name in awaited for result in node.results):
                awaited.update(node.operands)
        for node in self._body():
            moves = self._source(node) is not None or self._stage(node) is None
            late = not moves and all(result.name not in awaited for result in node.results)
            if late and self.parts[node.name] == BACKWARD:
                self.parts.update((result.name, WEIGHTS) for result in node.results)

    def _stage(self, node: Node) -> int | None:
        return self.placed[node.name][0]

    def _source(self, node: Node) -> int | None:
        return self.placed[node.name][1]

    def _sender(self, node: Node) -> int | None:
        """Return the stage that a transfer sends from; None where nothing is sent."""
        if node.operator != "transfer":
            return None
        layout = self.graph.values[node.operands[0]].layout
        return None if layout is None else layout.stage

    # Places

    def _place(self, position: int, segment: Segment) -> Place:
        if self.loop is None or position < self.loop.start:
            return "before"
        return segment if position < self.loop.stop else "after"

    def _sent_from(self, node: Node) -> Segment:
        """Return the segment that makes the operand of a transfer."""
        source = self._source(node)
        assert source is not None
        return source, self.parts.get(node.operands[0], FORWARD)

    def _transfers(self, schedule: Schedule) -> Iterator[tuple[int, Transfer]]:
        """Yield the transfers of the loop, each to a later segment."""
        place = {segment: i for i, segment in enumerate(schedule.segments)}
        for i, node in enumerate(self._body()):
            if self._source(node) is None:
                continue
            target = self._stage(node)
            if target is None:
                raise IRError(
                    f"`{node.name}` transfers a value of a micro-batch to every stage",
                    node_text(node),
                    "transfer it to the stages that read it",
                )
            found = (self._sent_from(node), (target, self.parts[node.name]))
            if place[found[0]] >= place[found[1]]:
                raise IRError(
                    f"`{node.name}` transfers from the {found[0][1]} pass of stage {found[0][0]} "
                    f"to the {found[1][1]} pass of stage {target}, which is not later",
                    node_text(node),
                )
            assert self.loop is not None
            yield self.loop.start + i, found

    # The program of a group

    def _group(self, group: int, schedule: Schedule) -> GroupProgram:
        needed = self._needed(group)
        own = self.where.stages(group, self.stages)
        segments = [s for s in schedule.segments if s[0] in own]
        places: tuple[Place, ...] = ("before", *segments, "after")
        runs: dict[Place, list[Run]] = {place: [] for place in places}
        for position, node in self._nodes_of[group]:
            for place, run in self._runs(position, node, group, needed):
                runs[place].append(run)
        return _Ends(self.graph, self.loop, group).program(runs, self.stages)

    @cached_property
    def _nodes_of(self) -> list[list[tuple[int, Node]]]:
        """The nodes that each group may run, with their positions."""
        found: list[list[tuple[int, Node]]] = [[] for _ in range(self.count)]
        for position, node in enumerate(self.graph.nodes):
            stage, source = self.placed[node.name]
            places = {self.where.group(s) for s in (stage, source) if s is not None}
            for group in range(self.count) if stage is None else places:
                found[group].append((position, node))
        return found

    def _runs(
        self, position: int, node: Node, group: int, needed: set[str]
    ) -> Iterator[tuple[Place, Run]]:
        """Yield what a group runs of a node, with its place."""
        stage, source = self._stage(node), self._source(node)
        part = self.parts.get(node.name, FORWARD)
        if source is not None and self.where.group(source) == group:
            yield self._place(position, self._sent_from(node)), Run(position, "send")
        kind = "run" if source is None else "receive"
        if stage is None:
            # On every stage: in the group's first segment of the pass.
            own = self.where.stages(group, self.stages)
            first = own[0] if part == FORWARD else own[-1]
            if node.name in needed:
                yield self._place(position, (first, part)), Run(position, kind)
        elif self.where.group(stage) == group:
            yield self._place(position, (stage, part)), Run(position, kind)

    def _needed(self, group: int) -> set[str]:
        """Return the nodes on every stage that a group needs, by name."""
        wanted, found = set(self.graph.kept()), set()
        for _, node in reversed(self._nodes_of[group]):
            stage, source = self.placed[node.name]
            everywhere = stage is None and any(r.name in wanted for r in node.results)
            if everywhere:
                found.add(node.name)
            runs = everywhere if stage is None else self.where.group(stage) == group
            sends = source is not None and self.where.group(source) == group
            if sends or (runs and source is None):
                wanted.update(node.operands)
        return found


@dataclass
class _Ends:
    """The ends of the values of a group: the runs after which none needs them."""

    graph: Graph
    loop: Loop | None
    group: int

    def program(self, runs: Mapping[Place, list[Run]], stages: int) -> GroupProgram:
        """Return the program of the group."""
        last: dict[str, tuple[Place, int]] = {}
        made: dict[str, Place] = {}
        for place, found in runs.items():
            for i, (position, kind, _) in enumerate(found):
                node = self.graph.nodes[position]
                if kind != "receive":
                    last.update(dict.fromkeys(node.operands, (place, i)))
                for result in node.results if kind != "send" else ():
                    made[result.name] = place
                    last[result.name] = place, i
        dead: dict[tuple[Place, int], list[str]] = {}
        after_loop: list[str] = []
        for name in sorted(last.keys() - self._lasting()):
            place, _ = last[name]
            of_pass = isinstance(made.get(name), tuple) and not self._accumulates(name)
            if isinstance(place, tuple) and not of_pass:
                after_loop.append(name)
            else:
                dead.setdefault(last[name], []).append(name)
        ended: dict[Place, tuple[Run, ...]] = {
            place: tuple(
                run._replace(dead=tuple(dead[place, i])) if (place, i) in dead else run
                for i, run in enumerate(found)
            )
            for place, found in runs.items()
        }
        return self._program(ended, last.keys(), after_loop)

    def _program(
        self, runs: Mapping[Place, tuple[Run, ...]], touched: Iterable[str], ended: list[str]
    ) -> GroupProgram:
        present = set(touched) | set(self.graph.kept())
        segments = {place: found for place, found in runs.items() if isinstance(place, tuple)}
        accumulated = tuple(
            name
            for found in segments.values()
            for run in found
            for name in self._defined(run)
            if self._accumulates(name)
        )
        return GroupProgram(
            group=self.group,
            inputs=tuple(v.name for v in self.graph.inputs if v.name in present),
            parameters=self._parameters(),
            before=runs["before"],
            segments=segments,
            after=runs["after"],
            accumulated=accumulated,
            dead_after_loop=tuple(ended),
        )

    def _parameters(self) -> tuple[str, ...]:
        assert self.graph.mesh is not None
        found = []
        for parameter in self.graph.parameters:
            layout = parameter.value.layout
            stage = None if layout is None else layout.stage
            if self.graph.mesh.is_in(stage, self.group):
                found.append(parameter.name)
        return tuple(found)

    def _lasting(self) -> set[str]:
        """Return the parameters that no update replaces: they outlive the program."""
        updated = {name for name, _ in self.graph.updates}
        return {p.name for p in self.graph.parameters if p.name not in updated}

    def _accumulates(self, name: str) -> bool:
        return self.loop is not None and name in self.loop.accumulated

    def _defined(self, run: Run) -> Iterator[str]:
        if run.kind != "send":
            yield from (result.name for result in self.graph.nodes[run.position].results)
