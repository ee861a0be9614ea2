"""The updates of exported programs beside PyTorch's own optimizers, ten steps of each."""

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

sys.path.insert(0, str(Path(__file__).parent))

from shardwright.exports.torch.support import updates  # noqa: E402
from shardwright.operators.models.eight_bit import dequantized, quantized  # noqa: E402
from shardwright.operators.models.muon import adjustment_ratio  # noqa: E402

STEPS, RATE, DECAY = 10, 0.02, 0.1
SHAPES = ((6, 4), (4, 9), (5, 5))


def gradients(shape):
    random = np.random.default_rng(0)
    return [torch.from_numpy(random.normal(size=shape)) for _ in range(STEPS)]


def of_pytorch(make, shape, dtype):
    """Return a parameter after the steps of an optimizer of PyTorch."""
    parameter = torch.nn.Parameter(torch.ones(shape, dtype=dtype))
    optimizer = make([parameter])
    for gradient in gradients(shape):
        parameter.grad = gradient.to(dtype)
        optimizer.step()
    return parameter.detach()


def by_muon(shape, dtype, product_type, adjustment, nesterov):
    p, m = torch.ones(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
    for gradient in gradients(shape):
        g = gradient.to(dtype)
        direction = updates.muon_direction(g, m, nesterov=nesterov, dtype=product_type)
        whole = updates.orthogonalize(direction)
        ratio = adjustment_ratio(adjustment, shape)
        p, m = updates.muon_update(
            p, g, m, whole, learning_rate=RATE, weight_decay=DECAY, ratio=ratio
        )
    return p


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("adjustment", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("shape", SHAPES)
def test_muon_is_that_of_pytorch(shape, adjustment, nesterov, monkeypatch):
    options = {"weight_decay": DECAY, "nesterov": nesterov, "adjust_lr_fn": adjustment}

    def make(parameters):
        return torch.optim.Muon(parameters, lr=RATE, **options)

    own = by_muon(shape, torch.float32, "bfloat16", adjustment, nesterov)
    right = of_pytorch(make, shape, torch.float32)
    step = RATE * adjustment_ratio(adjustment, shape)
    # A product in bfloat16 has an error of 2^-8; both round in the same places.
    assert float((own - right).abs().max()) < STEPS * step * 2**-8
    # PyTorch's own code without its cast to bfloat16 has the numbers of float64.
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    own = by_muon(shape, torch.float64, "float64", adjustment, nesterov)
    right = of_pytorch(make, shape, torch.float64)
    torch.testing.assert_close(own, right, rtol=1e-11, atol=1e-12)


def test_adamw_is_that_of_pytorch():
    shape = (6, 4)
    right = of_pytorch(
        lambda parameters: torch.optim.AdamW(parameters, lr=RATE, weight_decay=DECAY),
        shape,
        torch.float64,
    )
    p, m, v = torch.ones(shape).double(), *(torch.zeros(shape).double() for _ in range(2))
    for i, g in enumerate(gradients(shape), 1):
        settings = {"learning_rate": RATE, "weight_decay": DECAY}
        p, m, v = updates.adam_update(p, g, m, v, torch.tensor(i), **settings)
    torch.testing.assert_close(p, right, rtol=1e-12, atol=1e-13)


def test_states_of_8_bits_follow_adamw():
    """The parameter after ten steps is that of states rounded after every step, near AdamW's."""
    shape, block = (32, 32), (16, 16)
    exact = of_pytorch(
        lambda parameters: torch.optim.AdamW(parameters, lr=RATE, weight_decay=DECAY),
        shape,
        torch.float64,
    )
    codes, scale = torch.zeros(shape, dtype=torch.uint8), torch.zeros(2, 2).double()
    p, states = torch.ones(shape).double(), (codes, scale, codes, scale)
    q, m, v = np.ones(shape), np.zeros(shape), np.zeros(shape)
    for i, g in enumerate(gradients(shape), 1):
        settings = {"learning_rate": RATE, "weight_decay": DECAY, "block": block}
        p, *states = updates.adam8bit_update(p, g, *states, torch.tensor(i), **settings)
        m, v = 0.9 * m + 0.1 * g.numpy(), 0.999 * v + 0.001 * g.numpy() ** 2
        change = m / (1 - 0.9**i) / (np.sqrt(v / (1 - 0.999**i)) + 1e-8)
        q = q - RATE * (change + DECAY * q)
        m = dequantized(*quantized(m, block, True), block, True)
        v = dequantized(*quantized(v, block, False), block, False)
    np.testing.assert_allclose(p.numpy(), q, rtol=1e-12)
    assert float((p - exact).abs().mean()) < 0.1 * STEPS * RATE
