"""Gradient accumulation: a network whose batch runs in micro-batches."""

from typing import Any

from shardwright.ir.values import POSITIVE_INTEGER
from shardwright.nn.cell import Cell
from shardwright.tracer import current_tracer


class GradAccumulation(Cell):
    """A network that is trained in micro-batches, whose gradients are accumulated.

    Each step divides the batch into `micro_size` equal parts, one after the other. Losses and
    gradients are those of the whole batch; statistics of a batch (of `BatchNorm`, or of a balance
    loss) are those of each part. The name is that of MindSpore's cell.

    Parameters
    ----------
    network : Cell
        The network, and its loss where it has one.
    micro_size : int
        Number of micro-batches.
    """

    _auto_prefix = False  # names, and so initial values and checkpoints, are the network's

    def __init__(self, network: Cell, micro_size: int) -> None:
        POSITIVE_INTEGER.check("micro_size", micro_size)
        self.network = network
        self.micro_batches = micro_size

    def construct(self, *inputs: Any) -> Any:
        """Apply the network."""
        with current_tracer().in_micro_batches(self.micro_batches):
            return self.network(*inputs)


class PipelineCell(GradAccumulation):
    """A network that is trained in micro-batches, which pass through its pipeline stages.

    The stages are those of its cells (``cell.pipeline_stage``), or the compiler's. The name is that
    of MindSpore's cell; the arguments are those of `GradAccumulation`.
    """
