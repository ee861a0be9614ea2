"""Random nodes of every ONNX operator that is imported: attributes, shapes, versions.

Each function takes a generator of random numbers and returns one `Case`. Used by `onnx_runtime.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Random = np.random.Generator


@dataclass(frozen=True)
class Case:
    """A node with its inputs.

    Parameters
    ----------
    operator : str
        The ONNX operator.
    inputs : sequence of array or None
        Its inputs; None for one that is left out.
    attributes : mapping of str to object
        Its attributes.
    opset : int
        Version of the operator set.
    constants : tuple of int
        Positions of the inputs that are stored in the model.
    outputs : int
        Number of results.
    """

    operator: str
    inputs: Sequence[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 18
    constants: tuple[int, ...] = ()
    outputs: int = 1


MAKERS: dict[str, Callable[[Random, str], Case]] = {}


def makes(
    *operators: str,
) -> Callable[[Callable[[Random, str], Case]], Callable[[Random, str], Case]]:
    """Register the maker of random nodes of operators."""

    def register(make: Callable[[Random, str], Case]) -> Callable[[Random, str], Case]:
        MAKERS.update(dict.fromkeys(operators, make))
        return make

    return register


def _shape(r: Random, least: int = 1, most: int = 4, size: int = 5) -> tuple[int, ...]:
    return tuple(int(n) for n in r.integers(1, size, r.integers(least, most + 1)))


def _real(r: Random, shape: Sequence[int], dtype: str = "float32") -> Array:
    return np.asarray(r.normal(size=tuple(shape)), dtype)


def _ints(r: Random, low: int, high: int, shape: Sequence[int] = (), dtype: str = "int64") -> Array:
    return r.integers(low, high, tuple(shape)).astype(dtype)


def _pick(r: Random, *options: Any) -> Any:
    return options[int(r.integers(len(options)))]


def _some(r: Random, **options: Sequence[Any]) -> dict[str, Any]:
    """Return some of the attributes, each with one of its values."""
    return {name: _pick(r, *values) for name, values in options.items() if r.random() < 0.6}


def _vector(*numbers: int) -> Array:
    return np.asarray(numbers, np.int64)


def _axis(r: Random, rank: int) -> int:
    return int(r.integers(-rank, rank))


def _broadcasts(r: Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    kept = shape[int(r.integers(0, len(shape) + 1)) :]
    return tuple(1 if r.random() < 0.2 else n for n in kept)


# Point by point

_UNARY = "Acosh Asin Atanh Acos Abs Asinh Atan Ceil Cos Cosh Erf Exp Floor IsNaN Log Neg Reciprocal"
_UNARY += " Relu Round Sigmoid Sign Sin Sinh Softplus Sqrt Tan Tanh Softsign HardSwish Mish Not"
_UNARY += " Identity"


@makes(*_UNARY.split())
def _unary(r: Random, operator: str) -> Case:
    x = _real(r, _shape(r)) * _pick(r, 0.3, 1, 5)
    if operator in ("Abs", "Neg", "Sign", "Relu", "Identity") and r.random() < 0.3:
        x = _ints(r, -5, 6, x.shape, _pick(r, "int32", "int64"))
    if operator == "Acosh":
        x = np.abs(x) + 1
    if operator in ("Log", "Sqrt"):
        x = np.abs(x)
    if operator in ("Asin", "Acos", "Atanh"):
        x = np.clip(x, -0.9, 0.9)
    if operator == "Not":
        x = x > 0
    if operator == "Round":
        x = np.round(x * 2) / 2
    return Case(operator, [x], opset=_pick(r, 13, 18, 20, 22))


_CURVES: dict[str, dict[str, Sequence[Any]]] = {
    "Elu": {"alpha": (0.5, 1.0, 2.0, -1.0, 0.0)},
    "LeakyRelu": {"alpha": (0.1, 0.0, -0.5, 2.0)},
    "Selu": {"alpha": (1.0, 2.0), "gamma": (0.5, 2.0)},
    "Celu": {"alpha": (0.5, 2.0)},
    "HardSigmoid": {"alpha": (0.1, 0.5, -0.3), "beta": (0.3, 0.6)},
    "ThresholdedRelu": {"alpha": (0.0, 0.5, -0.5)},
    "Shrink": {"lambd": (0.5, 1.0, -0.5), "bias": (0.0, 0.3, -0.3)},
    "Gelu": {"approximate": ("none", "tanh")},
    "IsInf": {"detect_negative": (0, 1), "detect_positive": (0, 1)},
}


@makes(*_CURVES)
def _curve(r: Random, operator: str) -> Case:
    x = _real(r, _shape(r)) * _pick(r, 1, 3)
    if operator == "IsInf":
        x = np.where(r.random(x.shape) < 0.5, _pick(r, np.inf, -np.inf), x).astype("float32")
    return Case(operator, [x], _some(r, **_CURVES[operator]), 20)


_BINARY = "Add Sub Mul Div Pow Mod Equal Greater Less GreaterOrEqual LessOrEqual And Or Xor Max Min"
_BINARY += " Sum Mean BitShift BitwiseAnd BitwiseOr BitwiseXor PRelu"


@makes(*_BINARY.split())
def _binary(r: Random, operator: str) -> Case:
    shape = _shape(r)
    attributes: dict[str, Any] = {}
    shapes = [shape, _broadcasts(r, shape)]
    if operator in ("Max", "Min", "Sum", "Mean"):
        shapes += [_broadcasts(r, shape)] * int(r.integers(0, 2))
    whole = operator.startswith("Bit") or (
        operator not in ("PRelu", "Sum", "Mean") and r.random() < 0.4
    )
    if whole:
        dtype = (
            _pick(r, "uint8", "uint32") if operator == "BitShift" else _pick(r, "int32", "int64")
        )
        low = 0 if operator in ("Pow", "BitShift") else -6
        inputs = [_ints(r, low, 4 if low == 0 else 7, s, dtype) for s in shapes]
    else:
        inputs = [_real(r, s) for s in shapes]
    if operator == "BitShift":
        attributes["direction"] = _pick(r, "LEFT", "RIGHT")
    if operator == "Mod":
        inputs[1] = np.where(inputs[1] == 0, 2, inputs[1]).astype(inputs[1].dtype)
        attributes["fmod"] = 1 if not whole else _pick(r, 0, 1)
    if operator == "Div" and whole:
        inputs[1] = np.where(inputs[1] == 0, 2, inputs[1]).astype(inputs[1].dtype)
    if operator == "Pow" and not whole:
        inputs[0] = np.abs(inputs[0])
        if r.random() < 0.3:
            inputs[0], inputs[1] = -inputs[0], _ints(r, 0, 4, shapes[1], "float32")
    if operator in ("And", "Or", "Xor"):
        inputs = [i > 0 for i in inputs]
    if operator == "Equal":
        inputs = [np.round(i).astype(i.dtype) for i in inputs]
    turned = operator not in ("PRelu", "Pow", "BitShift") and r.random() < 0.5
    constants = (1,) if r.random() < 0.4 else ()
    return Case(operator, inputs[::-1] if turned else inputs, attributes, 18, constants)


@makes("Clip")
def _clip(r: Random, operator: str) -> Case:
    dtype = _pick(r, "float32", "int32", "int64")
    low, high = (np.asarray(_pick(r, -2, -1, 0, 1), dtype) for _ in range(2))
    inputs = [(_real(r, _shape(r)) * 3).astype(dtype), low, high]
    if r.random() < 0.3:
        inputs[_pick(r, 1, 2)] = None
    return Case(operator, inputs, opset=_pick(r, 12, 13), constants=(1, 2))


@makes("Where")
def _where(r: Random, operator: str) -> Case:
    shape = _shape(r)
    inputs = [_real(r, _broadcasts(r, shape)) > 0, _real(r, shape), _real(r, _broadcasts(r, shape))]
    return Case(operator, inputs)


@makes("Cast")
def _cast(r: Random, operator: str) -> Case:
    names = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10}
    names["float64"] = 11
    before, after = _pick(r, *names), _pick(r, *names)
    x = _real(r, _shape(r)) * 20
    if after.startswith("uint") or before.startswith("uint"):
        x = np.abs(x)
    return Case(operator, [x.astype(before)], {"to": names[after]}, 19)


# Reductions and order

_REDUCE = "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare"
_REDUCE += " ReduceLogSum ReduceLogSumExp"


@makes(*_REDUCE.split())
def _reduce(r: Random, operator: str) -> Case:
    shape = _shape(r)
    dtype = _pick(r, "float32", "float32", "int32", "int64", "float64")
    x = (_real(r, shape) * 3).astype(dtype)
    if operator in ("ReduceLogSum", "ReduceLogSumExp") or (operator == "ReduceL2"):
        x = (np.abs(x) + 1).astype("float32" if operator == "ReduceLogSumExp" else dtype)
    count = int(r.integers(0, len(shape) + 1))
    axes = [int(a) - (len(shape) if r.random() < 0.3 else 0) for a in r.permutation(len(shape))]
    attributes = _some(r, keepdims=(0, 1))
    opset = _pick(r, 11, 13, 18)
    if opset == 18 or (operator == "ReduceSum" and opset == 13):
        attributes |= _some(r, noop_with_empty_axes=(0, 1))
        given = None if r.random() < 0.3 else _vector(*axes[:count])
        return Case(operator, [x] if given is None else [x, given], attributes, opset, (1,))
    if count:
        attributes["axes"] = axes[:count]
    return Case(operator, [x], attributes, opset)


@makes("ArgMax", "ArgMin")
def _extreme(r: Random, operator: str) -> Case:
    shape = _shape(r)
    x = _ints(r, -2, 3, shape, _pick(r, "float32", "int32"))  # with ties
    how = _some(r, axis=range(-len(shape), len(shape)), keepdims=(0, 1), select_last_index=(0, 1))
    return Case(operator, [x], how)


@makes("TopK")
def _top_k(r: Random, operator: str) -> Case:
    shape = _shape(r)
    axis = _axis(r, len(shape))
    k = int(r.integers(1, shape[axis] + 1))
    x = (
        _ints(r, -2, 3, shape, _pick(r, "float32", "int64"))
        if r.random() < 0.5
        else _real(r, shape)
    )
    how = {"axis": axis, **_some(r, largest=(0, 1))}
    return Case(operator, [x, _vector(k)], how, constants=(1,), outputs=2)


@makes("Softmax", "LogSoftmax", "Hardmax")
def _softmax(r: Random, operator: str) -> Case:
    shape = _shape(r)
    how = _some(r, axis=range(-len(shape), len(shape)))
    opset = _pick(r, 11, 13)
    if opset == 11 and len(shape) == 1 and "axis" not in how:
        how["axis"] = 0
    x = _ints(r, -2, 3, shape, "float32") if operator == "Hardmax" else _real(r, shape)
    return Case(operator, [x], how, opset)


@makes("CumSum")
def _cumsum(r: Random, operator: str) -> Case:
    shape = _shape(r)
    x = (_real(r, shape) * 3).astype(_pick(r, "float32", "int32", "int64"))
    how = _some(r, exclusive=(0, 1), reverse=(0, 1))
    return Case(operator, [x, np.asarray(_axis(r, len(shape)))], how, 14, (1,))


# Shapes


@makes("Reshape")
def _reshape(r: Random, operator: str) -> Case:
    shape = _shape(r, 2)
    target = list(r.permutation(shape))
    if r.random() < 0.5:
        target[int(r.integers(len(target)))] = -1
    elif r.random() < 0.5:
        target = [0, *shape[1:-1], shape[-1]]
    return Case(operator, [_real(r, shape), _vector(*target)], {}, 14, (1,))


@makes("Flatten")
def _flatten(r: Random, operator: str) -> Case:
    shape = _shape(r)
    return Case(operator, [_real(r, shape)], _some(r, axis=range(-len(shape), len(shape) + 1)), 13)


@makes("Squeeze", "Unsqueeze")
def _squeeze(r: Random, operator: str) -> Case:
    shape = tuple(_pick(r, 1, 1, 3) for _ in range(int(r.integers(1, 5))))
    places = [i for i, n in enumerate(shape) if n == 1]
    rank = len(shape)
    if operator == "Unsqueeze":
        rank += 2
        places = [int(n) for n in r.permutation(rank)[:2]]
    axes = [p - rank if r.random() < 0.4 else p for p in places]
    if _pick(r, 0, 1):
        return Case(operator, [_real(r, shape)], {"axes": axes} if axes else {}, 11)
    return Case(operator, [_real(r, shape), *([_vector(*axes)] if axes else [])], {}, 13, (1,))


@makes("Transpose")
def _transpose(r: Random, operator: str) -> Case:
    shape = _shape(r)
    how = {"perm": [int(n) for n in r.permutation(len(shape))]} if r.random() < 0.8 else {}
    return Case(operator, [_real(r, shape)], how)


@makes("Expand", "Tile")
def _expand(r: Random, operator: str) -> Case:
    shape = _shape(r, 1, 3, 3)
    if operator == "Tile":
        return Case(operator, [_real(r, shape), _ints(r, 1, 4, (len(shape),))], constants=(1,))
    target = [_pick(r, 1, n) if n > 1 else _pick(r, 1, 3) for n in shape]
    target = [2] * int(r.integers(0, 2)) + target[int(r.integers(0, 2)) :]
    return Case(operator, [_real(r, shape), _vector(*(target or [1]))], constants=(1,))


@makes("Concat", "Split")
def _concat(r: Random, operator: str) -> Case:
    shape = list(_shape(r, 1, 3))
    axis = _axis(r, len(shape))
    if operator == "Concat":
        parts = []
        for _ in range(int(r.integers(1, 4))):
            shape[axis] = int(r.integers(1, 4))
            parts.append(_real(r, shape))
        return Case(operator, parts, {"axis": axis})
    count = int(r.integers(2, 4))
    shape[axis] = int(r.integers(count, 8))
    opset = _pick(r, 11, 13, 18)
    if r.random() < 0.5:
        shape[axis] = 4
        sizes = _pick(r, [1, 3], [2, 2], [1, 2, 1])
        if opset == 11:
            return Case(
                operator, [_real(r, shape)], {"axis": axis, "split": sizes}, 11, (), len(sizes)
            )
        inputs = [_real(r, shape), _vector(*sizes)]
        return Case(operator, inputs, {"axis": axis}, opset, (1,), len(sizes))
    if opset < 18:
        shape[axis] = 2 * count
        return Case(operator, [_real(r, shape)], {"axis": axis}, opset, (), count)
    step = -(-shape[axis] // count)
    if step * (count - 1) >= shape[axis]:
        shape[axis] = step * count
    return Case(operator, [_real(r, shape)], {"axis": axis, "num_outputs": count}, 18, (), count)


@makes("Slice")
def _slice(r: Random, operator: str) -> Case:
    shape = _shape(r, 1, 3, 7)
    count = int(r.integers(1, len(shape) + 1))
    axes = [int(n) for n in r.permutation(len(shape))[:count]]
    steps = [_pick(r, 1, 2, 3, -1, -2) for _ in axes]
    starts = [_pick(r, 0, 1, -2, -100) if s > 0 else _pick(r, -1, 100, 3) for s in steps]
    ends = [_pick(r, 2**31, -1, 100, 3) if s > 0 else _pick(r, -100, 0, -(2**31)) for s in steps]
    axes = [a - len(shape) if r.random() < 0.3 else a for a in axes]
    inputs = [_real(r, shape), *(_vector(*v) for v in (starts, ends, axes, steps))]
    return Case(operator, inputs, {}, 13, (1, 2, 3, 4))


@makes("Pad")
def _pad(r: Random, operator: str) -> Case:
    shape = _shape(r, 2, 4, 5)
    mode = _pick(r, "constant", "reflect", "edge", "wrap")
    low = [int(_pick(r, 0, 1, 2, -1)) for _ in shape]
    high = [int(_pick(r, 0, 1, 2, -1)) for _ in shape]
    if mode in ("reflect", "wrap"):
        low = [min(n, s - 1) for n, s in zip(low, shape, strict=True)]
        high = [min(n, s - 1) for n, s in zip(high, shape, strict=True)]
    for pads in (low, high):
        pads[:] = [n if s > 2 else max(n, 0) for n, s in zip(pads, shape, strict=True)]
    inputs = [_real(r, shape), _vector(*low, *high)]
    if mode == "constant" and r.random() < 0.5:
        inputs.append(np.asarray(1.5, np.float32))
    return Case(operator, inputs, {"mode": mode}, 19, (1, 2))


@makes("CenterCropPad")
def _center(r: Random, operator: str) -> Case:
    shape = _shape(r, 1, 3, 8)
    count = int(r.integers(1, len(shape) + 1))
    axes = [int(n) for n in r.permutation(len(shape))[:count]]
    size = _ints(r, 1, 9, (count,))
    return Case(operator, [_real(r, shape), size], {"axes": axes}, 18, (1,))


@makes("DepthToSpace", "SpaceToDepth")
def _depth(r: Random, operator: str) -> Case:
    block = int(r.integers(1, 4))
    if operator == "DepthToSpace":
        x = _real(r, (2, 2 * block * block, 2, 3))
        return Case(operator, [x], {"blocksize": block, **_some(r, mode=("DCR", "CRD"))})
    return Case(operator, [_real(r, (2, 3, 2 * block, block))], {"blocksize": block})


@makes("EyeLike", "Trilu")
def _triangle(r: Random, operator: str) -> Case:
    x = _real(r, (*_shape(r, 0, 1), *_shape(r, 2, 2)) if operator == "Trilu" else _shape(r, 2, 2))
    k = int(r.integers(-4, 5))
    if operator == "EyeLike":
        return Case(operator, [x], _some(r, k=(k,), dtype=(1, 7)))
    return Case(operator, [x, np.asarray(k)], _some(r, upper=(0, 1)), 18, (1,))


# Positions


@makes("Gather", "GatherElements", "GatherND")
def _gather(r: Random, operator: str) -> Case:
    shape = _shape(r, 1, 3)
    axis = _axis(r, len(shape))
    x = _real(r, shape)
    constants = (1,) if r.random() < 0.5 else ()
    if operator == "GatherND":
        batch = int(r.integers(0, len(shape)))
        depth = int(r.integers(1, len(shape) - batch + 1))
        rows = _shape(r, 0, 2)
        parts = [
            _ints(r, -shape[batch + i], shape[batch + i], (*shape[:batch], *rows))
            for i in range(depth)
        ]
        return Case(operator, [x, np.stack(parts, -1)], {"batch_dims": batch}, 13, constants)
    size = shape[axis]
    if operator == "Gather":
        index = _ints(r, -size, size, _shape(r, 0, 2), _pick(r, "int32", "int64"))
    else:
        index = _ints(r, -size, size, [int(r.integers(1, n + 1)) for n in shape])
    return Case(operator, [x, index], {"axis": axis}, 13, constants)


@makes("ScatterElements", "ScatterND")
def _scatter(r: Random, operator: str) -> Case:
    shape = _shape(r, 1, 3)
    x = _real(r, shape)
    how = _some(r, reduction=("none", "add", "mul", "max", "min"))
    unique = how.get("reduction", "none") == "none"
    if operator == "ScatterElements":
        axis = _axis(r, len(shape))
        index = _ints(r, -shape[axis], shape[axis], shape)
        if unique:
            order = np.argsort(r.random(shape), axis)
            index = np.where(r.random(shape) < 0.3, order - shape[axis], order)
        return Case(operator, [x, index, _real(r, shape)], {"axis": axis, **how}, 18)
    depth = int(r.integers(1, len(shape) + 1))
    count = int(np.prod(shape[:depth]))
    flat = r.permutation(count) if unique else r.integers(0, count, 5)
    index = np.stack(np.unravel_index(flat, shape[:depth]), -1)
    index = np.where(r.random(index.shape) < 0.3, index - np.asarray(shape[:depth]), index)
    return Case(operator, [x, index, _real(r, (len(flat), *shape[depth:]))], how, 18)


@makes("OneHot")
def _one_hot(r: Random, operator: str) -> Case:
    shape = _shape(r, 1, 2)
    x = _ints(r, -5, 5, shape, _pick(r, "int64", "float32"))
    values = np.asarray([2, 5], _pick(r, "float32", "int64"))
    how = _some(r, axis=range(-len(shape) - 1, len(shape) + 1))
    return Case(operator, [x, np.asarray(4), values], how, 11, (1,))


@makes("ReverseSequence")
def _reverse(r: Random, operator: str) -> Case:
    time = _pick(r, 0, 1)
    shape = (*_shape(r, 2, 2), 2)
    lengths = _ints(r, 1, shape[time] + 1, (shape[1 - time],))
    return Case(
        operator, [_real(r, shape), lengths], {"time_axis": time, "batch_axis": 1 - time}, 10 + 1
    )


@makes("Range")
def _range(r: Random, operator: str) -> Case:
    dtype = _pick(r, "float32", "int64", "int32")
    numbers = [np.asarray(_pick(r, -3, 0, 2), dtype), np.asarray(_pick(r, 5, 7, -6), dtype)]
    numbers.append(np.asarray(np.sign(numbers[1] - numbers[0]) * _pick(r, 1, 2), dtype))
    return Case(operator, numbers, {}, 11, (0, 1, 2))


@makes("NonZero", "Unique", "Compress")
def _known(r: Random, operator: str) -> Case:
    shape = _shape(r, 1, 2)
    x = _ints(r, 0, 3, shape, "float32")
    if operator == "Compress":
        axis = _axis(r, len(shape))
        chosen = r.random(shape[axis]) < 0.6
        chosen[0] = True
        return Case(operator, [x, chosen], {"axis": axis}, 11, (1,))
    x.flat[0] = 1
    if operator == "NonZero":
        return Case(operator, [x], {}, 13, (0,))
    return Case(operator, [x], _some(r, sorted=(0, 1), axis=(0,)), 11, (0,), 4)
