"""Functions of networks with the arguments of PyTorch, a line each where they are a formula."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwright import ops as own
from shardwright.ir.errors import ModelError
from shardwright.ir.values import check_choice, wrong_value
from shardwright.mindspore.nn.functions import adaptive, window
from shardwright.mindspore.ops import functional
from shardwright.mindspore.ops.primitives import PReLU
from shardwright.tensor import Tensor, apply

Sizes = int | Sequence[int]


def softmax(input: Tensor, dim: int = -1, dtype: str | None = None) -> Tensor:
    """Return shares that are positive and sum to one along a dimension."""
    made: Tensor = own.Softmax(dim)(input if dtype is None else input.astype(dtype))
    return made


def log_softmax(input: Tensor, dim: int | None = None, *, dtype: str | None = None) -> Tensor:
    """Return the logarithms of `softmax`."""
    axis = (0 if input.ndim in (0, 1, 3) else 1) if dim is None else dim
    return apply("log_softmax", input if dtype is None else input.astype(dtype), axis=axis)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Return the operand times its share of the normal distribution, or nearly so."""
    check_choice("approximate", approximate, ("none", "tanh"))
    made: Tensor = own.gelu(input, approximate == "tanh")
    return made


def _each(sizes: Sizes, count: int) -> tuple[int, ...]:
    return (sizes,) * count if isinstance(sizes, int) else tuple(sizes)


def _pool(operator: str, count: int, **fixed: Any) -> Callable[..., Tensor]:
    """Return a function of the windows over the last dimensions."""
    windows = window(operator, count)

    def pooled(
        input: Tensor,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        **how: Any,
    ) -> Tensor:
        if unknown := how.keys() - fixed.keys():
            raise TypeError(f"windows have no {sorted(unknown)}, they have {sorted(fixed)}")
        step = kernel_size if stride is None else stride
        made: Tensor = windows(input, "pad", kernel_size, padding, stride=step, **{**fixed, **how})
        return made

    return pooled


