"""Cells that are a function of `ops`: activations, losses, shapes, a line of a table each."""

from collections.abc import Callable, Mapping
from functools import partial
from math import pi
from typing import Any, ClassVar

from shardwright.ir.values import check_choice, check_names, wrong_value
from shardwright.mindspore.ops import functional
from shardwright.mindspore.ops.losses import reduced
from shardwright.nn.cell import Cell
from shardwright.nn.convolution import AdaptiveAvgPool2d
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
        missing = [name for name, value in self.how.items() if value is NEEDED]
        if missing:
            raise TypeError(f"`{type(self).__name__}` needs {missing}")

    def construct(self, *inputs: Any) -> Any:
        """Call the function."""
        return type(self).function(*inputs, **self.how)


NEEDED = object()
"""Stands for the value of an argument that has none by default."""


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


def padding(mode: str, count: int) -> Callable[..., Any]:
    """Return the function that pads so many last dimensions."""
    return partial(_padded, mode=mode, count=count)


def _norm(x: Tensor, axis: Any, keep_dims: bool) -> Tensor:
    return apply("sqrt", apply("square", x).sum(axis if axis != () else None, keep_dims))


def window(function: str, count: int) -> Callable[..., Any]:
    """Return a function of windows over so many last dimensions; MindSpore's `pad_mode`."""

    def pooled(x: Tensor, pad_mode: str, kernel_size: Any, padding: Any, **how: Any) -> Tensor:
        check_choice("pad_mode", pad_mode.lower(), ("valid", "same", "pad"))
        sides: Any = "same" if pad_mode.lower() == "same" else 0
        if sides and "count_include_pad" in how:
            how["count_include_pad"] = False
        if pad_mode.lower() == "pad":
            sides = (padding,) * count if isinstance(padding, int) else tuple(padding)
            sides = tuple((side, side) for side in sides)
        elif padding != 0:
            raise wrong_value("padding", padding, f"0 with `pad_mode` `{pad_mode}`")
        kernel = (kernel_size,) * count if isinstance(kernel_size, int) else tuple(kernel_size)
        return apply(function, x, kernel=kernel, padding=sides, **how)

    return pooled


def adaptive(count: int) -> Callable[..., Any]:
    """Return the function that averages windows over so many last dimensions."""

    def averaged(x: Tensor, output_size: Any) -> Tensor:
        whole = isinstance(output_size, int) or output_size is None
        sizes = (output_size,) * count if whole else tuple(output_size)
        for axis, size in enumerate(sizes, -count):
            last = x.swapaxes(axis, -1)
            x = AdaptiveAvgPool2d((None, size))(last).swapaxes(axis, -1)
        return x

    return averaged


def _dice(logits: Tensor, label: Tensor, smooth: float) -> Tensor:
    both = (logits * label).sum()
    squares = apply("square", logits).sum() + apply("square", label).sum()
    return 1.0 - both * 2.0 / (squares + smooth)


def _poisson(
    input: Tensor, target: Tensor, log_input: bool, full: bool, eps: float, reduction: str
) -> Tensor:
    rate = apply("exp", input) if log_input else input
    losses = rate - target * (input if log_input else apply("log", input + eps))
    if full:
        stirling = target * apply("log", target) - target + apply("log", target * 2 * pi) * 0.5
        losses = losses + apply("where", target > 1, stirling, apply("zeros_like", target))
    return reduced(losses, reduction)


def _by_labels(x: Tensor, target: Tensor, weight: Tensor | None, reduction: str) -> Tensor:
    losses = apply("sigmoid_cross_entropy", x, target)
    return reduced((losses if weight is None else losses * weight).mean(-1), reduction)


