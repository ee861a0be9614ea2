"""Operators of PyTorch, a module per family: results and gradients are autograd's."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from shardwright.frontends.torch import import_module  # noqa: E402

Many = Any


def elementwise(w: Any, x: Any) -> Many:
    half = w.sigmoid()
    yield from (half.acos(), half.asin(), w.atan(), w.cos(), w.sin(), half.tan(), w.cosh())
    yield from (w.erf(), w.exp(), w.expm1(), half.log(), half.log1p(), half.rsqrt(), half.sqrt())
    yield from (w.tanh(), w.abs(), -w, half.reciprocal(), w.square(), w**3, half**w, 2.0**w)
    yield from (
        w + x[:1],
        3 - w,
        w * x[:, :1],
        w / 7,
        x / half,
        w.detach() // 0.3,
        w % 0.7,
        w.fmod(0.7),
    )
    yield from (torch.maximum(w, x), torch.minimum(w, x), w.clamp(-0.5, 0.5), w.clamp(min=x))
    yield from (torch.where(w > x, w, 0.5), w.masked_fill(x > 0, 2.0), torch.addcmul(w, x, half))
    yield from (F.gelu(w), F.gelu(w, approximate="tanh"), F.silu(w), F.elu(w, 0.7), F.selu(w))
    yield from (F.hardtanh(w), F.hardtanh(w, -0.2, 0.3), F.softplus(w), F.elu(w), F.leaky_relu(w))
    yield from (F.softplus(w, 2.0, 1.0), F.logsigmoid(w), F.hardswish(w), F.hardsigmoid(w))
    yield from (F.leaky_relu(w, 0.2), F.mish(w), F.relu6(w), F.glu(w), torch.lerp(w, x, 0.3))
    yield from (
        torch.atan2(w, x),
        (w > x) & (x > 0),
        w.isnan() | ~(x == 0),
        torch.logical_xor(w, x),
    )
    yield from (w.detach() * w, w.float().double(), w.round(), w.floor(), w.ceil(), w.sign())


def shapes(w: Any, x: Any) -> Many:
    yield from (w.t(), w.reshape(2, 2, 6).permute(2, 0, 1), w.view(-1), w[1:3, ::2], w[:, -1])
    yield from (w[None].expand(3, 4, 6), w.unsqueeze(1).squeeze(1), w.flatten(), w.repeat(2, 1))
    yield from (torch.cat([w, x, w[:, :2].repeat(1, 3)]), torch.stack([w, x], 1), w.flip(0, 1))
    yield from (*w.split([1, 2, 3], 1), *w.chunk(2, 0), *w.unbind(0), w.roll((1, -2), (0, 1)))
    yield from (F.pad(w, (1, 2, 0, 3), value=0.5), F.pad(w, (-1, 1)), w.tril(), w.triu(1))
    yield from (
        w.repeat_interleave(2, 1),
        w.movedim(0, 1),
        torch.zeros_like(w) + w,
        w.narrow(1, 2, 3),
    )
    yield from (w.unflatten(1, (2, 3)), w[..., 6:].sum() + w, torch.full_like(w, 2) * w)


def reductions(w: Any, x: Any) -> Many:
    yield from (w.sum(), w.sum(0), w.mean(1, keepdim=True), w.prod(1), w.amax(1), w.amin(0))
    yield from (w.max(1).values, w.min(0).values, w.argmax(1), w.argmin(), w.max(), w.var(1))
    yield from (w.std(0, unbiased=False), w.norm(dim=1), w.abs().norm(1), w.logsumexp(1))
    yield from (w.softmax(0), w.log_softmax(1), w.cumsum(0), w.topk(2, 1).values, w.sort(1).values)
    yield from ((w > 0).any(1), (w > 0).all(), w.diff(dim=1), torch.linalg.vector_norm(w, 3.0))
    whole = (x * 4).round().detach()
    yield from (x.histc(5, -1, 1), x.histc(7, -0.3, 2), whole.histc(8, -4, 4), whole.histc(4, 0, 3))


def positions(w: Any, x: Any) -> Many:
    index = torch.tensor([[0, 2], [3, -1]])
    rows = torch.argmax(x, 0)[:4] % 4
    yield from (w[index], w[rows], w[:, [1, 4]], w[[0, 1], [2, 3]], w.index_select(1, rows))
    yield from (w.gather(1, rows[:, None]), F.embedding(rows, w, padding_idx=2), F.one_hot(rows, 4))
    yield from (w.index_add(0, rows, x), w.index_put((rows,), x), w.scatter(1, rows[:, None], 0.5))
    counted = torch.arange(3)
    yield from (F.embedding(counted[None], w), F.embedding(counted.flip(0), w))
    yield from (
        F.embedding_bag(rows.view(2, 2), w, mode="mean"),
        torch.bucketize(w, x[0].sort()[0]),
    )


def products(w: Any, x: Any) -> Many:
    yield from (w @ x.t(), w @ x[0], x[0] @ w.t(), torch.einsum("ij,kj->ik", w, x), w.mv(x[0]))
    yield from (torch.addmm(x[0, :4], w, x.t(), beta=0.5, alpha=2), torch.outer(w[0], x[0]))
    heads = w.view(2, 2, 3, 2).transpose(1, 2)  # joined rows: [sample token, feature]
    yield from (torch.addmm(x[0, :4], heads.reshape(6, 4), x[:, :4]), heads.reshape(6, 4).tanh())
    yield torch.addmm(x[0, :4], w.view(1, 1, 24).reshape(1, 24), x.reshape(24, 1).expand(24, 4))
    image = w.view(1, 2, 3, 4)
    kernel = x.view(4, 2, 3, 1)
    yield from (F.conv2d(image, kernel, padding="same"), F.conv2d(image, kernel[:2, :1], groups=2))
    yield F.conv_transpose2d(image, kernel.transpose(0, 1), stride=2, output_padding=1, padding=1)
    yield from (F.conv1d(w, x[:, :3].reshape(1, 4, 3)), F.avg_pool2d(image, 2, 1, 1))
    yield from (F.max_pool2d(image, 2, ceil_mode=True), F.adaptive_avg_pool2d(image, (1, 2)))
    yield from (
        F.interpolate(image, scale_factor=2.0),
        F.interpolate(image, (5, 6), mode="bilinear"),
    )


def losses(w: Any, x: Any) -> Many:
    label = torch.argmax(x, 1)
    weight = x[0].sigmoid()
    ignored = torch.where(label > 2, label, -100)
    yield from (F.cross_entropy(w, label), F.cross_entropy(w, ignored, reduction="sum"))
    yield from (F.cross_entropy(w, label, weight, label_smoothing=0.0), F.cross_entropy(w, ignored))
    yield from (F.cross_entropy(w, x.softmax(1)), F.nll_loss(w, label), F.mse_loss(w, x))
    yield from (F.l1_loss(w, x), F.smooth_l1_loss(w, x, beta=0.3), F.huber_loss(w, x, delta=0.4))
    yield from (F.binary_cross_entropy_with_logits(w, x.sigmoid()), F.layer_norm(w, (6,)))
    yield from (F.group_norm(w, 3), F.rms_norm(w, (6,)), F.batch_norm(w, None, None, training=True))
    yield from (F.normalize(w, dim=1), F.cosine_similarity(w, x))


def attention(w: Any, x: Any) -> Many:
    q, k, v = (t.view(1, 4, 3, 2) for t in (w, x, w * x))
    mask = x[:3, :3] > -0.5
    yield from (
        F.scaled_dot_product_attention(q, k, v),
        F.scaled_dot_product_attention(q, k, v, mask),
    )
    yield F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
    yield F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)
    yield F.scaled_dot_product_attention(q[0], k[0], v[0], attn_mask=x[:3, :3])


FAMILIES = (elementwise, shapes, reductions, positions, products, losses, attention)


class Family(nn.Module):
    """The sum of the squares of all results, after them."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(4, 6, dtype=torch.float64))

    def forward(self, x: Any) -> Any:
        results = list(self.function(self.weight, x))
        loss = sum(r.double().square().sum() for r in results)
        return loss, *results


