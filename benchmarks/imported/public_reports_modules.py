"""Small modules and functions made after public reports; the comment names nothing but the kind.

Each entry of `MODULES` and `FUNCTIONS` is (source, what was reported, how it is made).
"""

from typing import Any

import jax
import numpy as np
import torch
from jax import numpy as jnp
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

Made = tuple[nn.Module, tuple[Any, ...]]


def _randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


class Layered(nn.Module):
    """A linear layer, and a function of its result."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(inputs, outputs).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a scalar of the layer's result."""
        return (self.after(self.a(x)) ** 2).mean()

    def after(self, h: torch.Tensor) -> torch.Tensor:
        """Return what the report is about."""
        raise NotImplementedError


class Reentrant(Layered):
    def after(self, h: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.a, h, use_reentrant=True)  # type: ignore[no-any-return]


class Gauss(Layered):
    def after(self, h: torch.Tensor) -> torch.Tensor:
        return F.gaussian_nll_loss(h, torch.zeros_like(h), h.exp()).sqrt()


class MaskedView(Layered):
    def after(self, h: torch.Tensor) -> torch.Tensor:
        h.view(h.shape[0], 2, 2).masked_fill_(torch.tensor([True, False]), 3.0)
        return h


class AddedView(Layered):
    def after(self, h: torch.Tensor) -> torch.Tensor:
        h = h * 1.5
        h.view(2, -1).add_(2.0)
        return h


class WrittenExpand(Layered):
    def after(self, h: torch.Tensor) -> torch.Tensor:
        y = (h * 2).expand(3, *h.shape)
        with torch.no_grad():
            y[0, 0] = 0
        return y + h


class CopiedAndScaled(Layered):
    def after(self, h: torch.Tensor) -> torch.Tensor:
        y = torch.ops.aten.to(h, dtype=torch.float64, copy=True)
        y.mul_(2)
        return y + h


