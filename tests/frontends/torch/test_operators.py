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
    yield from (
        torch.special.i0(w),
        torch.special.i0e(w),
        torch.special.i1(w),
        torch.special.i1e(w),
    )
    yield from (torch.digamma(half), torch.polygamma(2, half), torch.ldexp(w, torch.arange(6)))
    yield from (torch.hypot(w, x), torch.copysign(w, x), torch.copysign(x, -2.0), F.rrelu(w))
    yield from (w.detach() * w, w.float().double(), w.round(), w.floor(), w.ceil(), w.sign())
    yield from (half.log2(), half.log10(), w.exp2(), (w * 0) ** 0)
    whole = (x * 9).long()
    yield from (torch.div(whole, 4, rounding_mode="trunc"), torch.div(-7, whole + 40))


def shapes(w: Any, x: Any) -> Many:
    yield from (w.t(), w.reshape(2, 2, 6).permute(2, 0, 1), w.view(-1), w[1:3, ::2], w[:, -1])
    yield from (w[None].expand(3, 4, 6), w.unsqueeze(1).squeeze(1), w.flatten(), w.repeat(2, 1))
    yield from (torch.cat([w, x, w[:, :2].repeat(1, 3)]), torch.stack([w, x], 1), w.flip(0, 1))
    yield from (*w.split([1, 2, 3], 1), *w.chunk(2, 0), *w.unbind(0), w.roll((1, -2), (0, 1)))
    yield torch.cat([part.exp() for part in w.split([0, 4, 2], 1)], 1)
    yield from (F.pad(w, (1, 2, 0, 3), value=0.5), F.pad(w, (-1, 1)), w.tril(), w.triu(1))
    yield from (
        w.repeat_interleave(2, 1),
        w.movedim(0, 1),
        torch.zeros_like(w) + w,
        w.narrow(1, 2, 3),
    )
    yield from (w.unflatten(1, (2, 3)), w[..., 6:].sum() + w, torch.full_like(w, 2) * w)
    yield from (w.unfold(1, 3, 2), w.unfold(0, 2, 2), w.roll(5), w.diagonal(), w.diagonal(-1))
    cube = w.view(2, 3, 4)
    yield from (cube.diagonal(1, 2, 0), F.pad(cube, (2, 1), mode="reflect"))
    yield from (F.pad(cube[None], (0, 2, 1, 1), mode="replicate"), F.pad(cube, (3, 1), "circular"))


def reductions(w: Any, x: Any) -> Many:
    yield from (w.sum(), w.sum(0), w.mean(1, keepdim=True), w.prod(1), w.amax(1), w.amin(0))
    yield from (w.max(1).values, w.min(0).values, w.argmax(1), w.argmin(), w.max(), w.var(1))
    yield from (*torch.var_mean(w, 1), *torch.std_mean(w, (0, 1), correction=0, keepdim=True))
    yield from (w.std(0, unbiased=False), w.norm(dim=1), w.abs().norm(1), w.logsumexp(1))
    yield from (w.softmax(0), w.log_softmax(1), w.cumsum(0), w.topk(2, 1).values, w.sort(1).values)
    yield from (
        (w > 0).any(1),
        (w > 0).all(),
        w.diff(dim=1),
        w.diff(2, 0, w[:1] * 2, x),
        torch.linalg.vector_norm(w, 3.0),
    )
    yield from (w.cummax(1).values, w.cummin(0).values, w.median(1).values, w.median())
    yield from (w.kthvalue(2, 0).values, w.kthvalue(5).indices, w.sort(1, descending=True).indices)
    gaps, steps = w.masked_fill(w > 0.5, torch.nan), (w * 2).round().detach() + 0 * w
    yield from (gaps.nanmedian(), *gaps.nanmedian(0), gaps.nanmedian(1, keepdim=True).values)
    yield from (gaps.sum(1, keepdim=True).add(gaps)[:1].nanmedian(1).values.isnan(), *w.mode(1))
    yield from (*steps.mode(0), *steps.mode(1, keepdim=True), (steps * w).mode().values)
    none = w.masked_fill(x > -9, 0)  # equal elements, and roots of zero
    yield from (none.norm(dim=1), none.std(0), none.amax(1), none.max(), none.logsumexp(0))
    yield from (none.cummax(0).values, torch.cdist(w, w), w.relu().amin(1), w.relu().min(1).values)
    yield (x[:2].abs().log() * 0 - torch.inf).logsumexp(0) * 0 == 0
    whole = (x * 4).round().detach()
    often, weight = torch.tensor([1, 0, 2, 3, 1, 1]), x[0].sigmoid()
    yield from (torch.cov(w), torch.cov(w[0]), w.cov(correction=0, fweights=often, aweights=weight))
    yield from (torch.cov(w, aweights=weight), torch.corrcoef(w), w.T.corrcoef()[1:, 0])
    yield from (F.pdist(w, p) for p in (1.0, 2.0, torch.inf))
    yield from (x.histc(5, -1, 1), x.histc(7, -0.3, 2), whole.histc(8, -4, 4), whole.histc(4, 0, 3))


