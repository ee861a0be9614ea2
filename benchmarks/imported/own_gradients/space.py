"""Convolutions, poolings, paddings, changes of size, and statistics of batches."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from own_gradients.layers import Case, Cases

Function = Callable[[Tensor], Tensor]


class OfSpace(nn.Module):
    """A layer between a convolution and a mean of squares."""

    def __init__(self, layer: Any, channels: int, dimensions: int) -> None:
        super().__init__()
        made = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
        self.before, self.layer = made(2, channels, 1), layer

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss."""
        found = self.layer(self.before(x))
        weights = torch.arange(found.numel(), dtype=found.dtype).cos().view(found.shape)
        return (found * weights + found.square()).mean()


def of_space(
    make: Callable[[], Any], *size: int, channels: int = 4, change: Callable[[Any], Any] = id
) -> Callable[[], Case]:
    """Return a case of a layer that is made, or of a function, on samples of a size."""

    def case() -> Case:
        module = OfSpace(make(), channels, len(size)).double()
        change(module)
        return module, (torch.randn(4, 2, *size, dtype=torch.float64),)

    return case


def applied(function: Function, *size: int, channels: int = 4) -> Callable[[], Case]:
    """Return a case of a function on samples of a size."""
    return of_space(lambda: function, *size, channels=channels)


class Sampled(nn.Module):
    """Samples an image at places that it computes."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.where, self.how = nn.Linear(4, 6), how

    def forward(self, x: Tensor) -> Tensor:
        """Return what is there."""
        turns = 0.3 * self.where(x.mean((2, 3))).view(-1, 2, 3) + 1.1 * torch.eye(2, 3)
        corners = self.how.get("align_corners", False)
        places = F.affine_grid(turns, [x.shape[0], 4, 3, 5], align_corners=corners)
        return F.grid_sample(x, places, **self.how)


class Unpooled(nn.Module):
    """Puts the greatest elements back to where they were."""

    def forward(self, x: Tensor) -> Tensor:
        """Return them."""
        most, places = F.max_pool2d(x, 2, return_indices=True)
        return F.max_unpool2d(most.sin(), places, 2, output_size=x.shape[2:])


class TwoStatistics(nn.Module):
    """One normalization that runs twice, in training and with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        """Return both."""
        return self.norm(x) + self.norm(x * 2 + 1)


def _without_bias(m: OfSpace) -> None:
    """Drop a bias whose gradient is zero but for rounding, since means are subtracted."""
    m.before.register_parameter("bias", None)


def _frozen(m: OfSpace) -> None:
    m.layer.eval()
    m.layer.running_mean += 0.3
    m.layer.running_var *= 2


def _blurred(x: Tensor) -> Tensor:
    kernel = torch.tensor([1.0, 2, 1]).double()
    kernel = torch.outer(kernel, kernel) / 16
    framed = F.pad(x, (1, 1, 1, 1), mode="reflect")
    return F.conv2d(framed, kernel.expand(4, 1, 3, 3), stride=2, groups=4)


def _correlated(x: Tensor) -> Tensor:
    """Correlate every sample with a template of its own, as trackers do."""
    n, c, h, w = x.shape
    templates = x[:, :, 1:3, 1:3].reshape(n * c, 1, 2, 2)
    return F.conv2d(x.reshape(1, n * c, h, w), templates, groups=n * c).view(n, c, h - 1, w - 1)


def _patches(x: Tensor) -> Tensor:
    columns = F.unfold(x, (2, 3), dilation=(2, 1), padding=1, stride=2)
    return F.fold(columns.softmax(1), x.shape[2:], (2, 3), dilation=(2, 1), padding=1, stride=2)


def _shuffled(x: Tensor) -> Tensor:
    return F.pixel_unshuffle(F.pixel_shuffle(F.channel_shuffle(x, 2), 2).sin(), 2)


def _total_variation(x: Tensor) -> Tensor:
    return (x.diff(dim=2).abs().sum() + x.diff(dim=3).square().sum()) * x.tanh()


