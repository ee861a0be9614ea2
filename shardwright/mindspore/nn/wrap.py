"""Cells around a whole network, and the base of losses, as MindSpore's scripts define their own."""

from collections.abc import Sequence
from typing import Any

from shardwright.ir.errors import ModelError
from shardwright.ir.values import POSITIVE_INTEGER
from shardwright.nn.cell import Cell
from shardwright.nn.losses import Loss
from shardwright.ops.collective import Broadcast
from shardwright.tensor import Tensor
from shardwright.tracer import current_tracer
from shardwright.tracing import Network


class LossBase(Loss):
    """The base of losses: a subclass computes those of samples, and returns `get_loss` of them.

    Parameters
    ----------
    reduction : str
        ``mean``, ``sum`` or ``none``.
    """

    def get_loss(self, x: Tensor, weights: float | Tensor = 1.0) -> Tensor:
        """Return the weighted losses as one, as asked for."""
        return self.reduced(x * weights)


class _BroadCastCell(Cell):
    """Gives every rank the tensors of the first, by hand: they are split in no mode.

    Parameters
    ----------
    params : sequence of Tensor
        The tensors, or parameters.
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        self.params, self.broadcast = tuple(params), Broadcast(0)
        self.add_flags(skip_auto_parallel_compile=True)

    def construct(self) -> tuple[Tensor, ...]:
        """Return the tensors."""
        made: tuple[Tensor, ...] = self.broadcast(self.params)
        return made


class MicroBatchInterleaved(Cell):
    """A network that is applied to equal parts of a batch, whose results are added.

    Parameters
    ----------
    network : Cell
        The network; returns a loss.
    interleave_num : int
        Number of parts.
    """

    _auto_prefix = False

    def __init__(self, network: Network, interleave_num: int = 2) -> None:
        POSITIVE_INTEGER.check("interleave_num", interleave_num)
        self.network, self.interleave_num = network, interleave_num

    def construct(self, *inputs: Tensor) -> Any:
        """Return the sum of what the network returns for the parts.

        Raises
        ------
        ModelError
            If an input cannot be divided.
        """
        count = self.interleave_num
        _part_sizes(inputs, count * current_tracer().micro_batches)
        parts = [self.network(*(_interleaved(x, i, count) for x in inputs)) for i in range(count)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total


def _interleaved(x: Tensor, i: int, count: int) -> Tensor:
    """Return one of equal parts of an input; in micro-batches that of each of them."""
    passes, rest = current_tracer().micro_batches, x.shape[1:]
    rows = x.shape[0] // count
    if passes == 1:
        return x[i * rows : (i + 1) * rows]
    apart = x.reshape((passes, count, rows // passes, *rest))
    return apart[:, i].reshape((rows, *rest))


class _VirtualDatasetCell(Cell):
    """A network as it is: the compiler splits its inputs itself."""

    _auto_prefix = False
    wraps = "backbone"

    def __init__(self, backbone: Network) -> None:
        self.backbone = backbone

    def construct(self, *inputs: Tensor) -> Any:
        return self.backbone(*inputs)


class _MicroBatch(Cell):
    """Returns one of equal parts of each input, along the first dimension."""

    def __init__(self, micro_size: int) -> None:
        POSITIVE_INTEGER.check("micro_size", micro_size)
        self.micro_size = micro_size

    def construct(self, i: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the parts with a number.

        Raises
        ------
        ModelError
            If an input cannot be divided.
        """
        sizes = _part_sizes(inputs, self.micro_size)
        return tuple(x[i * n : (i + 1) * n] for x, n in zip(inputs, sizes, strict=True))


def _part_sizes(inputs: Sequence[Tensor], count: int) -> list[int]:
    """Return the rows of a part of each input.

    Raises
    ------
    ModelError
        If an input cannot be divided.
    """
    for tensor in inputs:
        if not tensor.ndim or tensor.shape[0] % count:
            raise ModelError(
                f"an input of the shape {tensor.shape} is divided into {count} parts, expected a "
                f"multiple of it in the first dimension"
            )
    return [tensor.shape[0] // count for tensor in inputs]


VirtualDatasetCellTriple = _VirtualDatasetCell
_Loss = LossBase
