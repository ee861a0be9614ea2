"""Messages between ranks, with MindSpore's arguments: a rank and a tag.

A program is traced once for all ranks, so who sends to whom is known then: a message that nobody
sends, or nobody receives, is an error of the program and never waited for.
"""

from collections.abc import Sequence
from typing import Any

from shardwright.communication import values_of
from shardwright.ir.errors import ModelError
from shardwright.ops.collective import WORLD_GROUP, OverGroups
from shardwright.tensor import Tensor, TracedTensor, apply
from shardwright.tracer import current_tracer

Pairs = tuple[tuple[int, int], ...]


class _Message(OverGroups):
    """The base of both ends of a message.

    Parameters
    ----------
    operator : str
        What it is called in messages.
    tag : int
        Tells messages between the same ranks apart.
    source, target : int
        Ranks of the world; None for each rank itself.
    group : str
        The group of both.
    """

    def __init__(self, operator: str, tag: int, source: Any, target: Any, group: str) -> None:
        super().__init__(operator, group)
        if isinstance(tag, bool) or not isinstance(tag, int):
            raise ModelError(f"`sr_tag` of `{operator}` is {tag!r}, expected an integer")
        self.tag, self._source, self._target = tag, source, target

    @property
    def pairs(self) -> Pairs:
        """The ranks that send, and those that they send to; ranks outside the world are left out.

        Raises
        ------
        ModelError
            If two ranks send to one, or the ranks are in different groups.
        """
        world = current_tracer().world
        own = tuple(range(world))
        sources = own if self._source is None else values_of(self._source, world)
        targets = own if self._target is None else values_of(self._target, world)
        found = sorted({(s, t) for s, t in zip(sources, targets, strict=True)})
        pairs = tuple((s, t) for s, t in found if s in own and t in own)
        reached = [target for _, target in pairs]
        for source, target in pairs:
            if reached.count(target) > 1:
                senders = [s for s, t in pairs if t == target]
                raise ModelError(
                    f"the ranks {senders} send to rank {target} in one `{self.operator}`, "
                    f"expected one of them",
                    hint="name both ends: `Send(tag, dest_rank=1, src_rank=0)` and "
                    "`Receive(tag, src_rank=0, shape, dtype, dest_rank=1)`",
                )
            if not any(source in group and target in group for group in self.groups):
                raise ModelError(
                    f"rank {source} sends to rank {target}, which is not in its group "
                    f"`{self.group}`"
                )
        return pairs


class Send(_Message):
    """Send the tensor to a rank, which receives it with the same tag; returns the tensor.

    Parameters
    ----------
    sr_tag : int
        Tells messages between the same ranks apart.
    dest_rank : int
        The rank that receives; made of `get_rank()` where every rank sends.
    group : str
        The group of both ranks.
    group_back : str
        The group for the gradient, that of both ranks too.
    src_rank : int, optional
        The rank that sends; every rank if not given.
    """

    def __init__(
        self,
        sr_tag: int,
        dest_rank: Any,
        group: str = WORLD_GROUP,
        group_back: str | None = None,
        *,
        src_rank: Any = None,
    ) -> None:
        super().__init__("Send", sr_tag, src_rank, dest_rank, group)
        _check_back(group, group_back)

    def __call__(self, x: Tensor) -> Tensor:
        """Send the tensor."""
        tracer = current_tracer()
        pairs = self.pairs if tracer.world > 1 else ()
        tracer.messages.append((self.tag, pairs, x.value(tracer)))
        return x


class Receive(_Message):
    """Receive the tensor of a `Send` with the same tag; ranks that receive nothing get zeros.

    Parameters
    ----------
    sr_tag : int
        The tag.
    src_rank : int
        The rank that sends; made of `get_rank()` where every rank receives.
    shape : sequence of int
        The shape of the tensor.
    dtype : str
        Its element type.
    group, group_back : str
        As for `Send`.
    dest_rank : int, optional
        The rank that receives; every rank if not given.
    """

    def __init__(
        self,
        sr_tag: int,
        src_rank: Any,
        shape: Sequence[int],
        dtype: str,
        group: str = WORLD_GROUP,
        group_back: str | None = None,
        *,
        dest_rank: Any = None,
    ) -> None:
        super().__init__("Receive", sr_tag, src_rank, dest_rank, group)
        _check_back(group, group_back)
        self._shape, self._dtype = tuple(shape), dtype

    def __call__(self, x: Any = None) -> Tensor:
        """Return the tensor; the argument, which MindSpore orders operators by, is not read.

        Raises
        ------
        ModelError
            If nobody sends it, or it has another shape or element type.
        """
        tracer = current_tracer()
        pairs = self.pairs if tracer.world > 1 else ()
        for sent in tracer.messages:
            if sent[:2] == (self.tag, pairs):
                break
        else:
            raise ModelError(
                f"`Receive` with the tag {self.tag} {_between(pairs)} has no `Send` before it",
                hint="the program of all ranks sends first, with the same tag and ranks",
            )
        tracer.messages.remove(sent)
        kind = sent[2].type
        if (kind.shape, kind.dtype) != (self._shape, self._dtype):
            raise ModelError(
                f"`Receive` with the tag {self.tag} expects {self._dtype}{list(self._shape)}, "
                f"`Send` sends {kind.dtype}{list(kind.shape)}"
            )
        return moved(TracedTensor(sent[2]), pairs)


def _between(pairs: Pairs) -> str:
    return ", ".join(f"from rank {source} to rank {target}" for source, target in pairs)


def _check_back(group: str, back: str | None) -> None:
    if back not in (None, group):
        raise ModelError(
            f"`group_back` is `{back}`, expected `{group}`: the gradient goes back between the "
            f"same ranks"
        )


def moved(x: Tensor, pairs: Pairs) -> Tensor:
    """Return what each rank is sent, by pairs of the ranks that send and receive."""
    world = current_tracer().world
    if world == 1:
        return x
    return apply("send_receive", x, axes=("world",), group_size=world, pairs=pairs)
