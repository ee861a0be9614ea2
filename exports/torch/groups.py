"""The text of a package with pipeline stages: its tables, and a module for each device group.

A group runs what comes before the loop over micro-batches, the passes of its stages, and what comes
after. The passes of one micro-batch are one function, a generator that stops after each, so that it
reads as the program of one stage; the order of the schedule says which one goes on.

Messages between two groups have a channel for each pair of passes that they connect. A pass takes
micro-batches in their order and sends in the order of the program, in which the other receives: so
messages of a channel arrive in the order in which they are awaited, and need no tags.
"""

from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from typing import Final

from shardwright.compiler.plans.plan import Plan
from shardwright.dataflow.placement import AXIS
from shardwright.dataflow.schedules import Schedule, Segment
from shardwright.dataflow.stages import GroupProgram, Pipeline, Run, pipeline_of
from shardwright.exports.emission.program_writer import (
    DESCRIPTION,
    FORWARD,
    UPDATE,
    heading,
    summary,
    table,
)
from shardwright.exports.emission.writing import (
    Code,
    code,
    fixed,
    identifier,
    lines,
    listed,
    literal,
    paragraph,
    prose,
)
from shardwright.exports.torch.torch_program import PLACEMENTS, TorchProgram
from shardwright.ir.errors import PlanError
from shardwright.ir.graph import Node
from shardwright.ir.text import type_text

_EMPTY: Final = code("")
_TABLES: Final = '''"""{summary}

The program of each device group is a module of its own; these are the tables of all. A process
runs the program of one group on its own slices.

{description} What a comment says to be in a stage is on the processes of that stage alone.
"""

{placements}

from . import {groups}
'''
_GROUP: Final = '''"""{stages}: the program of device group {group}.{passes}"""

from collections.abc import {collections}

from torch import Tensor

{modules}
from .stages import Mesh{totals}

'''
_PASSES: Final = """

`micro_batch` runs the passes of its stages over one micro-batch, and stops after each. `ORDER` has
the passes of all micro-batches in the order of the schedule: `F1.0` is the forward pass of stage 1
over micro-batch 0, `B` is the backward pass{weights}.
"""
_WEIGHTS: Final = " without the gradients of weights, `W` those"
_MICRO_BATCH: Final = """
    def micro_batch() -> Iterator[str]:"""


def label(segment: Segment) -> str:
    """Return the name of a segment: ``F0``."""
    stage, part = segment
    return f"{part[0].upper()}{stage}"


def _end(group: int, place: str) -> str:
    """Return the name of the end of a channel: ``F0``, ``after 1``."""
    return f"{place} {group}" if place in ("before", "after") else place


def _check_order(schedule: Schedule) -> None:
    """Refuse a schedule in which a group runs the passes of micro-batches in several orders."""
    for group, actions in enumerate(schedule.actions):
        orders = dict[int, list[Segment]]()
        for action in actions:
            orders.setdefault(action.micro_batch, []).append(action.segment)
        if any(order != orders[0] for order in orders.values()):
            raise PlanError(
                f"device group {group} runs the passes of some micro-batches in another order in "
                f"the schedule `{schedule.name}`, and a package for PyTorch has one function for "
                "those of all",
                hint="compile it with the schedule `zero_bubble` or `interleaved`",
            )


