"""Exchanges of tensors, and of the edges of images, between neighbors."""

from collections.abc import Sequence
from typing import Any

from shardwright.communication import values_of
from shardwright.ir.errors import ModelError
from shardwright.ops.collective import WORLD_GROUP, OverGroups
from shardwright.ops.messages import moved
from shardwright.tensor import Tensor, apply
from shardwright.tracer import current_tracer

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
        only = current_tracer().only_rank
        if only is not None:
            return self._of_one_rank(tensors, only)
        routes = matched("NeighborExchange", self._send, self._receive, self)
        return tuple(self._result(j, tensors, routes) for j in range(len(self._receive)))

    def _of_one_rank(self, tensors: Sequence[Tensor], rank: int) -> tuple[Tensor, ...]:
        """Return what one rank receives; what others send is not known, and zeros."""
        world = current_tracer().world
        sent = [own_rank(other, rank) for other in self._send]
        results = []
        for tensor, target in zip(tensors, sent, strict=True):
            if target >= 0:
                moved(tensor, ((rank, target),) if target != rank else ())
        for shape, source in zip(
            self._shapes, (own_rank(other, rank) for other in self._receive), strict=True
        ):
            if source == rank and rank in sent:
                results.append(tensors[sent.index(rank)])
                continue
            zeros = apply("fill", shape=shape, value=0.0, dtype=self._dtype)
            pairs = ((source, rank),) if source >= 0 and world > 1 and source != rank else ()
            results.append(moved(zeros, pairs) if pairs else zeros)
        return tuple(results)

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
            part = moved(x, tuple(pairs))
            total = part if total is None else total + part
        if total is None:
            return apply("fill", shape=shape, value=0.0, dtype=self._dtype)
        return total


def own_rank(number: Any, rank: int) -> int:
    """Return what a number of another rank is on one rank.

    Raises
    ------
    ModelError
        If there is no such rank.
    """
    world = current_tracer().world
    return _checked(values_of(number, world)[rank], world)


def _checked(other: int, world: int) -> int:
    """Return the rank of a neighbor, -1 for none; refuse one that there is not."""
    if not -1 <= other < world:
        raise ModelError(f"a neighbor is rank {other}, there are {world} ranks")
    return other


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
            if _checked(other, world) >= 0:
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
        world, only = current_tracer().world, current_tracer().only_rank
        for side, length in zip(("top", "bottom", "left", "right"), self._sent, strict=True):
            size = x.shape[2 if side in ("top", "bottom") else 3]
            if length > size:
                raise ModelError(
                    f"`send_lens` has {length} for the {side}, expected at most the {size} rows or "
                    f"columns of the image"
                )
        # What goes to the top comes from the bottom: the opposite direction is four places on.
        opposite = [self._receive[(d + 4) % 8] for d in range(8)]
        parts: dict[int, Tensor | None] = {}
        for d in range(8):
            has = any(rank >= 0 for rank in values_of(self._receive[d], world))
            if has and only is not None:
                parts[d] = self._of_one_rank(x, d, only)
            else:
                parts[d] = self._received(x, (d + 4) % 8, opposite) if has else None
        return self._joined(x, parts)

    def _of_one_rank(self, x: Tensor, direction: int, rank: int) -> Tensor:
        """Return what one rank receives from a direction: zeros, since others are not known."""
        source = own_rank(self._receive[direction], rank)
        return moved(
            self._zeros(x, direction), ((source, rank),) if source not in (-1, rank) else ()
        )

    def _zeros(self, x: Tensor, direction: int) -> Tensor:
        """Return zeros in the place of what comes from a direction."""
        name, sizes = _DIRECTIONS[direction], [*x.shape[2:]]
        for d, sides in enumerate((("top", "bottom"), ("left", "right"))):
            for side in sides:
                if side in name:
                    sizes[d] = self._lengths[2 * d + sides.index(side)]
        return apply("fill", shape=(*x.shape[:2], *sizes), value=0.0, dtype=x.dtype)

    def _received(self, x: Tensor, direction: int, opposite: Sequence[Any]) -> Tensor:
        """Return what all ranks send in a direction, at the ranks that receive it."""
        where = f"NeighborExchangeV2 to the {_DIRECTIONS[direction]}"
        routes = matched(where, [self._send[direction]], [opposite[direction]], self)
        edge = self._edge(x, direction)
        return moved(edge, tuple(routes.get((0, 0), ())))

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
                if cell is None:
                    row.append(x)
                else:
                    found = parts[cell]
                    row.append(self._zeros(x, cell) if found is None else found)
            rows.append(row[0] if len(row) == 1 else _concat(row, 3))
        return rows[0] if len(rows) == 1 else _concat(rows, 2)


def _concat(tensors: Sequence[Tensor], axis: int) -> Tensor:
    return apply("concat", *tensors, axis=axis)
