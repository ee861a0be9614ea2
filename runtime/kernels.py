"""Kernels on the slices of one rank, and their results in the declared types."""

import numpy as np

from shardwright.ir.errors import ExecutionError
from shardwright.ir.text import node_text
from shardwright.ir.types import is_low
from shardwright.operators.info import Array, OperatorInfo
from shardwright.operators.rule import ShardView
from shardwright.runtime.instructions import Instruction, Local


def run_kernel(info: OperatorInfo, view: ShardView, *operands: Array) -> Array | tuple[Array, ...]:
    """Run a kernel; operands of 16 bits are computed in float32, as devices do.

    The results are rounded once, when they are stored.
    """
    return info.kernel(view, *map(widened, operands))


def widened(x: Array) -> Array:
    """Return numbers of 16 bits as float32, and others as they are."""
    return x.astype(np.float32) if is_low(x.dtype) else x


def settled(array: Array, local: Local, rank: int, instruction: Instruction) -> Array:
    """Return a result in its declared type, as a view of no larger buffer."""
    result: Array = np.asarray(array, local.dtype)
    if result.shape != local.shapes[rank]:
        raise ExecutionError(
            f"`{instruction.info.name}` gave a slice of shape {result.shape} for "
            f"`{local.name}`, expected {local.shapes[rank]}",
            node_text(instruction.node),
        )
    owner = result.base
    if owner is not None and getattr(owner, "nbytes", 0) > result.nbytes:
        return result.copy()
    return result
