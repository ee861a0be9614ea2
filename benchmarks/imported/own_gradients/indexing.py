"""Lookups, scatters, sorting, and writes to views."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from own_gradients.layers import Cases, Net, forward


def _diagonal_written(m: Net, x: Tensor) -> Tensor:
    h = m.a(x) * 1
    h.fill_diagonal_(0.5)
    h[torch.arange(8), torch.arange(8).flip(0)] += x[:, 0]
    return m.b(h)


def _masked_assignment(m: Net, x: Tensor) -> Tensor:
    h = m.a(x) * 1
    h[h < 0] = 0.1
    h[x[:, 0] > 0, :2] = 2.0
    h[:, [1, 3]] *= -1
    return m.b(h)


def _boolean_rows(m: Net, x: Tensor) -> Tensor:
    keep = torch.tensor([True, False, True, True, False, True, True, True])
    h = m.a(x)
    out = torch.zeros_like(h)
    out[keep] = h[keep] * 2
    return m.b(out)


def _ellipsis(m: Net, x: Tensor) -> Tensor:
    h = m.a(x).view(2, 4, 2, 4)
    picked = h[..., None, [0, 1], 1:3][:, ::2, 0]
    h = h[:, torch.tensor([[3, 0], [1, 1]]), :, torch.tensor([0, 2])]
    return m.b(h.flatten().view(2, 8).repeat(4, 1)) + picked.mean()


def _negative_steps(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    h = torch.cat([h[-3:], h[:-3]])[:, torch.arange(7, -1, -1)]
    rows = h.index_select(0, torch.tensor([7, 7, 0, 1, 2, 3, 4, 5]))
    return m.b(rows.swapaxes(0, 1).movedim(0, 1))


def _overlapping_views(m: Net, x: Tensor) -> Tensor:
    frames = m.a(x).flatten().unfold(0, 8, 4)
    back = F.fold(frames.T[None], (1, 64), (1, 8), stride=(1, 4))
    return m.b(back.view(8, 8))


def _strided(m: Net, x: Tensor) -> Tensor:
    h = m.a(x).contiguous()
    return m.b(h.as_strided((8, 8), (8, 1)).as_strided((7, 8), (8, 1), 4).sum(0).expand(8, 8))


def _slices_in_place(m: Net, x: Tensor) -> Tensor:
    h = m.a(x) * 1
    h.narrow(1, 4, 4).add_(h.narrow(1, 0, 4).clone().sin())
    h[:, 4:].mul_(h[:, :4].clone())
    return m.b(h)


def _chained_views(m: Net, x: Tensor) -> Tensor:
    h = m.a(x).clone()
    view = h.view(4, 16).t()[3:9]
    view.copy_(view.clone().cos())
    h.unsqueeze(0).squeeze(0).narrow(1, 0, 1).zero_()
    return m.b(h)


def _swapped_rows(m: Net, x: Tensor) -> Tensor:
    h = m.a(x).clone()
    h[0], h[1] = h[1].clone(), h[0].clone()
    h[2:4], h[4:6] = h[4:6].clone(), h[2:4].clone()
    return m.b(h)


def _sorted(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    values, places = h.sort(1, descending=True)
    back = torch.empty_like(values).scatter_(1, places, values.cumsum(1))
    return m.b(back + h.gather(1, h.argsort(1).argsort(1)))


def _segments(m: Net, x: Tensor) -> Tensor:
    groups = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2])
    h = m.a(x)
    top = torch.full((3, 8), -math.inf, dtype=x.dtype).index_reduce(0, groups, h, "amax")
    mean = torch.zeros(3, 8, dtype=x.dtype).scatter_reduce(
        0, groups[:, None].expand(8, 8), h, "mean", include_self=False
    )
    return m.b((top - mean)[groups])


def _one_hot(m: Net, x: Tensor) -> Tensor:
    kind = (x[:, 0] * 2).long().clamp(0, 3)
    table = torch.eye(4, dtype=x.dtype)
    return m.b(torch.cat([F.one_hot(kind, 4), table[kind]], 1) * m.a(x))


def _triangle(m: Net, x: Tensor) -> Tensor:
    rows, columns = torch.triu_indices(8, 8, 1)
    h = m.a(x)
    pairs = (h[rows] * h[columns]).sum(-1)
    out = torch.zeros(8, 8, dtype=x.dtype)
    out[rows, columns] = pairs
    return m.b(out + out.T)


_TWICE = torch.tensor([[0, 2, 2, 7], [1, 1, 1, 0]])


def _scattered_products(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    rows = torch.tensor([0, 0, 1, 3, 3, 3, 5, 7])
    found = torch.ones_like(h).scatter_reduce(0, rows[:, None].expand(8, 8), h, "prod")
    found = found + h.scatter_reduce(1, rows.expand(8, 8), h.sin(), "mean")
    return m.b(found + h.index_reduce(0, rows, h.cos(), "prod", include_self=False))


def _filled(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    found = h.index_fill(1, torch.tensor([2, 5, 2]), 0.7).index_copy(0, torch.tensor([6, 1]), h[:2])
    found = found.masked_scatter(x[:, :1] > 0.5, h.flip(0)).scatter(1, torch.tensor([[3]]), 2.0)
    return m.b(
        found
        + torch.zeros(8, 8)
        .double()
        .put(torch.tensor([[0, 9], [63, 9]]), h[:2, :2], accumulate=True)
    )


def _taken(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    found = h.take(torch.tensor([0, 63, 5, 5, -1, 8, 8, 1])) + h.gather(0, _TWICE.repeat(1, 2)).sum(
        0
    )
    found = found + torch.take_along_dim(h, h.argsort(1, descending=True), 1).cumsum(1)
    return m.b(found + h.take_along_dim(torch.tensor([[1], [1]]).repeat(4, 1), 1))


def _scatter_parts(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    found = torch.diagonal_scatter(h, h[0, :6], 2).slice_scatter(h[:2], 0, 1, 7, 3)
    found = (
        found.select_scatter(h[:, 3], 1, -2) + torch.diag_embed(h[0, :7], 1) + torch.diagflat(h[1])
    )
    return m.b(found + torch.tril(h, -1) - torch.triu(h, 2) + h.diagonal(1).sum())


def _put_twice(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    rows = torch.tensor([1, 1, 4, 1])
    found = h.index_put((rows, torch.tensor([0, 0, 2, 0])), h[:4, 0], accumulate=True)
    found = found.index_add(1, torch.tensor([0, 0, 7]), h[:, :3], alpha=-2)
    return m.b(torch.index_add(found, 0, rows, h[4:].exp()))


def _written_rows(m: Net, x: Tensor) -> Tensor:
    h = m.a(x) * 1
    h[torch.tensor([0, 3])] = h[torch.tensor([3, 0])].clone()
    h[-1, ::3] = 1.5
    h[..., 1] += x.sum(1)
    h[1:3][:, [0, 2]] = 7.0  # a copy is written
    h[torch.arange(8) % 2 == 0] *= h[torch.arange(8) % 2 == 0]
    h.diagonal().copy_(x[:, 0])
    return m.b(h)


def _transposed_view(m: Net, x: Tensor) -> Tensor:
    h = m.a(x) * 1
    view = h.view(2, 4, 8).permute(2, 0, 1)[1::2]
    view.add_(view.clone().sin())
    h.view(-1)[3:40:5].fill_(0.2)
    h.unflatten(1, (2, 4)).select(1, 1).mul_(0.5)
    part = h.narrow(1, 4, 4)[:4]
    part.sub_(part.mean(0))
    return m.b(h)


def _expanded_read(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    wide = h[:, None].expand(8, 3, 8).clone()
    wide[:, 1].neg_()
    wide[:, 2].clamp_(min=0)
    return m.b(wide.sum(1) + h.expand_as(h).reshape(8, 8).swapaxes(0, 1).contiguous().T)


def _set_in_a_loop(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    table = torch.zeros(9, 8).double()
    for i in range(8):
        table[i + 1] = torch.tanh(table[i] * 0.5 + h[i])
    return m.b(table[1:] + table[:-1].flip(0))


def _dynamic_programming(m: Net, x: Tensor) -> Tensor:
    """Soft alignment of two sequences (soft dynamic time warping)."""
    h = m.a(x)
    cost = torch.cdist(h[:4], h[4:])
    best = torch.full((5, 5), 1e6).double()
    best[0, 0] = 0.0
    for i in range(1, 5):
        for j in range(1, 5):
            before = torch.stack([best[i - 1, j], best[i, j - 1], best[i - 1, j - 1]])
            best[i, j] = cost[i - 1, j - 1] - 0.5 * torch.logsumexp(-before / 0.5, 0)
    return m.b(h) + best[4, 4]


def _repeated(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    found = h.repeat_interleave(torch.tensor([2, 0, 1, 3, 0, 1, 0, 1]), 0)
    found = found + h.repeat(1, 2)[:, 1::2] + h.tile(2, 1)[::2] + h.roll((3, -1), (0, 1))
    return m.b(found + torch.stack(h.unbind(1), 0).mT + torch.hstack([h[:, :4], h[:, 4:]]))


def _by_nonzero(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    pattern = torch.tensor([[0, 1], [2, 0]])
    rows, columns = pattern.nonzero(as_tuple=True)
    return m.b(h + h[rows, columns].sum() + h[torch.where(torch.tensor([True, False] * 4))].mean())


def _unique(m: Net, x: Tensor) -> Tensor:
    kinds = torch.tensor([3, 1, 3, 0, 1, 1, 0, 3])
    _, where, counts = kinds.unique(return_inverse=True, return_counts=True)
    sums = torch.zeros(3, 8).double().index_add(0, where, m.a(x))
    return m.b((sums / counts[:, None])[where])


def _sorted_lists(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    order = h[:, 0].argsort(stable=True)
    ranks = torch.empty_like(order).scatter_(0, order, torch.arange(8))
    values, places = torch.topk(h, 3, dim=0, largest=False, sorted=True)
    return m.b(
        h[order] + ranks[:, None] * h + h.gather(0, places).sum(0) + values.mean(0) + h.msort()
    )


INDEXING: Cases = {
    "diagonal_written": forward(_diagonal_written),
    "masked_assignment": forward(_masked_assignment),
    "rows_by_a_mask": forward(_boolean_rows),
    "ellipsis_and_lists": forward(_ellipsis),
    "negative_steps": forward(_negative_steps),
    "overlapping_frames": forward(_overlapping_views),
    "as_strided": forward(_strided),
    "slices_in_place": forward(_slices_in_place),
    "chained_views": forward(_chained_views),
    "swapped_rows": forward(_swapped_rows),
    "sorted_and_back": forward(_sorted),
    "segments": forward(_segments),
    "one_hot_by_an_eye": forward(_one_hot),
    "pairs_of_a_triangle": forward(_triangle),
    "scattered_products": forward(_scattered_products),
    "filled_and_copied": forward(_filled),
    "taken_twice": forward(_taken),
    "parts_scattered": forward(_scatter_parts),
    "put_twice": forward(_put_twice),
    "rows_written": forward(_written_rows),
    "transposed_view_written": forward(_transposed_view),
    "expanded_and_written": forward(_expanded_read),
    "table_set_in_a_loop": forward(_set_in_a_loop),
    "soft_time_warping": forward(_dynamic_programming),
    "repeated_by_counts": forward(_repeated),
    "places_of_a_constant": forward(_by_nonzero),
    "unique_of_a_constant": forward(_unique),
    "sorted_stably": forward(_sorted_lists),
}
