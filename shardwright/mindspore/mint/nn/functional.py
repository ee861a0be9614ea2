"""Activations with the arguments of PyTorch."""

from shardwright import ops as own
from shardwright.ir.values import check_choice
from shardwright.tensor import Tensor

relu, sigmoid, silu, tanh = own.relu, own.sigmoid, own.silu, own.tanh


def softmax(input: Tensor, dim: int = -1, dtype: str | None = None) -> Tensor:
    """Return shares that are positive and sum to one along a dimension."""
    made: Tensor = own.Softmax(dim)(input if dtype is None else input.astype(dtype))
    return made


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Return the operand times its share of the normal distribution, or nearly so."""
    check_choice("approximate", approximate, ("none", "tanh"))
    made: Tensor = own.gelu(input, approximate == "tanh")
    return made


__all__ = ["gelu", "relu", "sigmoid", "silu", "softmax", "tanh"]