SPACE: Cases = {
    "conv_same_even": of_space(lambda: nn.Conv1d(4, 6, 4, padding="same", dilation=1), 7),
    "conv_same_dilated": of_space(
        lambda: nn.Conv2d(4, 6, (3, 2), padding="same", dilation=2), 5, 6
    ),
    "conv_circular": of_space(lambda: nn.Conv2d(4, 4, 3, padding=2, padding_mode="circular"), 5, 4),
    "conv_reflecting": of_space(
        lambda: nn.Conv2d(4, 4, 3, padding=(1, 2), padding_mode="reflect", stride=2), 5, 6
    ),
    "conv_replicating": of_space(
        lambda: nn.Conv3d(4, 2, 3, padding=1, padding_mode="replicate", groups=2), 3, 3, 3
    ),
    "conv_grouped_uneven": of_space(
        lambda: nn.Conv2d(6, 9, (2, 3), (3, 1), (2, 0), (1, 2), groups=3), 7, 8, channels=6
    ),
    "conv_depthwise_twice": of_space(lambda: nn.Conv2d(4, 8, 3, 2, 1, groups=4, bias=False), 6, 5),
    "conv_without_rest": of_space(lambda: nn.Conv2d(4, 3, 2, 3), 7, 7),
    "transposed_grouped": of_space(
        lambda: nn.ConvTranspose2d(4, 6, 3, (2, 3), (1, 0), (1, 2), groups=2, dilation=(2, 1)), 3, 4
    ),
    "transposed_of_a_size": of_space(
        lambda: lambda x: F.conv_transpose1d(x, torch.ones(4, 3, 5).double(), stride=4, padding=2),
        5,
    ),
    "transposed_3d": of_space(lambda: nn.ConvTranspose3d(4, 2, 2, 2, output_padding=1), 2, 3, 2),
    "templates_of_samples": applied(_correlated, 5, 4),
    "blurred": applied(_blurred, 6, 6),
    "patches_dilated": applied(_patches, 6, 7),
    "shuffled_pixels": applied(_shuffled, 4, 6, channels=8),
    "total_variation": applied(_total_variation, 4, 5),
    "max_pool_ceil_dilated": applied(
        lambda x: F.max_pool2d(x, 3, 2, 1, dilation=2, ceil_mode=True), 7, 8
    ),
    "avg_pool_ceil_divisor": applied(
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=5), 6, 7
    ),
    "avg_pool_without_padding": applied(
        lambda x: F.avg_pool1d(x, 4, 3, 2, ceil_mode=True, count_include_pad=False), 9
    ),
    "avg_pool_3d": applied(lambda x: F.avg_pool3d(x, (2, 3, 1), ceil_mode=True), 3, 4, 2),
    "lp_pool": applied(lambda x: F.lp_pool2d(x.abs() + 0.1, 3, 2), 5, 4),
    "lp_pool_of_one": applied(lambda x: F.lp_pool1d(x.abs() + 0.1, 1.5, 3, 2), 8),
    "adaptive_uneven": applied(lambda x: F.adaptive_avg_pool2d(x, (3, None)), 7, 5),
    "adaptive_max_uneven": applied(lambda x: F.adaptive_max_pool2d(x, (4, 3)), 7, 5),
    "max_unpooled": of_space(Unpooled, 6, 5),
    "pad_negative": applied(lambda x: F.pad(x, (-1, 2, 1, -2), value=0.3), 5, 6),
    "pad_circular": applied(lambda x: F.pad(x, (2, 1), mode="circular").sin(), 4),
    "pad_reflect_3d": applied(
        lambda x: F.pad(x, (1, 2, 0, 1, 2, 1), mode="reflect").sin(), 3, 3, 4
    ),
    "pad_replicate_negative": applied(lambda x: F.pad(x, (-1, 3), mode="replicate").sin(), 5),
    "bicubic": applied(lambda x: F.interpolate(x, (7, 9), mode="bicubic"), 4, 5),
    "bicubic_aligned": applied(
        lambda x: F.interpolate(x, (7, 3), mode="bicubic", align_corners=True), 4, 5
    ),
    "bilinear_by_a_factor": applied(
        lambda x: F.interpolate(x, scale_factor=(1.7, 0.6), mode="bilinear"), 5, 6
    ),
    "bilinear_recomputed": applied(
        lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True),
        5,
        6,
    ),
    "bilinear_antialiased": applied(
        lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True), 7, 6
    ),
    "trilinear": applied(
        lambda x: F.interpolate(x, (3, 5, 2), mode="trilinear", align_corners=True), 2, 3, 4
    ),
    "nearest_by_a_factor": applied(lambda x: F.interpolate(x, scale_factor=2.3), 5, 6),
    "nearest_exact": applied(lambda x: F.interpolate(x, (7, 4), mode="nearest-exact"), 5, 6),
    "area": applied(lambda x: F.interpolate(x, (3, 8), mode="area"), 5, 6),
    "linear": applied(lambda x: F.interpolate(x, 11, mode="linear"), 6),
    "sampled": of_space(lambda: Sampled(align_corners=False), 5, 6),
    "sampled_reflecting": of_space(
        lambda: Sampled(align_corners=True, padding_mode="reflection"), 5, 6
    ),
    "sampled_at_borders": of_space(
        lambda: Sampled(padding_mode="border", align_corners=False), 4, 5
    ),
    "sampled_nearest": of_space(lambda: Sampled(mode="nearest", align_corners=False), 5, 6),
    "sampled_bicubic": of_space(lambda: Sampled(mode="bicubic", align_corners=True), 5, 6),
    "batch_norm_cumulative": of_space(lambda: nn.BatchNorm2d(4, momentum=None), 3, 4),
    "batch_norm_without_statistics": of_space(
        lambda: nn.BatchNorm1d(4, track_running_stats=False).eval(), 5
    ),
    "batch_norm_frozen": of_space(lambda: nn.BatchNorm2d(4), 3, 4, change=_frozen),
    "batch_norm_twice": of_space(TwoStatistics, 3, 4),
    "batch_norm_without_affine": of_space(
        lambda: nn.BatchNorm3d(4, affine=False), 2, 2, 3, change=_without_bias
    ),
    "group_norm": of_space(lambda: nn.GroupNorm(2, 4), 3, 4),
    "instance_norm_tracking": of_space(
        lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), 3, 4
    ),
    "instance_norm_eval": of_space(
        lambda: nn.InstanceNorm1d(4, track_running_stats=True).eval(), 5
    ),
    "local_response": of_space(lambda: nn.LocalResponseNorm(3, 0.2, 0.75, 2.0), 3, 4),
    "layer_norm_of_space": of_space(lambda: nn.LayerNorm((3, 4), bias=False), 3, 4),
    "softmax_of_channels": of_space(lambda: nn.Softmax2d(), 3, 4),
    "dropout_eval": of_space(
        lambda: nn.Sequential(nn.Dropout2d(0.5), nn.AlphaDropout()).eval(), 3, 4
    ),
}
