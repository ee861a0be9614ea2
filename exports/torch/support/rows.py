"""The filled rows of experts: no others are computed, held or sent.

`Rows` stand for a tensor `[expert, token..., feature]`. The exchange of rows between ranks is
`Mesh.all_to_all_rows`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .routing import _shares

_grouped_mm: Callable[..., Tensor] | None = getattr(torch.nn.functional, "grouped_mm", None)


class Rows(NamedTuple):
    """Filled rows.

    `values` are the rows of the first expert in the order of its tokens, then those of the second;
    `mask`, `[expert, token...]`, says which rows are filled.
    """

    values: Tensor
    mask: Tensor

    @property
    def counts(self) -> Tensor:
        """The rows of each expert."""
        return self.mask.flatten(1).sum(1)

    @property
    def ends(self) -> Tensor:
        """The end of the rows of each expert."""
        return self.counts.cumsum(0).to(torch.int32)

    @property
    def places(self) -> Tensor:
        """The expert and the token of each row."""
        return self.mask.flatten(1).nonzero()


def _weighed(rows: Rows, chosen: Tensor, weights: tuple[Tensor, ...], start: int) -> Tensor:
    """Return rows times the weights of their choices."""
    if not weights:
        return rows.values
    own = _shares(chosen, weights, start, len(rows.mask))[rows.mask]
    return rows.values * own.to(rows.values.dtype)[:, None]


def dispatch(
    x: Tensor,
    chosen: Tensor,
    *weights: Tensor,
    experts: int = 1,
    imbalance: float = 1.0,
    ragged: bool = True,
    start_e: int = 0,
    size_e: int,
) -> Rows:
    mask = _shares(chosen, (), start_e, size_e)
    values = x.flatten(0, -2)[mask.flatten(1).nonzero()[:, 1]]
    return Rows(_weighed(Rows(values, mask), chosen, weights, start_e), mask)


def combine(y: Rows, chosen: Tensor, *weights: Tensor, start_e: int = 0, size_e: int) -> Tensor:
    values, tokens = _weighed(y, chosen, weights, start_e), y.mask.shape[1:]
    total = values.new_zeros(tokens.numel(), values.shape[1])
    return total.index_add_(0, y.places[:, 1], values).reshape(*tokens, -1)


def routing_weight_gradient(
    x: Tensor, y: Rows, chosen: Tensor, *, start_e: int = 0, size_e: int
) -> Tensor:
    products = (x.flatten(0, -2)[y.places[:, 1]] * y.values).sum(-1)
    found = products.new_zeros(y.mask.shape)
    found[y.mask] = products
    local = chosen - start_e
    inside = (local >= 0) & (local < size_e)
    return found.movedim(0, -1).gather(-1, local.clamp(0, size_e - 1)) * inside


def _is_grouped(values: Tensor, *widths: int) -> bool:
    """Return whether the device has a kernel for products of groups of such rows."""
    fits = values.is_cuda and values.dtype == torch.bfloat16
    return _grouped_mm is not None and fits and not any(width % 8 for width in widths)


def grouped_matmul(x: Rows, matrices: Tensor, *, transposed: bool = False) -> Rows:
    right = matrices.mT if transposed else matrices
    if _grouped_mm is not None and _is_grouped(x.values, *right.shape[1:]):
        return Rows(_grouped_mm(x.values, right, offs=x.ends), x.mask)
    parts = x.values.split(x.counts.tolist())
    found = torch.cat([part @ matrix for part, matrix in zip(parts, right, strict=True)])
    return Rows(found, x.mask)


def grouped_outer(x: Rows, y: Rows) -> Tensor:
    if _grouped_mm is not None and _is_grouped(x.values, x.values.shape[1], y.values.shape[1]):
        return _grouped_mm(x.values.mT, y.values, offs=x.ends)
    lengths = x.counts.tolist()
    pairs = zip(x.values.split(lengths), y.values.split(lengths), strict=True)
    return torch.stack([a.mT @ b for a, b in pairs])


def reduce_sum(x: Rows, *, axis: Sequence[int], keep_dims: bool = False) -> Tensor:
    """Sum the rows of each expert."""
    total = x.values.new_zeros(len(x.mask), x.values.shape[1])
    total.index_add_(0, x.places[:, 0], x.values)
    return total.reshape(len(x.mask), *(1,) * (len(axis) if keep_dims else 0), -1)


def slice(
    x: Rows, *, begin: Sequence[int], shape: Sequence[int], strides: Sequence[int] = ()
) -> Rows:
    """Cut the features of all rows."""
    step = strides[-1] if strides else 1
    end = begin[-1] + (shape[-1] - 1) * step + 1
    return Rows(x.values[:, begin[-1] : end : step], x.mask)


def pad(
    x: Rows,
    *,
    before: Sequence[int],
    shape: Sequence[int],
    between: Sequence[int] = (),
    value: float = 0.0,
) -> Rows:
    """Put the features of all rows into wider rows."""
    count, size = x.values.shape
    step = (between[-1] if between else 0) + 1
    values = x.values.new_full((count, shape[-1]), value)
    values[:, before[-1] : before[-1] + (size - 1) * step + 1 : step] = x.values
    return Rows(values, x.mask)


def apply(function: Callable[..., Tensor], *operands: Rows | Tensor, **attributes: Any) -> Rows:
    """Run a function of single elements on the rows; the tensors beside have a row an expert."""
    first = next(operand for operand in operands if isinstance(operand, Rows))

    def values(operand: Rows | Tensor) -> Tensor:
        if isinstance(operand, Rows):
            return operand.values
        if operand.ndim < 2:
            return operand
        return operand.flatten(0, -2).repeat_interleave(first.counts, 0)

    return Rows(function(*map(values, operands), **attributes), first.mask)
