"""Computing in float64 what a program casts to a lower precision.

Values are compared to 1e-9, which rounding to float32 would exceed: a cast that is right on one
device and on many would be called a fault.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

LOWER = (torch.float32, torch.float16, torch.bfloat16)
_CASTS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)


def widened(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, list[Any], dict[str, Any]]:
    """Return a call with float64 in place of every lower floating-point type."""
    if function in _CASTS:
        function = torch.Tensor.double
    wide = [torch.float64 if is_lower(value) else value for value in args]
    named = {key: torch.float64 if is_lower(value) else value for key, value in kwargs.items()}
    return function, wide, named


def is_lower(value: Any) -> bool:
    """Return whether something is a floating-point type below float64."""
    return isinstance(value, torch.dtype) and value in LOWER


class InDoubles(TorchFunctionMode):  # type: ignore[misc]
    """Computes in float64 throughout."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        function, args, kwargs = widened(function, args, kwargs or {})
        return function(*args, **kwargs)