def _convolution(count: int) -> Callable[..., Tensor]:
    def convolved(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> Tensor:
        if isinstance(padding, str):
            check_choice("padding", padding, ("same", "valid"))
        sides: Any = ((0, 0),) * count if padding == "valid" else padding
        if not isinstance(padding, str):
            sides = tuple((p, p) for p in _each(padding, count))
        steps = {"stride": _each(stride, count), "dilation": _each(dilation, count)}
        made = apply("convolution", input, weight, padding=sides, groups=groups, **steps)
        return made if bias is None else made + bias.reshape((-1, *(1,) * count))

    return convolved


def interpolate(
    input: Tensor,
    size: Sizes | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: None = None,
) -> Tensor:
    """Return images of another size: each pixel that of the nearest, or linear between pixels."""
    space = input.shape[2:]
    check_choice("mode", mode, ("nearest", "linear", "bilinear", "trilinear"))
    if (size is None) == (scale_factor is None) or recompute_scale_factor is not None:
        raise wrong_value("size", size, "one of `size` and `scale_factor`")
    if size is not None:
        sizes = _each(size, len(space))
    else:
        factors = (
            scale_factor if isinstance(scale_factor, Sequence) else [scale_factor] * len(space)
        )
        sizes = tuple(int(n * float(f or 0)) for n, f in zip(space, factors, strict=True))
        if any(n * float(f or 0) % 1 for n, f in zip(space, factors, strict=True)):
            raise wrong_value("scale_factor", scale_factor, "one that makes whole sizes")
    if mode == "nearest":
        return apply("resize", input, size=sizes, mode="nearest", coordinates="asymmetric")
    places = "align_corners" if align_corners else "half_pixel"
    return apply("resize", input, size=sizes, mode="linear", coordinates=places)


def _affine(
    weight: Tensor | None, bias: Tensor | None, size: int, dtype: str
) -> tuple[Tensor, Tensor]:
    """Return a scale and a shift, where there are none those that change nothing."""
    scale = Tensor([1.0] * size, dtype) if weight is None else weight.reshape((size,))
    shift = Tensor([0.0] * size, dtype) if bias is None else bias.reshape((size,))
    return scale, shift


def layer_norm(
    input: Tensor,
    normalized_shape: Sizes,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize over the last dimensions, then scale and shift."""
    shape = _each(normalized_shape, 1)
    if tuple(input.shape[-len(shape) :]) != shape:
        raise wrong_value("normalized_shape", shape, f"the last sizes of {input.shape}")
    rows = input.reshape((*input.shape[: -len(shape)], -1))
    scale, shift = _affine(weight, bias, rows.shape[-1], input.dtype)
    return apply("layer_norm", rows, scale, shift, epsilon=eps).reshape(input.shape)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize groups of channels, then scale and shift."""
    scale, shift = _affine(weight, bias, input.shape[1], input.dtype)
    return apply("group_norm", input, scale, shift, groups=num_groups, epsilon=eps)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Return for each class a vector that is one at it and zero elsewhere."""
    if num_classes < 1:
        raise wrong_value("num_classes", num_classes, "their number", "shapes are known here")
    made: Tensor = functional.one_hot(tensor, num_classes)
    return made.astype("int64")


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Return channels as blocks of space: ``[..., c r r, h, w] -> [..., c, h r, w r]``."""
    *others, channels, height, width = input.shape
    if channels % upscale_factor**2:
        raise ModelError(
            f"`upscale_factor` is {upscale_factor} for {channels} channels, expected a square that "
            f"divides them"
        )
    images = input.reshape((-1, channels, height, width))
    made = apply("depth_to_space", images, block=upscale_factor, mode="CRD")
    return made.reshape((*others, *made.shape[1:]))


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Return a tensor divided by its norms along a dimension."""
    size = functional.norm(input, p, dim, True)
    return input / functional.maximum(size, eps)


def kl_div(
    input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """Return the divergence of shares, or their logarithms, from those whose logarithms are given.

    Terms of shares that are zero are zero.
    """
    check_choice("reduction", reduction, ("none", "mean", "sum", "batchmean"))
    logs = functional.xlogy(target, target) if not log_target else apply("exp", target) * target
    terms = logs - (apply("exp", target) if log_target else target) * input
    if reduction == "none":
        return terms
    if reduction == "batchmean":
        return terms.sum() / input.shape[0]
    return terms.mean() if reduction == "mean" else terms.sum()


_AVERAGED = {"ceil_mode": False, "count_include_pad": True}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "relu": lambda input, inplace=False: _anew(inplace, own.relu(input)),
    "relu6": lambda input, inplace=False: _anew(inplace, own.relu6(input)),
    "silu": lambda input, inplace=False: _anew(inplace, own.silu(input)),
    "elu": lambda input, alpha=1.0, inplace=False: _anew(inplace, apply("elu", input, alpha=alpha)),
    "hardtanh": lambda input, min_val=-1.0, max_val=1.0, inplace=False: _anew(
        inplace, functional.hardtanh(input, min_val, max_val)
    ),
    "threshold": lambda input, threshold, value, inplace=False: _anew(
        inplace, functional.threshold(input, threshold, value)
    ),
    "leaky_relu": lambda input, negative_slope=0.01: functional.leaky_relu(input, negative_slope),
    "sigmoid": own.sigmoid,
    "tanh": own.tanh,
    "logsigmoid": lambda input: functional.logsigmoid(input),
    "glu": lambda input, dim=-1: functional.glu(input, dim),
    "prelu": lambda input, weight: PReLU()(input, weight),
    "dropout": lambda input, p=0.5, training=True, inplace=False: _anew(
        inplace, functional.dropout(input, p, training)
    ),
    "linear": lambda input, weight, bias=None: functional.dense(input, weight, bias),
    "flatten": lambda input, start_dim=0, end_dim=-1: functional.flatten(
        input, start_dim=start_dim, end_dim=end_dim
    ),
    "pad": lambda input, pad, mode="constant", value=None: functional.pad(input, pad, mode, value),
    "embedding": lambda input, weight: own.Gather()(weight, input, 0),
    "avg_pool1d": _pool("average_pool", 1, **_AVERAGED),
    "avg_pool2d": _pool("average_pool", 2, **_AVERAGED),
    "avg_pool3d": _pool("average_pool", 3, **_AVERAGED),
    "max_pool2d": _pool("max_pool", 2, ceil_mode=False, dilation=1),
    "adaptive_avg_pool1d": adaptive(1),
    "adaptive_avg_pool2d": adaptive(2),
    "adaptive_avg_pool3d": adaptive(3),
    "conv1d": _convolution(1),
    "conv2d": _convolution(2),
    "conv3d": _convolution(3),
    "upsample": lambda *arguments, **named: interpolate(*arguments, **named),
    "mse_loss": lambda input, target, reduction="mean": functional.mse_loss(
        input, target, reduction
    ),
    "l1_loss": lambda input, target, reduction="mean": functional.l1_loss(input, target, reduction),
    "smooth_l1_loss": lambda input, target, reduction="mean", beta=1.0: functional.smooth_l1_loss(
        input, target, beta, reduction
    ),
    "binary_cross_entropy": lambda input, target, weight=None, reduction="mean": (
        functional.binary_cross_entropy(input, target, weight, reduction)
    ),
    "binary_cross_entropy_with_logits": lambda input, target, weight=None, *how, **named: (
        functional.binary_cross_entropy_with_logits(
            input, target, weight, **_bound(("reduction", "pos_weight"), how, named)
        )
    ),
    "soft_margin_loss": lambda input, target, reduction="mean": functional.soft_margin_loss(
        input, target, reduction
    ),
    "cosine_embedding_loss": lambda input1, input2, target, margin=0.0, reduction="mean": (
        functional.cosine_embedding_loss(input1, input2, target, margin, reduction)
    ),
    "cross_entropy": functional.cross_entropy,
    "nll_loss": lambda input, target, weight=None, ignore_index=-100, reduction="mean": (
        functional.nll_loss(input, target, weight, ignore_index, reduction)
    ),
}


def _bound(names: Sequence[str], given: Sequence[Any], named: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip(names, given, strict=False)), **named}


def _anew(inplace: bool, made: Tensor) -> Tensor:
    """Return a result; nothing is changed in place, which is told.

    Raises
    ------
    OptionError
        If it is asked for.
    """
    if inplace:
        raise wrong_value("inplace", inplace, "False: tensors are not changed")
    return made


globals().update(FUNCTIONS)

__all__ = [
    "gelu",
    "group_norm",
    "interpolate",
    "kl_div",
    "layer_norm",
    "log_softmax",
    "normalize",
    "one_hot",
    "pixel_shuffle",
    "softmax",
]
__all__ += sorted(FUNCTIONS)
