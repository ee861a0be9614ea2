"""What an export cannot trace: parts that convert themselves, functions with own gradients."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch


@contextmanager
def plain_modes() -> Iterator[None]:
    """Let conversions of modules to their own type, and the inference mode, be traced.

    Some routers of experts convert themselves in every call, for types that differ. Exports know
    where gradients are off, but not where the mode for inference is on.
    """
    with (
        patch.object(torch.nn.Module, "to", _converting()),
        patch.object(torch.inference_mode, "__enter__", _inference),
        patch.object(torch.inference_mode, "__exit__", _end_inference),
    ):
        yield


def _inference(mode: Any) -> None:
    mode.grad_mode = torch.set_grad_enabled(not mode.mode)


def _end_inference(mode: Any, *error: Any) -> None:
    torch.set_grad_enabled(mode.grad_mode.prev)


def _converting() -> Callable[..., torch.nn.Module]:
    """Return `Module.to`, for which a module that has the type already is as it is."""
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

    return to


@contextmanager
def noted_gradients(names: set[str]) -> Iterator[None]:
    """Add the names of functions that the module gives a gradient of its own.

    An export has the operators of their forward pass alone.
    """
    original: Any = vars(torch.autograd.Function)["apply"]

    def apply(function: type, *args: Any, **keywords: Any) -> Any:
        if not function.__module__.startswith("torch."):
            names.add(function.__name__)
        return original.__get__(None, function)(*args, **keywords)

    with patch.object(torch.autograd.Function, "apply", classmethod(apply)):
        yield
