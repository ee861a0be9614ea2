"""What a software computes again of a block although no gradient reads it.

The compiler computes again what gradients read. Most training software wraps what it recomputes,
a whole block or a part of one, and computes its last product and what follows again too::

    a: rms_norm(x)          computed again
    b: matmul(a, w)         computed again
    c: relu(b)              computed again
    d: matmul(c, v)         no gradient reads it
    y: add(x, d)            the block hands it on: read outside
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from shardwright.dataflow import segments
from shardwright.dataflow.deferrable import parameter_tensors
from shardwright.ir.graph import Graph, Node
from shardwright.ir.provenance import COPIES

_PLAIN = ("matmul", "contract_leading", "grouped_matmul", "grouped_outer")
PRODUCTS = (*_PLAIN, *(f"quantized_{name}" for name in _PLAIN), "einsum")
"""Operators that are matrix products."""


@dataclass
class _Block:
    """Positions of the nodes of a block: those of the forward pass, and those computed again."""

    forward: list[int] = field(default_factory=list)
    again: list[int] = field(default_factory=list)


def unread_recomputation(graph: Graph) -> Mapping[int, tuple[int, ...]]:
    """Return the forward nodes that software would compute again beside the program, by position.

    The key is the last recomputed node of a block, the values are forward nodes of the block that
    the program does not compute again: all of them where nothing in the block is saved, so that it
    is recomputed whole; else the ends of recomputed parts, which are products or follow some.
    """
    made = parameter_tensors(graph.nodes, (p.name for p in graph.parameters))
    saved = _saved(graph)
    found = {}
    for block in _blocks(graph, made):
        nodes = [graph.nodes[i] for i in block.again]
        if not any(map(_is_product, nodes)):
            continue
        kept = set(map(_identity, nodes))
        missing = [i for i in block.forward if _identity(graph.nodes[i]) not in kept]
        if not saved.isdisjoint(_tensor(graph.nodes[i]) for i in missing):
            ends = _ends([graph.nodes[i] for i in block.forward], kept, made, saved)
            missing = [i for i in missing if graph.nodes[i].name in ends]
        found[block.again[-1]] = tuple(missing)
    return found


def block_of(node: Node) -> str:
    """Return the block of a node, ``blocks/0``; empty outside of blocks.

    That of its scope; of an update, which has none, of the name of its parameter.
    """
    return segments.block_of(node.scope or node.provenance.tensor.replace(".", "/"))


def _blocks(graph: Graph, made: Set[str]) -> Iterator[_Block]:
    """Yield the blocks that are computed again in part, without what is made of parameters."""
    found: dict[str, _Block] = {}
    for position, node in enumerate(graph.nodes):
        block, role = block_of(node), node.provenance.role
        # What a stage receives is the input of its first block, which is kept as any input is.
        is_input = node.operator == "transfer"
        if not block or is_input or all(result.name in made for result in node.results):
            continue
        if role == "recompute":
            found.setdefault(block, _Block()).again.append(position)
        elif role in ("forward", "redistribution"):
            found.setdefault(block, _Block()).forward.append(position)
    return (block for block in found.values() if block.again)


def _saved(graph: Graph) -> Set[str]:
    """Return the tensors that the backward pass reads, and no other block does in the forward."""
    made = {node.name: block_of(node) for node in graph.nodes}
    read, handed_on = set[str](), set[str]()
    for node in graph.nodes:
        for operand in map(graph.producers.get, node.operands):
            if operand is None or operand.provenance.phase != "forward":
                continue
            tensor = _tensor(operand)
            if node.provenance.phase == "backward":
                read.add(tensor)
            elif block_of(node) != made.get(tensor, ""):
                handed_on.add(tensor)
    return read - handed_on


def _ends(
    nodes: Sequence[Node], kept: Set[tuple[str, str]], made: Set[str], saved: Set[str]
) -> Set[str]:
    """Return what no gradient reads of recomputed parts of a block, whose forward nodes are given.

    A node is at the end of a part if all that it reads is of the part, but for what is `made` of
    parameters, and a product of the part is behind it. Where what it leads to alone is saved, as
    the views of a result are, it is none.
    """
    deep: dict[str, bool] = {}  # of what is computed again, whether a product is behind it
    ends = set[str]()
    for node in nodes:
        behind = [deep.get(name) for name in node.operands if name not in made]
        is_kept = _identity(node) in kept
        if is_kept or (any(behind) and None not in behind and _tensor(node) not in saved):
            is_deep = _is_product(node) or any(behind)
            deep.update((result.name, is_deep) for result in node.results)
            ends |= set() if is_kept else {node.name}
    leading = set(saved)
    for node in reversed(nodes):
        read = set(node.operands) - made
        if not leading.isdisjoint((_tensor(node), node.name)) and deep.keys() >= read:
            leading |= read
    return ends - leading


def _tensor(node: Node) -> str:
    """Return the tensor that a node makes, or that it is a copy of."""
    return node.provenance.tensor if node.provenance.role in COPIES else node.provenance.operator


def _identity(node: Node) -> tuple[str, str]:
    """Return what a node and its recomputed copy have in common."""
    return node.provenance.operator, node.operator


def _is_product(node: Node) -> bool:
    return node.operator in (*PRODUCTS, "convolution")
