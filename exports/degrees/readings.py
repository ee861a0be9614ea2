"""Where the forward pass of a program computes with its parameters."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

from shardwright.ir.graph import Graph, Node

Style = TypeVar("Style", bound=str)
_FORWARDED: Final = ("cast", "all_gather")  # between a parameter and the operator that reads it
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


class Reading(NamedTuple):
    """A parameter, the operator that computes with it, and the operand by which it does."""

    weight: str
    node: Node
    operand: str


def forward_nodes(program: Graph) -> tuple[Node, ...]:
    """Return the nodes of the forward pass, in order."""
    return tuple(node for node in program.nodes if node.provenance.phase == "forward")


def weights_of(program: Graph) -> dict[str, None]:
    """Return the names of the parameters of the model, in order."""
    return {p.name: None for p in program.parameters if p.role == "weight"}


def readings(program: Graph) -> tuple[Reading, ...]:
    """Return where the forward pass computes with a parameter, in order."""
    weights = {name: name for name in weights_of(program)}
    found = list[Reading]()
    for node in forward_nodes(program):
        for operand in dict.fromkeys(one for one in node.operands if one in weights):
            if node.operator in _FORWARDED:
                weights.update({result.name: weights[operand] for result in node.results})
            else:
                found.append(Reading(weights[operand], node, operand))
    return tuple(found)


def merged(styles: Mapping[str, Style]) -> dict[str, Style]:
    """Return styles with one line for layers that agree.

    Examples
    --------
    >>> merged({"layers.0.up": "colwise", "layers.1.up": "colwise", "head": "replicate"})
    {'layers.*.up': 'colwise', 'head': 'replicate'}
    """
    groups: dict[str, dict[str, Style]] = {}
    for module, style in styles.items():
        groups.setdefault(_NUMBER.sub("*", module), {})[module] = style
    found: dict[str, Style] = {}
    for pattern, group in groups.items():
        agree = len({*group.values()}) == 1
        found.update({pattern: next(iter(group.values()))} if agree else group)
    return found
