"""Canonical form: no identities, no two equal nodes, no dead nodes."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from shardwright.dataflow.properties import LIVE, WHOLE
from shardwright.ir.errors import StrategyError
from shardwright.ir.graph import Graph, Node, renamed
from shardwright.ir.reachability import without_dead_nodes
from shardwright.ir.values import check_split_counts
from shardwright.operators.info import SplitCounts, operator_class
from shardwright.passes.base import Pass, register_pass

Pins = tuple[Mapping[str, Hashable], ...]  # a mapping for each kind of pin, by operator


@register_pass
@dataclass(frozen=True)
class Canonicalize(Pass):
    """Remove identities, merge equal nodes, and drop dead ones.

    Equal nodes with different pins stay apart, and a pinned identity stays.

    Before::

        a = relu(x)
        b = relu(x)
        c = identity(b)
        y = add(a, c)

    After::

        a = relu(x)
        y = add(a, a)

    Parameters
    ----------
    pins : mapping
        The strategies that the user has pinned, by operator: ``{'h': ((2, 1), (1, 1))}``.
    result_pins : mapping
        The splits of results that the user has pinned, by operator.
    """

    name = "canonicalize"
    requires = (WHOLE,)
    ensures = (WHOLE, LIVE)

    pins: Mapping[str, SplitCounts] = field(default_factory=dict)
    result_pins: Mapping[str, SplitCounts] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse pins that are no numbers of slices."""
        for name in ("pins", "result_pins"):
            pins = getattr(self, name)
            for operator, counts in pins.items():
                check_split_counts(operator, counts)
            self._set(name, {key: tuple(map(tuple, counts)) for key, counts in pins.items()})

    def run(self, graph: Graph) -> Graph:
        """Return the program in canonical form.

        Raises
        ------
        StrategyError
            If a strategy is pinned on an operator that there is not.
        """
        unknown = sorted((self.pins.keys() | self.result_pins.keys()) - graph.producers.keys())
        if unknown:
            what = f"a strategy is pinned on `{unknown[0]}`, but the model has no such operator"
            raise StrategyError(what)
        return without_dead_nodes(graph.replacing(self.merged_values(graph)))

    def merged_values(self, graph: Graph) -> dict[str, str]:
        """Return the values that are replaced, each with its replacement."""
        return merged_values(graph, (self.pins, self.result_pins))


def merged_values(graph: Graph, pins: Pins = ()) -> dict[str, str]:
    """Return the values that are replaced in canonical form, each with its replacement."""
    names: dict[str, str] = {}
    groups: dict[object, list[_Equals]] = {}
    for node in (renamed(node, names) for node in graph.nodes):
        own = tuple(pinned.get(node.name) for pinned in pins)
        kind = operator_class(node.operator)
        is_identity = kind.is_identity and not kind.stops_gradient
        if is_identity and not any(pin is not None for pin in own):
            names[node.name] = node.operands[0]
            continue
        again = node.provenance.role == "recompute"  # a copy would be the value that is not saved
        key = (node.operator, node.operands, tuple(sorted(node.attributes.items())), again)
        equals = groups.setdefault(key, [])
        group = next((group for group in equals if group.takes(own)), None)
        if group is None:
            equals.append(_Equals(node, list(own)))
            continue
        pairs = zip(node.results, group.first.results, strict=True)
        names.update((result.name, other.name) for result, other in pairs)
    return names


@dataclass
class _Equals:
    """Equal nodes that become one, and their pins."""

    first: Node
    pins: list[Hashable] = field(default_factory=list)

    def takes(self, pins: tuple[Hashable, ...]) -> bool:
        """Take a node with these pins unless they conflict; return whether it was taken."""
        if any(a != b for a, b in zip(self.pins, pins, strict=True) if None not in (a, b)):
            return False
        self.pins = [b if a is None else a for a, b in zip(self.pins, pins, strict=True)]
        return True
