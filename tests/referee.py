"""A plain referee: every plan of a small model is built and run, and answers are held against all.

It has the rules of operators and the passes in common with the compiler, and nothing of its search,
bounds or evaluation. What a plan is allowed to be is the space of layouts of the whole program; the
memory of a plan is what numpy allocated when it ran; its time is that of the built program, whose
timeline is audited: each node once, as long as it takes, after what it needs, one at a time on each
resource, and within the bytes that were live by an account of its own.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, combinations, pairwise, product
from typing import Literal

import numpy as np

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.events import Timeline
from shardwright.cost_model.roofline import node_axes, seconds_of_nodes
from shardwright.cost_model.timeline import simulate
from shardwright.dataflow.placement import in_stages
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph, Node, Value, value_bytes
from shardwright.ir.liveness import Loop, loop_of
from shardwright.ir.mesh import Mesh
from shardwright.operators.views import buffer_roots
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager
from shardwright.planner.options import CompileOptions
from shardwright.planner.pipelines import partitioned
from shardwright.planner.search_request import SearchRequest
from shardwright.runtime import Executor, LocalCommunicator, initialize
from shardwright.search.space.space import SearchSpace
from shardwright.solver.problem import FORBIDDEN

MOST = 400  # plans of a model on one mesh, in one number of micro-batches and stages
EXACT = 1 + 1e-9
SCALARS = 16.0  # bytes: numpy allocates what is a constant, or a sum of nothing yet, for a program
Objective = Literal["overlapped", "serial"]


class TooManyError(Exception):
    """A model has more plans than are enumerated."""


@dataclass(frozen=True)
class Form:
    """A mesh of a device group, and how the step is cut into micro-batches and stages."""

    mesh: Mesh
    passes: int = 1
    groups: int = 1
    chunks: int = 1
    schedule: str = "1f1b"


@dataclass(frozen=True)
class Built:
    """A plan as a program, with the bytes that each device group allocated when it ran."""

    form: Form
    program: Graph
    allocated: tuple[float, ...]

    @property
    def memory(self) -> float:
        """The bytes of the device group that takes most."""
        return max(self.allocated)

    def seconds(self, cluster: Cluster, limit: float, objective: Objective) -> float:
        """Return the step of the program within a limit; infinite where it does not fit."""
        if self.memory > limit:
            return math.inf
        if objective == "serial" and self.form.groups == 1:
            return _in_line(self.program, cluster)
        return simulate(self.program, cluster, limit).step_seconds


def _in_line(program: Graph, cluster: Cluster) -> float:
    """Return the sum of the seconds of all nodes, as often as each runs."""
    loop, every = loop_of(program), seconds_of_nodes(program, cluster)
    return math.fsum(_times(loop, i) * seconds for i, seconds in enumerate(every))


def _times(loop: Loop | None, position: int) -> int:
    return loop.passes if loop is not None and loop.start <= position < loop.stop else 1


# All plans


def all_plans(
    graph: Graph, cluster: Cluster, form: Form, options: CompileOptions, most: int = MOST
) -> list[Built]:
    """Return all plans of a model in canonical form, whether they fit anything or not.

    Raises
    ------
    TooManyError
        If there are more than `most`.
    """
    lowering = LowerRedistributions(cluster)
    decided = [*_decisions(graph, cluster, form, options, lowering, most)]
    cuts = [*_cuts(graph, form)]
    if len(decided) * len(cuts) > most:
        raise TooManyError
    found = []
    for decisions, cut in product(decided, cuts):
        if form.groups > 1:
            decisions = in_stages(decisions, form.groups, cut, form.schedule)
        asked = CompileOptions(micro_batches=form.passes, optimizer=options.optimizer)
        program = PassManager().run_all(partitioned(asked, decisions, lowering), graph)
        if _has_every_stage(program, form):
            found.append(Built(form, program, allocated(program)))
    return found


def _has_every_stage(program: Graph, form: Form) -> bool:
    """Return whether no stage is empty: what reads inputs alone has no stage of its own."""
    forward = (node for node in program.nodes if node.provenance.role == "forward")
    stages = {program.stage_of(node) for node in forward} - {None}
    return form.groups == 1 or len(stages) == form.groups * form.chunks


def _decisions(
    graph: Graph,
    cluster: Cluster,
    form: Form,
    options: CompileOptions,
    lowering: LowerRedistributions,
    most: int,
) -> Iterator[Decisions]:
    asked = CompileOptions(
        micro_batches=form.passes, optimizer=options.optimizer, search="dynamic_programming"
    )  # a space of layouts, not of orbits
    request = SearchRequest(graph, cluster, lowering.planner(form.mesh), asked)
    recomputes = options.recompute == "search"
    space = request.space_with(options.pins, recompute=recomputes, regather=True)
    for number, assignment in enumerate(_assignments(space)):
        if number == most:
            raise TooManyError
        decisions = space.decisions(assignment)
        yield decisions if request.micro is None else request.micro.lifted(decisions)


def _assignments(space: SearchSpace) -> Iterator[tuple[int, ...]]:
    """Yield all options that may stand together, one choice after the other."""
    problem = space.problem
    before: list[list[tuple[int, np.ndarray]]] = [[] for _ in problem.variables]
    for pair in problem.pairs:
        first, second = sorted((pair.first, pair.second))
        table = pair.table if pair.first == first else pair.table.T
        before[second].append((first, table))

    def extended(chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        at = len(chosen)
        if at == len(before):
            yield chosen
            return
        for option, cost in enumerate(problem.variables[at].cost):
            tables = (table[chosen[other], option] for other, table in before[at])
            if max([cost, *tables]) < FORBIDDEN:
                yield from extended((*chosen, option))

    return extended(())


def _cuts(graph: Graph, form: Form) -> Iterator[dict[str, int]]:
    """Yield the stage of every operator for every place of the cuts; nothing without stages."""
    if form.groups == 1:
        yield {}
        return
    names, stages = [node.name for node in graph.nodes], form.groups * form.chunks
    for inner in combinations(range(1, len(names)), stages - 1):
        spans = pairwise((0, *inner, len(names)))
        yield {name: s for s, (i, j) in enumerate(spans) for name in names[i:j]}


def allocated(program: Graph) -> tuple[float, ...]:
    """Return the bytes that a rank of each device group allocates where the program runs.

    Updates are left out: devices do them in place, where numpy allocates the new values.
    """
    assert program.mesh is not None
    program = _without_updates(program)
    communicator = LocalCommunicator(program.mesh)
    inputs = {v.name: np.zeros(v.type.shape, v.type.dtype) for v in program.inputs}
    state = initialize(program, 0, communicator)
    found = Executor(program, communicator).step(inputs, state)
    groups = found.peak_bytes_by_group or {0: found.peak_bytes}
    return tuple(float(groups[group]) for group in sorted(groups))


def _without_updates(program: Graph) -> Graph:
    """Return a program that returns its gradients instead of updating parameters."""
    updated, read = set[str](), dict.fromkeys(program.outputs)
    nodes = []
    for node in program.nodes:
        if node.provenance.role == "update" or not updated.isdisjoint(node.operands):
            updated.update(result.name for result in node.results)
            read.update(dict.fromkeys(node.operands))
        else:
            nodes.append(node)
    made = {result.name for node in nodes for result in node.results}
    outputs = tuple(name for name in read if name in made)
    return replace(program, nodes=tuple(nodes), outputs=outputs, updates=())


# What is said, against what is


def foretold_alike(told: Sequence[float], taken: Sequence[float]) -> bool:
    """Return whether memory that was foretold is that which was allocated, but for two scalars."""
    return all(abs(one - other) <= SCALARS for one, other in zip(told, taken, strict=True))


def faults(program: Graph, cluster: Cluster, timeline: Timeline) -> list[str]:
    """Return what is wrong with the timeline of a program: nothing, where it is true."""
    if program.stages:
        return [*_faults_of_stages(program, cluster, timeline)]
    return [*_faults_of_nodes(program, cluster, timeline)]


def _faults_of_nodes(program: Graph, cluster: Cluster, timeline: Timeline) -> Iterator[str]:
    events, loop = timeline.record.events, loop_of(program)
    every = seconds_of_nodes(program, cluster)
    position = {node.name: i for i, node in enumerate(program.nodes)}
    ran = Counter(event.node.name for event in events)
    if ran != {node.name: _times(loop, i) for i, node in enumerate(program.nodes)}:
        yield "a node does not run as often as it should"
    if any(abs(e.seconds - every[position[e.node.name]]) > 1e-9 * e.seconds for e in events):
        yield "a node takes another time than it does"
    ends = {(event.node.name, event.micro_batch): event.end for event in events}
    last = {name: max(end for (n, _), end in ends.items() if n == name) for name in ran}
    moment = 1e-9 * timeline.step_seconds
    for event in events:
        for name in event.node.operands:
            made = program.producers.get(name)
            if made is None or made.name not in last:
                continue
            end = ends.get((made.name, event.micro_batch), last[made.name])
            if event.start < end - moment:
                yield f"{event.node.name} begins before {made.name} has ended"
    for resource in {r for event in events for r in event.streams}:
        own = sorted((e.start, e.end) for e in events if resource in e.streams and e.seconds)
        if any(after[0] < before[1] - moment for before, after in pairwise(own)):
            yield f"two nodes are on {resource} at once"
    if not _uses_links(program, cluster, timeline):
        yield "a collective does not use its links"
    if abs(timeline.step_seconds - max(e.end for e in events)) > moment:
        yield "the step does not end with its last node"
    own = _most_bytes(program, timeline, loop)
    if abs(timeline.peak_bytes - own) > SCALARS:
        yield f"{timeline.peak_bytes:.0f} bytes are live by the timeline, {own:.0f} by its events"


def _uses_links(program: Graph, cluster: Cluster, timeline: Timeline) -> bool:
    mesh = program.mesh
    assert mesh is not None
    for event in timeline.record.events:
        axes = [mesh.axis(name) for name in node_axes(event.node, program)]
        levels = {cluster.levels[axis.level].name for axis in axes if axis.size > 1}
        if not levels <= set(event.streams):
            return False
    return True


def _most_bytes(program: Graph, timeline: Timeline, loop: Loop | None) -> float:
    """Return the most bytes that are live at once, by the events of a timeline.

    A buffer is live from the begin of what makes it to the end of the last that reads it. What ends
    at a moment is freed before what comes later in the program is made.
    """
    mesh, roots = program.mesh or Mesh(()), buffer_roots(program.nodes)
    in_place = {new for _, new in program.updates}
    states = {parameter.name for parameter in program.parameters}
    kept = states | {roots.get(name, name) for name in program.kept()}
    sums = set() if loop is None else {roots.get(name, name) for name in loop.accumulated}
    events = list(enumerate(timeline.record.events))
    looped = [(event.start, event.end, i) for i, event in events if event.micro_batch]
    begin_of_loop = min(((start, i) for start, _, i in looped), default=(0.0, 0))
    end_of_loop = max(((end, i) for _, end, i in looped), default=(0.0, 0))
    made = {result.name for _, e in events if e.micro_batch for result in e.node.results}
    begins: dict[tuple[str, int], tuple[float, int]] = {}
    ends: dict[tuple[str, int], tuple[float, int]] = {}
    for name in (*(value.name for value in program.inputs), *states):
        begins[name, 0] = ends[name, 0] = (-1.0, -1)
    for i, event in events:
        results = {result.name for result in event.node.results}
        for name in {roots.get(name, name) for name in (*event.node.operands, *results)}:
            inside = event.micro_batch > 0 and name in made and name not in sums
            key = (name, event.micro_batch if inside else 0)
            if name in results - roots.keys() - in_place:
                begins.setdefault(key, begin_of_loop if name in sums else (event.start, i))
            last = end_of_loop if event.micro_batch and not inside else (event.end, i)
            ends[key] = max(ends.get(key, last), last)
    inputs = {value.name for value in program.inputs}
    changes = []
    for key, (moment, i) in begins.items():
        size = _bytes(program.values[key[0]], mesh, is_input=key[0] in inputs)
        changes.append((moment, i, 0, size))
        if key[0] not in kept:
            changes.append((*ends[key], 1, -size))
    return max(accumulate(change[-1] for change in sorted(changes)))


def _bytes(value: Value, mesh: Mesh, *, is_input: bool) -> float:
    """Return the bytes of a rank; an input has the slices of all passes."""
    if is_input and value.layout is not None and mesh.in_time:
        value = replace(value, layout=value.layout.without(mesh.in_time))
    return value_bytes(value, mesh)


def _faults_of_stages(program: Graph, cluster: Cluster, timeline: Timeline) -> Iterator[str]:
    segments = timeline.record.segments
    moment = 1e-9 * timeline.step_seconds
    every, loop = seconds_of_nodes(program, cluster), loop_of(program)
    groups = max(segment.group for segment in segments) + 1
    for group in range(groups):
        own = sorted((s.start, s.start + s.seconds) for s in segments if s.group == group)
        if any(after[0] < before[1] - moment for before, after in pairwise(own)):
            yield f"device group {group} runs two segments at once"
        computing = math.fsum(
            _times(loop, i) * every[i]
            for i, node in enumerate(program.nodes)
            if _computes_in(program, node, group, groups)
        )
        told = math.fsum(s.computing for s in segments if s.group == group)
        if told < computing * (1 - 1e-9):
            yield f"device group {group} computes for less than its operators take"
    ends = {(s.stage, s.part, s.micro_batch): s.start + s.seconds for s in segments}
    stages = max((s.stage for s in segments if s.stage is not None), default=0)
    for one in segments:
        for needed in _needed(one.stage, one.part, one.micro_batch, stages):
            if one.start < ends[needed] - moment:
                yield f"{one.part} of stage {one.stage} begins before {needed} has ended"
    last = max(segment.start + segment.seconds for segment in segments)
    if abs(timeline.step_seconds - last) > moment:
        yield "the step does not end with its last segment"


def _needed(
    stage: int | None, part: str, number: int, last: int
) -> Iterator[tuple[int | None, str, int]]:
    if stage is None:
        return
    if part == "forward" and stage:
        yield stage - 1, "forward", number
    if part == "backward":
        yield stage, "forward", number
        if stage < last:
            yield stage + 1, "backward", number
    if part == "weights":
        yield stage, "backward", number


def _computes_in(program: Graph, node: Node, group: int, groups: int) -> bool:
    stage = program.stage_of(node)
    moves = node_axes(node, program) or program.changes_stage(node)
    return not moves and (stage is None or _group_of(stage, program, groups) == group)


def _group_of(stage: int, program: Graph, groups: int) -> int:
    is_v = any(axis.in_v for axis in program.mesh.axes) if program.mesh else False
    order = [*range(groups), *reversed(range(groups))] if is_v else range(groups)
    return order[stage % len(order)]
