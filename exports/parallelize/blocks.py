"""The repeated blocks of a model: how they are gathered, and which are computed again."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from shardwright.exports.degrees.readings import forward_nodes, weights_of
from shardwright.exports.parallelize.axes import refused
from shardwright.ir.graph import Graph, Node

_BLOCK = re.compile(r"(.*?)[./](\d+)(?=[./]|$)")


@dataclass(frozen=True)
class Blocks:
    """The repeated blocks of a program: modules with a number that hold parameters.

    Parameters
    ----------
    program : Graph
        A program of one stage.
    constants : frozenset of str
        The values that follow from parameters alone.
    """

    program: Graph
    constants: frozenset[str]

    @cached_property
    def lists(self) -> tuple[str, ...]:
        """The modules whose children are the blocks."""
        found = (_BLOCK.match(name) for name in weights_of(self.program))
        return tuple(dict.fromkeys(one[1] for one in found if one))

    def numbers(self, name: str) -> list[int]:
        """The numbers of the blocks of a list, in order."""
        places = [*weights_of(self.program), *(one.scope for one in forward_nodes(self.program))]
        found = (_BLOCK.match(place) for place in places)
        return sorted({int(one[2]) for one in found if one and one[1].replace("/", ".") == name})

    @property
    def regathers(self) -> bool:
        """Whether parameters are gathered again for the backward pass."""
        return any(
            node.operator == "all_gather"
            and node.provenance.role == "recompute"
            and node.provenance.tensor in self.constants
            for node in self.program.nodes
        )

    @property
    def recomputed(self) -> tuple[str, ...]:
        """The blocks that are computed again from their input."""
        return tuple(block.replace("/", ".") for block in self._blocks_again)

    def check(self) -> None:
        """Refuse what checkpoints of blocks do not compute again.

        Raises
        ------
        PlanError
            If something else than whole blocks, one after the other, is computed again.
        """
        for node in self._again:
            if not self._block(node):
                raise refused(
                    f"`{node.operator}` in `{node.scope or node.name}` is computed again for the "
                    "gradient, and checkpoints are of whole blocks"
                )
        for block in self._blocks_again:
            for kept in self._kept(block):
                raise refused(
                    f"`{block}` is computed again in part: `{kept.name}` of `{kept.scope}` is kept "
                    "for the gradient, and checkpoints are of whole blocks"
                )
        self._check_in_turn()

    @cached_property
    def _again(self) -> tuple[Node, ...]:
        return tuple(node for node in self.program.nodes if self._is_again(node))

    @cached_property
    def _blocks_again(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._block(node) for node in self._again))

    def _check_in_turn(self) -> None:
        """Refuse blocks that do not follow one another."""
        for name in self.lists:
            own = [block.rpartition("/") for block in self._blocks_again]
            mine = sorted(int(one[2]) for one in own if one[0].replace("/", ".") == name)
            if mine and mine != list(range(mine[0], mine[-1] + 1)):
                raise refused(f"blocks {mine} of `{name}` are computed again, not all in turn")

    def _block(self, node: Node) -> str:
        found = _BLOCK.match(node.scope)
        if found is None or found[1].replace("/", ".") not in self.lists:
            return ""
        return found[0]

    def _is_again(self, node: Node) -> bool:
        """Whether a node computes an activation again; those that only gather do not."""
        return (
            node.provenance.role == "recompute"
            and node.operator != "all_gather"
            and node.provenance.tensor not in self.constants
        )

    def _kept(self, block: str) -> Iterator[Node]:
        """Yield the nodes of a block whose results wait for the gradient, but what it returns."""
        forward = forward_nodes(self.program)
        inside = {node.name for node in forward if self._block(node) == block}
        names = {node.name for node in forward}
        for node in forward:
            if node.name not in inside or node.name in self.constants:
                continue
            if self.program.changes_stage(node):  # what comes from another stage is an input
                continue
            users = [one for result in node.results for one, _ in self.program.uses[result.name]]
            returned = any(one.name in names and one.name not in inside for one in users)
            if not returned and any(one.name not in names for one in users):
                yield node
