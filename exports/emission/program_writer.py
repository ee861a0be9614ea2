"""The text of ``program.py``: a training step of one rank as Python, an operator a line."""

from collections.abc import Collection, Generator, Iterable, Iterator
from typing import ClassVar

from shardwright.compiler.plans.plan import Plan
from shardwright.dataflow.cotangents import gradient_name
from shardwright.exports.emission.expressions import Expressions
from shardwright.exports.emission.vocabulary import Vocabulary
from shardwright.exports.emission.writing import Code, code, fixed, identifier, lines, listed, prose
from shardwright.ir.errors import PlanError
from shardwright.ir.graph import Graph, Node, Parameter, Value
from shardwright.ir.liveness import accumulates, dying_values, loop_of
from shardwright.ir.mesh import Mesh
from shardwright.ir.text import type_text

_HEAD = '''"""{summary}

{runs}

{description}
"""

from collections.abc import Mapping

{imports}

{modules}
from .mesh import {names}
'''
DESCRIPTION = """A line is an operator of the plan; the comment behind it has the type of the whole
tensor and its layout: `f32[8@data, 16, 32] +tensor` is of float32, its first dimension is split
over the mesh axis `data`, and the elements are terms of a sum over `tensor`; `*` is a copy on every
rank. Parameters, inputs and outputs have their layouts in the tables below: the axes that split
each dimension, major to minor.

Only methods of `mesh` communicate."""
"""What a reader of a program must know, for its docstring."""
FORWARD = '''
def forward_backward(
    mesh: Mesh, state: Mapping[str, {tensor}], inputs: Mapping[str, {tensor}]
) -> tuple[dict[str, {tensor}], dict[str, {tensor}], dict[str, {tensor}]]:
    """Return outputs, gradients, and other values that the update reads."""'''
UPDATE = '''
def update(
    mesh: Mesh,
    state: Mapping[str, {tensor}],
    gradients: Mapping[str, {tensor}],
    others: Mapping[str, {tensor}],
) -> dict[str, {tensor}]:
    """Return the next parameters, buffers and optimizer states."""'''

_EMPTY = code("")


def _check(program: Graph, vocabulary: Vocabulary) -> None:
    mesh, command = program.mesh or Mesh(()), f"`export --to {vocabulary.target}`"
    if (program.stages > 1 or mesh.of_stages) and not vocabulary.has_stages:
        raise PlanError(
            f"the plan has {max(program.stages, mesh.stages)} pipeline stages, {command} "
            "writes plans of one",
            hint="compile it without `--stages`, or export to `torch`",
        )
    if mesh.size > 1 and any(value.layout is None for value in program.values.values()):
        raise PlanError(
            f"the plan is of a program that calls collectives itself, {command} writes "
            "plans whose tensors have layouts",
            hint="compile the model in another mode than `hybrid_parallel`",
        )
    for value in () if vocabulary.has_uneven_parts else program.values.values():
        if value.layout is not None and not value.layout.is_even(value.type.shape, mesh):
            raise PlanError(
                f"the ranks have parts of different sizes of `{value.name}` ({type_text(value)}), "
                f"{vocabulary.system} splits evenly alone",
                hint="choose a mesh whose axes divide the sizes, or export to `torch`",
            )


