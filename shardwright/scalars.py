"""Python's numbers that meet tensors, and the element types in which they do."""

from typing import Any

from shardwright.ir.errors import ModelError


def beside(tensor: Any, other: object, *, divides: bool = False) -> Any:
    """Return a tensor in the element type in which it meets a number; as it is beside a tensor.

    As in MindSpore, integers and truths meet a real number in float32, and truths an integer in
    int32.

    Parameters
    ----------
    tensor : Tensor
        The tensor.
    other : object
        What it meets.
    divides : bool
        Whether the result is a quotient, and so real.
    """
    if tensor.type.is_float or isinstance(other, bool) or not isinstance(other, (int, float)):
        return tensor
    if isinstance(other, float) or divides:
        return tensor.astype("float32")
    return tensor.astype("int32") if tensor.dtype == "bool" else tensor


def size_of(size: object) -> int:
    """Return the size, or the position, of a dimension.

    Raises
    ------
    ModelError
        If it is no integer.
    """
    if not isinstance(size, int):
        raise ModelError(f"a dimension is {size!r}, expected an integer")
    return size