def special_points(w: Any, x: Any) -> Many:
    """Equal elements, zeros, and numbers that are none; one is added, lest a cotangent is zero."""
    zero = w - w.detach()
    a = zero + torch.tensor([-1.0, 0, 2, 0.5, 0, -3])
    b = zero + torch.tensor([0.0, 0, 2, -1, 3, -3])
    size, none = b.abs(), torch.where(x > 0, torch.nan, a)
    results = [torch.max(a, b), torch.min(b, a.detach()), torch.fmax(none, b), torch.fmin(b, none)]
    results += [size**size, a.abs() ** b.abs().detach(), a.cumprod(1), b.flip(1).cumprod(0)]
    results += [torch.xlogy(a, size + 1), torch.special.xlog1py(b, size), a.sinc(), a.median()]
    results += [F.leaky_relu(a, -0.5), F.elu(a, -0.3), torch.atan2(a, b), torch.cdist(a, a, p=3)]
    results += [zero.norm(p, 1) for p in (0.5, 1.5, 3)] + [b.norm(p, 1) for p in (0.5, 1.5)]
    share = b.clamp(0, 1)
    results += [F.binary_cross_entropy(share, x.sigmoid(), reduction="none"), b.relu().sqrt()]
    results += [F.binary_cross_entropy(w.sigmoid(), share, x.abs()), F.hardtanh(b, 0, 2).sqrt()]
    whole = x.long()
    results += [
        torch.bucketize(none.detach(), x[0].sort()[0], right=right) for right in (True, False)
    ]
    results += [torch.isin(whole, torch.tensor([0.5, 1.0])), torch.isin(x, x[0, :2])]
    other = whole.roll(1) * 3
    results += [whole >> 1, whole << whole.abs(), torch.gcd(whole, other), whole.lcm(other)]
    yield from (r.nan_to_num(7.0).double() + 1 for r in results)


