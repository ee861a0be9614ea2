"""Views: values that share the buffer of another value."""

from collections.abc import Mapping, Sequence

from shardwright.ir.graph import Node
from shardwright.operators.info import operator_class


def buffer_roots(nodes: Sequence[Node]) -> dict[str, str]:
    """Return for each view the value whose buffer it shares; a view without operand has its own."""
    roots: dict[str, str] = {}
    views = {name for name in {n.operator for n in nodes} if operator_class(name).is_view}
    for node in nodes:
        if node.operator in views:
            source = node.operands[0] if node.operands else node.name
            roots[node.name] = roots.get(source, source)
    return roots


def buffers_of(node: Node, roots: Mapping[str, str]) -> tuple[str, ...]:
    """Return the buffers that a node reads or defines, each once."""
    touched = [*node.operands, *[result.name for result in node.results]]
    return tuple(dict.fromkeys([roots.get(name, name) for name in touched]))