class MaskedScatter(Layered):
    def after(self, h: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(h.shape[0], 1, dtype=torch.bool)
        mask[1::2] = True
        source = torch.arange(h.numel(), dtype=h.dtype).reshape(h.shape)
        return h.masked_scatter(mask, source) * h


class AddedAtIndex(Layered):
    def after(self, h: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(h).index_add(0, torch.tensor([0, 1, 1, 0]), h)


class ScatterAdded(Layered):
    def after(self, h: torch.Tensor) -> torch.Tensor:
        index = torch.tensor([[0, 1, 1, 0]] * 4)
        return torch.scatter_add(h, 0, index, h * 2)


class Averaged(nn.Module):
    def __init__(self, **how: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Conv2d(1, 2, 1).double()
        self.pool = nn.AvgPool2d(**how)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.pool(self.a(x)) ** 2).sum()


class MaxPooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Conv3d(1, 2, 1).double()
        self.pool = nn.MaxPool3d(3, None, 1, 1, ceil_mode=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.pool(self.a(x)) ** 2).sum()


class _Zero(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(grad)


class ZeroBackward(Layered):
    def after(self, h: torch.Tensor) -> torch.Tensor:
        return h + _Zero.apply(h)  # type: ignore[no-untyped-call, no-any-return]


class StraightThrough(Layered):
    def after(self, h: torch.Tensor) -> torch.Tensor:
        soft = h.sigmoid()
        return (h > 0).to(h.dtype) + soft - soft.detach()


class RowWritten(Layered):
    def after(self, h: torch.Tensor) -> torch.Tensor:
        h = h * 1.0
        h[1] = torch.ones(h.shape[1:], dtype=h.dtype)
        h += 1.0
        return h


class Strided(Layered):
    def after(self, h: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(h, (2, 2), (3, 3), 1)


class GradientInside(Layered):
    def after(self, h: torch.Tensor) -> torch.Tensor:
        (slope,) = torch.autograd.grad((h**3).sum(), h, create_graph=True)
        return slope


class MaskedSelect(Layered):
    def after(self, h: torch.Tensor) -> torch.Tensor:
        return h[h > 0]


class SlicedByData(Layered):
    def after(self, h: torch.Tensor) -> torch.Tensor:
        return h[: int((h > 0).sum().clamp(1, 3))]


class RepeatedByData(Layered):
    def after(self, h: torch.Tensor) -> torch.Tensor:
        return torch.repeat_interleave(h, (h[:, 0] > 0).long() + 1, dim=0)


class LogDeterminant(Layered):
    def after(self, h: torch.Tensor) -> torch.Tensor:
        return torch.linalg.slogdet(h)[1]


class Elements(Layered):
    def after(self, h: torch.Tensor) -> torch.Tensor:
        return torch.maximum(h, torch.zeros_like(h)) - torch.minimum(h, h.flip(0))


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(_randn(2, 3, 5))
        self.v = nn.Parameter(_randn(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.einsum("b...,b->b...", self.w, self.v)
        second = torch.einsum("i...,i...->...", first, x)
        return (
            torch.einsum("ii", second @ second.t()) + torch.einsum("a,b...->ab...", self.v, x).sum()
        )


def _made(kind: type[Layered], inputs: int = 3, outputs: int = 4) -> Made:
    module = kind(inputs, outputs)
    return module, (_randn(4, inputs),)


MODULES: list[tuple[str, str, Any]] = [
    ("pytorch 185140", "reentrant checkpointing", lambda: _made(Reentrant, 4)),
    ("-", "`gaussian_nll_loss`, which raises for negative variances", lambda: _made(Gauss)),
    ("pytorch 95050", "`view` and `masked_fill_`", lambda: _made(MaskedView)),
    ("pytorch 112429", "`add_` to a view", lambda: _made(AddedView)),
    ("pytorch 114302", "an element of an expanded tensor, written", lambda: _made(WrittenExpand)),
    ("pytorch 131679", "`to(copy=True)` and `mul_`", lambda: _made(CopiedAndScaled)),
    ("pytorch 186146", "`masked_scatter` of rows", lambda: _made(MaskedScatter)),
    ("pytorch 111159", "`index_add` of equal positions", lambda: _made(AddedAtIndex)),
    ("pytorch 125835", "`scatter_add` of equal positions", lambda: _made(ScatterAdded)),
    (
        "pytorch 183528",
        "`avg_pool2d` with `ceil_mode` and `count_include_pad`",
        lambda: (
            Averaged(kernel_size=3, stride=2, padding=1, ceil_mode=True),
            (_randn(1, 1, 4, 4),),
        ),
    ),
    (
        "pytorch 71549",
        "`AvgPool2d` with `ceil_mode`, whose last window is padding",
        lambda: (
            Averaged(kernel_size=3, stride=3, padding=1, ceil_mode=True),
            (_randn(1, 1, 2, 2),),
        ),
    ),
    (
        "onnxruntime 15446",
        "`MaxPool3d` with `ceil_mode`",
        lambda: (MaxPooled(), (_randn(1, 1, 3, 6, 5),)),
    ),
    ("pytorch 193279", "a `Function` whose backward is zero", lambda: _made(ZeroBackward)),
    ("kornia 1666", "a straight-through estimator", lambda: _made(StraightThrough)),
    ("pytorch 34538", "a row written in place", lambda: _made(RowWritten)),
    ("torch-mlir 4191", "`as_strided`", lambda: _made(Strided)),
    ("pytorch 125984", "`torch.autograd.grad` inside forward", lambda: _made(GradientInside)),
    ("pytorch 26034", "a boolean mask as an index", lambda: _made(MaskedSelect)),
    ("pytorch 127830", "a slice whose length is computed", lambda: _made(SlicedByData)),
    ("helion 70", "`repeat_interleave` by computed counts", lambda: _made(RepeatedByData)),
    ("-", "`slogdet`", lambda: _made(LogDeterminant)),
    ("torch-mlir 380", "`maximum` and `minimum`", lambda: _made(Elements)),
    ("onnx 5739, 8207", "einsum with `...` anywhere", lambda: (Sums(), (_randn(2, 3, 5),))),
]


# JAX


def _norm_of_rows(p: Any, x: Any) -> Any:
    length = jnp.sqrt(jnp.sum((p * x) ** 2, axis=1))
    return jnp.sum(jnp.where(length > 0.5, length, jnp.ones_like(length)))


def _safe_norm(p: Any, x: Any) -> Any:
    square = jnp.sum((p * x) ** 2, axis=1)
    return jnp.sum(jnp.sqrt(jnp.where(square > 0.5, square, 1.0)))


def _infinite(p: Any, x: Any) -> Any:
    return jnp.sum(jnp.where(p * x > 0, 0.0, p * x * jnp.inf))


def _einsums(p: Any, x: Any) -> Any:
    first = jnp.einsum("b...,b->b...", p, x[:, 0])
    return jnp.sum(jnp.einsum("i...,i...->...", first, p)) + jnp.einsum("ii", p[:2, :2])


def _filtered(p: Any, x: Any) -> Any:
    delta = p * x
    return jnp.sum(jnp.where(delta > 0, delta**0.5, 0.0))


_P = np.array([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]])
_X = np.array([[1.0, 0.5], [0.25, 2.0], [1.0, 1.0]])
FUNCTIONS: list[tuple[str, str, Any]] = [
    (
        "jax 347",
        "`where` behind the square root of zero (NaN in JAX)",
        lambda: (_norm_of_rows, (_P, _X)),
    ),
    ("jax 5798", "`where` before and behind the square root", lambda: (_safe_norm, (_P, _X))),
    ("jax 3058", "the norm of a zero row", lambda: (lambda p, x: jnp.linalg.norm(p - x), (_P, _P))),
    (
        "jax 2630",
        "`where` with infinity in the branch not taken (NaN in JAX)",
        lambda: (_infinite, (_P, _X)),
    ),
    ("jax 19089", "powers of zero behind `where` (NaN in JAX)", lambda: (_filtered, (_P, _X))),
    ("-", "einsum with `...` anywhere", lambda: (_einsums, (_P, _X))),
]
jax.config.update("jax_enable_x64", True)
