"""The filled rows of experts: no others are computed, held or sent.

`Rows` stand for a tensor `[expert, token..., feature]`. The exchange of rows between ranks is
`Mesh.all_to_all_rows`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .pointwise import _is_recorded, _once
from .shared.routing import _shares

_grouped_mm: Callable[..., Tensor] | None = getattr(torch.nn.functional, "grouped_mm", None)


class Rows(NamedTuple):
    """Filled rows.

    `values` are the rows of the first expert in the order of its tokens, then those of the second;
    `mask`, `[expert, token...]`, says which rows are filled. Where the choices say how many there
    are at most, and some fill none, rows that nothing reads are last: so no count is waited for.
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
        """The expert and the token of each row; -1 of the rows that nothing reads."""

        def found(mask: Tensor) -> Tensor:
            return torch.nonzero_static(mask.flatten(1), size=len(self.values))

        return _once(self.mask, len(self.values), found)


def _filled(mask: Tensor, most: int | None) -> Tensor:
    """Return the tokens of the filled rows; of `most` rows where that is known."""
    if most is None:
        return mask.flatten(1).nonzero()[:, 1]
    return Rows(mask.new_empty(most, 0), mask).places[:, 1]


def _weighed(rows: Rows, chosen: Tensor, weights: tuple[Tensor, ...], start: int) -> Tensor:
    """Return rows times the weights of their choices."""
    if not weights:
        return rows.values
    own = _shares(chosen, weights, start, len(rows.mask)).flatten(1)
    expert, token = rows.places.unbind(1)
    return rows.values * own[expert, token].to(rows.values.dtype)[:, None]


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
    mask = _once(chosen, (start_e, size_e), lambda own: _shares(own, (), start_e, size_e))
    most = chosen.numel() if size_e == experts else None
    values = x.flatten(0, -2)[_filled(mask, most)]
    return Rows(_weighed(Rows(values, mask), chosen, weights, start_e), mask)


def combine(y: Rows, chosen: Tensor, *weights: Tensor, start_e: int = 0, size_e: int) -> Tensor:
    values, tokens = _weighed(y, chosen, weights, start_e), y.mask.shape[1:]
    return _summed(values, y.places[:, 1], tokens.numel()).reshape(*tokens, -1)


def _summed(values: Tensor, places: Tensor, count: int) -> Tensor:
    """Return the sums of the rows at each place; rows at -1 are left out."""
    total = values.new_zeros(count + 1, values.shape[1])
    return total.index_add_(0, torch.where(places < 0, count, places), values)[:count]


def routing_weight_gradient(
    x: Tensor, y: Rows, chosen: Tensor, *, start_e: int = 0, size_e: int
) -> Tensor:
    expert, token = y.places.unbind(1)
    products = (x.flatten(0, -2)[token] * y.values).sum(-1)
    tokens = y.mask[0].numel()
    places = torch.where(expert < 0, -1, expert * tokens + token)
    found = _summed(products[:, None], places, y.mask.numel()).reshape(y.mask.shape)
    local = chosen - start_e
    inside = (local >= 0) & (local < size_e)
    return found.movedim(0, -1).gather(-1, local.clamp(0, size_e - 1)) * inside


def _is_grouped(values: Tensor, *widths: int) -> bool:
    """Return whether the device has a kernel for products of groups of such rows."""
    fits = values.dtype == torch.bfloat16 and (values.is_cuda or _is_recorded())
    return _grouped_mm is not None and fits and not any(width % 8 for width in widths)


def grouped_matmul(x: Rows, matrices: Tensor, *, transposed: bool = False) -> Rows:
    right = matrices.mT if transposed else matrices
    if _grouped_mm is not None and _is_grouped(x.values, *right.shape[1:]):
        return Rows(_grouped_mm(x.values, right, offs=x.ends), x.mask)
    *parts, rest = _parts(x.values, x.counts)
    found = [part @ matrix for part, matrix in zip(parts, right, strict=True)]
    return Rows(torch.cat([*found, rest.new_zeros(len(rest), right.shape[-1])]), x.mask)


def _parts(values: Tensor, counts: Tensor) -> tuple[Tensor, ...]:
    """Return the rows of each expert, and those that nothing reads."""
    lengths = counts.tolist()
    return values.split([*lengths, len(values) - sum(lengths)])


def grouped_outer(x: Rows, y: Rows) -> Tensor:
    if _grouped_mm is not None and _is_grouped(x.values, x.values.shape[1], y.values.shape[1]):
        return _grouped_mm(x.values.mT, y.values, offs=x.ends)
    parts, others = (_parts(rows.values, x.counts)[:-1] for rows in (x, y))
    return torch.stack([a.mT @ b for a, b in zip(parts, others, strict=True)])


def reduce_sum(x: Rows, *, axis: Sequence[int], keep_dims: bool = False) -> Tensor:
    """Sum the rows of each expert."""
    total = _summed(x.values, x.places[:, 0], len(x.mask))
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
        return operand.flatten(0, -2)[first.places[:, 0]]

    return Rows(function(*map(values, operands), **attributes), first.mask)
