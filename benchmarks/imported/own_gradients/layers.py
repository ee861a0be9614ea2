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


class Extra(Net):
    """Two layers, and further parameters by name."""

    def __init__(self, use: Any, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.use = use
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(0.5 * torch.randn(shape)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        return F.mse_loss(self.use(self, x), y)


def extra(use: Any, **shapes: tuple[int, ...]) -> Any:
    """Return a case with further parameters, which a function of the module and its input uses."""
    return lambda: (Extra(use, **shapes).double(), inputs())


class Inner(Net):
    """Two layers, and others between them that a function makes and uses."""

    def __init__(self, made: Any, use: Any) -> None:
        super().__init__()
        self.inner, self.use = made(), use

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        return F.mse_loss(self.b(self.use(self.inner, self.a(x))), y)


def inner(made: Any, use: Any = lambda m, h: m(h)) -> Any:
    """Return a case with other layers between."""
    return lambda: (Inner(made, use).double(), inputs())