def positions(w: Any, x: Any) -> Many:
    index = torch.tensor([[0, 2], [3, -1]])
    rows = torch.argmax(x, 0)[:4] % 4
    yield from (w[index], w[rows], w[:, [1, 4]], w[[0, 1], [2, 3]], w.index_select(1, rows))
    yield from (w.gather(1, rows[:, None]), F.embedding(rows, w, padding_idx=2), F.one_hot(rows, 4))
    yield from (w.index_add(0, rows, x), w.index_put((rows,), x), w.scatter(1, rows[:, None], 0.5))
    yield from (w.index_add(1, rows, x[:, :4], alpha=2), w.scatter_add(1, rows[:3, None], x[:3]))
    later = torch.stack([rows, (rows + 1) % 4]).T
    yield from (
        w.scatter_add(1, later, x),
        w.scatter(0, later[:, :1].T, x),
        w.index_fill(1, rows, 2),
    )
    yield w.index_put((x[:, 0] != x[1, 0],), (x * w)[1:])  # a row for each place of a mask
    yield w.index_put((x != x[1, 2],), w.view(-1)[1:])
    cube = w.view(2, 3, 4)
    yield from (cube[[1, 0], :, [2, 3]], cube[:, [[1], [2]], [0, 3]], cube[1, [[0], [2]]])
    two, three, four = map(torch.arange, (2, 3, 4))
    yield from (cube[two[:, None, None, None], three[:, None]].exp(), w[four[None]], cube[:, three])
    yield from (cube[two[:, None], :, four], cube[two, three[:2]], w[four - 4], w[four, four])
    yield (cube[two, three[:, None]])
    turned = torch.zeros_like(w)
    turned[:, ::2], turned[1:, 1::3] = -w[:, 1::2], x[1:, :2] * w[:3, :2]
    yield turned
    later_rows, between = cube.clone(), cube.clone()
    later_rows[:, [2, 0], [1, 3]] = x[:2, :2]
    between[[1, 0], :, [1, 3]] = x[:2, :3]
    yield from (later_rows, between)
    yield w.masked_scatter(x > 0.3, w.exp().flatten())
    copies = cube * x[0, 0]
    yield from (
        copies.as_strided((2, 3, 2, 4), (12, 2, 4, 1)),
        copies.as_strided((3, 3), (4, 5), 3),
    )
    yield from (
        copies.transpose(1, 2).as_strided((2, 4, 3), (12, 1, 4)),
        copies[1].as_strided((2, 2), (5, 1)),
    )
    by_row, by_element = cube.clone(), cube.clone()
    by_row[x[:2, :3] > 0], by_element[x[:2, :3] > 0.5] = x[0, :4].cos(), w[:1, :1]
    yield from (by_row, by_element, cube.index_put((x[:2, 0] < 0,), w[0, :4], accumulate=True))
    counted = torch.arange(3)
    yield from (F.embedding(counted[None], w), F.embedding(counted.flip(0), w))
    yield from (
        F.embedding_bag(rows.view(2, 2), w, mode="mean"),
        torch.bucketize(w, x[0].sort()[0]),
    )


def writes(w: Any, x: Any) -> Many:
    index, rows = torch.tensor([[0, 2], [3, -1]]), torch.argmax(x, 0)[:4] % 4
    later = torch.stack([rows, (rows + 1) % 4]).T
    for how in ("sum", "mean", "amax", "amin", "prod"):
        yield w.scatter_reduce(1, later, (x * w)[:, :2], how)
        yield w.scatter_reduce(0, later, (x * w)[:, :2], how, include_self=False)
        if how != "sum":
            yield w.index_reduce(0, rows, (x * w).relu(), how, include_self=how != "prod")
    yield from (w.put(index, x[:2, :2] * w[:2, :2]), w.put(rows, w[0, :4], accumulate=True))
    yield from (w.diagonal_scatter(x[0, :3], -1), w.clone().fill_diagonal_(2))
    yield torch.searchsorted(x.sort(1)[0], w, right=True, out_int32=True)
    yield from (
        F.embedding(rows, w, scale_grad_by_freq=True),
        torch.searchsorted(x[0].sort()[0], 0.2),
    )


def products(w: Any, x: Any) -> Many:
    yield from (w @ x.t(), w @ x[0], x[0] @ w.t(), torch.einsum("ij,kj->ik", w, x), w.mv(x[0]))
    yield from (torch.addmm(x[0, :4], w, x.t(), beta=0.5, alpha=2), torch.outer(w[0], x[0]))
    heads = w.view(2, 2, 3, 2).transpose(1, 2)  # joined rows: [sample token, feature]
    yield from (torch.addmm(x[0, :4], heads.reshape(6, 4), x[:, :4]), heads.reshape(6, 4).tanh())
    yield torch.addmm(x[0, :4], w.view(1, 1, 24).reshape(1, 24), x.reshape(24, 1).expand(24, 4))
    yield F.bilinear(w[:, :2], x[:, :3], torch.stack([x[:2, :3], w[:2, 3:]]), x[0, :2])
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


