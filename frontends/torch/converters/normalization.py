"""Normalizations, and dropout."""

from math import prod
from typing import Any

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.torch.aten import converts
from shardwright.frontends.torch.aten_call import Call
from shardwright.ir.graph import Value
from shardwright.operators.models.batch_normalization import emit_batch_norm

_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def _over_last(call: Call, x: Value, shape: list[int]) -> Value:
    """Return a tensor with the normalized dimensions joined into the last."""
    size = prod(shape)
    return call.reshape(x, (*x.type.shape[: x.type.rank - len(shape)], size))


@converts("aten.layer_norm", "aten.native_layer_norm")
def _layer_norm(
    call: Call,
    x: Value,
    normalized_shape: list[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enable: Any = None,
) -> Any:
    size, dtype = prod(normalized_shape), x.type.dtype
    gamma = call.fill(1, dtype, (size,)) if weight is None else call.reshape(weight, (size,))
    beta = call.fill(0, dtype, (size,)) if bias is None else call.reshape(bias, (size,))
    flat = _over_last(call, x, normalized_shape)
    found = call.emit("layer_norm", flat, gamma, beta, epsilon=float(eps))
    found = call.reshape(found, x.type.shape)
    return found if len(call.results) == 1 else [found, None, None]


@converts("aten.rms_norm", "aten._fused_rms_norm")
def _rms_norm(
    call: Call,
    x: Value,
    normalized_shape: list[int],
    weight: Value | None = None,
    eps: float | None = None,
) -> Any:
    size, dtype = prod(normalized_shape), x.type.dtype
    gamma = call.fill(1, dtype, (size,)) if weight is None else call.reshape(weight, (size,))
    epsilon = _EPSILON[dtype] if eps is None else float(eps)
    found = call.emit("rms_norm", _over_last(call, x, normalized_shape), gamma, epsilon=epsilon)
    found = call.reshape(found, x.type.shape)
    return found if len(call.results) == 1 else [found, None]


@converts("aten.group_norm", "aten.native_group_norm")
def _group_norm(
    call: Call,
    x: Value,
    num_groups: int | None = None,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enabled: Any = None,
    N: Any = None,  # noqa: N803
    C: Any = None,  # noqa: N803
    HxW: Any = None,  # noqa: N803
    group: int | None = None,
) -> Any:
    groups = num_groups if num_groups is not None else group
    channels, dtype = x.type.shape[1], x.type.dtype
    gamma = call.fill(1, dtype, (channels,)) if weight is None else weight
    beta = call.fill(0, dtype, (channels,)) if bias is None else bias
    found = call.emit("group_norm", x, gamma, beta, groups=groups, epsilon=float(eps))
    return found if len(call.results) == 1 else [found, None, None]


# Batches


@converts("aten.batch_norm", "aten._native_batch_norm_legit_functional")
@converts("aten._native_batch_norm_legit_no_training", "aten._native_batch_norm_legit")
def _batch_norm(
    call: Call,
    x: Value,
    weight: Value | None = None,
    bias: Value | None = None,
    running_mean: Value | None = None,
    running_var: Value | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    cudnn_enabled: Any = None,
) -> Any:
    channels, dtype = x.type.shape[1], x.type.dtype
    gamma = call.fill(1, dtype, (channels,)) if weight is None else weight
    beta = call.fill(0, dtype, (channels,)) if bias is None else bias
    batch = x if x.type.rank > 2 else call.reshape(x, (*x.type.shape, 1))
    if training:
        y, mean, variance = emit_batch_norm(call.build, batch, gamma, beta, float(eps))
        return _with_statistics(call, x, y, (mean, variance), (running_mean, running_var), momentum)
    if running_mean is None or running_var is None:
        raise UnsupportedError("a batch normalization without statistics")
    statistics = (running_mean, running_var)
    y = call.emit("batch_normalize", batch, *statistics, gamma, beta, epsilon=float(eps))
    y = call.reshape(y, x.type.shape)
    return y if len(call.results) == 1 else [y, None, None]


def _with_statistics(
    call: Call,
    x: Value,
    y: Value,
    now: tuple[Value, Value],
    running: tuple[Value | None, Value | None],
    momentum: float,
) -> Any:
    """Return a normalized batch with the moving averages; that of the variance is unbiased."""
    y = call.reshape(y, x.type.shape)
    if len(call.results) == 1:
        return y
    count = x.type.elements // x.type.shape[1]
    unbiased = call.scaled(now[1], count / max(count - 1, 1))
    moved = [
        _moved(call, old, new, momentum) if old is not None else None
        for old, new in zip(running, (now[0], unbiased), strict=True)
    ]
    return [y, None, None, *moved]


def _moved(call: Call, old: Value, new: Value, momentum: float) -> Value:
    new = call.emit("stop_gradient", new)
    return call.emit("add", call.scaled(old, 1 - momentum), call.scaled(new, momentum))


# Dropout


@converts("aten.feature_dropout", "aten.feature_dropout_")
def _feature_dropout(call: Call, x: Value, p: float = 0.5, train: bool = True) -> Value:
    """Drop whole channels."""
    if not train or p == 0:
        return x
    shape = (*x.type.shape[:2], *(1,) * (x.type.rank - 2))
    return call.emit("mul", x, dropped(call, call.fill(1, x.type.dtype, shape), p))


@converts("aten.dropout", "aten.native_dropout", "aten.dropout_")
def _dropout(call: Call, x: Value, p: float = 0.5, train: bool | None = True) -> Any:
    found = x if not train or p == 0 else dropped(call, x, p)
    return found if len(call.results) == 1 else [found, None]


def dropped(call: Call, x: Value, rate: float) -> Value:
    """Return a tensor with elements set to zero, others in every step."""
    if rate >= 1:
        return call.emit("zeros_like", x)
    step = call.emission.step()
    key = call.build.unique_name(f"{call.build.scope}/dropout".lstrip("/"))
    return call.emit("dropout", x, step, rate=float(rate), key=key)
