"""The rule of an optimizer whose states have 8 bits, by functions that all systems have."""

from collections.abc import Sequence
from typing import Any

from ..dynamic_tree import edges_of, tiled, values_of
from . import arrays
from .arrays import Array, xp
from .rules import _adam_rule
from .stepping import updated

Block = tuple[int, ...]


def adam8bit_update(
    *tensors: Array,
    learning_rate: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    l2: float = 0.0,
    bias_correction: str = "moments",
    lazy: bool = False,
    nesterov: bool = False,
    block: Block = (16, 16),
) -> tuple[Array, ...]:
    """Adam whose means are stored in 8 bits, with the largest number of every block."""
    how = (beta1, beta2), epsilon, (weight_decay, l2), bias_correction, lazy, nesterov

    def rule(rate: Any, *operands: Any) -> Sequence[Array]:
        p, g, m, m_scale, v, v_scale, step = operands
        mean = _dequantized(m, m_scale, block, True)
        square = _dequantized(v, v_scale, block, False)
        after, mean, square = _adam_rule(rate, (p, g, mean, square), step, *how)
        return after, *_quantized(mean, block, True), *_quantized(square, block, False)

    return updated(rule, 4, True, learning_rate, tensors)


def _spread(scale: Array, block: Block) -> Array:
    for axis, side in enumerate(block, -len(block)):
        scale = arrays.repeated(scale, side, axis)
    return scale


def _dequantized(codes: Array, scale: Array, block: Block, signed: bool) -> Array:
    values = arrays.constant(values_of(signed), scale)
    return values[arrays.as_type(codes, xp.int32)] * _spread(scale, block)


def _quantized(x: Array, block: Block, signed: bool) -> tuple[Array, Array]:
    """Return the positions of the nearest values, and the largest number of every block."""
    parts, sides = tiled(tuple(x.shape), block)
    scale = xp.amax(xp.abs(x).reshape(parts), sides)
    share = x / _spread(xp.where(scale > 0, scale, 1), block)
    return arrays.positions(arrays.constant(edges_of(signed), x), share), scale
