"""Binding: from the one program of all ranks to the listing of a single rank.

Types become those of the rank's own slices, and every collective names the ranks of its group.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

from shardwright.ir.errors import PassError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.liveness import accumulates, loop_of
from shardwright.ir.mesh import Mesh
from shardwright.ir.text import node_text, to_text
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.communication.rings import RingOperator
from shardwright.operators.info import operator_class


def bind_rank(program: Graph, rank: int) -> Graph:
    """Return the program of one rank.

    Before::

        graph mlp on x=2 {
          input a: f32[8, 4@x]
          b: f32[8, 4]* = all_gather(a) {axes=('x',), dimension=1}

    After::

        graph mlp.rank_00000 {
          input a: f32[8, 2]
          b: f32[8, 4] = all_gather(a) {axes=('x',), dimension=1, ranks=(0, 1)}

    Raises
    ------
    PassError
        If the mesh has no such rank.
    """
    mesh = program.mesh or Mesh(())
    _check_rank(mesh, rank)
    return _Binding(mesh).program(program, rank)


def _of_device_group(program: Graph, mesh: Mesh, group: int) -> Graph:
    """Return what a device group runs and holds of a program with pipeline stages."""
    if not mesh.of_stages:
        return program

    def is_held(name: str) -> bool:
        layout = program.values[name].layout
        return layout is None or mesh.is_in(layout.stage, group)

    return replace(
        program,
        parameters=tuple(p for p in program.parameters if is_held(p.name)),
        nodes=tuple(n for n in program.nodes if any(map(is_held, _touched(n)))),
        outputs=tuple(name for name in program.outputs if is_held(name)),
        updates=tuple((name, new) for name, new in program.updates if is_held(name)),
    )


def _touched(node: Node) -> tuple[str, ...]:
    """Return the values by which a device group runs a node; a transfer has two ends."""
    return (node.name, *node.operands) if node.operator == "transfer" else (node.name,)


class _Binding:
    """The slices and groups of ranks, memoized: most nodes are the same on all of them."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.slice_type = cache(
            lambda kind, layout: kind.with_shape(layout.slice_shape(kind.shape, mesh))
        )
        self.in_time = mesh.in_time
        self.group = cache(lambda axes, rank: mesh.group(rank, axes or mesh.names))
        self.nodes: dict[tuple[int, tuple[int, ...] | None], Node] = {}  # by identity, and group
        self.lines: dict[int, str] = {}  # of these nodes, by identity

    def program(self, program: Graph, rank: int) -> Graph:
        """Return the program of one rank."""
        part = _of_device_group(program, self.mesh, self.mesh.device_group(rank))
        return replace(
            part,
            name=f"{part.name}.rank_{rank:05d}",
            inputs=tuple(self.value(value) for value in part.inputs),
            parameters=tuple(replace(p, value=self.value(p.value)) for p in part.parameters),
            nodes=tuple(self.node(node, rank) for node in part.nodes),
            mesh=None,
        )

    def value(self, value: Value) -> Value:
        """Return a value with the type of a rank's slice."""
        if value.layout is None:
            return value
        return Value(value.name, self.slice_type(value.type, value.layout))

    def node(self, node: Node, rank: int) -> Node:
        """Return a node on slices; a collective names the ranks of its group."""
        kinds = (Communication, RingOperator)
        moves = "axes" in node.attributes and issubclass(operator_class(node.operator), kinds)
        moves = moves and not accumulates(node, self.in_time)
        group = self.group(node.attributes["axes"], rank) if moves else None
        key = id(node), group
        if key not in self.nodes:
            results = tuple(self.value(result) for result in node.results)
            attributes = dict(node.attributes)
            if group is not None:
                attributes["ranks"] = group
            self.nodes[key] = replace(node, results=results, attributes=attributes, strategy=None)
        return self.nodes[key]

    def line(self, node: Node) -> str:
        """Return the text of a node of a rank."""
        if id(node) not in self.lines:
            self.lines[id(node)] = node_text(node)
        return self.lines[id(node)]


def rank_text(program: Graph, rank: int) -> str:
    """Return the listing of one rank: its coordinates, its slices and its program."""
    return next(rank_texts(program, (rank,)))


def rank_texts(program: Graph, ranks: Iterable[int]) -> Iterator[str]:
    """Yield the listings of ranks; see `rank_text`.

    Raises
    ------
    PassError
        If the mesh has no such rank.
    """
    binding = _Binding(program.mesh or Mesh(()))
    loop = loop_of(program)
    for rank in ranks:
        _check_rank(binding.mesh, rank)
        bound = binding.program(program, rank)
        lines = [_heading(binding.mesh, rank)]
        if loop is not None:
            first, last = program.nodes[loop.start].name, program.nodes[loop.stop - 1].name
            lines.append(
                f"# `{first}` to `{last}` run for each of the {loop.passes} micro-batches; slices "
                f"are those of the first"
            )
        for value in (*program.inputs, *(parameter.value for parameter in program.parameters)):
            if value.layout is not None and value.layout.split_axes and value.name in bound.values:
                slices = value.layout.slices(value.type.shape, binding.mesh, rank)
                text = ", ".join(f"{part.start}:{part.stop}" for part in slices)
                lines.append(f"# {value.name} is [{text}] of {value.type}")
        yield "\n".join(lines) + "\n" + to_text(bound, line=binding.line)


def _heading(mesh: Mesh, rank: int) -> str:
    names = (*mesh.of_stages, *mesh.of_ranks.names)
    place = " ".join(f"{name}={mesh.coordinate(rank, name)}" for name in names)
    return f"# rank {rank} of {mesh.size}" + (f" at {place}" if place else "")


def _check_rank(mesh: Mesh, rank: int) -> None:
    if not 0 <= rank < mesh.size:
        raise PassError(
            f"there is no rank {rank}, the program has {mesh.size}",
            hint=f"ranks are 0 to {mesh.size - 1}",
        )
