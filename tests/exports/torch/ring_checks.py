"""Attention of a split sequence on four processes, against autograd; see `processes.py`."""

from functools import partial

import torch
from torch.nn import functional as F  # noqa: N812

from shardwright.exports.torch.support import rings

# Length of queries and of keys, heads of queries and of keys, causal, balanced.
SHAPES = [
    (16, 16, 2, 2, True, True),
    (13, 13, 4, 2, True, True),
    (11, 9, 4, 1, True, False),
    (8, 12, 2, 2, False, False),
]


def check_rings(mesh, close):
    """Check each operator and its gradient, along axes in every order, on uneven parts."""
    for axes in (("x",), ("x", "y"), ("y", "x")):
        for shape in SHAPES:
            _check(mesh, axes, shape, close)


def _check(mesh, axes, shape, close):
    queries, keys, heads, of_keys, causal, balanced = shape
    torch.manual_seed(0)
    sizes = ((heads, queries, 6), (of_keys, keys, 6), (of_keys, keys, 5))
    q, k, v = (torch.randn(2, *size, dtype=torch.float64, requires_grad=True) for size in sizes)
    dy = torch.randn(2, heads, queries, 5, dtype=torch.float64)
    mask = torch.arange(keys) <= torch.arange(queries)[:, None] if causal else None
    y = F.scaled_dot_product_attention(q, k, v, mask, scale=0.3, enable_gqa=True)
    wanted = torch.autograd.grad(y, (q, k, v), dy)
    splits = [(), (), axes, ()]
    own = partial(mesh.own, splits=splits)
    options = {"axes": axes, "causal": causal, "scale": 0.3, "balanced": balanced}
    options["whole_s"] = queries
    parts = [own(x.detach()) for x in (q, k, v)]
    found, logs = rings.ring_attention(mesh, *parts, keys=keys, **options)
    close(found, own(y.detach()))
    gradients = rings.ring_attention_gradient(
        mesh, own(dy), *parts, found, logs, keys=keys, **options
    )
    for part, gradient in zip(gradients, wanted, strict=True):
        close(part, own(gradient))
    if queries == keys:
        wholes = (parts[0], k.detach(), v.detach())
        close(rings.balanced_attention(mesh, *wholes, **options), own(y.detach()))
        dq, *of_keys = rings.balanced_attention_gradient(mesh, own(dy), *wholes, **options)
        close(dq, own(wanted[0]))
        for part, gradient in zip(of_keys, wanted[1:], strict=True):
            close(mesh.all_reduce(part, axes), gradient)
