"""What an export cannot trace: parts that convert themselves, inference, statistics, biases."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.nn.attention import bias as biases


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


@contextmanager
def without_caches(module: torch.nn.Module) -> Iterator[None]:
    """Let decoders of transformers hand on no keys and values.

    They serve the generation of text alone; no loss depends on them, and no export knows them.
    """
    configs = [vars(one).get("config") for one in module.modules()]
    caching = [one for one in configs if getattr(one, "use_cache", None) is True]
    for config in caching:
        config.use_cache = False
    try:
        yield
    finally:
        for config in caching:
            config.use_cache = True


@contextmanager
def traced_statistics() -> Iterator[None]:
    """Let covariances and least squares be traced as products.

    PyTorch's own read the sums of weights, and the rank of a matrix.
    """
    with (
        patch.object(torch, "cov", _covariance),
        patch.object(torch.Tensor, "cov", _covariance),
        patch.object(torch, "corrcoef", _correlation),
        patch.object(torch.Tensor, "corrcoef", _correlation),
        patch.object(torch.linalg, "lstsq", _least_squares),
    ):
        yield


@contextmanager
def plain_biases() -> Iterator[None]:
    """Let causal biases of attention, which are tensors of a class of their own, be masks."""
    with patch.object(biases, "CausalBias", _causal_mask):
        yield


def _causal_mask(variant: Any, queries: int, keys: int) -> torch.Tensor:
    last = keys - queries if variant == biases.CausalVariant.LOWER_RIGHT else 0
    return torch.ones(queries, keys, dtype=torch.bool).tril(last)


def _covariance(
    input: torch.Tensor,
    *,
    correction: int = 1,
    fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    weights = [w.to(rows.dtype) for w in (fweights, aweights) if w is not None]
    each = torch.ones_like(rows[0]) if not weights else prod(weights[1:], start=weights[0])
    total = each.sum()
    lost = each if aweights is None else each * aweights
    rest = (total - correction * lost.sum() / total).clamp(min=0)
    apart = rows - ((rows * each).sum(1) / total).unsqueeze(1)
    return ((apart @ (apart * each).mT.conj()) / rest).squeeze()


def _correlation(input: torch.Tensor) -> torch.Tensor:
    found = _covariance(input)
    if found.dim() == 0:
        return found / found
    spread = found.diagonal().real.sqrt()
    return (found / spread.unsqueeze(1) / spread).clip(-1, 1)


class _Solution(NamedTuple):
    """What is known of least squares whatever the rank is: the solution of the least norm."""

    solution: torch.Tensor
    residuals: None = None
    rank: None = None
    singular_values: None = None


def _least_squares(
    A: torch.Tensor,  # noqa: N803
    B: torch.Tensor,  # noqa: N803
    rcond: float | None = None,
    *,
    driver: str | None = None,
) -> _Solution:
    is_vector = B.dim() == 1 or (B.dim() == A.dim() - 1 and B.shape == A.shape[:-1])
    columns = B.unsqueeze(-1) if is_vector else B
    found = torch.linalg.pinv(A, rtol=rcond) @ columns
    return _Solution(found.squeeze(-1) if is_vector else found)


def _inference(mode: Any) -> None:
    mode.grad_mode = torch.set_grad_enabled(not mode.mode)


def _end_inference(mode: Any, *error: Any) -> None:
    torch.set_grad_enabled(mode.grad_mode.prev)


def _converting() -> Callable[..., torch.nn.Module]:
    """Return `Module.to`, for which a module that has the type already is as it is."""
    original: Any = torch.nn.Module.to

    def to(module: torch.nn.Module, *args: Any, **keywords: Any) -> torch.nn.Module:
        changed = any(_changes(tensor, args, keywords) for tensor in _tensors_of(module))
        return original(module, *args, **keywords) if changed else module

    return to


def _tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield the parameters and buffers of a module."""
    yield from module.parameters()
    yield from module.buffers()


def _changes(tensor: torch.Tensor, args: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Return whether `Module.to` gives a tensor another type or device."""
    if keywords.get("memory_format") is not None:
        return True
    moved = tensor.new_empty(0).to(*args, **keywords)
    is_cast = tensor.is_floating_point() and moved.dtype != tensor.dtype
    return is_cast or moved.device != tensor.device
