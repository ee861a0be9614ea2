"""Random nodes of ONNX operators of layers: windows, resizing, normalization, quantization."""

from typing import Any

import numpy as np
from onnx_cases import Case, Random, _axis, _ints, _pick, _real, _shape, _some, _vector, makes


def _space(r: Random, rank: int) -> list[int]:
    return [int(n) for n in r.integers(5, 9, rank)]


def _window(r: Random, rank: int, most: int = 3) -> dict[str, Any]:
    """Return kernel, strides, dilations and padding of windows."""
    kernel = [int(n) for n in r.integers(1, most + 1, rank)]
    how: dict[str, Any] = {"kernel_shape": kernel}
    if r.random() < 0.6:
        how["strides"] = [int(n) for n in r.integers(1, 4, rank)]
    kind = r.random()
    if kind < 0.5:
        how["pads"] = [int(r.integers(0, kernel[i % rank])) for i in range(2 * rank)]
    elif kind < 0.8:
        how["auto_pad"] = _pick(r, "SAME_UPPER", "SAME_LOWER", "VALID")
    return how


@makes("MaxPool", "AveragePool", "LpPool")
def _pool(r: Random, operator: str) -> Case:
    rank = _pick(r, 1, 2, 3)
    how = _window(r, rank) | _some(r, ceil_mode=(0, 1))
    if r.random() < 0.4:
        how["dilations"] = [_pick(r, 1, 2) for _ in range(rank)]
    if operator == "AveragePool":
        how |= _some(r, count_include_pad=(0, 1))
    if operator == "LpPool":
        how |= _some(r, p=(1, 2, 3))
    x = _real(r, (_pick(r, 1, 2), 2, *_space(r, rank)))
    outputs = _pick(r, 1, 2) if operator == "MaxPool" else 1
    if outputs == 2:
        how |= _some(r, storage_order=(0, 1))
    return Case(operator, [x], how, 19, (), outputs)