class ProgramWriter:
    """Writes the program of a plan; a system has its own words, and adds tables.

    Parameters
    ----------
    plan : Plan
        A compiled training step.

    Raises
    ------
    PlanError
        If it has stages that the system has no form for, layouts were not decided, or parts are
        uneven where they must not be.

    Attributes
    ----------
    vocabulary : Vocabulary
        The functions of the system.
    runs : Code
        A sentence on what runs the functions of the program.
    imports : Code
        What the program imports of the system.
    names : Code
        What it imports of the module ``mesh``.
    trainer : str
        The module of the package that holds the parameters.
    """

    vocabulary: ClassVar[Vocabulary]
    runs: ClassVar[Code]
    imports: ClassVar[Code]
    names: ClassVar[Code]
    trainer = "trainer"

    def __init__(self, plan: Plan) -> None:
        _check(plan.program, self.vocabulary)
        self.plan, self.program = plan, plan.program
        self.expressions = Expressions(plan.program, plan.mesh, self.vocabulary)
        self._loop = loop_of(self.program)
        self._is_update = {n.name for n in self.program.nodes if n.provenance.phase == "update"}
        later = {
            name
            for node in self.program.nodes
            if node.name in self._is_update
            for name in node.operands
        }
        new = {name for _, name in self.program.updates}
        producers = self.program.producers
        self._carried = sorted(
            (
                name
                for name in later | new
                if name in producers and producers[name].name not in self._is_update
            ),
            key=list(self.program.values).index,
        )
        self._parameters = {parameter.name for parameter in self.program.parameters}

    @property
    def gradients(self) -> list[str]:
        """The parameters whose gradients the update reads."""
        return self._gradients(self._carried)

    def _gradients(self, carried: Collection[str]) -> list[str]:
        return [
            name
            for name in self.program.values
            if name in self._parameters and gradient_name(name) in carried
        ]

    def modules(self) -> dict[str, Code]:
        """Return the modules with the program, by the names of their files."""
        return {"program.py": self.text()}

    def text(self) -> Code:
        """Return the module."""
        body = [*self._forward(), _EMPTY, *self._update()]  # which collects the groups
        told = summary(self.plan, self.vocabulary.ranks)
        head = code(
            _HEAD,
            summary=told,
            runs=self.runs,
            description=fixed(DESCRIPTION),
            imports=self.imports,
            modules=self.imported_modules,
            names=self.names,
        )
        return lines([head, *self.tables(), _EMPTY, *body, _EMPTY])

    @property
    def imported_modules(self) -> Code:
        """The import of the modules that a program calls."""
        names = (code("    {},", identifier(name)) for name in self.vocabulary.modules)
        return lines([code("from . import ("), *names, code(")")])

    # Tables

    def tables(self) -> Iterator[Code]:
        """Yield the lines of the tables."""
        mesh = self.plan.mesh
        yield code("MESH = {}", self.sizes())
        yield code("MICRO_BATCHES = {}", {name: mesh.sizes[name] for name in mesh.in_time})
        yield code("# Name: element type, shape, axes that split each dimension.")
        yield from table("INPUTS", (_row(value) for value in self.program.inputs))
        outputs = [self.program.values[name] for name in self.program.outputs]
        yield from table("OUTPUTS", (_row(value) for value in outputs))
        yield code("# The same, its role, and how a state begins.")
        yield from table("PARAMETERS", map(_parameter_row, self.program.parameters))

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the axes of ranks."""
        return self.plan.mesh.of_ranks.sizes

    # Functions

    def _forward(self) -> list[Code]:
        found = [code(FORWARD, tensor=identifier(self.vocabulary.tensor))]
        nodes = [n for n in self.program.nodes if n.name not in self._is_update]
        kept = {*self.program.outputs, *self._carried}
        found += self._inputs(in_loop=False)
        found += self._body(nodes, kept)
        return [*found, *self.returned(self.program.outputs, self._carried), _EMPTY]

    def returned(self, outputs: Iterable[str], carried: Collection[str]) -> Iterator[Code]:
        """Yield the end of `forward_backward`: outputs, and what the update reads."""
        read = self.expressions.read
        gradients = {n: read(gradient_name(n)) for n in self._gradients(carried)}
        names = {gradient_name(parameter) for parameter in gradients}
        yield from dictionary("outputs", {n: read(n) for n in outputs})
        yield from dictionary("gradients", gradients)
        yield from dictionary("others", {n: read(n) for n in carried if n not in names})
        yield code("    return outputs, gradients, others")

    def _update(self) -> list[Code]:
        found = [code(UPDATE, tensor=identifier(self.vocabulary.tensor))]
        found += self.carried_on(self._carried)
        nodes = [n for n in self.program.nodes if n.name in self._is_update]
        kept = {new for _, new in self.program.updates} | set(self._carried)
        found += self._body(nodes, kept)
        return [*found, *self.updated(self.program.updates)]

    def carried_on(self, carried: Iterable[str]) -> Iterator[Code]:
        """Yield the beginning of `update`: what it reads of `forward_backward`."""
        for value in carried:
            parameter = value.removesuffix(gradient_name(""))
            is_gradient = gradient_name(parameter) == value and parameter in self._parameters
            source = code("gradients[{}]", parameter) if is_gradient else code("others[{}]", value)
            yield code("    {} = {}", self.expressions.name(value), source)

    def updated(self, updates: Iterable[tuple[str, str]]) -> Iterator[Code]:
        """Yield the end of `update`: the next values of parameters."""
        yield from dictionary("new", {n: self.expressions.read(value) for n, value in updates})
        yield code("    return new")

    def in_passes(self, value: Value) -> bool:
        """Return whether every micro-batch has a part of its own of an input."""
        return bool(value.layout and value.layout.mentions(self.plan.mesh.in_time))

    def own_input(self, value: Value) -> Code:
        """Return the line that takes the part of this rank of an input."""
        variable = self.expressions.name(value.name)
        return code("{} = mesh.own(inputs[{}], {})", variable, value.name, _splits(value))

    def _inputs(self, in_loop: bool) -> Iterator[Code]:
        for value in self.program.inputs:
            if self.in_passes(value) == in_loop:
                yield code("    {}", self.own_input(value))

    def _body(self, nodes: list[Node], kept: set[str]) -> Iterator[Code]:
        """Yield the lines of nodes; the loop over micro-batches is a loop."""
        names = (node.name for node in self.program.nodes)
        dying = dict(zip(names, dying_values(self.program), strict=True))
        inside, repeated = self._in_loop(), self._repeated(nodes, kept)
        first = next((n.name for n in nodes if n.name in inside), None)
        place = None
        after: list[Code] = []
        for node in nodes:
            if node.name == first:
                after = yield from self._enter()
            elif after and node.name not in inside:
                yield from after
                after = []
            indent = code("        ") if node.name in inside else code("    ")
            if (place_of := heading(node)) != place:
                yield code("{}# {}", indent, place_of)
                place = place_of
            yield code("{}{}", indent, self.line(node, repeated.get(node.name, "")))
            accumulated = self._loop is not None and node.name in self._loop.accumulated
            dead = [n for n in dying[node.name] if n not in kept and n not in self._parameters]
            if self._loop is not None and node.name in inside:
                dead = [n for n in dead if n not in self._loop.kept]
            if accumulated:
                dead = [n for n in dead if n != node.name]
            if dead:
                yield code("{}del {}", indent, listed(map(self.expressions.name, dead)))
        yield from after

    def _in_loop(self) -> set[str]:
        if self._loop is None:
            return set()
        return {n.name for n in self.program.nodes[self._loop.start : self._loop.stop]}

    def _enter(self) -> Generator[Code, None, list[Code]]:
        """Yield the head of the loop; return the lines behind it."""
        assert self._loop is not None
        yield code("    totals = Totals()")
        yield code("    for _ in mesh.each_micro_batch():")
        if self.vocabulary.repeat:
            read = map(self.expressions.name, self._read_in_passes())
            yield code("        {0} = totals.before({0})", listed([code("state"), *read]))
        for line in self._inputs(in_loop=True):
            yield code("    {}", line)
        names = sorted(self._loop.accumulated, key=list(self.program.values).index)
        return [code("    {} = totals[{}]", self.expressions.name(n), n) for n in names]

    def _read_in_passes(self) -> list[str]:
        """Return what all passes read, parameters and inputs excluded."""
        assert self._loop is not None
        made = self.program.producers
        return sorted(self._loop.kept & made.keys(), key=list(self.program.values).index)

    def _repeated(self, nodes: list[Node], kept: set[str]) -> dict[str, str]:
        """Return the nodes that do again what earlier ones did, each with a value before it.

        That is the last one that is still to be read: so what is computed again for backward is
        computed when its gradient is known, not early.
        """
        if not self.vocabulary.repeat:
            return {}
        last = {name: i for i, node in enumerate(nodes) for name in node.operands}
        seen: set[tuple[object, ...]] = set()
        found: dict[str, str] = {}
        made: list[str] = []
        for i, node in enumerate(nodes):
            key = (node.operator, node.operands, repr(sorted(node.attributes.items())))
            if key in seen and node.operands:
                alive = (name for name in reversed(made) if last.get(name, 0) >= i or name in kept)
                found[node.name] = next(alive, node.operands[0])
            seen.add(key)
            if self._loop is None or not accumulates(node, self._loop.axes):
                made += [value.name for value in node.results]
        return found

    def line(self, node: Node, after: str = "") -> Code:
        """Return the line of a node."""
        names = [self.expressions.name(value.name) for value in node.results]
        comment = prose("; ".join(map(type_text, node.results)))
        if self._loop is not None and accumulates(node, self._loop.axes):
            return code("{}  # {}", self.expressions.accumulated(node), comment)
        return code("{} = {}  # {}", listed(names), self.expressions.of(node, after), comment)


def summary(plan: Plan, ranks: str) -> Code:
    """Return a sentence on a plan."""
    document = plan.document
    mesh = " x ".join(f"{axis.name}={axis.size}" for axis in plan.mesh.axes) or "one device"
    return prose(f"A training step of {document.model} on {document.devices} {ranks}, mesh {mesh}.")


def heading(node: Node) -> Code:
    """Return the comment above the lines of a module: where they are in the model."""
    return prose(f"{node.scope or 'model'}, {node.provenance.phase}")


def _splits(value: Value) -> tuple[tuple[str, ...], ...]:
    return value.layout.splits if value.layout else ((),) * value.type.rank


def _row(value: Value, *more: str) -> Code:
    row = (value.type.dtype, value.type.shape, _splits(value), *more)
    return code("{}: {}", value.name, row)


def _parameter_row(parameter: Parameter) -> Code:
    initial = str(parameter.attributes.get("initializer", "")) if parameter.role == "state" else ""
    return _row(parameter.value, parameter.role, initial)


def table(title: str, rows: Iterable[Code], annotation: Code = _EMPTY) -> Iterator[Code]:
    """Yield a dictionary of rows in lines."""
    yield code("{}{} = {{", identifier(title), annotation)
    for row in rows:
        yield code("    {},", row)
    yield code("}}")


def dictionary(title: str, items: dict[str, Code]) -> Iterator[Code]:
    """Yield the lines of a dictionary in a function."""
    yield code("    {} = {{", identifier(title))
    for key, text in items.items():
        yield code("        {}: {},", key, text)
    yield code("    }}")
