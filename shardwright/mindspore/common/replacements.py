"""What a rank computes of MindSpore's operators that are split, in MindSpore's operators.

Its rules replace an operator that is split by positions by several, which shift positions into the
slice of the rank and mask what lies outside. Here one operator does that: listings show the same
slice of it as MindSpore's operators compute it. Each function here can be computed, too.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from shardwright.ir.graph import Value
from shardwright.ir.types import TensorType
from shardwright.mindspore.calls import Call, Part, Replaced, called, noted_calls
from shardwright.mindspore.ops import operations
from shardwright.operators.info import Array
from shardwright.tensor import Tensor, TracedTensor
from shardwright.tracer import Tracer

Replacement = Callable[..., Tensor]


def _length(part: slice) -> int:
    return int(part.stop - part.start)


def spaced(part: Part, start: Tensor, stop: Tensor, num: int) -> Tensor:
    """Return a slice of evenly spaced numbers: it has ends of its own."""
    (own,) = part.result
    step = operations.Div()(operations.Sub()(stop, start), float(num - 1))
    first = operations.Add()(start, operations.Mul()(step, float(own.start)))
    last = operations.Add()(first, operations.Mul()(step, float(_length(own) - 1)))
    made: Tensor = operations.LinSpace()(first, last, _length(own))
    return made


def by_rows(kind: str, part: Part, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Return a slice of rows that is changed: updates of other rows are masked."""
    own = part.operands[0][0]
    shifted = operations.Sub()(indices, Tensor(own.start, indices.dtype))
    least = Tensor(_length(own) - 1, indices.dtype)
    inside = operations.Minimum()(operations.ReLU()(shifted), least)
    kept = _kept(kind, updates, operations.Equal()(shifted, inside))
    with called(f"Scatter{kind}", (x, inside, kept)):
        return _changed(kind, x, inside.reshape((*inside.shape, 1)), kept)


def by_tuples(name: str, part: Part, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Return a slice that is changed at tuples of positions: updates of others are masked.

    Slices are numbered along the dimensions of positions; that of each update is computed.
    """
    depth = indices.shape[-1]
    own = part.operands[0][:depth]
    counts = [n // _length(o) for n, o in zip(part.shapes[0][:depth], own, strict=True)]
    strides = [prod(counts[d + 1 :]) for d in range(depth)]
    number = sum(o.start // _length(o) * s for o, s in zip(own, strides, strict=True))
    column = (*(1,) * (indices.ndim - 1), -1)
    sizes = operations.Reshape()(Tensor(np.array([_length(o) for o in own]), indices.dtype), column)
    each = operations.FloorDiv()(indices, sizes)
    inside = operations.Sub()(indices, operations.Mul()(each, sizes))
    weights = operations.Reshape()(Tensor(np.array(strides), indices.dtype), column)
    found = operations.ReduceSum()(operations.Mul()(each, weights), -1)
    apart = operations.Sub()(Tensor(number, indices.dtype), found)
    near = operations.Minimum()(operations.ReLU()(apart), Tensor(0, indices.dtype))
    kind = name.partition("Scatter")[2].removeprefix("Nd")
    kept = _kept(kind, updates, operations.Equal()(apart, near))
    with called(name, (x, inside, kept)):
        return _changed(kind, x, inside, kept)


def _kept(kind: str, updates: Tensor, inside: Tensor) -> Tensor:
    """Return updates that change nothing where they are outside."""
    shape = (*inside.shape, *(1,) * (updates.ndim - inside.ndim))
    mask = operations.Reshape()(operations.Cast()(inside, updates.dtype), shape)
    kept = operations.Mul()(updates, mask)
    if kind in ("Mul", "Div"):
        kept = operations.Add()(kept, operations.Sub()(Tensor(1.0, updates.dtype), mask))
    result: Tensor = kept
    return result


def _changed(kind: str, x: Tensor, positions: Tensor, updates: Tensor) -> Tensor:
    made: Tensor = getattr(operations, f"TensorScatter{kind}")()(x, positions, updates)
    return made


_TUPLES = [f"ScatterNd{kind}" for kind in ("Add", "Sub")]
_TUPLES += [f"TensorScatter{kind}" for kind in ("Add", "Sub", "Mul", "Div")]
REPLACEMENTS: Mapping[str, Replacement] = {
    "LinSpace": spaced,
    **{f"Scatter{kind}": partial(by_rows, kind) for kind in ("Add", "Sub", "Mul", "Div")},
    **{name: partial(by_tuples, name) for name in _TUPLES},
}


def replaced(call: Call, part: Part, types: Sequence[TensorType]) -> Replaced | None:
    """Return what MindSpore computes in the place of an operator; None where it is the operator.

    Parameters
    ----------
    call : Call
        The operator, with what it was applied to.
    part : Part
        What the rank computes of it.
    types : sequence of TensorType
        The types of the whole operands.
    """
    replacement = REPLACEMENTS.get(call.name)
    depth = part.shapes[1][-1] if replacement and call.name in _TUPLES else 1
    split = [*zip(part.result[:depth], part.shapes[-1], strict=False)]
    if replacement is None or all(_length(own) == size for own, size in split):
        return None
    tracer = Tracer(1, {}, {})
    values = [
        tracer.input(Value(f"operand {i}", TensorType(kind.dtype, tuple(map(_length, own)))))
        for i, (kind, own) in enumerate(zip(types, part.operands, strict=True))
    ]
    tensors = iter(map(TracedTensor, values))
    with tracer.tracing(), noted_calls() as calls:
        replacement(part, *(next(tensors) if item is None else item for item in call.arguments))
    names = [value.name for value in values]
    constants = {name: _text(array) for name, array in tracer.initial.items()}
    return Replaced(names, tracer.nodes, calls, constants)


def _text(array: Array) -> str:
    """Return numbers as MindSpore writes them."""
    kind = str(array.dtype).title()
    return f"Tensor(shape={[*array.shape]}, dtype={kind}, value={array.tolist()})"
