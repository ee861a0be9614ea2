"""Tensors, parameters and element types."""

from shardwright.mindspore.common import dtype, initializer
from shardwright.mindspore.context import get_seed, set_seed
from shardwright.mindspore.steps import ParameterTuple
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor

__all__ = ["Parameter", "ParameterTuple", "Tensor", "dtype", "get_seed", "initializer", "set_seed"]
