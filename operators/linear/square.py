"""What operators on square matrices share; the matrices are the last two dimensions."""

from collections.abc import Callable

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.ir.graph import Value
from shardwright.operators.info import Array, Emitter, OperatorInfo


def working(*arrays: Array) -> tuple[Array, ...]:
    """Return arrays of a type that LAPACK supports."""
    double = any(x.dtype == np.float64 for x in arrays)
    return tuple(x.astype(np.float64 if double else np.float32, copy=False) for x in arrays)


def check_square(info: OperatorInfo) -> None:
    """Refuse a first operand that is not of square matrices.

    Raises
    ------
    IRError
        If it is not; names the shape.
    """
    shape = info.operand_types[0].shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise IRError(f"`{info.name}`: the shape is {shape}, expected square matrices")


def turned(build: Emitter, x: Value) -> Value:
    """Emit the transposes of matrices."""
    rank = x.type.rank
    return build.emit("transpose", x, permutation=(*range(rank - 2), rank - 1, rank - 2))


def of_each(function: Callable[..., Array], result: Array, *operands: Array) -> Array:
    """Return what a function makes of each matrix; NaN where it cannot, as of a singular one.

    Parameters
    ----------
    function : callable
        A function of numpy, which raises an error where it fails for any matrix.
    result : array
        Where the results go; its leading dimensions are those of the whole batch.
    *operands : array
        The matrices, whose leading dimensions are broadcast.
    """
    try:
        result[...] = function(*operands)
    except np.linalg.LinAlgError:
        if operands[0].shape[-1] != operands[0].shape[-2]:
            raise
        leading = result.shape[:-2]
        wide = [np.broadcast_to(x, (*leading, *x.shape[-2:])) for x in operands]
        for place in np.ndindex(leading):
            try:
                result[place] = function(*(x[place] for x in wide))
            except np.linalg.LinAlgError:
                result[place] = np.nan
    return result
