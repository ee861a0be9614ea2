"""The parallel style of every module, by how parameters and activations lie over the tensor ranks.

What the tensor ranks hold of a value is a placement: `whole`, a dimension, or `sums` that are to be
added. A linear layer divided by columns is `ColwiseParallel`, one divided by rows and a table
`RowwiseParallel`, whose sums are added, or scattered. Between them the module's own code runs on
what its ranks hold. Modules whose activations are divided by position are `SequenceParallel`; their
values are DTensors, so sizes that the code reads are whole ones. Every exchange of the program
must be one that a style makes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from shardwright.exports.degrees.readings import Reading, forward_nodes, readings, weights_of
from shardwright.exports.emission.writing import Code, code, identifier, listed
from shardwright.exports.parallelize.axes import exchanges, refused
from shardwright.ir.graph import Graph, Node
from shardwright.ir.mesh import Mesh

Placement = int | str
WHOLE: Final = "whole"
SUMS: Final = "sums"
_KEY: Final = "key"  # an attribute of operators that draw random numbers


@dataclass
class Style:
    """The style of a module.

    Parameters
    ----------
    kind : str
        `ColwiseParallel`, `RowwiseParallel` or `SequenceParallel`.
    inputs : placement, optional
        What the module is given, where the style has another default.
    outputs : placement, optional
        What it returns, where the style has another default.
    local : bool
        Whether it returns what its ranks hold, no DTensor.
    """

    kind: str
    inputs: Placement | None = None
    outputs: Placement | None = None
    local: bool = True

    @property
    def call(self) -> Code:
        """The style as PyTorch writes it."""
        if self.kind == "SequenceParallel":
            arguments = [code("sequence_dim={}", self.inputs)]
            arguments += [code("use_local_output=True")] * self.local
            return code("SequenceParallel({})", listed(arguments))
        found = []
        if self.inputs is not None:
            found.append(code("input_layouts={}", placement_text(self.inputs)))
        if self.outputs is not None:
            found.append(code("output_layouts={}", placement_text(self.outputs)))
        if not self.local:
            found.append(code("use_local_output=False"))
        return code("{}({})", identifier(self.kind), listed(found))


def placement_text(placement: Placement) -> Code:
    """Return a placement as PyTorch writes it."""
    return code("Shard({})", placement) if isinstance(placement, int) else code("Replicate()")


@dataclass
class Styles:
    """The styles of the modules of a program.

    Parameters
    ----------
    program : Graph
        A program of one stage.
    mesh : Mesh
        Its mesh of ranks.
    tensor : tuple of str
        The axes of the tensor ranks.
    constants : frozenset of str
        The values that follow from parameters alone.
    modules : dict of str to Style
        The style of each module.
    outputs : dict of str to placement
        Modules whose result is gathered for all of its readers, and how it lies before.
    scores : str
        The last linear layer, if its result is gathered before the loss.
    """

    program: Graph
    mesh: Mesh
    tensor: tuple[str, ...]
    constants: frozenset[str]
    modules: dict[str, Style] = field(default_factory=dict)
    outputs: dict[str, Placement] = field(default_factory=dict)
    scores: str = ""
    _made: set[str] = field(default_factory=set)
    _local: dict[str, bool] = field(default_factory=dict)

    def find(self) -> None:
        """Find the styles.

        Raises
        ------
        PlanError
            If a parameter or an activation lies, or is exchanged, as no style has it.
        """
        for name in weights_of(self.program):
            self._check_parameter(name)
        for reading in self._readings:
            self._add(reading)
        self._gather_scores()
        self._share_inputs()
        self._check_rest()

    # ---- parameters

    def _check_parameter(self, name: str) -> None:
        """Refuse a parameter of several modules, where one of them has a style."""
        found = [one for one in self._readings if one.weight == name]
        scopes = {one.node.scope for one in found}
        if len(scopes) > 1 and self._placement(name) != WHOLE:
            raise refused(
                f"`{name}` is a parameter of several modules "
                f"({', '.join(sorted(f'`{scope}`' for scope in scopes))}), which styles would part"
            )

    def _add(self, reading: Reading) -> None:
        """Add the style of a module that computes with a parameter."""
        name, node = reading.weight, reading.node
        module, placement = name.rpartition(".")[0], self._placement(name)
        if self._placement(reading.operand) != placement:
            raise refused(f"the tensor ranks gather `{name}`, which no style does")
        is_matrix = self.program.value(name).type.rank == 2
        is_linear = is_matrix and node.operator == "matmul" and node.operands[1] == reading.operand
        is_table = is_matrix and node.operator == "gather" and node.operands[0] == reading.operand
        if is_linear and node.attributes.get("transpose_b") and placement in (0, 1):
            self._add_linear(module, node, "RowwiseParallel" if placement else "ColwiseParallel")
        elif is_table and placement == 0:
            self._add_sums(module, node, Style("RowwiseParallel", inputs=WHOLE))
        elif placement == WHOLE:
            self._add_whole(module, node, reading.operand)
        elif not self._is_bias(module, node, placement):
            raise refused(
                f"PyTorch has no style for `{name}`, which `{node.operator}` reads and the tensor "
                f"ranks divide in dimension {placement}"
            )

    def _add_linear(self, module: str, node: Node, kind: str) -> None:
        if kind == "RowwiseParallel":
            self._add_sums(module, node, Style(kind))
            return
        style, entering = Style(kind), self.program.producers.get(node.operands[0])
        if entering is not None and self._is_gather(entering):
            style.inputs = self._placement(entering.operands[0])
        last = self._result(module, node)
        after = self._users(last)
        if len(after) == 1 and self._is_gather(after[0]):
            style.outputs = WHOLE
            self._made.add(after[0].name)
        self._set(module, style, node)

    def _add_sums(self, module: str, node: Node, style: Style) -> None:
        """Add a style after which sums are added, or scattered."""
        after = self._users(node.name)
        if len(after) != 1 or after[0].operator not in ("all_reduce", "reduce_scatter"):
            raise refused(
                f"the sums of `{node.name}` in `{node.scope}` are read by "
                f"{', '.join(f'`{one.operator}`' for one in after)}, and `RowwiseParallel` adds "
                "them where they are made"
            )
        placement = self._placement(after[0].name)
        if placement == SUMS:
            raise refused(f"the sums of `{node.name}` in `{node.scope}` are added in steps")
        if placement != WHOLE:
            style.outputs, style.local = placement, False
        self._made |= {node.name, after[0].name}
        self._set(module, style, node)

    def _add_whole(self, module: str, node: Node, operand: str) -> None:
        """Add a module with whole parameters: by position, or none."""
        others = [one for one in node.operands if one not in self.constants]
        found = {self._placement(one) for one in others}
        if found <= {WHOLE} or self._is_bias(module, node, WHOLE):
            return
        if found == {SUMS} or len(found) != 1 or not self._is_inside(node, module):
            raise refused(
                f"`{node.operator}` in `{node.scope or node.name}` reads the whole "
                f"`{operand}` and activations that the tensor ranks divide, which no style does"
            )
        (placement,) = found
        local = all(self._is_local(one) for one in others)
        self._set(module, Style("SequenceParallel", placement, local=local), node)

    def _is_bias(self, module: str, node: Node, placement: Placement) -> bool:
        """Whether a node adds the bias of a linear layer that has a style, divided as it."""
        style = self.modules.get(module)
        if style is None or node.operator != "add" or not self._is_inside(node, module):
            return False
        if style.kind == "ColwiseParallel":
            return placement == 0
        return style.kind == "RowwiseParallel" and placement == WHOLE

    def _set(self, module: str, style: Style, node: Node) -> None:
        if not module or not self._is_inside(node, module):
            raise refused(
                f"`{node.operator}` in `{node.scope or node.name}` reads a parameter of "
                f"{f'`{module}`' if module else 'the model itself'}, and styles are of modules "
                "that compute with their own parameters"
            )
        known = self.modules.setdefault(module, style)
        if known != style:
            raise refused(f"the uses of `{module}` have different styles")

    # ---- exchanges around modules

    def _gather_scores(self) -> None:
        """Gather what the last layer returns, where the loss would need exchanges."""
        linear = [one for one in self._readings if one.node.operator == "matmul"]
        if not linear:
            return
        module, node = linear[-1].weight.rpartition(".")[0], linear[-1].node
        style = self.modules.get(module)
        if style is None or style.kind != "ColwiseParallel" or style.outputs is not None:
            return
        reached = {self._result(module, node)}
        for one in self._after(node):
            if not reached & {*one.operands}:
                continue
            others = {*one.operands} - reached
            if any(self._placement(name) != WHOLE for name in others):
                return
            reached |= {result.name for result in one.results}
        style.outputs, self.scores = WHOLE, module
        self._made |= reached

    def _share_inputs(self) -> None:
        """Let a module's result be gathered, or its gradient added, once for all of its readers.

        That is so where linear layers divided by columns are its only readers.
        """
        for node in self._forward:
            value = node.results[0].name
            module = node.scope.replace("/", ".")
            users = self._users(value)
            gather = users[0] if len(users) == 1 and self._is_gather(users[0]) else None
            readers = self._users(gather.name) if gather else users
            if len(readers) < 2 or not all(self._is_column(one) for one in readers):
                continue
            if exchanges(node, self.tensor) or not self._is_only_result(node, value):
                continue
            self.outputs[module] = self._placement(value)
            for reader in readers:
                self.modules[reader.scope.replace("/", ".")].inputs = None

    def _is_column(self, node: Node) -> bool:
        style = self.modules.get(node.scope.replace("/", "."))
        return node.operator == "matmul" and style is not None and style.kind == "ColwiseParallel"

    def _is_only_result(self, node: Node, value: str) -> bool:
        """Whether a value is all that a module without submodules returns."""
        scope = node.scope
        if not scope or any(one.scope.startswith(f"{scope}/") for one in self._forward):
            return False
        returned = {
            operand
            for one in self._forward
            if one.scope != scope and not self._is_gather(one)
            for operand in one.operands
            if operand in self.program.producers
            and self._origin(self.program.producers[operand]).scope == scope
        }
        return {self._origin(self.program.producers[one]).name for one in returned} == {value}

    def _origin(self, node: Node) -> Node:
        """The node whose result a gather gathers; else the node."""
        source = self.program.producers.get(node.operands[0]) if self._is_gather(node) else None
        return node if source is None else source

    # ---- everything else

    def _check_rest(self) -> None:
        """Refuse what the code of modules does not do on what its ranks hold."""
        for node in self._forward:
            where = f"`{node.scope or node.name}`"
            if _KEY in node.attributes:
                raise refused(
                    f"`{node.operator}` in {where} draws random numbers, which tensor ranks do not "
                    "draw alike"
                )
            if self._made & {result.name for result in node.results} or self._is_constant(node):
                continue
            if self._is_gather(node) and all(map(self._is_column, self._users(node.name))):
                continue
            if exchanges(node, self.tensor):
                raise refused(
                    f"{where} needs the {node.operator} of `{node.operands[0]}` between tensor "
                    "ranks, which no style makes"
                )
            self._check_divided(node, where)

    def _check_divided(self, node: Node, where: str) -> None:
        """Check that divided results follow from divided activations, all of one kind."""
        placements = {self._placement(result.name) for result in node.results}
        divided = [name for name in node.operands if self._placement(name) != WHOLE]
        if placements == {WHOLE} or self._is_column(node):
            return
        activations = [name for name in divided if name not in self.constants]
        if SUMS in placements or not activations:
            raise refused(
                f"`{node.operator}` in {where} has results of which a tensor rank has a part, and "
                "no style makes them"
            )
        if any(name in self.constants and name not in self._weights for name in divided):
            raise refused(
                f"`{node.operator}` in {where} reads a part of a constant, which the module's code "
                "makes whole"
            )
        if len({self._is_local(name) for name in activations}) > 1:
            raise refused(
                f"`{node.operator}` in {where} reads activations divided by position and by columns"
            )
        if not all(self._is_even(result.name) for result in node.results):
            raise refused(f"the tensor ranks have different parts of `{node.name}` in {where}")

    def _is_local(self, name: str) -> bool:
        """Whether a divided activation is what its ranks hold; else it is a DTensor."""
        if name not in self._local:
            node = self.program.producers[name]
            self._local[name] = self._is_column(node) or (
                node.operator != "reduce_scatter"
                and all(
                    self._is_local(operand)
                    for operand in node.operands
                    if operand not in self.constants and self._placement(operand) != WHOLE
                )
            )
        return self._local[name]

    # ---- facts

    @cached_property
    def _forward(self) -> tuple[Node, ...]:
        return forward_nodes(self.program)

    @cached_property
    def _readings(self) -> tuple[Reading, ...]:
        return readings(self.program)

    @cached_property
    def _ranked(self) -> dict[str, int]:
        return {node.name: number for number, node in enumerate(self._forward)}

    def _after(self, node: Node) -> Iterator[Node]:
        yield from self._forward[self._ranked[node.name] + 1 :]

    def _users(self, name: str) -> list[Node]:
        """The nodes of the forward pass that read a value."""
        return [node for node, _ in self.program.uses[name] if node.name in self._ranked]

    def _result(self, module: str, node: Node) -> str:
        """What a linear layer returns: its product, or that with the bias."""
        users = self._users(node.name)
        bias = [one for one in users if one.operator == "add" and self._is_inside(one, module)]
        return bias[0].name if len(users) == 1 and bias else node.name

    def _is_gather(self, node: Node) -> bool:
        return node.operator == "all_gather" and exchanges(node, self.tensor)

    def _is_inside(self, node: Node, module: str) -> bool:
        return node.scope.replace("/", ".") == module

    @cached_property
    def _weights(self) -> frozenset[str]:
        """The parameters, and what is cast or gathered of them."""
        return frozenset({*weights_of(self.program), *(one.operand for one in self._readings)})

    def _is_constant(self, node: Node) -> bool:
        """Whether a node casts or gathers a parameter, or gathers a constant of the code."""
        source = node.operands[0] if node.operands else ""
        if node.operator not in ("cast", "all_gather") or source not in self.constants:
            return False
        return source not in self._weights or not exchanges(node, self.tensor)

    def _is_even(self, name: str) -> bool:
        value = self.program.value(name)
        layout = value.known_layout
        others = tuple(axis for axis in layout.split_axes if axis not in self.tensor)
        return layout.without(others).is_even(value.type.shape, self.mesh)

    def _placement(self, name: str) -> Placement:
        """What the tensor ranks hold of a value.

        Raises
        ------
        PlanError
            If some axes of the tensor ranks divide it in another way than others.
        """
        layout = self.program.value(name).known_layout
        over = {axis for axis in layout.partial if axis in self.tensor}
        found: set[Placement] = {SUMS} if over else set()
        for dimension, axes in enumerate(layout.splits):
            if mine := [axis for axis in axes if axis in self.tensor]:
                found.add(dimension)
                over |= {*mine}
        if len(found) > 1 or (found and over != {*self.tensor}):
            raise refused(
                f"`{name}` is divided over {', '.join(sorted(over))} of the tensor ranks "
                f"({', '.join(self.tensor)}) in its own way, and styles have one mesh axis"
            )
        return next(iter(found), WHOLE)
