"""Operators that compute and send in turns: the ranks of a group pass parts round while they work.

What a rank does is a generator. It yields an `Exchange`, is given a function that returns what has
arrived, and works on until it needs that: each exchange runs beside the work before the next.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from shardwright.ir.attributes import Attributes
from shardwright.ir.errors import ExecutionError, StrategyError
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import Array
from shardwright.operators.rule import ShardView
from shardwright.operators.workspace import WithWorkspace

Message = Mapping[int, tuple[Array, ...]]
"""Arrays by a number that sender and receiver know, such as that of a slice."""

Receive = Callable[[], Mapping[int, Message]]
"""Waits for the messages of an exchange, and returns them by their senders."""


@dataclass(frozen=True)
class Exchange:
    """The messages of one member of a group.

    Parameters
    ----------
    sends : mapping of int to Message
        The messages that it sends, by receiver.
    sources : tuple of int
        The members that send it one.
    held : tuple of array
        Arrays that it holds meanwhile, for the account of the memory; those that it sends, and its
        operands, need not be among them.
    """

    sends: Mapping[int, Message]
    sources: tuple[int, ...]
    held: tuple[Array, ...] = ()


Turns = Generator[Exchange, Receive, tuple[Array, ...]]
"""The work of a member; returns its results."""


@dataclass(frozen=True)
class Round:
    """Work of the busiest rank and an exchange that runs beside it.

    Parameters
    ----------
    flops : float
        Floating-point operations.
    moved_bytes : float
        Bytes that the work reads and writes; 0 where nothing is computed.
    sent_bytes : float
        Bytes that the busiest rank sends.
    """

    flops: float
    moved_bytes: float
    sent_bytes: float


class RingOperator(WithWorkspace):
    """The base of operators whose ranks along ``axes`` pass parts round.

    It computes what the operator `whole` computes on the first `reads` operands, with the same
    attributes but for those in `own`; further results are functions of these operands, too. Further
    operands are the results of the operator `after` on the operands from `past` to `reads`.
    """

    is_collective = True
    whole: ClassVar[str]
    own: ClassVar[tuple[str, ...]] = ("axes",)
    reads: ClassVar[int]
    after: ClassVar[str] = ""
    past: ClassVar[int] = 0
    around: ClassVar[str]  # the factor that the axes split

    @property
    def whole_attributes(self) -> Attributes:
        """The attributes of the operator that it computes."""
        return {k: v for k, v in self.attributes.items() if k not in self.own}

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes of the ring, major to minor."""
        return tuple(self.attributes["axes"])

    def generate_strategies(
        self, mesh: Mesh, kinds: Mapping[str, int] | None = None
    ) -> tuple[Strategy, ...]:
        """Return the strategies with the split that the ring is along."""
        found = super().generate_strategies(mesh, kinds)
        return tuple(s for s in found if s.axes.get(self.around, ()) == self.axes)

    def _infer_layouts(
        self, operands: Sequence[Layout], mesh: Mesh, results: Sequence[Layout | None]
    ) -> tuple[Strategy, tuple[Layout, ...]]:
        """Infer the layouts, and check that the ring is along the split."""
        strategy, left = super()._infer_layouts(operands, mesh, results)
        split = strategy.axes.get(self.around, ())
        if split != self.axes:
            raise StrategyError(
                f"the ring is along {list(self.axes)}, and factor `{self.around}` is split over "
                f"{list(split)}"
            )
        return strategy, left

    def turns(
        self, view: ShardView, member: int, extents: Sequence[int], *operands: Array
    ) -> Turns:
        """Do the work of a member of a group.

        Parameters
        ----------
        view : ShardView
            The part of the rank.
        member : int
            Its index along the axes.
        extents : sequence of int
            Sizes of the axes.
        *operands : array
            Its slices of the operands.
        """
        raise NotImplementedError

    def rounds(self, operands: Sequence[Layout], mesh: Mesh) -> Sequence[Round]:
        """Return the rounds of the busiest rank, one after the other."""
        raise NotImplementedError

    def kernel(self, view: ShardView, *operands: Array) -> Array | tuple[Array, ...]:
        """Compute on one device, which is a ring of one."""
        return run_ring([self.turns(view, 0, (), *operands)])[0]


def holding(*arrays: Array) -> Generator[Exchange, Receive, None]:
    """Tell the account of the memory what a member holds, without a message."""
    yield Exchange({}, (), arrays)


def run_ring(members: Sequence[Turns]) -> list[tuple[Array, ...]]:
    """Run the members of a group in lockstep, and return the results of each.

    Raises
    ------
    ExecutionError
        If messages are sent that nobody expects, or expected that nobody sends.
    """
    results: list[tuple[Array, ...]] = [()] * len(members)
    inboxes: list[Receive | None] = [None] * len(members)
    while True:
        exchanges: dict[int, Exchange] = {}
        for i, (member, inbox) in enumerate(zip(members, inboxes, strict=True)):
            try:
                exchanges[i] = next(member) if inbox is None else member.send(inbox)
            except StopIteration as end:
                results[i] = end.value
        if not exchanges:
            return results
        if len(exchanges) < len(members):
            raise ExecutionError("some ranks of a ring have ended, and others wait for them")
        inboxes = [_inbox(exchanges, i) for i in range(len(members))]


def _inbox(exchanges: Mapping[int, Exchange], member: int) -> Receive:
    """Return the function that gives a member its messages."""
    found = {i: e.sends[member] for i, e in exchanges.items() if member in e.sends}
    if sorted(found) != sorted(exchanges[member].sources):
        raise ExecutionError(
            f"member {member} of a ring expects messages of {sorted(exchanges[member].sources)}, "
            f"it is sent some by {sorted(found)}"
        )
    return lambda: found
