"""Deferrable communication: of parameters and of their gradients, for which no activation waits.

Provenance decides, not names: the role of a node, and whether the tensor that it brings along is
made of parameters alone.
"""

from collections.abc import Iterable

from shardwright.ir.graph import Node
from shardwright.ir.provenance import Role
from shardwright.operators.info import operator_class
from shardwright.operators.windows.halo_exchange import OverHalo

GATHERS: frozenset[Role] = frozenset({"redistribution", "recompute"})
"""Roles of nodes that may gather parameters."""
_REDUCTIONS: frozenset[Role] = frozenset({"gradient_redistribution", "fusion"})
_COPIES: frozenset[Role] = frozenset({"forward", "redistribution", "mirror", "recompute"})


def parameter_tensors(nodes: Iterable[Node], parameters: Iterable[str]) -> set[str]:
    """Return the values that are made of parameters alone: parameters, their casts and copies."""
    made = set(parameters)
    for node in nodes:
        if node.operands and node.provenance.role in _COPIES and made.issuperset(node.operands):
            made.update(result.name for result in node.results)
    return made


def is_deferrable(node: Node, made_of_parameters: set[str]) -> bool:
    """Return whether a collective gathers a parameter, or reduces the gradient of one."""
    origin = node.provenance
    roles = GATHERS | _REDUCTIONS
    within = issubclass(operator_class(node.operator), OverHalo)
    return origin.role in roles and origin.tensor in made_of_parameters and not within
