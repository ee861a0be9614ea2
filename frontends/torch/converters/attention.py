"""Attention."""

import numpy as np
import torch

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Constant, Item
from shardwright.frontends.torch.aten import converts
from shardwright.frontends.torch.aten_call import Call
from shardwright.frontends.torch.converters.normalization import dropped
from shardwright.frontends.torch.stored import ModuleTensor, narrowed
from shardwright.ir.graph import Value


@converts("aten.scaled_dot_product_attention")
def _attention(
    call: Call,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Item = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    q, k, v = _of_one_batch(call, [_four(call, x) for x in (query, key, value)])
    operands = [q, k, v]
    if isinstance(attn_mask, Constant) and _known_causal(call, attn_mask, q, k):
        attn_mask, is_causal = None, True
    if attn_mask is not None:
        operands.append(_mask(call, attn_mask, query, k))
    if dropout_p:
        found = _dropped(call, operands, is_causal, scale, dropout_p)
    else:
        found = call.emit("scaled_dot_product_attention", *operands, causal=is_causal, scale=scale)
    return call.reshape(found, call.result.shape)


def _four(call: Call, x: Value) -> Value:
    """Return a tensor as ``[batch, head, position, feature]``."""
    shape = x.type.shape
    if len(shape) < 4:
        return call.reshape(x, (*(1,) * (4 - len(shape)), *shape))
    return call.reshape(x, (int(np.prod(shape[:-3])), *shape[-3:]))


def _of_one_batch(call: Call, tensors: list[Value]) -> list[Value]:
    """Return tensors of four dimensions, those of a batch of one repeated for the others."""
    batch = max(x.type.shape[0] for x in tensors)
    return [call.broadcast(x, (batch, *x.type.shape[1:])) for x in tensors]


def _mask(call: Call, item: Item, query: Value, key: Value) -> Value:
    """Return a mask of four dimensions, each but the last whole or one."""
    if isinstance(item, Constant) and isinstance(item.data, ModuleTensor) and not item.trained:
        small = narrowed(item.data.tensor)
        small = small.expand(*small.shape[:-1], item.shape[-1])
        item = Constant(ModuleTensor(small), item.dtype, item.name)
    mask = call.value(item)
    shape = mask.type.shape
    if len(shape) > 4 or query.type.rank > 4:
        raise UnsupportedError("a mask of attention over more than four dimensions")
    mask = call.reshape(mask, (*(1,) * (4 - len(shape)), *shape))
    keys = key.type.shape[2]
    return call.broadcast(mask, (*mask.type.shape[:3], keys))


def _known_causal(call: Call, mask: Constant, query: Value, key: Value) -> bool:
    """Return whether a mask is the causal one; layers share it."""
    if id(mask) not in call.notes.causal:
        call.notes.causal[id(mask)] = mask, _is_causal(mask, query, key)
    return call.notes.causal[id(mask)][1]


def _is_causal(mask: Constant, query: Value, key: Value) -> bool:
    """Return whether each query reads exactly the keys up to its position."""
    if mask.trained or not isinstance(mask.data, ModuleTensor) or mask.is_absent:
        return False
    tensor = narrowed(mask.data.tensor)
    queries, keys = query.type.shape[2], key.type.shape[2]
    if tensor.shape[-2:] != (queries, keys) or tensor.numel() != queries * keys:
        return False
    plane = tensor.reshape(queries, keys)
    read = torch.arange(keys) <= torch.arange(queries)[:, None]
    if plane.dtype == torch.bool:
        return bool((plane == read).all())
    lowest = torch.finfo(plane.dtype).min
    return bool((plane[read] == 0).all() and (plane[~read] <= lowest).all())


def _dropped(
    call: Call, operands: list[Value], causal: bool, scale: float | None, rate: float
) -> Value:
    """Return attention with dropout of its weights, as products and a softmax."""
    q, k, v = operands[:3]
    several = q.type.shape[1] // k.type.shape[1]
    if several > 1:
        k, v = (_repeated(call, x, several) for x in (k, v))
    factor = q.type.shape[-1] ** -0.5 if scale is None else scale
    scores = call.emit("scale", call.emit("matmul", q, k, transpose_b=True), factor=factor)
    if causal:
        read = np.tri(q.type.shape[2], k.type.shape[2], dtype=bool)
        operands = [*operands[:3], call.constant(read, "bool")]
    if len(operands) > 3:
        scores = _masked(call, scores, operands[3])
    weights = dropped(call, call.emit("softmax", scores, axis=-1), rate)
    return call.emit("matmul", weights, v)


def _repeated(call: Call, x: Value, several: int) -> Value:
    batch, heads, positions, features = x.type.shape
    single = call.reshape(x, (batch, heads, 1, positions, features))
    whole = call.broadcast(single, (batch, heads, several, positions, features))
    return call.reshape(whole, (batch, heads * several, positions, features))


def _masked(call: Call, scores: Value, mask: Value) -> Value:
    if mask.type.dtype != "bool":
        return call.emit("add", scores, mask)
    least = call.fill(float("-inf"), scores.type.dtype)
    return call.emit("where", mask, scores, least)
