"""The ranks of a plan: their parts of tensors, their groups, and their collectives.

A dimension that is split over several axes is cut along each in turn; where an axis does not divide
the rest, its first ranks have one more. The axes of a group are ordered, major to minor, and so are
its members.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .rows import Rows

Axes = Sequence[str]
Splits = Sequence[Axes]
_REDUCTIONS = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "prod": dist.ReduceOp.PRODUCT,
}
# PyTorch 2.13 has new names.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def pieces(size: int, counts: Sequence[int]) -> list[int]:
    """Return the sizes of the parts of a dimension, cut along several axes in turn."""
    found = [size]
    for count in counts:
        found = [n // count + (i < n % count) for n in found for i in range(count)]
    return found


class Group:
    """The ranks along some axes, this one among them.

    Parameters
    ----------
    members : sequence of int
        The ranks, major to minor.
    handle : object
        The process group of torch; None where the rank is alone.
    """

    def __init__(self, members: Sequence[int], handle: Any) -> None:
        self.members, self.handle = members, handle
        ranks = sorted(members)
        # Processes of torch come in the order of their ranks, whatever the order of the axes.
        self.order = [ranks.index(rank) for rank in members]
        self.is_sorted = list(members) == ranks

    def sorted(self, parts: list[Tensor]) -> list[Tensor]:
        """Return parts that are in the order of the members in that of the ranks."""
        by_rank = dict(zip(self.order, parts, strict=True))
        return [by_rank[i] for i in range(len(parts))]


class Mesh:
    """The ranks, arranged along named axes; the first axis is the most significant.

    Parameters
    ----------
    sizes : mapping of str to int
        The axes of ranks.
    micro_batches : mapping of str to int
        The axis that is run in time, if there is one: `micro_batch` is the place along it.
    groups : sequence of axes
        The axes of all groups that communicate. Every process makes all of them, in this order.
    """

    def __init__(
        self, sizes: Mapping[str, int], micro_batches: Mapping[str, int], groups: Sequence[Axes]
    ) -> None:
        if not dist.is_initialized():
            raise RuntimeError("there are no processes; call torch.distributed.init_process_group")
        self.sizes = {**micro_batches, **sizes}
        self.ranks = dict(sizes)
        self.micro_batch = 0
        self.counts: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self._in_time = tuple(micro_batches)
        self._size = prod(sizes.values())
        if dist.get_world_size() != self._size:
            raise RuntimeError(
                f"the plan is for {self._size} processes, there are {dist.get_world_size()}"
            )
        self.rank = dist.get_rank()
        self._groups = {tuple(axes): self._make_group(tuple(axes)) for axes in groups}

    def _make_group(self, axes: tuple[str, ...]) -> Group:
        own = None
        for first in range(self._size):
            if any(self.coordinate(axis, first) for axis in axes):
                continue
            members = self._members(first, axes)
            handle = dist.new_group(sorted(members)) if len(members) > 1 else None
            if self.rank in members:
                own = Group(members, handle)
        assert own is not None
        return own

    def _members(self, first: int, axes: tuple[str, ...]) -> list[int]:
        members = [first]
        for axis in axes:
            step = self._stride(axis)
            members = [rank + i * step for rank in members for i in range(self.ranks[axis])]
        return members

    def _stride(self, axis: str) -> int:
        names = list(self.ranks)
        return prod(self.ranks[name] for name in names[names.index(axis) + 1 :])

    # Parts

    def coordinate(self, axis: str, rank: int | None = None) -> int:
        """Return the place of a rank along an axis; of this rank if none is given."""
        if axis in self._in_time:
            return self.micro_batch
        return (self.rank if rank is None else rank) // self._stride(axis) % self.ranks[axis]

    def index(self, axes: Axes) -> int:
        """Return the place of this rank along several axes, major to minor."""
        place = 0
        for axis in axes:
            place = place * self.sizes[axis] + self.coordinate(axis)
        return place

    def counts_of(self, axes: Axes) -> list[int]:
        """Return the sizes of axes."""
        return [self.sizes[axis] for axis in axes]

    def start(self, size: int, *axes: str) -> int:
        """Return where the part of this rank begins, of a dimension that is split over axes."""
        return sum(pieces(size, self.counts_of(axes))[: self.index(axes)])

    def length(self, size: int, *axes: str) -> int:
        """Return the size of the part of this rank, of a dimension that is split over axes."""
        return pieces(size, self.counts_of(axes))[self.index(axes)]

    def own(self, whole: Tensor, splits: Splits) -> Tensor:
        """Return the part of this rank of a whole tensor, by the axes that split its dimensions."""
        for dimension, axes in enumerate(splits):
            if axes:
                size = whole.shape[dimension]
                start, length = self.start(size, *axes), self.length(size, *axes)
                whole = whole.narrow(dimension, start, length)
        return whole

    def whole(self, part: Tensor, shape: Sequence[int], splits: Splits) -> Tensor:
        """Return a whole tensor of a shape from the parts of all ranks; it is not counted."""
        for dimension, axes in enumerate(splits):
            if axes:
                part = self._gathered(part, axes, dimension, shape[dimension])
        return part

    # Collectives

    def count(self, kind: str, part: Tensor) -> None:
        """Note that this rank communicates."""
        self.counts[kind] += 1
        self.sent[kind] += part.numel() * part.element_size()

    def _group(self, axes: Axes) -> Group:
        return self._groups[tuple(axes)]

    def all_reduce(self, part: Tensor, axes: Axes, reduction: str = "sum") -> Tensor:
        """Return partial values reduced over axes, on every member."""
        self.count("all_reduce", part)
        total = part.clone(memory_format=torch.contiguous_format)
        if (group := self._group(axes)).handle is not None:
            dist.all_reduce(total, _REDUCTIONS[reduction], group=group.handle)
        return total

    def all_gather(self, part: Tensor, axes: Axes, dimension: int, size: int) -> Tensor:
        """Return the slices of a dimension joined to one of `size` elements, on every member."""
        self.count("all_gather", part)
        return self._gathered(part, axes, dimension, size)

    def _gathered(self, part: Tensor, axes: Axes, dimension: int, size: int) -> Tensor:
        group, sizes = self._group(axes), pieces(size, self.counts_of(axes))
        if group.handle is None:
            return part
        room = max(sizes)
        sent = _padded(part.movedim(dimension, 0), room)
        found = sent.new_empty(len(sizes) * room, *sent.shape[1:])
        _all_gather(found, sent, group=group.handle)
        if not group.is_sorted or min(sizes) < room:
            slices = found.split(room)
            found = torch.cat([slices[i][:n] for i, n in zip(group.order, sizes, strict=True)])
        return found.movedim(0, dimension)

    def reduce_scatter(
        self, part: Tensor, axes: Axes, dimension: int, reduction: str = "sum"
    ) -> Tensor:
        """Return the own slice of partial values reduced over axes."""
        self.count("reduce_scatter", part)
        group = self._group(axes)
        if group.handle is None:
            return part
        moved = part.movedim(dimension, 0)
        sizes = pieces(moved.shape[0], self.counts_of(axes))
        room = max(sizes)
        if not group.is_sorted or min(sizes) < room:
            cut = [_padded(slice_, room) for slice_ in moved.split(sizes)]
            moved = torch.cat(group.sorted(cut))
        moved = moved.contiguous()
        found = moved.new_empty(room, *moved.shape[1:])
        _reduce_scatter(found, moved, _REDUCTIONS[reduction], group=group.handle)
        return found[: sizes[self.index(axes)]].movedim(0, dimension)

    def local_slice(self, part: Tensor, axes: Axes, dimension: int) -> Tensor:
        """Return the own slice of a dimension; nothing moves."""
        size = part.shape[dimension]
        return part.narrow(dimension, self.start(size, *axes), self.length(size, *axes))

    def all_to_all(
        self, part: Tensor, axes: Axes, split_dimension: int, concat_dimension: int, size: int
    ) -> Tensor:
        """Move a split to another dimension; `size` is that of the joined one in the result."""
        self.count("all_to_all", part)
        return self._exchanged(part, axes, split_dimension, concat_dimension, size)

    def _exchanged(
        self, part: Tensor, axes: Axes, split_dimension: int, concat_dimension: int, size: int
    ) -> Tensor:
        group, counts = self._group(axes), self.counts_of(axes)
        if group.handle is None:
            return part
        lengths = pieces(part.shape[split_dimension], counts)
        sent = [p.reshape(-1) for p in group.sorted([*part.split(lengths, split_dimension)])]
        shape = [*part.shape]
        shape[split_dimension] = lengths[self.index(axes)]
        shapes = []
        for joined in pieces(size, counts):
            shape[concat_dimension] = joined
            shapes.append(tuple(shape))
        received = [prod(shapes[i]) for i in _inverse(group.order)]
        found = part.new_empty(sum(received))
        dist.all_to_all_single(
            found, torch.cat(sent), received, [p.numel() for p in sent], group=group.handle
        )
        by_rank = found.split(received)
        parts = [by_rank[i].reshape(s) for i, s in zip(group.order, shapes, strict=True)]
        return torch.cat(parts, concat_dimension)

    def all_reduce_rows(self, part: Rows, axes: Axes, reduction: str = "sum") -> Rows:
        """Return partial rows of experts reduced over axes, whose members have the same rows."""
        return Rows(self.all_reduce(part.values, axes, reduction), part.mask)

    def all_to_all_rows(
        self, part: Rows, axes: Axes, split_dimension: int, concat_dimension: int, size: int
    ) -> Rows:
        """Move a split of the rows of experts to another dimension: as `all_to_all`, of rows."""
        self.count("all_to_all", part.values)
        group, counts = self._group(axes), self.counts_of(axes)
        if group.handle is None:
            return part
        dimensions = split_dimension, concat_dimension
        mask = self._exchanged(part.mask.byte(), axes, *dimensions, size).bool()
        lengths = pieces(part.mask.shape[split_dimension], counts)
        numbers = _numbers(part.mask, lengths, split_dimension)
        sent = group.sorted([part.values[found] for found in numbers])
        placed = _numbers(mask, pieces(size, counts), concat_dimension)
        received = [len(placed[i]) for i in _inverse(group.order)]
        found = part.values.new_empty(sum(received), part.values.shape[1])
        dist.all_to_all_single(
            found, torch.cat(sent), received, [len(p) for p in sent], group=group.handle
        )
        by_rank = found.split(received)
        values = torch.empty_like(found)
        for place, numbers_of_rank in zip(group.order, placed, strict=True):
            values[numbers_of_rank] = by_rank[place]
        return Rows(values, mask)

    def collective_permute(
        self, part: Tensor, axes: Axes, previous: Axes, dimension: int
    ) -> Tensor:
        """Reorder the axes that split a dimension from `previous`: each passes its slice on."""
        self.count("collective_permute", part)
        group = self._group(axes)
        order = [list(axes).index(axis) for axis in previous]
        places = torch.arange(len(group.members)).reshape(self.counts_of(axes))
        sources = places.permute(order).reshape(-1).tolist()
        own = self.index(axes)
        if sources[own] == own:
            return part
        sent, found = (
            part.contiguous(),
            torch.empty_like(part, memory_format=torch.contiguous_format),
        )
        self.exchange(axes, [(sources.index(own), sent)], [(sources[own], found)])()
        return found

    def exchange(
        self,
        axes: Axes,
        sends: Sequence[tuple[int, Tensor]],
        receives: Sequence[tuple[int, Tensor]],
    ) -> Callable[[], None]:
        """Start to send to members of a group, and to receive; return what waits for the end.

        They start together, so that NCCL runs them beside each other: in turn, two ranks that send
        to each other first would wait for each other.
        """
        group = self._group(axes)
        kinds = ((dist.isend, sends), (dist.irecv, receives))
        operations = [
            dist.P2POp(kind, part.contiguous(), group.members[member], group.handle)
            for kind, messages in kinds
            for member, part in messages
        ]
        works = dist.batch_isend_irecv(operations) if operations else []

        def wait() -> None:
            for work in works:
                work.wait()
            operations.clear()

        return wait

    def to_partial(self, part: Tensor, axes: Axes) -> Tensor:
        """Return equal copies as partial sums: one member keeps its copy, the others get zeros."""
        return part if self.index(axes) == 0 else torch.zeros_like(part)

    # Micro-batches

    def each_micro_batch(self) -> Iterator[int]:
        """Yield the places along the axis that is run in time, and stand there."""
        for number in range(prod(self.sizes[axis] for axis in self._in_time)):
            self.micro_batch = number
            yield number
        self.micro_batch = 0


class Totals:
    """What the passes over micro-batches add up, or write a part of."""

    def __init__(self) -> None:
        self._values: dict[str, Tensor] = {}
        self._parts: dict[str, tuple[list[Tensor], int]] = {}

    def reduce(self, name: str, part: Tensor, reduction: str = "sum") -> None:
        """Add the part of a pass."""
        old = self._values.get(name)
        if old is None:
            self._values[name] = part.clone()
        elif reduction == "sum":
            old.add_(part)
        else:
            function = torch.maximum if reduction == "max" else torch.minimum
            function(old, part, out=old)

    def append(self, name: str, part: Tensor, dimension: int) -> None:
        """Keep the slice of a pass."""
        self._parts.setdefault(name, ([], dimension))[0].append(part)

    def __getitem__(self, name: str) -> Tensor:
        """Return a value after the last pass."""
        if name in self._values:
            return self._values.pop(name)
        parts, dimension = self._parts.pop(name)
        return torch.cat(parts, dimension)


def _padded(part: Tensor, room: int) -> Tensor:
    """Return a tensor whose first dimension has the size `room`, contiguous."""
    missing = room - part.shape[0]
    if missing:
        part = torch.cat([part, part.new_zeros(missing, *part.shape[1:])])
    return part.contiguous()


def _inverse(order: Sequence[int]) -> list[int]:
    """Return the position of each number in an order."""
    return sorted(range(len(order)), key=order.__getitem__)


def _numbers(mask: Tensor, lengths: Sequence[int], dimension: int) -> list[Tensor]:
    """Return for each piece of a mask the numbers of its rows among those of the whole."""
    numbers = (mask.flatten().cumsum(0) - 1).reshape(mask.shape)
    parts = zip(
        numbers.split([*lengths], dimension), mask.split([*lengths], dimension), strict=True
    )
    return [found[inside] for found, inside in parts]