def windows(w: Any, x: Any) -> Many:
    row = w.view(1, 2, 12)  # phases of a stride whose ends are where those of a row would be
    yield F.conv1d(row, x.flatten()[:6].view(2, 1, 3), stride=2, groups=2)
    yield F.conv_transpose1d(row[..., :5], x.flatten()[:8].view(2, 1, 4), stride=2, groups=2)
    image = w.view(1, 2, 3, 4)
    yield from (F.adaptive_avg_pool2d(image, (2, 3)), F.adaptive_avg_pool1d(w, 4))
    yield from (F.adaptive_max_pool2d(image, (2, 3)), F.adaptive_max_pool2d(image[0], 1))
    steps: tuple[dict[str, Any], ...] = ({"stride": 1, "padding": 1}, {"stride": 2, "padding": 1})
    for how, more in zip(steps, ({"dilation": (2, 1)}, {"ceil_mode": True}), strict=True):
        largest, places = F.max_pool2d(image, 2, **how, **more, return_indices=True)
        yield from (places, F.max_unpool2d(largest * largest, places, 3, **how))
    yield F.max_unpool1d(*F.max_pool1d(w, 2, return_indices=True), 2)
    cube = w.view(1, 2, 3, 4)
    yield F.max_unpool3d(*F.max_pool3d(cube, (1, 3, 2), return_indices=True), (1, 3, 2))
    yield F.avg_pool2d(image, 10**5, ceil_mode=True)  # a window far larger than the image
    yield F.avg_pool2d(image, (9, 2), 9, padding=(1, 0), ceil_mode=True)
    yield F.avg_pool2d(image, 9, padding=1, ceil_mode=True, count_include_pad=False)
    yield F.avg_pool2d(image, 2, 1, 1, divisor_override=3)
    for size in ((5, 7), (2, 8)):
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
            yield F.interpolate(image, size, mode=mode)
        yield F.interpolate(image, size, mode="bilinear", antialias=True)
        yield F.interpolate(image, size, mode="bicubic", align_corners=True)
    for mode in ("nearest", "bilinear", "bicubic"):
        yield F.interpolate(image, scale_factor=(1.5, 2.4), mode=mode)
    yield F.interpolate(w.view(1, 1, 2, 3, 4), (3, 3, 8), mode="trilinear")
    yield F.interpolate(image[0], scale_factor=1.7, mode="linear")
    columns = F.unfold(image, (2, 3), padding=(1, 0), stride=(1, 2), dilation=(2, 1))
    yield from (columns, F.fold(columns.exp(), (3, 4), (2, 3), (2, 1), (1, 0), (1, 2)))
    grid = (x.view(1, 3, 4, 2) * 0.9, w.view(1, 3, 4, 2) * 0.2)
    for mode in ("bilinear", "bicubic", "nearest"):
        for at, padding in enumerate(("zeros", "border", "reflection", "zeros")):
            place = grid[at % 2 if mode != "nearest" else 0]
            yield F.grid_sample(image.tanh(), place, mode, padding, align_corners=at > 1)


def spectra(w: Any, x: Any) -> Many:
    wave = torch.fft.fft2(w)
    yield from (wave.real, wave.imag, wave.abs(), torch.fft.fft(w, dim=0, norm="ortho").real)
    half = torch.fft.rfft(w, dim=1)
    product = half * torch.fft.rfft(x, dim=1).conj()
    yield from (torch.fft.irfft(product, n=6), torch.fft.irfft(half[:, :3], n=9))
    yield from (
        torch.fft.irfft2(torch.fft.rfft2(w) * w[:, :4], s=(4, 6)),
        half.transpose(0, 1).real,
    )
    yield torch.fft.ifft2(torch.fft.fftn(w, dim=(0, 1)) + 2 * wave, norm="forward").real
    turned = torch.polar(w.exp(), x) * torch.complex(w, x)
    yield from (torch.view_as_real(turned - turned.sum(0)), turned.angle(), (turned / 3).real)
    yield torch.stft(w.flatten(), 6, 3, window=x[0].abs(), center=True, return_complex=True).abs()


