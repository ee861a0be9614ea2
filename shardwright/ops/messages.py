"""Messages between ranks, with MindSpore's arguments: a rank and a tag, or lists of ranks.

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
_DIRECTIONS = (
    "top",
    "top right",
    "right",
    "bottom right",
    "bottom",
    "bottom left",
    "left",
    "top left",
)


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
        return _moved(TracedTensor(sent[2]), pairs)


def _between(pairs: Pairs) -> str:
    return ", ".join(f"from rank {source} to rank {target}" for source, target in pairs)


def _check_back(group: str, back: str | None) -> None:
    if back not in (None, group):
        raise ModelError(
            f"`group_back` is `{back}`, expected `{group}`: the gradient goes back between the "
            f"same ranks"
        )


def _moved(x: Tensor, pairs: Pairs) -> Tensor:
    """Return what each rank is sent."""
    world = current_tracer().world
    if world == 1:
        return x
    return apply("send_receive", x, axes=("world",), group_size=world, pairs=pairs)


class NeighborExchange(OverGroups):
    """Send a tensor to each of some ranks, and receive one from each of some.

    Parameters
    ----------
    send_rank_ids : sequence of int
        The rank that each tensor is sent to, made of `get_rank()`; -1 for none.
    recv_rank_ids : sequence of int
        The rank that each result comes from; -1 for none, which is zeros.
    recv_shapes, send_shapes : sequence
        The shapes of the results, and of the tensors.
    recv_type : str
        The element type of the results.
    group : str
        The group of the ranks.
    """

    def __init__(
        self,
        send_rank_ids: Sequence[Any],
        recv_rank_ids: Sequence[Any],
        recv_shapes: Sequence[Sequence[int]],
        send_shapes: Sequence[Sequence[int]],
        recv_type: str = "float32",
        group: str = WORLD_GROUP,
    ) -> None:
        super().__init__("neighbor_exchange", group)
        self._send, self._receive = list(send_rank_ids), list(recv_rank_ids)
        self._sent_shapes = [tuple(shape) for shape in send_shapes]
        self._shapes, self._dtype = [tuple(shape) for shape in recv_shapes], recv_type
        for name, ranks, shapes in (
            ("send", self._send, self._sent_shapes),
            ("recv", self._receive, self._shapes),
        ):
            if len(ranks) != len(shapes):
                raise ModelError(
                    f"`{name}_shapes` has {len(shapes)} shapes, expected one for each of the "
                    f"{len(ranks)} ranks in `{name}_rank_ids`"
                )

    def __call__(self, x: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Exchange the tensors.

        Raises
        ------
        ModelError
            If tensors are sent that nobody receives, or expected that nobody sends, or they have
            other shapes.
        """
        tensors = [x] if isinstance(x, Tensor) else list(x)
        shapes = [tensor.shape for tensor in tensors]
        if shapes != self._sent_shapes:
            raise ModelError(
                f"`NeighborExchange` is given tensors of the shapes {shapes}, `send_shapes` is "
                f"{self._sent_shapes}"
            )
        routes = matched("NeighborExchange", self._send, self._receive, self)
        return tuple(self._result(j, tensors, routes) for j in range(len(self._receive)))

    def _result(
        self, number: int, tensors: Sequence[Tensor], routes: dict[tuple[int, int], list[Any]]
    ) -> Tensor:
        shape, total = self._shapes[number], None
        for (i, j), pairs in routes.items():
            if j != number:
                continue
            x = tensors[i]
            if (x.shape, x.dtype) != (shape, self._dtype):
                raise ModelError(
                    f"result {j} of `NeighborExchange` is to be {self._dtype}{list(shape)}, rank "
                    f"{pairs[0][0]} sends {x.dtype}{list(x.shape)}"
                )
            moved = _moved(x, tuple(pairs))
            total = moved if total is None else total + moved
        if total is None:
            return apply("fill", shape=shape, value=0.0, dtype=self._dtype)
        return total


