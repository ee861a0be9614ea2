"""Communication primitives of hand-written parallel programs.

They run over all ranks. In a world of one rank they are the identity, so that the same program is
its own single-device reference.
"""

from typing import Any

from shardwright.communication import WORLD_AXIS
from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import ModelError
from shardwright.tensor import Tensor, apply
from shardwright.tracer import current_tracer

WORLD_GROUP = "world"


class ReduceOp:
    """How values are reduced."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


class Collective:
    """A communication operator over all ranks.

    Parameters
    ----------
    operator : str
        Name of the operator.
    group : str
        The group of ranks; there is only the one of all.
    **attributes
        Attributes of the operator.
    """

    def __init__(self, operator: str, group: str, **attributes: Attribute) -> None:
        if group != WORLD_GROUP:
            raise ModelError(
                f"`{operator}` is to run over the group `{group}`, there is only `{WORLD_GROUP}`",
                hint="let the compiler form the groups: use the mode semi_auto_parallel",
            )
        self.operator = operator
        self.attributes = attributes

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the operator to this rank's tensor."""
        size = current_tracer().world
        if size == 1:
            return x
        return apply(self.operator, x, axes=(WORLD_AXIS,), group_size=size, **self.attributes)


class AllReduce(Collective):
    """Reduce the tensors of all ranks; every rank gets the result."""

    def __init__(self, op: str = ReduceOp.SUM, group: str = WORLD_GROUP) -> None:
        super().__init__("all_reduce", group, reduction=op)


class AllGather(Collective):
    """Concatenate the tensors of all ranks along one dimension."""

    def __init__(self, group: str = WORLD_GROUP, dimension: int = 0) -> None:
        super().__init__("all_gather", group, dimension=dimension)


class ReduceScatter(Collective):
    """Reduce the tensors of all ranks; every rank gets its part of one dimension."""

    def __init__(
        self, op: str = ReduceOp.SUM, group: str = WORLD_GROUP, dimension: int = 0
    ) -> None:
        super().__init__("reduce_scatter", group, reduction=op, dimension=dimension)


class Broadcast(Collective):
    """Give every rank the tensor of one."""

    def __init__(self, root_rank: int, group: str = WORLD_GROUP) -> None:
        super().__init__("broadcast", group, root=root_rank)

    def __call__(self, x: Any) -> Any:
        """Apply the operator; a tuple of tensors one by one, as MindSpore has it."""
        if isinstance(x, tuple):
            return tuple(self(item) for item in x)
        return super().__call__(x)


class AlltoAll(Collective):
    """Split one dimension, send the pieces to the ranks in turn, and concatenate another."""

    def __init__(
        self, split_count: int, split_dim: int, concat_dim: int, group: str = WORLD_GROUP
    ) -> None:
        dimensions = {"split_dimension": split_dim, "concat_dimension": concat_dim}
        super().__init__("all_to_all", group, **dimensions)
        self._split_count = split_count

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the operator to this rank's tensor.

        Raises
        ------
        ModelError
            If the number of pieces is not the number of ranks.
        """
        size = current_tracer().world
        if self._split_count != size:
            raise ModelError(f"`all_to_all` cuts {self._split_count} pieces for {size} ranks")
        return super().__call__(x)


class NeighborExchange(Collective):
    """Send the tensor to the rank `shift` further; without `wrap`, ranks at the edge get zeros."""

    def __init__(self, shift: int = 1, wrap: bool = True, group: str = WORLD_GROUP) -> None:
        super().__init__("neighbor_exchange", group, shift=shift, wrap=wrap)


class _PointToPoint(Collective):
    def __init__(self, operator: str, source: int, destination: int, group: str) -> None:
        super().__init__(operator, group, source=source, destination=destination)


class Send(_PointToPoint):
    """Offer the tensor of rank `source` to rank `destination`; give the result to `Receive`."""

    def __init__(self, source: int, destination: int, group: str = WORLD_GROUP) -> None:
        super().__init__("send", source, destination, group)


class Receive(_PointToPoint):
    """Receive the tensor of `Send` at rank `destination`; the other ranks get zeros."""

    def __init__(self, source: int, destination: int, group: str = WORLD_GROUP) -> None:
        super().__init__("receive", source, destination, group)