def losses(w: Any, x: Any) -> Many:
    label = torch.argmax(x, 1)
    weight = x[0].sigmoid()
    ignored = torch.where(label > 2, label, -100)
    yield from (F.cross_entropy(w, label), F.cross_entropy(w, ignored, reduction="sum"))
    yield from (F.cross_entropy(w, label, weight, label_smoothing=0.0), F.cross_entropy(w, ignored))
    yield from (F.cross_entropy(w, x.softmax(1)), F.nll_loss(w, label), F.mse_loss(w, x))
    for how in ("mean", "sum"):
        yield F.cross_entropy(w, ignored, weight, label_smoothing=0.2, reduction=how)
        yield F.cross_entropy(w, x.softmax(1), weight, label_smoothing=0.3, reduction=how)
    yield from (F.cross_entropy(x, w.softmax(1)), F.cross_entropy(w, ignored, label_smoothing=0.1))
    yield F.binary_cross_entropy_with_logits(w, x.sigmoid(), pos_weight=weight * 3)
    yield from (F.binary_cross_entropy(w.sigmoid(), x.sigmoid()), F.margin_ranking_loss(w, x, x))
    yield F.cosine_embedding_loss(w, x, torch.tensor([1, -1, 1, -1]), margin=0.1)
    yield from (F.triplet_margin_loss(w, x, x.flip(0)), F.soft_margin_loss(w, x.sign()))
    yield from (
        F.multi_margin_loss(w, label),
        F.poisson_nll_loss(w, x.exp()),
        F.instance_norm(w[None]),
    )
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
    yield F.scaled_dot_product_attention(q, *(t.repeat(2, 1, 1, 1) for t in (k, v)))
    yield F.scaled_dot_product_attention(q[0], k[0], v[0], attn_mask=x[:3, :3])


FAMILIES = (
    elementwise,
    shapes,
    reductions,
    special_points,
    positions,
    writes,
    products,
    windows,
    spectra,
    losses,
    attention,
)


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


class Drawn(nn.Module):
    """Random numbers of many kinds, and what is dropped."""

    def forward(self, x: Any) -> Any:
        one = torch.ones_like(x)
        channels = F.dropout2d(one[:, :, None], 0.3)
        path = x.new_empty(len(x), 1).bernoulli_(0.8)
        kept = 0.7 + torch.rand(len(x), 1)
        integers = torch.randint(2, 5, x.shape)
        return (
            channels,
            path,
            kept.floor(),
            torch.randn_like(x),
            torch.empty_like(x).uniform_(2, 4),
            integers,
            torch.bernoulli(torch.full_like(x, 0.4)),
            torch.randperm(50),
            F.rrelu(one - 2, 0.2, 0.6, training=True),
            torch.empty_like(x).exponential_(4),
            F.gumbel_softmax(one.cumsum(1) * 0, hard=True),
        )


def test_random_numbers_have_the_distributions_of_pytorch() -> None:
    x = torch.zeros(200, 60)
    imported = import_module(Drawn(), (x,), loss="none", outputs=True)
    names = list(imported.graph.outputs)
    feed = compare.arrays_of(imported, (x,))
    found = list(compare.run(imported.graph, imported.initial, feed, names).values())
    channels, path, kept, normal, spread, integers, rates, order, leaks, waits, chosen = found
    assert (waits.mean(), waits.std()) == pytest.approx((0.25, 0.25), abs=0.01)
    assert waits.min() > 0
    assert np.all(np.sort(chosen, axis=1)[:, -2:] == [0, 1])
    assert chosen.mean(axis=0) == pytest.approx(np.full(60, 1 / 60), abs=0.05)
    assert set(np.unique(channels)) == {np.float32(0), np.float32(1 / 0.7)}
    assert channels.mean() == pytest.approx(1, abs=0.03)
    assert set(np.unique(path)) == set(np.unique(kept)) == {0.0, 1.0}
    assert path.mean() == pytest.approx(0.8, abs=0.08)
    assert kept.mean() == pytest.approx(0.7, abs=0.1)
    assert (normal.mean(), normal.std()) == pytest.approx((0, 1), abs=0.03)
    assert spread.min() >= 2
    assert spread.max() < 4
    assert spread.mean() == pytest.approx(3, abs=0.03)
    assert np.unique(integers).tolist() == [2, 3, 4]
    assert rates.mean() == pytest.approx(0.4, abs=0.03)
    assert leaks.min() >= np.float32(-0.6)
    assert leaks.max() <= np.float32(-0.2)
    assert leaks.mean() == pytest.approx(-0.4, abs=0.01)
    assert sorted(order) == list(range(50))
    assert order.tolist() != list(range(50))
