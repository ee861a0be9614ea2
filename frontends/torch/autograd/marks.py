"""Operators that stand in exported graphs where a module computes gradients by itself.

`cotangent` stands for the gradient of a tensor, and has a number. `own_gradient` has the results of
a function, the numbers of their gradients, its arguments, and their gradients, which it gives them.
`hooked` says the same of tensors that exist already, for all that read them; `hooks` makes it
`own_gradient`. `boundary` has its arguments as results.
"""

from collections.abc import Sequence
from typing import Any

import torch

from shardwright.frontends.torch.places import line_of_call
from shardwright.ir.errors import ModelError

torch.library.define(
    "shardwright::cotangent",
    "(int number, SymInt[] shape, ScalarType dtype, Device device) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),  # each stands for another tensor
)
torch.library.define(
    "shardwright::own_gradient",
    "(Tensor[] values, int[] marks, Tensor[] targets, Tensor?[] gradients) -> Tensor[]",
)
torch.library.define(
    "shardwright::hooked", "(Tensor[] tensors, int[] marks, Tensor?[] gradients) -> ()"
)
torch.library.define("shardwright::boundary", "(Tensor[] tensors) -> Tensor[]")


def _mark(
    number: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def _like(values: Sequence[torch.Tensor], *_: Any) -> list[torch.Tensor]:
    return [torch.empty_like(value) for value in values]


def _none(*_: Any) -> None:
    return None


torch.library.register_fake("shardwright::cotangent", _mark)
torch.library.register_fake("shardwright::own_gradient", _like)
torch.library.register_fake("shardwright::hooked", _none)
torch.library.register_fake("shardwright::boundary", _like)


def _kept(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.given = [
        v if isinstance(v, (list, tuple)) and not any(isinstance(one, int) for one in v) else None
        for v in inputs
    ]


def _zeros(ctx: Any, cotangents: Any) -> Any:
    """Return zeros: PyTorch learns what has a gradient, and computes none."""
    return tuple(items and type(items)(map(_zero, items)) for items in ctx.given)


def _zero(item: Any) -> torch.Tensor | None:
    is_trained = isinstance(item, torch.Tensor) and item.requires_grad
    return torch.zeros_like(item) if is_trained else None


for _name in ("own_gradient", "boundary"):
    torch.library.register_autograd(f"shardwright::{_name}", _zeros, setup_context=_kept)


class Gradients:
    """The gradients of one trace that have marks.

    Attributes
    ----------
    count : int
        How many there are.
    removed : set of int
        Those of hooks that the module removes while it runs.
    has_parameter_hooks : bool
        Whether parameters have hooks.
    is_inside : bool
        Whether a function with a backward pass of its own is being traced.
    """

    def __init__(self) -> None:
        self.count = 0
        self.removed: set[int] = set()
        self.has_parameter_hooks = False
        self.is_inside = False

    def mark(self, tensor: torch.Tensor) -> tuple[int, torch.Tensor]:
        """Return what stands for the gradient of a tensor, and its number."""
        number, self.count = self.count, self.count + 1
        shape, dtype, device = list(tensor.shape), tensor.dtype, tensor.device
        found: torch.Tensor = torch.ops.shardwright.cotangent(number, shape, dtype, device)
        return number, found

    def given(
        self,
        values: Sequence[torch.Tensor],
        marks: Sequence[int],
        targets: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
        what: str,
    ) -> list[torch.Tensor]:
        """Return the results of a function with the gradients of its arguments."""
        fitted = [fit(g, t, what) for g, t in zip(gradients, targets, strict=True)]
        made: Any = torch.ops.shardwright.own_gradient(
            list(values), list(marks), list(targets), fitted
        )
        return list(made)


def fit(gradient: Any, tensor: torch.Tensor, what: str) -> torch.Tensor | None:
    """Return a gradient in the shape and the type of its tensor, as PyTorch does.

    Raises
    ------
    ModelError
        If it has another shape, or is no tensor.
    """
    if gradient is None:
        return None
    if not isinstance(gradient, torch.Tensor):
        kind = type(gradient).__name__
        raise refused(f"{what} returns {kind} for a gradient", "return a tensor or None")
    if gradient.shape != tensor.shape:
        try:
            gradient = gradient.sum_to_size(tensor.shape)
        except RuntimeError:
            raise refused(
                f"{what} returns a gradient of shape {tuple(gradient.shape)} for a tensor of shape "
                f"{tuple(tensor.shape)}",
                "return one of the same shape",
            ) from None
    return gradient.to(tensor.dtype)


def refused(what: str, hint: str) -> ModelError:
    """Return the error for what a module does to gradients, with the line that does it."""
    return ModelError(what, line_of_call(), hint)
