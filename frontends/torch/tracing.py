"""What an export cannot trace: parts that convert themselves, functions with own gradients."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch


@contextmanager
def plain_conversions() -> Iterator[None]:
    """Let `Module.to` return modules as they are that have the type already.

    Some routers of experts convert themselves in every call, for types that differ.
    """
    original: Any = torch.nn.Module.to

    def to(module: torch.nn.Module, *args: Any, **keywords: Any) -> torch.nn.Module:
        device, dtype, _, memory = torch._C._nn._parse_to(*args, **keywords)
        tensors = [*module.parameters(), *module.buffers()]
        floats = [tensor for tensor in tensors if tensor.is_floating_point()]
        moved = device is not None and any(tensor.device != device for tensor in tensors)
        cast = dtype is not None and any(tensor.dtype != dtype for tensor in floats)
        if moved or cast or memory is not None:
            module = original(module, *args, **keywords)
        return module

    with patch.object(torch.nn.Module, "to", to):
        yield


@contextmanager
def noted_gradients(names: set[str]) -> Iterator[None]:
    """Add the names of functions that the module gives a gradient of its own.

    An export has the operators of their forward pass alone.
    """
    original: Any = torch.autograd.Function.__dict__["apply"].__func__

    def apply(function: type, *args: Any, **keywords: Any) -> Any:
        if not function.__module__.startswith("torch."):
            names.add(function.__name__)
        return original(function, *args, **keywords)

    with patch.object(torch.autograd.Function, "apply", classmethod(apply)):
        yield
