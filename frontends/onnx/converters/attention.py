"""Conversion of attention to one operator of our IR, where that is equivalent."""

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.onnx.onnx_call import Call
from shardwright.frontends.onnx.onnx_operators import converts
from shardwright.ir.graph import Value


@converts("Attention")
def _attention(call: Call) -> Value:
    _check(call)
    q, k, v = (call.value(i) for i in range(3))
    by_position = q.type.rank == 3  # [batch, position, heads features]
    if by_position:
        heads = call.attribute("q_num_heads"), call.attribute("kv_num_heads")
        q, k, v = (_by_head(call, x, heads[i > 0]) for i, x in enumerate((q, k, v)))
    operands = [q, k, v]
    if call.has(3):
        operands.append(_mask(call, q.type.dtype, k.type.shape[2]))
    scale = call.attribute("scale")
    found = call.emit(
        "scaled_dot_product_attention",
        *operands,
        causal=bool(call.attribute("is_causal", 0)),
        scale=None if scale is None else float(scale),
    )
    if not by_position:
        return found
    batch, count, positions, features = found.type.shape
    together = call.transpose(found, (0, 2, 1, 3))
    return call.reshape(together, (batch, positions, count * features))


def _check(call: Call) -> None:
    """Raise for variants that our operator lacks, which fall back to the function body."""
    if call.outputs > 1 or any(call.has(i) for i in (4, 5, 6)):
        raise UnsupportedError("keys and values that are kept between calls")
    windows = (call.attribute(f"{side}_window_size", -1) for side in ("left", "right"))
    if call.attribute("softcap", 0.0) or any(window >= 0 for window in windows):
        raise UnsupportedError("scores that are bounded, or windows of keys")
    if call.type(0).dtype not in ("float32", "float64"):
        raise UnsupportedError("the rounding of half precision inside of attention")


def _by_head(call: Call, x: Value, heads: int) -> Value:
    batch, positions, features = x.type.shape
    split = call.reshape(x, (batch, positions, heads, features // heads))
    return call.transpose(split, (0, 2, 1, 3))


def _mask(call: Call, dtype: str, keys: int) -> Value:
    mask = call.value(3)
    shape = mask.type.shape
    if shape[-1] != keys or len(shape) < 2:
        raise UnsupportedError("a mask of another number of keys")
    if mask.type.dtype not in ("bool", dtype):
        raise UnsupportedError(f"a mask of type {mask.type.dtype}")
    return call.reshape(mask, (*(1,) * (4 - len(shape)), *shape))
