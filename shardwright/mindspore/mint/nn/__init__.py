"""Cells with the arguments of PyTorch: of functions of `functional` a line each, and layers."""

from collections.abc import Sequence
from typing import Any

from shardwright import nn as own
from shardwright.ir.values import check_choice
from shardwright.mindspore.mint.nn import functional
from shardwright.mindspore.nn.functions import NEEDED, cell_of, padding
from shardwright.mindspore.ops import functional as operators
from shardwright.nn.cell import Cell
from shardwright.parameter import Parameter, Start
from shardwright.tensor import Tensor

_MEAN: dict[str, Any] = {"reduction": "mean"}
_WINDOW: dict[str, Any] = {"kernel_size": NEEDED, "stride": None, "padding": 0}
_AVERAGED = {**_WINDOW, "ceil_mode": False, "count_include_pad": True}
_RESIZED: dict[str, Any] = {"size": None, "scale_factor": None}
_PADDED: dict[str, Any] = {"padding": NEEDED}
_OWN: dict[str, tuple[Any, dict[str, Any]]] = {
    "BCELoss": ("binary_cross_entropy", {"weight": None, **_MEAN}),
    "BCEWithLogitsLoss": (
        "binary_cross_entropy_with_logits",
        {"weight": None, **_MEAN, "pos_weight": None},
    ),
    "CosineEmbeddingLoss": ("cosine_embedding_loss", {"margin": 0.0, **_MEAN}),
    "CrossEntropyLoss": (
        "cross_entropy",
        {"weight": None, "ignore_index": -100, **_MEAN, "label_smoothing": 0.0},
    ),
    "ELU": ("elu", {"alpha": 1.0, "inplace": False}),
    "Flatten": ("flatten", {"start_dim": 1, "end_dim": -1}),
    "GELU": ("gelu", {"approximate": "none"}),
    "Hardtanh": ("hardtanh", {"min_val": -1.0, "max_val": 1.0, "inplace": False}),
    "KLDivLoss": ("kl_div", {**_MEAN, "log_target": False}),
    "L1Loss": ("l1_loss", _MEAN),
    "LogSigmoid": ("logsigmoid", {}),
    "LogSoftmax": ("log_softmax", {"dim": None}),
    "MSELoss": ("mse_loss", _MEAN),
    "MaxPool2d": ("max_pool2d", {**_WINDOW, "dilation": 1, "ceil_mode": False}),
    "NLLLoss": ("nll_loss", {"weight": None, "ignore_index": -100, **_MEAN}),
    "PixelShuffle": ("pixel_shuffle", {"upscale_factor": NEEDED}),
    "ReLU": ("relu", {}),
    "ReLU6": ("relu6", {"inplace": False}),
    "SiLU": ("silu", {"inplace": False}),
    "Sigmoid": ("sigmoid", {}),
    "SmoothL1Loss": ("smooth_l1_loss", {**_MEAN, "beta": 1.0}),
    "SoftMarginLoss": ("soft_margin_loss", _MEAN),
    "Softmax": ("softmax", {"dim": NEEDED}),
    "Tanh": ("tanh", {}),
    "Threshold": ("threshold", {"threshold": NEEDED, "value": NEEDED, "inplace": False}),
    "Upsample": (
        "interpolate",
        {**_RESIZED, "mode": "nearest", "align_corners": None, "recompute_scale_factor": None},
    ),
    **{
        f"AdaptiveAvgPool{n}d": (f"adaptive_avg_pool{n}d", {"output_size": NEEDED})
        for n in (1, 2, 3)
    },
    **{f"AvgPool{n}d": (f"avg_pool{n}d", _AVERAGED) for n in (1, 2, 3)},
}
_OTHERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Hardshrink": ("hardshrink", {"lambd": 0.5}),
    "Hardsigmoid": (operators.hardsigmoid, {}),
    "Hardswish": (operators.hardswish, {}),
    "Identity": (lambda input: input, {}),
    "Mish": ("mish", {}),
    "SELU": ("selu", {}),
    "UpsamplingBilinear2d": (
        lambda input, **how: functional.interpolate(
            input, **how, mode="bilinear", align_corners=True
        ),
        _RESIZED,
    ),
    "UpsamplingNearest2d": (lambda input, **how: functional.interpolate(input, **how), _RESIZED),
    **{
        f"{name}Pad{n}d": (padding(mode, n), {**_PADDED, **more})
        for name, mode, more in (
            ("Constant", "constant", {"value": NEEDED}),
            ("Reflection", "reflect", {}),
            ("Replication", "replicate", {}),
            ("Zero", "constant", {}),
        )
        for n in (1, 2, 3)
    },
}
CELLS = {name: cell_of(name, getattr(functional, of), how) for name, (of, how) in _OWN.items()}
CELLS |= {name: cell_of(name, *entry) for name, entry in _OTHERS.items()}
globals().update(CELLS)


class Linear(own.Dense):
    """``x @ weight.T + bias`` over the last dimension; see `shardwright.nn.Dense`."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        weight_init: Start | None = None,
        bias_init: Start | None = None,
        dtype: str | None = None,
    ) -> None:
        how = (weight_init, bias_init, bias, None, dtype or "float32")
        super().__init__(in_features, out_features, *how)


def _convolution(name: str, kind: Any, count: int) -> Any:
    """Return a class of convolutions, whose padding is the same on both sides."""

    def begin(
        self: Any,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        dtype: str | None = None,
    ) -> None:
        check_choice("padding_mode", padding_mode, ("zeros",))
        mode, sides = (padding, 0) if isinstance(padding, str) else ("pad", padding)
        how = (stride, mode, sides, dilation, groups, bias)
        kind.__init__(self, in_channels, out_channels, kernel_size, *how, dtype=dtype or "float32")

    doc = f"A convolution over {count} dimensions; see `shardwright.nn.{name}`."
    return type(name, (kind,), {"__init__": begin, "__doc__": doc, "__module__": __name__})


Conv1d, Conv2d, Conv3d = (
    _convolution(name, getattr(own, name), n + 1)
    for n, name in enumerate(("Conv1d", "Conv2d", "Conv3d"))
)


class GroupNorm(Cell):
    """Normalization of groups of channels; parameters are called `weight` and `bias`.

    Parameters
    ----------
    num_groups, num_channels : int
        Their numbers.
    eps : float
        Added to the variance.
    affine : bool
        Whether there are a scale and a shift of each channel.
    dtype : str
        Their element type.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        dtype: str | None = None,
    ) -> None:
        self.num_groups, self.eps = num_groups, eps
        own_type = dtype or "float32"
        self.weight = Parameter("ones", shape=num_channels, dtype=own_type) if affine else None
        self.bias = Parameter("zeros", shape=num_channels, dtype=own_type) if affine else None

    def construct(self, input: Tensor) -> Tensor:
        """Normalize, scale and shift."""
        return functional.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


class PReLU(Cell):
    """The operand, times a weight that is trained where negative, one for all or a channel."""

    def __init__(
        self, num_parameters: int = 1, init: float = 0.25, dtype: str | None = None
    ) -> None:
        self.weight = Parameter(init, shape=num_parameters, dtype=dtype or "float32")

    def construct(self, input: Tensor) -> Tensor:
        """Multiply."""
        made: Tensor = functional.prelu(input, self.weight)  # type: ignore[attr-defined]
        return made


__all__ = ["Conv1d", "Conv2d", "Conv3d", "GroupNorm", "Linear", "PReLU", "functional"]
__all__ += sorted(CELLS)
