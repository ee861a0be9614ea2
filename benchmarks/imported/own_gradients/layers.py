"""The module that cases change, and what makes cases of functions."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

Case = tuple[nn.Module, tuple[Tensor, ...]]
Cases = dict[str, Callable[[], Case]]
Between = Callable[[Tensor], Tensor]


class Net(nn.Module):
    """Two layers with something between them, and a loss."""

    def __init__(self, between: Between = torch.tanh) -> None:
        super().__init__()
        self.a, self.b, self.between = nn.Linear(6, 8), nn.Linear(8, 3), between

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        return F.mse_loss(self.b(self.between(self.a(x))), y)


def inputs() -> tuple[Tensor, Tensor]:
    """Return samples and targets."""
    return torch.randn(8, 6, dtype=torch.float64), torch.randn(8, 3, dtype=torch.float64)


def between(function: Between) -> Callable[[], Case]:
    """Return a case with a function between two layers."""
    return lambda: (Net(function).double(), inputs())


def changed(change: Callable[[Net], Any]) -> Callable[[], Case]:
    """Return a case whose module something is done to when it is made."""

    def make() -> Case:
        module = Net().double()
        change(module)
        return module, inputs()

    return make


def forward(function: Callable[[Net, Tensor], Tensor]) -> Callable[[], Case]:
    """Return a case whose prediction is a function of the module and its input."""

    class Own(Net):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return F.mse_loss(function(self, x), y)

    return lambda: (Own().double(), inputs())
