"""Fake quantization of PyTorch: rounded numbers, and the gradient of those inside of the range."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402


class Quantized(nn.Module):
    """Weights by channel and activations, with scales that are numbers, buffers, or data."""

    scales: Any
    zeros: Any

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 5, dtype=torch.float64)
        self.register_buffer("scales", torch.rand(5) / 3 + 0.05)
        self.register_buffer("zeros", torch.tensor([0, 1, 2, -1, 3], dtype=torch.int32))

    def forward(self, x: Any, scale: Any) -> Any:
        of_channels = torch.fake_quantize_per_channel_affine
        weight = of_channels(self.layer.weight, self.scales, self.zeros, 0, -4, 3)
        y = nn.functional.linear(x, weight, self.layer.bias)
        found = [y, torch.fake_quantize_per_tensor_affine(y, 0.1, 3, -8, 7)]
        found += [torch.fake_quantize_per_tensor_affine(y, scale, self.zeros[1], 0, 15)]
        found += [of_channels(y, self.scales, self.zeros, 1, -4, 3)]
        return sum(one.square().mean() for one in found)


def test_fake_quantization_is_pytorchs_on_one_rank_and_on_four() -> None:
    inputs = (torch.randn(8, 6, dtype=torch.float64), torch.tensor(0.07))
    found = compare.gradients_differ(Quantized(), inputs)
    assert max(found.loss, found.gradient) < 1e-12
    assert found.missing == found.extra == []
    assert max(compare.on_ranks(Quantized(), inputs, 4)) < 1e-12
