"""Every legal equation: `...` anywhere, letters twice in a term, dimensions of size one."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402

from shardwright.frontends.common.einsum import plain_equation  # noqa: E402
from shardwright.frontends.common.errors import UnsupportedError  # noqa: E402

EQUATIONS = (
    ("b...,b->b...", (2, 3, 5), (2,)),
    ("i...,i...->...", (2, 3, 4), (2, 3, 4)),
    ("a,b...->ab...", (2,), (3, 4)),
    ("bi,b...->b...", (2, 3), (2, 5)),
    ("a...b,b...c->...ac", (2, 5, 3), (3, 5, 4)),
    ("a...,...->a", (2, 3, 4), (3, 4)),
    ("...a,...b->...", (3, 2), (4, 3, 5)),
    ("...,...", (3, 1), (1, 4)),
    ("...ij,jk->ik", (2, 2, 3), (3, 4)),
    ("ii->i", (3, 3)),
    ("ii", (3, 3)),
    ("iij,iik->jk", (3, 3, 2), (3, 3, 4)),
    ("i...i->...", (3, 4, 5, 3)),
    ("ijij->ij", (2, 3, 2, 3)),
    ("iii->i", (3, 3, 3)),
    ("ij,jk", (2, 1), (3, 4)),
    ("Ab,bA", (2, 3), (3, 2)),
    ("->", ()),
)


class Sums(nn.Module):
    """The results of all equations, each with weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.factors = nn.ModuleList(
            nn.ParameterList(torch.randn(shape, dtype=torch.float64) for shape in shapes)
            for _, *shapes in EQUATIONS
        )

    def forward(self, x: Any) -> Any:
        pairs = zip(EQUATIONS, self.factors, strict=True)
        found = [torch.einsum(equation, *factors) for (equation, *_), factors in pairs]
        return x.mean() * sum((one * one.detach().cos()).sum() for one in found)


def test_legal_equations_are_autograds_on_one_rank_and_on_four() -> None:
    module, inputs = Sums(), (torch.ones(4, dtype=torch.float64),)
    found = compare.gradients_differ(module, inputs)
    assert max(found.loss, found.gradient) < 1e-12
    assert found.missing == found.extra == []
    assert max(compare.on_ranks(module, inputs, 4)) < 1e-12


@pytest.mark.parametrize(
    ("equation", "ranks"),
    [("ij->iij", (2,)), ("ij->k", (2,)), ("ij,jk", (2,)), ("ijk->i", (2,)), ("i1->i", (2,))],
)
def test_others_are_refused(equation: str, ranks: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedError, match="the einsum `"):
        plain_equation(equation, ranks)


def test_plain_equation_aligns_dots_at_their_end() -> None:
    assert plain_equation("...i,i...->...", (3, 2)) == (["BAi", "iA"], "BA")
