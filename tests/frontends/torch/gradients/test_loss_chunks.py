"""Losses of PyTorch modules in chunks: loss and gradients are autograd's, on four ranks."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

WORDS = 24
Loss = Callable[[Any, Any], Any]


class Head(nn.Module):
    """A head with a bias, or one that is the embedding, and a loss of its logits."""

    def __init__(self, loss: Loss, bias: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        self.head = nn.Linear(16, WORDS, bias=bias)
        if not bias:
            self.head.weight = self.embedding.weight
        self.loss = loss

    def forward(self, ids: Any, labels: Any) -> Any:
        return self.loss(self.head(torch.tanh(self.embedding(ids))), labels)


def smoothed(z: Any, labels: Any) -> Any:
    weight = torch.linspace(0.5, 2, WORDS, dtype=z.dtype)
    return F.cross_entropy(
        z.flatten(0, 1), labels.flatten(), weight, label_smoothing=0.1, ignore_index=3
    )


def shifted(z: Any, labels: Any) -> Any:
    rows = z[:, :-1].reshape(-1, WORDS)
    return F.cross_entropy(rows, labels[:, 1:].reshape(-1), reduction="sum", label_smoothing=0.2)


def of_moved(z: Any, labels: Any) -> Any:
    return F.cross_entropy((z * 2.0).transpose(1, 2), labels, reduction="none").square().mean()


def picked(z: Any, labels: Any) -> Any:
    return F.nll_loss(F.log_softmax(z, -1).flatten(0, 1), labels.flatten(), ignore_index=3)


def with_z_loss(z: Any, labels: Any) -> Any:
    z_loss = torch.logsumexp(z, -1).square().mean()
    return F.cross_entropy(z.flatten(0, 1), labels.flatten()) + 1e-2 * z_loss


def capped(z: Any, labels: Any) -> Any:
    return F.cross_entropy((3.0 * torch.tanh(z / 3.0)).flatten(0, 1), labels.flatten())


@pytest.mark.parametrize(
    ("loss", "bias"),
    [
        *((smoothed, True), (shifted, False), (of_moved, True), (picked, False)),
        *((with_z_loss, True), (capped, True)),
    ],
)
def test_loss_and_gradients_are_those_of_autograd(loss: Loss, bias: bool) -> None:
    torch.manual_seed(0)
    module = Head(loss, bias).double()
    inputs = {name: torch.randint(0, WORDS, (4, 6)) for name in ("ids", "labels")}
    inputs["labels"][0, :3] = 3
    options = {"plan": "tensor=2,data=2", "loss_chunks": 5}
    assert max(compare.on_ranks(module, inputs, 4, **options)) < 1e-12
