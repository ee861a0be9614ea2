"""`flex_attention`, traced as the products, scores and masks that it computes.

PyTorch makes one kernel of it, and has no backward pass on CPUs. Here functions of scores and masks
are mapped over samples, heads, queries and keys by `torch.func.vmap`, as PyTorch's own unfused
implementation does.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F  # noqa: N812

from shardwright.frontends.torch.places import line_of_call
from shardwright.frontends.torch.private import flex_attention as flex
from shardwright.frontends.torch.private import untraced, without_functions
from shardwright.ir.errors import ModelError

Function = Callable[..., Any]


@contextmanager
def composed_attention() -> Iterator[None]:
    """Trace `flex_attention` as what it computes, until the end of the context."""
    with (
        patch.object(flex, "flex_attention_hop", _attention),
        patch.object(flex, "_validate_device", lambda *tensors: None),
        patch.object(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True),
    ):
        yield


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Function,
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the results, and the logarithms to base 2 of sums of exponentials and largest scores.

    Parameters
    ----------
    query, key, value : Tensor
        Samples, heads, positions and features; keys and values may have fewer heads or one sample.
    score_mod : callable
        The function of scores and their places.
    block_mask : tuple
        The parts of a `BlockMask`, the sizes of its blocks and its function last.
    scale : float
        What products are multiplied by.
    kernel_options : mapping
        Options of the kernel, which do not change results.
    """
    samples, heads, queries = query.shape[:3]
    key, value = (
        x.expand(samples, *x.shape[1:]).repeat_interleave(heads // x.shape[1], 1)
        for x in (key, value)
    )
    sizes = (samples, heads, queries, key.shape[2])
    mask = _mask(block_mask, sizes)
    wide = query.dtype if query.dtype == torch.float64 else torch.float32
    scores = (query @ key.transpose(-2, -1)).to(wide) * scale
    if score_mod is not flex._identity:
        scores = _of_all(score_mod, sizes, scores)
    if mask is not None:
        scores = torch.where(mask, scores, -torch.inf)
    if score_mod is flex._identity:
        found = F.scaled_dot_product_attention(query, key, value, mask, scale=scale)
    else:
        is_empty = (scores == -torch.inf).all(-1, keepdim=True)
        shares = torch.softmax(torch.where(is_empty, 0, scores), -1)
        found = torch.where(is_empty, 0, shares).to(query.dtype) @ value
    return found, scores.logsumexp(-1) / math.log(2), scores.amax(-1) / math.log(2)


def _mask(block_mask: tuple[Any, ...], sizes: tuple[int, ...]) -> Tensor | None:
    """Return the mask of all places, or none where nothing is masked.

    Raises
    ------
    ModelError
        If the blocks mask without a function, which PyTorch's implementations read differently.
    """
    *_, rows, columns, function = block_mask
    if function is not flex.noop_mask:
        read = zip(sizes, _read_by(function), strict=True)
        return _of_all(function, [n if is_read else 1 for n, is_read in read])
    if min(rows, columns) < flex._LARGE_SPARSE_BLOCK_SIZE:
        raise ModelError(
            "a `BlockMask` has no `mask_mod`, and its blocks mask only where PyTorch compiles it",
            line_of_call(),
            "give it the function of its mask",
        )
    return None


def _read_by(function: Function) -> list[bool]:
    """Return which of the four indices a function of a mask reads."""
    with untraced(), without_functions():
        traced = make_fx(function)(*(torch.zeros((), dtype=torch.int64) for _ in range(4)))
    return [bool(node.users) for node in traced.graph.nodes if node.op == "placeholder"]


def _of_all(function: Function, sizes: Any, *scores: Tensor) -> Tensor:
    """Return a function of all samples, heads, queries and keys, and of scores at them."""
    for axis in reversed(range(4)):
        axes = [0 if one == axis else None for one in range(4)]
        function = torch.func.vmap(function, (*(0 for _ in scores), *axes))
    found: Tensor = function(*scores, *(torch.arange(n) for n in sizes))
    return found