@makes("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global(r: Random, operator: str) -> Case:
    how = _some(r, p=(1, 2, 3)) if operator == "GlobalLpPool" else {}
    return Case(operator, [_real(r, (2, 3, *_space(r, _pick(r, 1, 2, 3))))], how)


@makes("Conv", "ConvTranspose")
def _conv(r: Random, operator: str) -> Case:
    rank, group = _pick(r, 1, 2, 3), _pick(r, 1, 2)
    how = _window(r, rank) | {"group": group}
    if r.random() < 0.4:
        how["dilations"] = [_pick(r, 1, 2) for _ in range(rank)]
    x = _real(r, (2, 4, *_space(r, rank)))
    kernel = how["kernel_shape"]
    if r.random() < 0.3:
        del how["kernel_shape"]
    if operator == "Conv":
        inputs = [x, _real(r, (6, 4 // group, *kernel))]
    else:
        inputs = [x, _real(r, (4, 6 // group, *kernel))]
        strides = how.get("strides", [1] * rank)
        if r.random() < 0.4:
            how["output_padding"] = [int(r.integers(0, s)) for s in strides]
        elif r.random() < 0.3 and how.get("auto_pad") != "VALID":
            sizes = zip(x.shape[2:], strides, strict=True)
            how["output_shape"] = [n * s + int(r.integers(0, 3)) for n, s in sizes]
            how.pop("pads", None)
    if r.random() < 0.5:
        inputs.append(_real(r, (6,)))
    return Case(operator, inputs, how, 18)


@makes("ConvInteger")
def _conv_integer(r: Random, operator: str) -> Case:
    how = _window(r, 2) | {"group": _pick(r, 1, 2)}
    x = _ints(r, 0, 255, (1, 2, *_space(r, 2)), "uint8")
    w = _ints(r, 0, 255, (4, 2 // how["group"], *how["kernel_shape"]), "uint8")
    zeros = [np.asarray(_pick(r, 0, 3, 128), np.uint8), np.asarray(_pick(r, 0, 100), np.uint8)]
    return Case(operator, [x, w, *zeros[: int(r.integers(0, 3))]], how, 10 + 1)


@makes("MatMulInteger")
def _matmul_integer(r: Random, operator: str) -> Case:
    a, b = _ints(r, 0, 255, (3, 4), "uint8"), _ints(r, 0, 255, (4, 2), "uint8")
    zeros = [np.asarray(_pick(r, 0, 3, 128), np.uint8), np.asarray(_pick(r, 0, 100), np.uint8)]
    return Case(operator, [a, b, *zeros[: int(r.integers(0, 3))]], {}, 11)


@makes("MatMul", "Gemm")
def _matmul(r: Random, operator: str) -> Case:
    m, k, n = (int(i) for i in r.integers(1, 5, 3))
    if operator == "MatMul":
        batch = _shape(r, 0, 2)
        a = _pick(r, (k,), (*batch, m, k), (m, k))
        b = _pick(r, (k,), (*batch, k, n), (k, n))
        return Case(operator, [_real(r, a), _real(r, b)])
    how = _some(r, transA=(0, 1), transB=(0, 1), alpha=(0.5, 2.0), beta=(0.5, 0.0, -1.0))
    a = (k, m) if how.get("transA") else (m, k)
    b = (n, k) if how.get("transB") else (k, n)
    inputs = [_real(r, a), _real(r, b)]
    if r.random() < 0.7:
        inputs.append(_real(r, _pick(r, (), (n,), (1, n), (m, 1), (m, n), (1, 1))))
    return Case(operator, inputs, how, 13)


@makes("Einsum")
def _einsum(r: Random, operator: str) -> Case:
    equation, shapes = _pick(
        r,
        ("b...,b->b...", ((2, 3, 5), (2,))),
        ("i...,i...->...", ((4, 3), (4, 3))),
        ("a,b...->ab...", ((2,), (3, 4))),
        ("bi,b...->b...", ((2, 3), (2, 4))),
        ("...ii->...i", ((2, 3, 3),)),
        ("bij, bjk -> bik", ((2, 3, 4), (2, 4, 5))),
        ("ii", ((3, 3),)),
        ("ij,jk", ((2, 1), (3, 4))),
        ("...ij,...jk->...ik", ((2, 1, 3, 4), (5, 4, 2))),
    )
    return Case(operator, [_real(r, s) for s in shapes], {"equation": equation}, 12)


# Resizing and sampling


@makes("Resize", "Upsample")
def _resize(r: Random, operator: str) -> Case:
    rank = _pick(r, 1, 2)
    space = _space(r, rank)
    x = _real(r, (_pick(r, 1, 2), 2, *space))
    mode = _pick(r, "nearest", "linear", "cubic") if rank == 2 else _pick(r, "nearest", "linear")
    factors = [
        _pick(r, 0.3, 0.4, 0.6, 0.7, 0.75, 0.9, 1.0, 1.1, 1.3, 1.4, 1.7, 2.0, 2.5, 2.8, 3.0)
        for _ in space
    ]
    if operator == "Upsample" or r.random() < 0.2:  # of operator set 10 a resizing has scales alone
        if operator == "Upsample":
            factors = [max(f, 1.0) for f in factors]
        old: dict[str, Any] = {"mode": "linear" if mode == "cubic" else mode}
        scales = np.asarray([1, 1, *factors], np.float32)
        return Case(operator, [x, scales], old, 9 if operator == "Upsample" else 10, (1,))
    how: dict[str, Any] = {"mode": mode}
    kinds = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    opset = _pick(r, 11, 13, 18, 19)
    if opset == 19:
        kinds.append("half_pixel_symmetric")
    how |= _some(r, coordinate_transformation_mode=(*kinds, "tf_crop_and_resize"))
    if mode == "nearest":
        roundings = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        how |= _some(r, nearest_mode=roundings)
    if mode == "cubic":
        how |= _some(r, cubic_coeff_a=(-0.75, -0.5), exclude_outside=(0, 1))
    if opset >= 18 and mode != "nearest":
        how |= _some(r, antialias=(0, 1))
    region = np.asarray([0, 0, *[0.2] * rank, 1, 1, *[0.7] * rank], np.float32)
    crop = how.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    roi = region if crop else None if opset > 11 else np.zeros(0, np.float32)
    if r.random() < 0.6:
        inputs = [x, roi, np.asarray([1, 1, *factors], np.float32)]
        return Case(operator, inputs, how, opset, (1, 2))
    sizes = [max(int(n * f), 1) for n, f in zip(space, factors, strict=True)]
    if opset >= 18 and r.random() < 0.4 and not crop:
        how["axes"] = list(range(2, 2 + rank))
        how |= _some(r, keep_aspect_ratio_policy=("stretch", "not_larger", "not_smaller"))
        return Case(operator, [x, None, None, _vector(*sizes)], how, opset, (3,))
    none = np.zeros(0, np.float32) if opset == 11 else None
    target = _vector(*x.shape[:2], *sizes)
    return Case(operator, [x, roi if crop else none, none, target], how, opset, (1, 2, 3))


@makes("GridSample")
def _grid(r: Random, operator: str) -> Case:
    opset = _pick(r, 16, 20)
    modes = ("bilinear", "nearest", "bicubic") if opset == 16 else ("linear", "nearest", "cubic")
    how = _some(r, mode=modes, padding_mode=("zeros", "border", "reflection"), align_corners=(0, 1))
    x = _real(r, (2, 2, *_space(r, 2)))
    grid = (r.uniform(-1.4, 1.4, (2, 3, 4, 2))).astype(np.float32)
    return Case(operator, [x, grid], how, opset)


@makes("RoiAlign")
def _roi(r: Random, operator: str) -> Case:
    opset = _pick(r, 10, 16, 22)
    how = {"output_height": 2, "output_width": 3, "sampling_ratio": _pick(r, 1, 2, 3)}
    how |= _some(r, spatial_scale=(0.5, 1.0), mode=("avg", "max"))
    if opset >= 16:
        how |= _some(r, coordinate_transformation_mode=("half_pixel", "output_half_pixel"))
    low = r.uniform(-2, 5, (3, 2))
    rois = np.concatenate([low, low + r.uniform(0.1, 8, (3, 2))], 1).astype(np.float32)
    return Case(operator, [_real(r, (2, 2, 8, 7)), rois, _ints(r, 0, 2, (3,))], how, opset)


# Normalization


@makes("BatchNormalization")
def _batch(r: Random, operator: str) -> Case:
    how = _some(r, epsilon=(1e-3, 0.1), momentum=(0.5,), training_mode=(0, 1))
    x = _real(r, (3, 4, *_space(r, _pick(r, 0, 1, 2))))
    rest = [_real(r, (4,)) for _ in range(3)]
    outputs = 3 if how.get("training_mode") else 1
    return Case(operator, [x, *rest, np.abs(_real(r, (4,)))], how, 15, (), outputs)


@makes("InstanceNormalization", "GroupNormalization")
def _group(r: Random, operator: str) -> Case:
    x = _real(r, (2, 4, *_space(r, _pick(r, 1, 2))))
    how = _some(r, epsilon=(1e-3, 0.1))
    if operator == "GroupNormalization":
        opset, groups = _pick(r, 18, 21), _pick(r, 1, 2, 4)
        count = groups if opset == 18 else 4
        inputs = [x, _real(r, (count,)), _real(r, (count,))]
        return Case(operator, inputs, {"num_groups": groups, **how}, opset)
    return Case(operator, [x, _real(r, (4,)), _real(r, (4,))], how)


@makes("LayerNormalization", "RMSNormalization")
def _layer(r: Random, operator: str) -> Case:
    shape = _shape(r, 2, 4)
    axis = int(r.integers(-len(shape), len(shape)))
    last = shape[axis:]
    inputs = [_real(r, shape), _real(r, last)]
    how = {"axis": axis, **_some(r, epsilon=(1e-3, 0.1))}
    if operator == "RMSNormalization":
        return Case(operator, inputs, how, 23)
    if r.random() < 0.6:
        inputs.append(_real(r, last))
    return Case(operator, inputs, how, 17, (), _pick(r, 1, 3))


@makes("LpNormalization", "LRN", "MeanVarianceNormalization")
def _local(r: Random, operator: str) -> Case:
    shape = (2, *_shape(r, 2, 3))
    if operator == "LpNormalization":
        x = _real(r, shape)
        x.flat[: shape[-1]] = 0 if r.random() < 0.3 else 1
        return Case(operator, [x], _some(r, axis=range(-len(shape), len(shape)), p=(1, 2)))
    if operator == "LRN":
        how = {"size": _pick(r, 1, 2, 3, 5), **_some(r, alpha=(0.1,), beta=(0.5,), bias=(2.0,))}
        return Case(operator, [_real(r, (2, 6, 3, 2))], how)
    return Case(operator, [_real(r, (2, 3, 4, 5))], _some(r, axes=([0, 2, 3], [1], [0, 1, 2, 3])))


# Quantization


@makes("QuantizeLinear", "DequantizeLinear")
def _quantize(r: Random, operator: str) -> Case:
    shape, kind = (2, 3, 4), _pick(r, "int8", "uint8")
    axis = _axis(r, 3)
    whole = r.random() < 0.5
    count = () if whole else (shape[axis],)
    scale = np.abs(_real(r, count)) * 0.1 + 0.01
    zero = _ints(r, 0, 100, count, kind)
    x = _real(r, shape) * 3 if operator == "QuantizeLinear" else _ints(r, 0, 120, shape, kind)
    if operator == "QuantizeLinear" and r.random() < 0.3:
        x, scale = np.round(x) / 2, np.ones_like(scale)  # halves
    inputs = [np.asarray(x, "float32" if operator == "QuantizeLinear" else kind), np.float32(scale)]
    if r.random() < 0.7:
        inputs.append(zero)
    elif operator == "QuantizeLinear":
        pass
    how = {} if whole else {"axis": axis}
    return Case(operator, [np.asarray(i) for i in inputs], how, 19)


@makes("DynamicQuantizeLinear")
def _dynamic(r: Random, operator: str) -> Case:
    x = _real(r, _shape(r)) * 3 + _pick(r, 0, 5, -5)
    return Case(operator, [x.astype(np.float32)], {}, 11, (), 3)


@makes("QLinearMatMul", "QLinearConv")
def _qlinear(r: Random, operator: str) -> Case:
    def numbers(count: tuple[int, ...] = ()) -> list[Any]:
        scale = (np.abs(_real(r, count)) * 0.02 + 0.01).astype(np.float32)
        return [np.asarray(scale), _ints(r, 0, 200, count, "uint8")]

    if operator == "QLinearMatMul":
        a, b = _ints(r, 0, 255, (3, 4), "uint8"), _ints(r, 0, 255, (4, 2), "uint8")
        return Case(operator, [a, *numbers(), b, *numbers(), *numbers()], {}, 10 + 1)
    how = _window(r, 2)
    x = _ints(r, 0, 255, (1, 2, *_space(r, 2)), "uint8")
    w = _ints(r, 0, 255, (3, 2, *how["kernel_shape"]), "uint8")
    each = _pick(r, (), (3,))
    inputs = [x, *numbers(), w, *numbers(each), *numbers()]
    if each:
        inputs[5] = np.full(3, inputs[5][0], np.uint8)
    if r.random() < 0.5:
        inputs.append(_ints(r, -500, 500, (3,), "int32"))
    return Case(operator, inputs, how, 10 + 1)


# Recurrent networks


@makes("LSTM", "GRU", "RNN")
def _recurrent(r: Random, operator: str) -> Case:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator]
    direction = _pick(r, "forward", "reverse", "bidirectional")
    ways, hidden, steps, batch, size = 1 + (direction == "bidirectional"), 3, 4, 2, 2
    how: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    inputs: list[Any] = [
        _real(r, (steps, batch, size)),
        _real(r, (ways, gates * hidden, size)),
        _real(r, (ways, gates * hidden, hidden)),
        _real(r, (ways, 2 * gates * hidden)) if r.random() < 0.7 else None,
        None,
        _real(r, (ways, batch, hidden)) if r.random() < 0.5 else None,
    ]
    if operator == "LSTM":
        inputs.append(_real(r, (ways, batch, hidden)) if r.random() < 0.5 else None)
        inputs.append(_real(r, (ways, 3 * hidden)) if r.random() < 0.4 else None)
        how |= _some(r, input_forget=(0, 1))
    if operator == "GRU":
        how |= _some(r, linear_before_reset=(0, 1))
    if r.random() < 0.3:
        how["clip"] = 0.7
    if r.random() < 0.3:
        inputs[4] = _ints(r, 1, steps + 1, (batch,), "int32")
    while inputs[-1] is None:
        inputs.pop()
    constants = tuple(i for i in (1, 2, 3, 4, 7) if i < len(inputs) and inputs[i] is not None)
    return Case(operator, inputs, how, 14, constants, 3 if operator == "LSTM" else 2)


@makes("DFT", "STFT")
def _fourier(r: Random, operator: str) -> Case:
    if operator == "STFT":
        x = _real(r, (2, 16, 1))
        inputs = [x, np.asarray(3), _real(r, (6,)), np.asarray(6)]
        return Case(operator, inputs, _some(r, onesided=(0, 1)), 17, (1, 3))
    rank = _pick(r, 2, 3)
    inverse, parts = _pick(r, 0, 1), _pick(r, 1, 2)
    onesided = 1 if parts == 1 and not inverse and r.random() < 0.5 else 0
    x = _real(r, (2, *(_pick(r, 3, 4, 6) for _ in range(rank - 1)), parts))
    how: dict[str, Any] = {"inverse": inverse, "onesided": onesided}
    opset = _pick(r, 17, 20)
    axis = int(r.integers(1, rank))
    length = None if r.random() < 0.5 else np.asarray(_pick(r, 2, 5, 8))
    if opset == 17:
        return Case(
            operator, [x, length] if length is not None else [x], how | {"axis": axis}, 17, (1,)
        )
    return Case(operator, [x, length, np.asarray(axis)], how, 20, (1, 2))
