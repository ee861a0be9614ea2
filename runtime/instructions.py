"""Nodes of a program, prepared for execution on the ranks of this process."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.ir.errors import ExecutionError, ShardwrightError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout
from shardwright.ir.text import node_text
from shardwright.ir.types import numpy_dtype
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import OperatorInfo, operator_info
from shardwright.operators.rule import ShardView
from shardwright.runtime.communicator import ONE_DEVICE, Communicator
from shardwright.runtime.state import hosted_ranks, local_shapes
from shardwright.runtime.updates import replaced_operands


@dataclass(frozen=True)
class Local:
    """The storage of one result on every rank."""

    name: str
    shapes: Mapping[int, tuple[int, ...]]
    dtype: "np.dtype[np.generic]"


@dataclass(frozen=True)
class Instruction:
    """A node, ready to run.

    `views` holds the part of each hosted rank, for each pass over micro-batches; `axes` the groups
    of a communication operator; `replaced` the operands that an update overwrites. Of a transfer
    between stages, `kind` is ``send`` or ``receive``, and `pairs` are its ranks, from and to.
    `even` says that the ranks hold parts of the operand of one shape.
    """

    node: Node
    info: OperatorInfo
    views: tuple[Mapping[int, ShardView], ...]
    axes: tuple[str, ...]
    results: tuple[Local, ...]
    last_used: tuple[str, ...]
    replaced: tuple[int, ...] = ()
    kind: str = "run"
    pairs: tuple[tuple[int, int], ...] = ()
    even: bool = False

    def of_pass(self, number: int) -> "Instruction":
        """Return the node as one pass over micro-batches runs it."""
        return replace(self, views=(self.views[number],))


class Preparation:
    """Prepares the nodes of a program.

    Parameters
    ----------
    graph : Graph
        The program.
    communicator : Communicator
        The communicator, which hosts ranks of the graph's mesh.
    float_dtype : str, optional
        Stores every floating-point tensor in this type.
    in_place : bool
        Whether updates overwrite the arrays of the state.

    Attributes
    ----------
    locals : mapping of str to Local
        The storage of every value.
    """

    def __init__(
        self,
        graph: Graph,
        communicator: Communicator,
        float_dtype: str | None,
        *,
        in_place: bool,
    ) -> None:
        self.graph, self.communicator, self.float_dtype = graph, communicator, float_dtype
        self.mesh = graph.mesh or ONE_DEVICE
        self.locals = {name: self._local(value) for name, value in graph.values.items()}
        self._replaced = replaced_operands(graph) if in_place else {}
        self._views: dict[object, tuple[Mapping[int, ShardView], ...]] = {}

    def _local(self, value: Value) -> Local:
        dtype = numpy_dtype(value.type.dtype, self.float_dtype)
        ranks = hosted_ranks(value, self.communicator)
        return Local(value.name, local_shapes(value, self.mesh, ranks), dtype)

    def instruction(
        self, node: Node, released: tuple[str, ...], ranks: Sequence[int], kind: str = "run"
    ) -> Instruction:
        """Return a node that runs on some hosted ranks.

        Raises
        ------
        ExecutionError
            If it cannot run: it is a redistribution, or layouts do not fit the operator.
        """
        try:
            return self._instruction(node, released, tuple(ranks), kind)
        except ShardwrightError as error:
            raise ExecutionError(error.what, node_text(node), error.hint) from None

    def _instruction(
        self, node: Node, released: tuple[str, ...], ranks: tuple[int, ...], kind: str
    ) -> Instruction:
        if node.operator == "redistribute":
            raise ExecutionError(
                f"`{node.name}` is a redistribution, which no rank can run",
                hint="lower it to collectives first",
            )
        operands = self.graph.operand_values(node)
        info = operator_info(node.operator, [value.type for value in operands], node.attributes)
        results = tuple(self.locals[value.name] for value in node.results)
        layouts = [value.layout for value in (*operands, *node.results)]
        bare = all(layout is None for layout in layouts)
        axes: tuple[str, ...] = ()
        if isinstance(info, Communication):
            # In a hand-written program no axes means all ranks.
            axes = info.axes or (self.mesh.names if bare else ())
            self._check_groups(info)
        decided = () if bare else _decided(layouts)
        views = self._views_of(info, decided, len(operands), ranks)
        pairs = self._pairs(decided, ranks, kind) if kind != "run" else ()
        replaced = self._replaced.get(node.name, ())
        even = bare or all(
            value.layout is not None and value.layout.is_even(value.type.shape, self.mesh)
            for value in operands
        )
        return Instruction(node, info, views, axes, results, released, replaced, kind, pairs, even)

    def _check_groups(self, info: Communication) -> None:
        """Refuse groups that leave out a rank."""
        ranks = sorted(rank for group in info.groups for rank in group)
        if ranks and ranks != list(range(self.mesh.size)):
            raise ExecutionError(
                f"the groups {info.groups} have the ranks {ranks}, expected each of the "
                f"{self.mesh.size} ranks in one"
            )

    def _pairs(
        self, layouts: tuple[Layout, ...], ranks: tuple[int, ...], kind: str
    ) -> tuple[tuple[int, int], ...]:
        """Return from and to which ranks a transfer sends, those of this process on one side."""
        source, target = layouts
        senders = self.mesh.ranks_of(source.stage)
        receivers = self.mesh.ranks_of(target.stage)
        pairs = [(senders[i % len(senders)], rank) for i, rank in enumerate(receivers)]
        side = 0 if kind == "send" else 1
        return tuple(pair for pair in pairs if pair[side] in ranks)

    def _views_of(
        self,
        info: OperatorInfo,
        layouts: tuple[Layout, ...],
        operands: int,
        ranks: tuple[int, ...],
    ) -> tuple[Mapping[int, ShardView], ...]:
        """Return the view of each rank, shared by nodes of equal operators and layouts."""
        key = (info, layouts, ranks)  # equal operators are one instance
        if key not in self._views:
            self._views[key] = self._make_views(info, layouts[:operands], layouts[operands:], ranks)
        return self._views[key]

    def _make_views(
        self,
        info: OperatorInfo,
        taken: tuple[Layout, ...],
        left: tuple[Layout, ...],
        ranks: tuple[int, ...],
    ) -> tuple[Mapping[int, ShardView], ...]:
        if not left:
            return (dict.fromkeys(ranks, info.rule.view()),) * self.mesh.passes
        strategy, found = info.infer_layouts(
            taken, self.mesh, [layout.reduced() for layout in left]
        )
        if found != left:
            raise ExecutionError(
                f"the results are {', '.join(map(str, left))}, "
                f"`{info.name}` leaves {', '.join(map(str, found))}"
            )
        shared: dict[tuple[int, ...], ShardView] = {}
        views: list[dict[int, ShardView]] = []
        for number in range(self.mesh.passes):
            views.append({})
            for rank in ranks:
                at = rank + number * self.mesh.size
                place = tuple(self.mesh.index(at, axes) for _, axes in strategy.assignment)
                if place not in shared:
                    shared[place] = info.rule.view(strategy, self.mesh, at)
                views[number][rank] = shared[place]
        return tuple(views)


def _decided(layouts: Iterable[Layout | None]) -> tuple[Layout, ...]:
    known = []
    for layout in layouts:
        if layout is None:
            raise ExecutionError("some operands and results have a layout and some have none")
        known.append(layout)
    return tuple(known)
