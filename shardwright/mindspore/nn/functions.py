"""Cells that are a function of `ops`: activations, losses, shapes, a line of a table each."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from shardwright.ir.values import check_names
from shardwright.mindspore.ops import functional
from shardwright.nn.cell import Cell
from shardwright.tensor import Tensor, apply

_REDUCED = {"reduction": "mean"}


class OfFunction(Cell):
    """A cell that calls a function on its inputs, with settings that it was made with."""

    function: ClassVar[Callable[..., Any]]
    settings: ClassVar[Mapping[str, Any]]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        names = tuple(self.settings)
        given = dict(zip(names, arguments, strict=False))
        if len(arguments) > len(names) or given.keys() & named.keys():
            raise TypeError(f"`{type(self).__name__}` takes {names}, got {arguments} and {named}")
        check_names(f"`{type(self).__name__}` has no argument", named, names)
        self.how = {**self.settings, **given, **named}
        missing = [name for name, value in self.how.items() if value is _NEEDED]
        if missing:
            raise TypeError(f"`{type(self).__name__}` needs {missing}")

    def construct(self, *inputs: Any) -> Any:
        """Call the function."""
        return type(self).function(*inputs, **self.how)


_NEEDED = object()


def _named(name: str) -> Callable[..., Any]:
    """Return the function of `ops` that has a name."""

    def called(*inputs: Any, **how: Any) -> Any:
        return getattr(functional, name)(*inputs, **how)

    return called


def _rmse(logits: Tensor, label: Tensor) -> Tensor:
    return apply("sqrt", functional.mse_loss(logits, label))


def _ctc(*inputs: Any, **how: Any) -> Tensor:
    losses: Tensor = functional.ctc_loss(*inputs, **how)[0]
    return losses


def _padded(x: Tensor, padding: Any, mode: str, count: int, **how: Any) -> Tensor:
    sizes = (padding,) * (2 * count) if isinstance(padding, int) else tuple(padding)
    made: Tensor = functional.pad(x, sizes, mode, **how)
    return made


def _pad(mode: str, count: int) -> Callable[..., Any]:
    return partial(_padded, mode=mode, count=count)


def _norm(x: Tensor, axis: Any, keep_dims: bool) -> Tensor:
    return apply("sqrt", apply("square", x).sum(axis if axis != () else None, keep_dims))


_TABLE: dict[str, tuple[Callable[..., Any] | str, dict[str, Any]]] = {
    "BCELoss": ("binary_cross_entropy", {"weight": None, **_REDUCED}),
    "CELU": ("celu", {"alpha": 1.0}),
    "CTCLoss": (_ctc, {"blank": 0, **_REDUCED, "zero_infinity": False}),
    "ConstantPad1d": (_pad("constant", 1), {"padding": _NEEDED, "value": _NEEDED}),
    "ConstantPad2d": (_pad("constant", 2), {"padding": _NEEDED, "value": _NEEDED}),
    "CosineEmbeddingLoss": ("cosine_embedding_loss", {"margin": 0.0, **_REDUCED}),
    "FastGelu": ("fast_gelu", {}),
    "GLU": ("glu", {"axis": -1}),
    "GaussianNLLLoss": ("gaussian_nll_loss", {"full": False, "eps": 1e-6, **_REDUCED}),
    "HShrink": ("hardshrink", {"lambd": 0.5}),
    "Hardtanh": ("hardtanh", {"min_val": -1.0, "max_val": 1.0}),
    "HingeEmbeddingLoss": ("hinge_embedding_loss", {"margin": 1.0, **_REDUCED}),
    "HuberLoss": ("huber_loss", {**_REDUCED, "delta": 1.0}),
    "Identity": (lambda input: input, {}),
    "KLDivLoss": ("kl_div", _REDUCED),
    "LogSigmoid": ("logsigmoid", {}),
    "MarginRankingLoss": ("margin_ranking_loss", {"margin": 0.0, **_REDUCED}),
    "NLLLoss": ("nll_loss", {"weight": None, "ignore_index": -100, **_REDUCED}),
    "Norm": (_norm, {"axis": (), "keep_dims": False}),
    "RMSELoss": (_rmse, {}),
    "ReflectionPad1d": (_pad("reflect", 1), {"padding": _NEEDED}),
    "ReflectionPad2d": (_pad("reflect", 2), {"padding": _NEEDED}),
    "ReplicationPad1d": (_pad("replicate", 1), {"padding": _NEEDED}),
    "ReplicationPad2d": (_pad("replicate", 2), {"padding": _NEEDED}),
    "Roll": (
        lambda x, shift, axis: functional.roll(x, shift, axis),
        {"shift": _NEEDED, "axis": _NEEDED},
    ),
    "SeLU": ("selu", {}),
    "SmoothL1Loss": ("smooth_l1_loss", {"beta": 1.0, "reduction": "none"}),
    "SoftMarginLoss": ("soft_margin_loss", _REDUCED),
    "SoftShrink": ("softshrink", {"lambd": 0.5}),
    "Softmax2d": (lambda x: functional.softmax(x, -3), {}),
    "Softmin": ("softmin", {"axis": -1}),
    "Softsign": ("softsign", {}),
    "Tanhshrink": ("tanhshrink", {}),
    "Threshold": (
        lambda x, threshold, value: functional.threshold(x, threshold, value),
        {"threshold": _NEEDED, "value": _NEEDED},
    ),
    "Tril": (lambda x, k=0: functional.tril(x, k), {}),
    "TripletMarginLoss": (
        "triplet_margin_loss",
        {"p": 2, "swap": False, "eps": 1e-6, **_REDUCED, "margin": 1.0},
    ),
    "Triu": (lambda x, k=0: functional.triu(x, k), {}),
    "Unflatten": (
        lambda x, axis, unflattened_size: x.reshape(
            (*x.shape[: axis % x.ndim], *unflattened_size, *x.shape[axis % x.ndim + 1 :])
        ),
        {"axis": _NEEDED, "unflattened_size": _NEEDED},
    ),
    "ZeroPad2d": (_pad("constant", 2), {"padding": _NEEDED}),
}


def _cell(name: str, function: Callable[..., Any] | str, settings: dict[str, Any]) -> type[Cell]:
    called = _named(function) if isinstance(function, str) else function
    doc = f"`ops.{function}` as a cell." if isinstance(function, str) else f"See `{name}`."
    names = {"function": staticmethod(called), "settings": settings, "__doc__": doc}
    return type(name, (OfFunction,), {**names, "__module__": __name__})


CELLS: dict[str, type[Cell]] = {name: _cell(name, *entry) for name, entry in _TABLE.items()}