def _shuffled(x: Tensor, groups: int) -> Tensor:
    n, channels, *space = x.shape
    parts = x.reshape((n, groups, channels // groups, *space)).swapaxes(1, 2)
    return parts.reshape(x.shape)


def _unshuffled(input: Tensor, downscale_factor: int) -> Tensor:
    *others, channels, height, width = input.shape
    r = downscale_factor
    parts = input.reshape((-1, channels, height // r, r, width // r, r))
    made = parts.transpose(0, 1, 3, 5, 2, 4)
    return made.reshape((*others, channels * r * r, height // r, width // r))


_POOL: dict[str, Any] = {"kernel_size": 1, "stride": 1, "pad_mode": "valid", "padding": 0}
_AVERAGED = {**_POOL, "ceil_mode": False, "count_include_pad": True}
_TABLE: dict[str, tuple[Callable[..., Any] | str, dict[str, Any]]] = {
    "AdaptiveAvgPool1d": (adaptive(1), {"output_size": NEEDED}),
    "AdaptiveAvgPool3d": (adaptive(3), {"output_size": NEEDED}),
    "AvgPool1d": (window("average_pool", 1), _AVERAGED),
    "AvgPool3d": (window("average_pool", 3), _AVERAGED),
    "BCELoss": ("binary_cross_entropy", {"weight": None, **_REDUCED}),
    "CELU": ("celu", {"alpha": 1.0}),
    "CTCLoss": (_ctc, {"blank": 0, **_REDUCED, "zero_infinity": False}),
    "ConstantPad1d": (padding("constant", 1), {"padding": NEEDED, "value": NEEDED}),
    "ConstantPad2d": (padding("constant", 2), {"padding": NEEDED, "value": NEEDED}),
    "ChannelShuffle": (_shuffled, {"groups": NEEDED}),
    "ConstantPad3d": (padding("constant", 3), {"padding": NEEDED, "value": NEEDED}),
    "CosineEmbeddingLoss": ("cosine_embedding_loss", {"margin": 0.0, **_REDUCED}),
    "DiceLoss": (_dice, {"smooth": 1e-5}),
    "FastGelu": ("fast_gelu", {}),
    "GLU": ("glu", {"axis": -1}),
    "GaussianNLLLoss": ("gaussian_nll_loss", {"full": False, "eps": 1e-6, **_REDUCED}),
    "HShrink": ("hardshrink", {"lambd": 0.5}),
    "Hardtanh": ("hardtanh", {"min_val": -1.0, "max_val": 1.0}),
    "HingeEmbeddingLoss": ("hinge_embedding_loss", {"margin": 1.0, **_REDUCED}),
    "HuberLoss": ("huber_loss", {**_REDUCED, "delta": 1.0}),
    "Identity": (lambda input: input, {}),
    "L1Regularizer": (
        lambda weights, scale: apply("abs", weights).sum() * scale,
        {"scale": NEEDED},
    ),
    "KLDivLoss": ("kl_div", _REDUCED),
    "LogSigmoid": ("logsigmoid", {}),
    "MarginRankingLoss": ("margin_ranking_loss", {"margin": 0.0, **_REDUCED}),
    "MaxPool1d": (window("max_pool", 1), {**_POOL, "dilation": 1, "ceil_mode": False}),
    "MaxPool3d": (window("max_pool", 3), {**_POOL, "dilation": 1, "ceil_mode": False}),
    "MultiLabelSoftMarginLoss": (_by_labels, {"weight": None, **_REDUCED}),
    "NLLLoss": ("nll_loss", {"weight": None, "ignore_index": -100, **_REDUCED}),
    "Norm": (_norm, {"axis": (), "keep_dims": False}),
    "OneHot": (
        lambda indices, axis, depth, on_value, off_value, dtype: functional.one_hot(
            indices, depth, on_value, off_value, axis
        ).astype(dtype),
        {"axis": -1, "depth": 1, "on_value": 1.0, "off_value": 0.0, "dtype": "float32"},
    ),
    "PixelShuffle": (
        lambda input, upscale_factor: apply(
            "depth_to_space", input, block=upscale_factor, mode="CRD"
        ),
        {"upscale_factor": NEEDED},
    ),
    "PixelUnshuffle": (_unshuffled, {"downscale_factor": NEEDED}),
    "PoissonNLLLoss": (_poisson, {"log_input": True, "full": False, "eps": 1e-8, **_REDUCED}),
    "RMSELoss": (_rmse, {}),
    "ReflectionPad1d": (padding("reflect", 1), {"padding": NEEDED}),
    "ReflectionPad2d": (padding("reflect", 2), {"padding": NEEDED}),
    "ReflectionPad3d": (padding("reflect", 3), {"padding": NEEDED}),
    "ReplicationPad3d": (padding("replicate", 3), {"padding": NEEDED}),
    "ReplicationPad1d": (padding("replicate", 1), {"padding": NEEDED}),
    "ReplicationPad2d": (padding("replicate", 2), {"padding": NEEDED}),
    "Roll": (
        lambda x, shift, axis: functional.roll(x, shift, axis),
        {"shift": NEEDED, "axis": NEEDED},
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
        {"threshold": NEEDED, "value": NEEDED},
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
        {"axis": NEEDED, "unflattened_size": NEEDED},
    ),
    "ZeroPad2d": (padding("constant", 2), {"padding": NEEDED}),
}


def cell_of(name: str, function: Callable[..., Any] | str, settings: dict[str, Any]) -> type[Cell]:
    """Return the class of a cell that calls a function, or that of `ops` with a name."""
    called = _named(function) if isinstance(function, str) else function
    doc = f"`ops.{function}` as a cell." if isinstance(function, str) else f"See `{name}`."
    """Return the class of a cell that calls a function, or that of `ops` with a name."""
    names = {"function": staticmethod(called), "settings": settings, "__doc__": doc}
    return type(name, (OfFunction,), {**names, "__module__": __name__})


CELLS: dict[str, type[Cell]] = {name: cell_of(name, *entry) for name, entry in _TABLE.items()}
