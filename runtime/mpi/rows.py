"""The exchange of rows of experts: of unequal lengths, without the rows that are zeros.

The rows that no token fills are zeros behind a `dispatch`, and in what products and most functions
make of them. Each member tells which of its rows have anything else, in a bit for each, and sends
those. The others are zeros where they arrive.
"""

from typing import Any

import numpy as np

from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import Array
from shardwright.runtime.mpi.buffers import Exchange, buffer_of, exchanging


def moves_rows(operator: Communication) -> bool:
    """Return whether an exchange is one of rows of experts, whose features stay together."""
    kind = operator.operand_types[0]
    moved = [operator.attributes[f"{way}_dimension"] for way in ("split", "concat")]
    return kind.ragged is not None and kind.rank - 1 not in moved


def exchanging_rows(mpi: Any, group: Any, shape: tuple[int, ...]) -> Exchange:
    """Return what sends the filled rows of the i-th of stacked pieces to the i-th member.

    `shape` is that of the stack; see `buffers.exchanging`.
    """
    count, size = shape[0], shape[-1]
    rows = int(np.prod(shape[1:-1], dtype=int))
    tell = exchanging(mpi, group, (count, -(-rows // 8)))

    def exchanged(pieces: Array) -> Array:
        filled, sent = filled_rows(pieces.reshape(count, rows, size))
        told = tell(np.packbits(filled, axis=1))
        coming = np.unpackbits(told, axis=1, count=rows).astype(bool)
        received = np.empty((int(coming.sum()), size), pieces.dtype)
        row = size * pieces.itemsize  # bytes
        lengths = [(mask.sum(1) * row).tolist() for mask in (filled, coming)]
        group.Alltoallv(
            [buffer_of(sent), lengths[0], mpi.BYTE], [buffer_of(received), lengths[1], mpi.BYTE]
        )
        result = np.zeros((count, rows, size), pieces.dtype)
        result[coming] = received
        return result.reshape(shape)

    return exchanged


def filled_rows(pieces: Array) -> tuple[Array, Array]:
    """Return which rows ``[piece, row, feature]`` have anything but zeros, and those rows."""
    filled = (pieces != 0).any(axis=-1)
    return filled, np.ascontiguousarray(pieces[filled])