class StagedProgram(TorchProgram):
    """Writes the program of a plan with pipeline stages for PyTorch.

    Parameters
    ----------
    plan : Plan
        A compiled training step with stages.

    Raises
    ------
    PlanError
        If a device group does not run the passes of all micro-batches in the same order.
    """

    trainer = "stages"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        pipeline = pipeline_of(plan.program)
        assert pipeline is not None
        _check_order(pipeline.schedule)
        self.pipeline: Pipeline = pipeline
        self.channels: dict[str, tuple[int, int]] = {}
        self.expressions.groups.append((AXIS,))

    def modules(self) -> dict[str, Code]:
        """Return the tables, and the programs of the groups, which make the channels."""
        groups = {f"group_{g.group}.py": GroupWriter(self, g).text() for g in self.pipeline.groups}
        return {"program.py": self.text(), **groups}

    def text(self) -> Code:
        """Return the module with the tables."""
        groups = listed(identifier(f"group_{group.group}") for group in self.pipeline.groups)
        told = summary(self.plan, self.vocabulary.ranks)
        head = code(
            _TABLES,
            summary=told,
            description=fixed(DESCRIPTION),
            groups=groups,
            placements=PLACEMENTS,
        )
        own = code("DEVICE_GROUPS = ({},)", groups)
        return lines([head, own, *self.tables(), code("")])

    def tables(self) -> Iterator[Code]:
        """Yield the lines of the tables, homes and channels among them."""
        yield from super().tables()
        yield code("# The device group of what is not on every one.")
        yield from table("HOMES", self._homes(), code(": dict[str, int]"))
        yield code(
            "# From which device group to which, by the passes between which messages are sent."
        )
        rows = (code("{}: {}", place, pair) for place, pair in sorted(self.channels.items()))
        yield from table("CHANNELS", rows, code(": dict[str, tuple[int, int]]"))

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the axes of processes, stages first."""
        return {AXIS: self.plan.mesh.stages, **super().sizes()}

    def _homes(self) -> Iterator[Code]:
        parameters = (parameter.name for parameter in self.program.parameters)
        for value in dict.fromkeys((*parameters, *self.program.outputs)):
            layout = self.program.values[value].layout
            if layout is not None and layout.stage is not None:
                yield code("{}: {}", value, self.plan.mesh.stage_map.group(layout.stage))

    @cached_property
    def receivers(self) -> dict[int, list[tuple[int, str]]]:
        """The groups that receive each transfer, by its position, with the places where they do."""
        found: dict[int, list[tuple[int, str]]] = {}
        for group in self.pipeline.groups:
            for place, run in runs_of(group):
                if run.kind == "receive":
                    found.setdefault(run.position, []).append((group.group, place))
        return found

    @cached_property
    def senders(self) -> dict[int, tuple[int, str]]:
        """The group that sends each transfer, by its position, with the place where it does."""
        return {
            run.position: (group.group, place)
            for group in self.pipeline.groups
            for place, run in runs_of(group)
            if run.kind == "send"
        }

    def channel(self, position: int, target: int, place: str) -> str:
        """Return the channel from the group that sends a transfer to one that receives it."""
        source, begin = self.senders[position]
        channel = f"{_end(source, begin)} -> {_end(target, place)}"
        self.channels[channel] = (source, target)
        return channel

    def is_update(self, run: Run) -> bool:
        """Return whether a node is one of the optimizer."""
        return self.program.nodes[run.position].name in self._is_update


def runs_of(group: GroupProgram) -> Iterator[tuple[str, Run]]:
    """Yield what a group runs, in order, with its place: ``before``, ``F0``, ``after``.

    What it runs of a micro-batch comes once.
    """
    segments = ((label(segment), runs) for segment, runs in group.segments.items())
    for place, runs in (("before", group.before), *segments, ("after", group.after)):
        for run in runs:
            yield place, run


class GroupWriter:
    """Writes the program of a device group.

    Parameters
    ----------
    writer : StagedProgram
        Writes the tables, and has the names of values.
    group : GroupProgram
        The group.
    """

    def __init__(self, writer: StagedProgram, group: GroupProgram) -> None:
        self.writer, self.group, self.program = writer, group, writer.program
        self.name = writer.expressions.name
        self._parameters = {parameter.name for parameter in self.program.parameters}
        self._updates = [(n, new) for n, new in self.program.updates if n in group.parameters]
        order = {name: i for i, name in enumerate(self.program.values)}
        self._carried = sorted(self._find_carried(), key=order.__getitem__)
        made = {name for _, run in runs_of(group) for name in self._results(run)}
        given = {*group.inputs, *group.parameters}
        self._outputs = [name for name in self.program.outputs if name in made | given]

    def _find_carried(self) -> set[str]:
        """Return what the update reads, or returns, and `forward_backward` makes."""
        is_update = self.writer.is_update
        made, read = set(), {new for _, new in self._updates}
        for _, run in runs_of(self.group):
            if not is_update(run):
                made.update(self._results(run))
            elif run.kind != "receive":
                read.update(self.program.nodes[run.position].operands)
        return made & read

    def _results(self, run: Run) -> list[str]:
        """Return what a node makes in this group."""
        own = self.writer.receivers.get(run.position, [])
        if run.kind == "send" and self.group.group not in (number for number, _ in own):
            return []
        return [result.name for result in self.program.nodes[run.position].results]

    def text(self) -> Code:
        """Return the module."""
        pipeline, number = self.writer.pipeline, self.group.group
        stages = pipeline.schedule.stages_on(number)
        loops = pipeline.loop is not None
        has_weights = "weights" in pipeline.schedule.parts
        passes = code(_PASSES, weights=code(_WEIGHTS) if has_weights else _EMPTY)
        head = code(
            _GROUP,
            stages=code("Stages {}" if len(stages) > 1 else "Stage {}", listed(stages)),
            group=number,
            passes=passes if loops else _EMPTY,
            collections=code("Iterator, Mapping" if loops else "Mapping"),
            modules=self.writer.imported_modules,
            totals=code(", Totals") if loops else _EMPTY,
        )
        order = self._order() if loops else ()
        body = [*order, *self._forward(), _EMPTY, *self._update(), _EMPTY]
        return code("{}{}", head, lines(body))

    def _order(self) -> Iterator[Code]:
        actions = self.writer.pipeline.schedule.actions[self.group.group]
        names = " ".join(f"{label(a.segment)}.{a.micro_batch}" for a in actions)
        yield code('ORDER = """')
        yield paragraph(names)
        yield code('""".split()')
        yield _EMPTY

    # Functions

    def _forward(self) -> Iterator[Code]:
        yield code(FORWARD, tensor=code("Tensor"))
        inputs = [value for value in self.program.inputs if value.name in self.group.inputs]
        yield from (
            code("    {}", self.writer.own_input(v)) for v in inputs if not self.writer.in_passes(v)
        )
        kept = {*self.program.outputs, *self._carried}
        yield from self._body("before", self.group.before, kept, in_update=False)
        if self.writer.pipeline.loop is not None:
            yield code("    totals = Totals()")
            yield code(_MICRO_BATCH)
            own = (v for v in inputs if self.writer.in_passes(v))
            yield from (code("        {}", self.writer.own_input(value)) for value in own)
            for segment, runs in self.group.segments.items():
                body = self._body(label(segment), runs, kept, in_update=False)
                yield from (code("    {}", line) for line in body)
                yield code("        yield {}", literal(label(segment)))
            yield _EMPTY
            yield code("    mesh.run(ORDER, micro_batch)")
            names = self.group.accumulated
            yield from (code("    {} = totals[{}]", self.name(n), n) for n in names)
            inside = {value.name for value in inputs if self.writer.in_passes(value)}
            yield from self._delete(self.group.dead_after_loop, kept | inside)
        yield from self._body("after", self.group.after, kept, in_update=False)
        yield code("    mesh.complete()")
        yield from self.writer.returned(self._outputs, self._carried)

    def _update(self) -> Iterator[Code]:
        yield code(UPDATE, tensor=code("Tensor"))
        yield from self.writer.carried_on(self._carried)
        kept = {new for _, new in self._updates} | set(self._carried)
        for place, runs in (("before", self.group.before), ("after", self.group.after)):
            yield from self._body(place, runs, kept, in_update=True)
        yield code("    mesh.complete()")
        yield from self.writer.updated(self._updates)

    def _body(
        self, place: str, runs: Iterable[Run], kept: Collection[str], in_update: bool
    ) -> Iterator[Code]:
        """Yield the lines of what a group runs in a place."""
        title = None
        for run in runs:
            if self.writer.is_update(run) != in_update:
                continue
            node = self.program.nodes[run.position]
            if heading(node) != title:
                title = heading(node)
                yield code("    # {}", title)
            yield from (code("    {}", line) for line in self._lines(run, node, place))
            yield from self._delete(run.dead, kept)

    def _delete(self, dead: Iterable[str], kept: Collection[str]) -> Iterator[Code]:
        names = [self.name(n) for n in dead if n not in kept and n not in self._parameters]
        if names:
            yield code("    del {}", listed(names))

    # Transfers

    def _lines(self, run: Run, node: Node, place: str) -> Iterator[Code]:
        """Yield the lines of what a group runs."""
        if run.kind == "run" and node.operator == "transfer":  # it is on every stage already
            yield self._same(node)
        elif run.kind == "run":
            yield self.writer.line(node)
        elif run.kind == "send":
            yield from self._send(run, node)
        elif self.writer.senders[run.position][0] != self.group.group:
            yield self._receive(run, node, place)

    def _send(self, run: Run, node: Node) -> Iterator[Code]:
        """Yield the line that sends; what the group keeps itself is the same tensor."""
        part = self.writer.expressions.read(node.operands[0])
        found = self.writer.receivers.get(run.position, [])
        others = [(group, place) for group, place in found if group != self.group.group]
        if others:
            names = (self.writer.channel(run.position, *other) for other in others)
            yield code("mesh.send({})", listed([part, *names]))
        if len(others) < len(found):
            yield self._same(node)

    def _same(self, node: Node) -> Code:
        (value,) = node.results
        part = self.writer.expressions.read(node.operands[0])
        return code("{} = {}  # {}", self.name(value.name), part, prose(type_text(value)))

    def _receive(self, run: Run, node: Node, place: str) -> Code:
        (value,) = node.results
        channel = self.writer.channel(run.position, self.group.group, place)
        shape = self.writer.expressions.shape(value)
        return code(
            "{} = mesh.receive({}, {}, {})  # {}",
            self.name(value.name),
            channel,
            shape,
            value.type.dtype,
            prose(type_text(value)),
        )
