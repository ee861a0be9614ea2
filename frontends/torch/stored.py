"""Tensors of a module, and constants that are computed when it is imported."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.torch.private import tree_leaves, tree_map_only, writes_to
from shardwright.frontends.torch.torch_types import array_of, constant_dtype_of
from shardwright.ir.errors import ModelError
from shardwright.ir.units import bytes_text
from shardwright.operators.info import Array
from shardwright.operators.rule import Shape

# Most bytes of a constant that is computed at import: a causal mask of 46,340 tokens.
_MOST_BYTES = 2**31
# Operators point by point that PyTorch does not tag as such.
_POINTWISE = {f"aten.__{name}__.Tensor" for name in ("and", "or", "xor")}


@dataclass(frozen=True, eq=False)
class ModuleTensor:
    """A tensor of PyTorch; read as an array on use.

    Parameters
    ----------
    tensor : Tensor
        The tensor; on the device `meta` it has no elements.
    """

    tensor: torch.Tensor
    _version: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_version", writes_to(self.tensor))

    @property
    def shape(self) -> Shape:
        """The shape of the tensor."""
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> str:
        """The element type of the tensor."""
        return constant_dtype_of(self.tensor.dtype)

    @property
    def is_absent(self) -> bool:
        """Whether the tensor has no elements."""
        return self.tensor.device.type == "meta"

    def read(self) -> Array:
        """Return the elements.

        Raises
        ------
        ModelError
            If they are others than at import.
        """
        if writes_to(self.tensor) != self._version:
            raise ModelError(
                f"a {self.dtype} tensor of shape {self.shape} of the module was written to after "
                "the module was compiled",
                hint="run the plan, or write it, before the module is changed, or compile again",
            )
        return array_of(self.tensor)


def compressed(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of one slice, repeated, along each dimension whose slices are all equal.

    Masks and positions of a batch then take the memory of one sample.
    """
    if tensor.is_floating_point() and tensor.isnan().any():
        return tensor
    for d, size in enumerate(tensor.shape):
        if size > 1 and tensor.stride(d):
            first, last = tensor.narrow(d, 0, 1), tensor.narrow(d, size - 1, 1)
            # Most slices that differ differ from the last one, too.
            if all(bool((narrowed(x) == narrowed(first)).all()) for x in (last, tensor)):
                tensor = first.expand(tensor.shape)
    return tensor


def narrowed(tensor: torch.Tensor) -> torch.Tensor:
    """Return one slice along each dimension that is repeated without memory of its own."""
    for d, size in enumerate(tensor.shape):
        if size > 1 and not tensor.stride(d):
            tensor = tensor.narrow(d, 0, 1)
    return tensor


def computed(
    target: Any, arguments: Sequence[Any], keywords: dict[str, Any], sample: Any
) -> torch.Tensor | Sequence[torch.Tensor]:
    """Return the result of an operator of PyTorch on constants.

    Parameters
    ----------
    target : OpOverload
        The operator.
    arguments, keywords : sequence, dict
        What it is applied to.
    sample : object
        The result without elements, as the export has it.

    Raises
    ------
    UnsupportedError
        If the operator draws random numbers, or its result takes too much memory.
    """
    tags = target.tags
    if torch.Tag.nondeterministic_seeded in tags:
        raise UnsupportedError(f"the operator {target}, which draws random numbers,")
    with torch.no_grad():
        if torch.Tag.pointwise not in tags and str(target) not in _POINTWISE:
            if not target.is_view and isinstance(sample, torch.Tensor):
                _check_bytes(target, sample.shape, sample.itemsize)
            return _all_compressed(_applied(target, arguments, keywords))
        tensors = [a for a in (*arguments, *keywords.values()) if isinstance(a, torch.Tensor)]
        whole = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
        small, named = tree_map_only(torch.Tensor, narrowed, (list(arguments), keywords))
        parts = [a for a in tree_leaves((small, named)) if isinstance(a, torch.Tensor)]
        shape = torch.broadcast_shapes(*(part.shape for part in parts))
        _check_bytes(target, shape, sample.itemsize)
        result: torch.Tensor = target(*small, **named)
        return compressed(result).expand(whole)


def _check_bytes(target: Any, shape: Sequence[int], itemsize: int) -> None:
    size = prod(shape) * itemsize
    if size > _MOST_BYTES:
        raise UnsupportedError(
            f"the constant of {bytes_text(size)} that the operator {target} makes, where at most "
            f"{bytes_text(_MOST_BYTES)} are computed at import,"
        )


def _applied(target: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Return the result of an operator, of copies where a view needs each element in its place."""
    try:
        return target(*arguments, **keywords)
    except RuntimeError:
        for one in arguments:
            if isinstance(one, torch.Tensor):
                _check_bytes(target, one.shape, one.itemsize)
        whole = [a.contiguous() if isinstance(a, torch.Tensor) else a for a in arguments]
        return target(*whole, **keywords)


def _all_compressed(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return compressed(result)
    if isinstance(result, (tuple, list)):
        return [_all_compressed(part) for part in result]
    return result  # a number, such as that of `item()`