@pytest.mark.parametrize("function", FAMILIES, ids=lambda function: function.__name__)
def test_results_and_gradients_are_those_of_pytorch(function: Any) -> None:
    torch.manual_seed(1)
    module, x = Family(function), torch.randn(4, 6, dtype=torch.float64)
    imported = import_module(module, (x,), loss="none", outputs=True)
    feed = compare.arrays_of(imported, (x,))
    found = compare.run(imported.graph, imported.initial, feed, list(imported.graph.outputs))
    right = [tensor.detach().numpy() for tensor in module(x)]
    for i, (name, expected) in enumerate(zip(imported.graph.outputs, right, strict=True)):
        array = found[name]
        assert array.dtype == expected.dtype, (i, name)
        np.testing.assert_allclose(array, expected, rtol=1e-9, atol=1e-11, err_msg=f"{i} {name}")
    step = compare.gradients_differ(module, (x,), imported)
    assert step.gradient < 1e-9


def test_recurrent_networks_are_unrolled() -> None:
    torch.manual_seed(0)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.LSTM(3, 4, bidirectional=True, batch_first=True)
            self.second = nn.GRU(8, 4, num_layers=2)

        def forward(self, x: Any) -> Any:
            y, (_, c) = self.first(x)
            z, h = self.second(y)
            return z.square().mean() + h.mean() + c.square().mean()

    x = torch.randn(2, 3, 3, dtype=torch.float64)
    found = compare.gradients_differ(Network().double(), (x,))
    assert max(found.loss, found.gradient) < 1e-9
    assert not found.missing