def matched(
    name: str, sends: Sequence[Any], receives: Sequence[Any], at: OverGroups
) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Return which tensor is which result, and between which ranks.

    The n-th tensor that a rank sends to another is the n-th that this one receives from it.

    Raises
    ------
    ModelError
        If a rank sends what the other does not receive, or the other way.
    """
    world = current_tracer().world
    sent, expected = _queues(sends, world), _queues(receives, world)
    out = {(s, t): numbers for (s, t), numbers in sent.items()}
    into = {(s, t): numbers for (t, s), numbers in expected.items()}
    routes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for pair in sorted({*out, *into}):
        source, target = pair
        counts = len(out.get(pair, ())), len(into.get(pair, ()))
        if counts[0] != counts[1]:
            raise ModelError(
                f"`{name}`: rank {source} sends {counts[0]} tensors to rank {target}, which "
                f"receives {counts[1]} from it"
            )
        if world > 1 and not any(source in g and target in g for g in at.groups):
            raise ModelError(
                f"`{name}`: rank {source} sends to rank {target}, which is not in its group "
                f"`{at.group}`"
            )
        for i, j in zip(out[pair], into[pair], strict=True):
            routes.setdefault((i, j), []).append(pair)
    return routes


def _queues(ranks: Sequence[Any], world: int) -> dict[tuple[int, int], list[int]]:
    """Return by rank and other rank the positions in a list of ranks."""
    found: dict[tuple[int, int], list[int]] = {}
    for position, rank in enumerate(ranks):
        for own, other in enumerate(values_of(rank, world)):
            if not -1 <= other < world:
                raise ModelError(f"a neighbor is rank {other}, there are {world} ranks")
            if other >= 0:
                found.setdefault((own, other), []).append(position)
    return found


class NeighborExchangeV2(OverGroups):
    """Exchange the edges of images in a grid of ranks, and put them round the own image.

    Parameters
    ----------
    send_rank_ids, recv_rank_ids : sequence of 8 int
        The ranks to the top, top right, right, bottom right, bottom, bottom left, left and top
        left; -1 for none. A rank without a neighbor that others have gets zeros there.
    send_lens, recv_lens : sequence of 4 int
        Rows or columns sent to, or received from, the top, bottom, left and right.
    data_format : str
        ``NCHW``.
    group : str
        The group of the ranks.
    """

    def __init__(
        self,
        send_rank_ids: Sequence[Any],
        send_lens: Sequence[int],
        recv_rank_ids: Sequence[Any],
        recv_lens: Sequence[int],
        data_format: str = "NCHW",
        group: str = WORLD_GROUP,
    ) -> None:
        super().__init__("neighbor_exchange_v2", group)
        if data_format != "NCHW":
            raise ModelError(f"`data_format` is `{data_format}`, expected `NCHW`")
        for name, items, count in (
            ("send_rank_ids", send_rank_ids, 8),
            ("recv_rank_ids", recv_rank_ids, 8),
            ("send_lens", send_lens, 4),
            ("recv_lens", recv_lens, 4),
        ):
            if len(items) != count:
                raise ModelError(f"`{name}` has {len(items)} numbers, expected {count}")
        self._send, self._receive = list(send_rank_ids), list(recv_rank_ids)
        self._sent, self._lengths = tuple(send_lens), tuple(recv_lens)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the image with what the neighbors send round it.

        Raises
        ------
        ModelError
            If ranks or lengths do not match.
        """
        if len(x.shape) != 4:
            raise ModelError(
                f"`NeighborExchangeV2` takes images NCHW, the tensor has {len(x.shape)} dimensions"
            )
        world = current_tracer().world
        # What goes to the top comes from the bottom: the opposite direction is four places on.
        opposite = [self._receive[(d + 4) % 8] for d in range(8)]
        parts: dict[int, Tensor | None] = {}
        for d in range(8):
            has = any(rank >= 0 for rank in values_of(self._receive[d], world))
            parts[d] = self._received(x, (d + 4) % 8, opposite) if has else None
        return self._joined(x, parts)

    def _received(self, x: Tensor, direction: int, opposite: Sequence[Any]) -> Tensor:
        """Return what all ranks send in a direction, at the ranks that receive it."""
        where = f"NeighborExchangeV2 to the {_DIRECTIONS[direction]}"
        routes = matched(where, [self._send[direction]], [opposite[direction]], self)
        edge = self._edge(x, direction)
        return _moved(edge, tuple(routes.get((0, 0), ())))

    def _edge(self, x: Tensor, direction: int) -> Tensor:
        name, (height, width) = _DIRECTIONS[direction], x.shape[2:]
        top, bottom, left, right = self._sent
        arriving = {"top": 1, "bottom": 0, "left": 3, "right": 2}  # in `recv_lens`
        rows, columns = slice(0, height), slice(0, width)
        for side, length in zip(("top", "bottom", "left", "right"), self._sent, strict=True):
            if side in name and length != self._lengths[arriving[side]]:
                raise ModelError(
                    f"`NeighborExchangeV2` sends {length} rows or columns to the {side}, and "
                    f"receives {self._lengths[arriving[side]]} from the other side"
                )
        if "top" in name:
            rows = slice(0, top)
        elif "bottom" in name:
            rows = slice(height - bottom, height)
        if "left" in name:
            columns = slice(0, left)
        elif "right" in name:
            columns = slice(width - right, width)
        return x[:, :, rows, columns]

    def _joined(self, x: Tensor, parts: dict[int, Tensor | None]) -> Tensor:
        """Put the parts round the image, zeros where a corner has none."""
        rows = []
        for cells in ((7, 0, 1), (6, None, 2), (5, 4, 3)):
            if cells[1] is not None and parts[cells[1]] is None:
                continue
            row = []
            for side, cell in zip((6, None, 2), cells, strict=True):
                if side is not None and parts[side] is None:
                    continue
                row.append(x if cell is None else self._part(x, parts, cell, cells))
            rows.append(row[0] if len(row) == 1 else _concat(row, 3))
        return rows[0] if len(rows) == 1 else _concat(rows, 2)

    def _part(
        self, x: Tensor, parts: dict[int, Tensor | None], cell: int, cells: Sequence[int | None]
    ) -> Tensor:
        found = parts[cell]
        if found is not None:
            return found
        top, bottom, left, right = self._lengths
        height = top if cells[1] == 0 else bottom
        width = left if cell in (5, 7) else right
        shape = (*x.shape[:2], height, width)
        return apply("fill", shape=shape, value=0.0, dtype=x.dtype)


def _concat(tensors: Sequence[Tensor], axis: int) -> Tensor:
    return apply("concat", *tensors, axis=axis)
