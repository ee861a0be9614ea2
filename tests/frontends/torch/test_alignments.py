"""The CTC loss of PyTorch: all forms of labels and lengths, and its gradient."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.errors import ModelError  # noqa: E402

STEPS = 7
COUNTS = (3, 2, 1, 0)


class Reader(nn.Module):
    """The sum of losses in all forms; those with `zero_infinity` have a sample with few steps."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 5, dtype=torch.float64)

    def forward(self, x: Any, labels: Any, steps: Any, counts: Any) -> Any:
        scores = self.layer(x)
        logs = scores.log_softmax(-1).transpose(0, 1)
        few, is_label = steps.clone(), labels >= 0
        few[0] = 2
        found = [
            nn.CTCLoss()(logs, labels, steps, counts),
            nn.CTCLoss(blank=4, reduction="sum")(logs, labels - 1, steps, counts),
            F.ctc_loss(logs, labels, few, counts, zero_infinity=True),
            F.ctc_loss(logs, labels, (STEPS,) * 4, COUNTS, reduction="none").square().mean(),
            F.ctc_loss(logs[:, 0], labels[0], (STEPS,), (3,)),
            F.ctc_loss(logs, labels.clamp(1)[:2].flatten(), (STEPS, 5, 6, 7), (0, 3, 1, 2)),
            F.ctc_loss(logs, labels.clamp(1)[:2].flatten(), steps, counts),
            F.ctc_loss(logs, labels.masked_select(is_label), steps, is_label.sum(-1)),
            F.ctc_loss(scores.transpose(0, 1), labels, few, counts, zero_infinity=True),
            F.ctc_loss(scores.transpose(0, 1).tanh(), labels, steps, counts, reduction="sum"),
        ]
        return sum(found)


def spoken() -> tuple[Any, ...]:
    torch.manual_seed(1)
    labels = torch.tensor([[1, 1, 3], [2, 4, -1], [3, -1, -1], [-1, -1, -1]])
    steps = torch.tensor([STEPS, 5, 6, 3])
    return torch.randn(4, STEPS, 6, dtype=torch.float64), labels, steps, torch.tensor(COUNTS)


def test_ctc_losses_are_pytorchs_on_one_rank_and_on_four() -> None:
    found = compare.gradients_differ(Reader(), spoken())
    assert max(found.loss, found.gradient) < 1e-12
    assert found.missing == found.extra == []
    assert max(compare.on_ranks(Reader(), spoken(), 4)) < 1e-12


class Selecting(nn.Module):
    """A sum of selected elements, or the elements."""

    def __init__(self, summed: bool) -> None:
        super().__init__()
        self.layer, self.summed = nn.Linear(6, 5), summed

    def forward(self, x: Any) -> Any:
        found = self.layer(x).masked_select(x[:, :5] > 0)
        return found.sin().sum() if self.summed else found


@pytest.mark.parametrize("summed", [False, True])
def test_other_selections_by_a_mask_are_refused(summed: bool) -> None:
    with pytest.raises(ModelError, match=r"a mask.*, whose shape depends"):
        import_module(Selecting(summed), torch.randn(4, 6), loss="none")
