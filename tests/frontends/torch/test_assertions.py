"""Assertions in Python that depend on elements do not hinder an import; other branches do."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402

from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.errors import ModelError  # noqa: E402


class Forecaster(nn.Module):
    """A likelihood by a distribution, whose arguments PyTorch checks."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(6, 1) for _ in range(3))

    def forward(self, x: Any, y: Any) -> Any:
        place, scale, freedom = (head(x)[:, 0] for head in self.heads)
        wide = nn.functional.softplus(scale)
        of = torch.distributions.StudentT(2 + freedom.exp(), place, wide)
        return -of.log_prob(y).mean()


class Asserting(nn.Module):
    """Assertions in the forms of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4)

    def forward(self, at: Any, sizes: Any) -> Any:
        assert torch.all(at >= 0).item(), "a negative position"
        if at is not None and at.max() >= self.table.num_embeddings:
            raise ValueError("a position is too large")
        if not (sizes > 0).all():
            raise ValueError("a size is not positive")
        return (self.table(at) / sizes[:, None]).square().mean()


class Likelihood(nn.Module):
    """A loss of PyTorch, which raises an error where a variance is negative."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.wide = nn.Linear(6, 4), nn.Linear(6, 4)
        self.loss = nn.GaussianNLLLoss()

    def forward(self, x: Any, y: Any) -> Any:
        return self.loss(self.place(x), y, self.wide(x).exp())


class Branching(Asserting):
    """A branch that computes something."""

    def forward(self, at: Any, sizes: Any) -> Any:
        if (sizes > 1).all():
            sizes = sizes / 2
        return super().forward(at, sizes)


class Keeping(Asserting):
    """An assertion whose condition is read again."""

    def forward(self, at: Any, sizes: Any) -> Any:
        if is_small := bool((sizes < 0).any()):
            raise ValueError("a size is negative")
        return super().forward(at, sizes) + is_small


class Joined(Asserting):
    """A choice in the line of an assertion."""

    def forward(self, at: Any, sizes: Any) -> Any:
        # fmt: off
        assert (sizes > 0).all(); sizes = sizes if (sizes > 1).all() else sizes * 2  # noqa: E702
        # fmt: on
        return super().forward(at, sizes)


class Inverting(Asserting):
    """An assertion that is not one of its parts."""

    def forward(self, at: Any, sizes: Any) -> Any:
        if sizes is None or not (sizes > 0).all():
            raise ValueError("a size is not positive")
        return super().forward(at, sizes)


def positions() -> tuple[Any, Any]:
    return torch.tensor([1, 7, 1]), torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (Forecaster, lambda: tuple(torch.randn(n, dtype=torch.float64) for n in ((4, 6), (4,)))),
        (Likelihood, lambda: tuple(torch.randn(n, dtype=torch.float64) for n in ((4, 6), (4, 4)))),
        (Asserting, positions),
    ],
)
def test_assertions_do_not_hinder(module: Any, inputs: Any) -> None:
    torch.manual_seed(0)
    found = compare.gradients_differ(module().double(), inputs())
    assert found.loss < 1e-12
    assert found.gradient < 1e-12
    assert not found.missing


@pytest.mark.parametrize("module", [Branching, Keeping, Joined, Inverting])
def test_other_branches_are_refused(module: Any) -> None:
    with pytest.raises(ModelError, match="depends on the elements of tensors") as caught:
        import_module(module().double(), positions())
    assert caught.value.hint == (
        "let neither sizes nor branches depend on the elements of tensors; assertions may, without "
        "`not`, `:=` or `lambda` inside of their conditions; or import with `as_example=True` if "
        "it is as in the example in every batch, which is checked"
    )
