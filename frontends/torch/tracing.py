"""Modules that convert their parts while they run, which PyTorch's export cannot trace."""

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
