"""Parts of a repeated block that are recomputed, found by its structure, under Megatron's names.

A block adds what its branches compute to the values that pass through it, its residual values::

    a: rms_norm(x)                   layernorm
    b: ... attention of a
    y: add(x, b)                     a residual value, as x is
    c: rms_norm(y)                   layernorm
    d: ... products of c             mlp, or moe where tokens are dispatched to experts
    z: add(y, d)

So a part needs no name of a cell, and is found in imported models as in those of the zoo.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Final

from shardwright.dataflow.segments import block_of
from shardwright.ir.graph import Graph, Node
from shardwright.operators.info import operator_class
from shardwright.operators.linear.quantized import QUANTIZED

_GROUPED: Final = frozenset({"grouped_matmul", QUANTIZED["grouped_matmul"]})
PRODUCTS: Final = frozenset({"matmul", "einsum", "grouped_matmul", *QUANTIZED.values()})
ATTENTION: Final = "scaled_dot_product_attention"
_NORMS: Final = frozenset({"rms_norm", "layer_norm"})
_Names = set[str]


@dataclass(frozen=True)
class Block:
    """The operators of a repeated block in their order, and its residual values.

    Parameters
    ----------
    graph : Graph
        The whole program.
    nodes : tuple of Node
        The block's operators that read activations.
    residual : frozenset of str
        Values that pass through: what comes from outside, and sums with one of them.
    """

    graph: Graph
    nodes: tuple[Node, ...]
    residual: frozenset[str]

    @cached_property
    def names(self) -> _Names:
        """The names of its operators."""
        return {node.name for node in self.nodes}

    @property
    def branches(self) -> Iterator[_Names]:
        """The operators of each branch, from its first reader of a residual value to its sum."""
        for node in self.nodes:
            if node.name in self.residual and node.operator == "add":
                (added,) = [one for one in node.operands if one not in self.residual] or [""]
                yield self.before([added])

    def before(self, names: Iterable[str], until: frozenset[str] = frozenset()) -> _Names:
        """Return the producers of values in the block, up to residual values and operators."""
        found, rest = _Names(), [*names]
        while rest:
            producer = self.graph.producers.get(rest.pop())
            if producer is None or producer.name in found or producer.name not in self.names:
                continue
            if producer.name not in self.residual and producer.operator not in until:
                found.add(producer.name)
                rest += producer.operands
        return found

    def having(self, names: _Names, operators: Iterable[str]) -> list[Node]:
        """Return the nodes among some names that are of some operators."""
        kinds = frozenset(operators)
        return [node for node in self.nodes if node.name in names and node.operator in kinds]


def _blocks(graph: Graph) -> Iterator[Block]:
    """Yield the repeated blocks of a program."""
    stored = {parameter.name for parameter in graph.parameters}
    inside = [node for node in graph.nodes if block_of(node.scope)]
    inside.sort(key=lambda node: block_of(node.scope))  # stable: the order in a block stays
    for _, members in groupby(inside, lambda node: block_of(node.scope)):
        nodes = tuple(node for node in members if not stored.issuperset(node.operands))
        known = stored | {value.name for node in nodes for value in node.results}
        residual = _Names()
        for node in nodes:
            residual.update(name for name in node.operands if name not in known)
            if _passes(node, residual):
                residual.add(node.name)
        yield Block(graph, nodes, frozenset(residual))


def _passes(node: Node, residual: _Names) -> bool:
    """Return whether an operator hands on a residual value: a sum with one, a view or a cast."""
    handed = residual.intersection(node.operands)
    is_view = operator_class(node.operator).is_view or node.operator == "cast"
    return bool(handed) and (node.operator == "add" or is_view)


def _norms(block: Block) -> _Names:
    readers = block.having(block.names, _NORMS)
    return {node.name for node in readers if node.operands[0] in block.residual}


def _latent(block: Block) -> _Names:
    """Return the up projections of latent attention, and what shapes and turns their results."""
    found = _Names()
    for branch in block.branches:
        cores = block.having(branch, (ATTENTION, "softmax"))
        before = block.before(name for core in cores for name in core.operands)
        first = {
            node.name
            for node in block.having(before, PRODUCTS)
            if not block.having(block.before(node.operands), PRODUCTS)
        }
        above = before - first - block.before(first)
        if block.having(above, PRODUCTS):
            found |= above
    return found


def _feed_forward(block: Block) -> _Names:
    found = _Names()
    for branch in block.branches:
        others = block.having(branch, (ATTENTION, "softmax", "dispatch"))
        if not others and block.having(branch, PRODUCTS):
            found |= branch - _norms(block)
    return found


def _experts(block: Block) -> _Names:
    mixtures = (one for one in block.branches if block.having(one, ("dispatch",)))
    return {name for branch in mixtures for name in branch} - _norms(block)


def _shared_experts(block: Block) -> _Names:
    found = _experts(block)
    routed = block.having(found, ("combine",))
    after = {node.name for node in routed}
    for node in block.nodes:  # in order, so what comes after is known before it is read
        if not after.isdisjoint(node.operands):
            after.add(node.name)
    before = block.before(node.name for node in routed)
    return {name for name in found if name not in after | before}


def _between_grouped(block: Block) -> _Names:
    products = block.having(block.names, _GROUPED)
    until = _GROUPED | {"dispatch"}
    return block.before((node.operands[0] for node in products), until)


PARTS: Mapping[str, Callable[[Block], _Names]] = {
    "layernorm": _norms,
    "mla_up_proj": _latent,
    "mlp": _feed_forward,
    "moe": _experts,
    "moe_act": _between_grouped,
    "shared_experts": _shared_experts,
}
"""How each part of a block is found: its operators, none where the block has no such part."""


def part_of_blocks(graph: Graph, name: str) -> set[str]:
    """Return the operators of a part in all blocks; none where the model has no such part."""
    return {found for block in _blocks(graph) for found in PARTS[name](block)}
