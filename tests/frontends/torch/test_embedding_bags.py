"""Bags of rows of a table: by offsets that are data or known, empty ones, weights, padding."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

MODES = ("sum", "mean", "max")


class Bags(nn.Module):
    """The sum of bags in all forms; the third is empty, and a row stands twice in the second."""

    offsets: Any

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(10, 4, dtype=torch.float64))
        self.weights = nn.Parameter(torch.randn(12, dtype=torch.float64))
        self.register_buffer("offsets", torch.tensor([0, 2, 5, 5, 8]))

    def forward(self, rows: Any, begins: Any) -> Any:
        ends = torch.cat((begins, begins[-1:] + 4))
        table, found = self.table, []
        for mode in MODES:
            found += [F.embedding_bag(rows, table, begins, mode=mode)]
            found += [F.embedding_bag(rows, table, self.offsets, mode=mode, padding_idx=4)]
            found += [F.embedding_bag(rows, table, ends, mode=mode, include_last_offset=True)]
            found += [F.embedding_bag(rows.view(3, 4), table, mode=mode, padding_idx=-10)]
            found += [F.embedding_bag(rows.view(3, 4), table, mode=mode)]
        for weights in (self.weights, self.weights.sin().view(3, 4)):
            offsets = begins if weights.dim() == 1 else None
            given = rows.view(weights.shape)
            for padding in (None, 2):
                how = {"per_sample_weights": weights, "mode": "sum", "padding_idx": padding}
                found.append(F.embedding_bag(given, table, offsets, **how))
        return sum(one.sin().mean() for one in found)


def test_embedding_bags_are_pytorchs_on_one_rank_and_on_four() -> None:
    rows = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9, 1, 0, 3, 7])
    inputs = (rows, torch.tensor([0, 2, 5, 5, 8]))
    found = compare.gradients_differ(Bags(), inputs)
    assert max(found.loss, found.gradient) < 1e-12
    assert found.missing == found.extra == []
    assert max(compare.on_ranks(Bags(), inputs, 4)) < 1e-12
