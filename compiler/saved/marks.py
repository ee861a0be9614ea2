"""Marks of what a plan built by rule recomputes: a rule, or one rule in some blocks."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from shardwright.dataflow.segments import block_of
from shardwright.ir.errors import StrategyError
from shardwright.ir.graph import Graph
from shardwright.passes.recompute import Recompute, Rule


class Mark(NamedTuple):
    """What a plan recomputes.

    Parameters
    ----------
    rule : str, optional
        A rule of `Recompute`; None for nothing.
    other : str, optional
        The rule in the last blocks.
    last : int
        The number of these.
    """

    rule: Rule | None
    other: Rule | None = None
    last: int = 0

    @property
    def text(self) -> str:
        """The mark in words.

        Examples
        --------
        >>> Mark("full", "operators", 3).text
        'full, operators in the last 3 blocks'
        """
        rule = self.rule or "none"
        return (
            f"{rule}, {self.other or 'none'} in the last {self.last} blocks" if self.last else rule
        )


MARKS = (Mark(None), Mark("selective"), Mark("operators"), Mark("full"))
"""What plans recompute, the least first."""


@dataclass(frozen=True)
class MarkedPrograms:
    """A program with its marks of what is recomputed.

    Parameters
    ----------
    source : Graph
        The whole program, in canonical form.
    """

    source: Graph
    _known: dict[Mark, Graph | None] = field(default_factory=dict)

    @cached_property
    def blocks(self) -> dict[str, int]:
        """The repeated blocks of the program, with their positions."""
        blocks = (block_of(node.scope) for node in self.source.nodes)
        return {block: i for i, block in enumerate(dict.fromkeys(filter(None, blocks)))}

    def of(self, mark: Mark) -> Graph | None:
        """Return the program with a mark; None where nothing can be marked so."""
        if mark not in self._known:
            self._known[mark] = self._mixed(mark) if mark.last else self._by_rule(mark.rule)
        return self._known[mark]

    def _by_rule(self, rule: Rule | None) -> Graph | None:
        try:
            return self.source if rule is None else Recompute(rule).run(self.source)
        except StrategyError:  # the model has no repeated block, or no attention
            return None

    def _mixed(self, mark: Mark) -> Graph | None:
        """Return the program with the marks of one rule, and of another in its last blocks."""
        first, last = self.of(Mark(mark.rule)), self.of(Mark(mark.other))
        if first is None or last is None:
            return None
        marked, start = (first.recomputed, last.recomputed), len(self.blocks) - mark.last
        sets = tuple(map(frozenset, marked))
        names = tuple(
            node.name
            for node in self.source.nodes
            if node.name in sets[self.blocks.get(block_of(node.scope), 0) >= start]
        )
        offloaded = tuple(name for name in self.source.offloaded if name not in names)
        return replace(self.source, recomputed=names, offloaded=offloaded)
