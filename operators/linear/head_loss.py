"""The head of a language model and the sums of its loss, by chunks of the tokens.

Cross entropy needs two numbers of the logits of a token: the logarithm of the sum of their
exponentials, and the one at the label. These operators make the logits of one chunk of a rank's
tokens at a time, take both, and drop them; the gradient makes them again, chunk by chunk, and adds
up the gradient of the weight.

The vocabulary is divided into equal pieces, with a log sum each, so that ranks may share it: one
that has some of the pieces needs nothing of others. The pieces of a token, few numbers, then meet
in the operators of a loss whose classes are split.

References
----------
Wijmans et al., "Cut your losses in large-vocabulary language models", 2024; Hsu et al., "Liger
kernel", 2024 (fused linear cross entropy).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import item_bytes
from shardwright.operators.indexing.gather import kept_inside
from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    register,
)
from shardwright.operators.notation import resolve
from shardwright.operators.products import Product
from shardwright.operators.rule import Rule, ShardView
from shardwright.operators.workspace import WithWorkspace

_WIDE = "float32"  # the least type of the log sums, as of every loss


@dataclass(frozen=True)
class ChunkSizes:
    """The sizes of the products of a rank.

    Parameters
    ----------
    rows : int
        Tokens of the largest chunk.
    vocabulary, features : int
        Entries of the vocabulary on the rank, and features of a token.
    chunks : int
        Chunks with at least one token.
    """

    rows: int
    vocabulary: int
    features: int
    chunks: int


class OverChunks(Product, WithWorkspace):
    """The base of the head with the sums of its loss, and of its gradient.

    The first operands are the hidden states ``[..., k]`` and the weight, ``[v, k]`` or ``[k, v]``
    by ``transpose_b``; the last is the bias ``[v]``, where there is one. With a ``cap`` the logits
    are ``cap`` tanh(hidden x weight + bias).
    """

    defaults: ClassVar = {
        **{"transpose_b": True, "pieces": 1, "chunks": 1, "cap": 0.0},
        **Product.defaults,
    }
    between: ClassVar[str]  # the rule of operands between the weight and the bias
    passes: ClassVar[int]  # products of the size of all logits
    logit_bytes: ClassVar[tuple[float, float]]  # of one, made in 16 bits; in its own bytes
    kernels: ClassVar[tuple[int, int]]  # of a chunk, made in 16 bits and not
    cap_passes: ClassVar[float]  # times that a cap reads or writes one
    cap_held: ClassVar[int]  # further logits of a chunk that are held for a cap

    def make_rule(self) -> Rule:
        """Return the rule for these operands."""
        weight, transposed = self.operand_types[1], self.attributes["transpose_b"]
        if weight.rank != 2:
            raise IRError(f"the weight of a head has two dimensions, not {weight.rank}")
        vocabulary = weight.shape[0 if transposed else 1]
        pieces, chunks = self.attributes["pieces"], self.attributes["chunks"]
        if pieces < 1 or vocabulary % pieces:
            raise IRError(f"a vocabulary of {vocabulary} is not {pieces} equal pieces")
        if chunks < 1:
            raise IRError(f"the loss has {chunks} chunks, expected at least one")
        columns = "(p w^) k^" if transposed else "k^ (p w^)"
        bias = ["(p w^)"] if self.has_bias else []
        operands = ["... k^", columns, self.between, *bias]
        left = self.results(["... k^", columns, *bias])
        sizes = {"p": pieces, "w": vocabulary // pieces}
        shapes = [operand.shape for operand in self.operand_types]
        rule = resolve(f"{', '.join(operands)} -> {', '.join(left)}", shapes, sizes)
        return replace(rule, kinds={**rule.kinds, **dict.fromkeys(self.summed(rule), "sum")})

    def results(self, differentiated: list[str]) -> list[str]:
        """Return the rule of the results, from that of hidden states, weight and bias."""
        raise NotImplementedError

    def summed(self, rule: Rule) -> Iterator[str]:
        """Yield the factors over which results that lack them are summed."""
        raise NotImplementedError

    @property
    def has_bias(self) -> bool:
        """Whether logits have a bias."""
        raise NotImplementedError

    @property
    def wide(self) -> str:
        """The element type of log sums: that of the hidden states, of at least 32 bits."""
        dtype = self.operand_types[0].dtype
        return _WIDE if item_bytes(dtype) < item_bytes(_WIDE) else dtype

    @property
    def flops(self) -> float:
        """Count the products."""
        return 2.0 * self.passes * self.rule.points

    def sizes(self, shapes: Sequence[tuple[int, ...]]) -> ChunkSizes:
        """Return the sizes of the products, from the shapes of a rank's slices of the operands."""
        (*leading, features), weight = shapes[:2]
        rows = -(-prod(leading) // self.attributes["chunks"])
        vocabulary = weight[0 if self.attributes["transpose_b"] else 1]
        return ChunkSizes(rows, vocabulary, features, -(-prod(leading) // max(rows, 1)))

    def bytes_between(self, shapes: Sequence[tuple[int, ...]]) -> float:
        """Return the bytes that a rank reads and writes of logits between the products.

        They are those of the operators of a loss whose logits are whole.
        """
        own, narrow = self.sizes(shapes), self.operand_types[0].dtype != self.wide
        each = self.logit_bytes[0] if narrow else self.logit_bytes[1] * item_bytes(self.wide)
        each += item_bytes(self.wide) * self.cap_passes * bool(self.attributes["cap"])
        return each * own.rows * own.chunks * own.vocabulary

    def launches(self, shapes: Sequence[tuple[int, ...]]) -> int:
        """Return how many kernels a rank launches: for each chunk those of whole logits."""
        narrow = self.operand_types[0].dtype != self.wide
        return self.sizes(shapes).chunks * self.kernels[0 if narrow else 1]

    def workspace_bytes(self, operands: Sequence[Layout], mesh: Mesh) -> float:
        """Return the bytes of the logits of one chunk: as products make them, and converted."""
        types = zip(operands, self.operand_types, strict=True)
        own = self.sizes([layout.slice_shape(kind.shape, mesh) for layout, kind in types])
        narrow = self.operand_types[0].dtype
        item = item_bytes(self.wide) + (item_bytes(narrow) if narrow != self.wide else 0)
        item += item_bytes(self.wide) * self.cap_held * bool(self.attributes["cap"])
        return float(own.rows * own.vocabulary * item)

    def logits(self, hidden: Array, weight: Array, bias: Array | None) -> Array:
        """Return the logits of some rows before their cap, in the type of the log sums."""
        product = self.product(hidden, weight.T if self.attributes["transpose_b"] else weight)
        product = product if bias is None else product + bias
        return product.astype(_held(hidden), copy=False)

    def capped(self, x: Array) -> Array:
        """Return logits under their cap."""
        cap = self.attributes["cap"]
        return cap * np.tanh(x) if cap else x

    def rows(self, count: int) -> Iterator[slice]:
        """Yield the rows of each chunk."""
        step = max(1, -(-count // self.attributes["chunks"]))
        for start in range(0, count, step):
            yield slice(start, min(start + step, count))

    def local_labels(self, labels: Array, view: ShardView) -> tuple[Array, Array]:
        """Return the positions of labels in a rank's vocabulary, clipped; and which are in it."""
        width = self.rule.sizes["w"]
        local = labels.ravel() - view.starts["p"] * width
        clipped = np.clip(local, 0, view.sizes["p"] * width - 1)
        return clipped, clipped == local


def _held(hidden: Array) -> Any:
    """Return the type in which log sums are held: an executor may hold wider numbers."""
    return hidden.dtype if hidden.dtype.itemsize >= np.float32().itemsize else np.float32


@register
class HeadLogSumAndPick(OverChunks):
    """Of the logits hidden x weight + bias the log sum of each piece, and the one at the label.

    Made by ``chunks`` chunks of a rank's tokens, of which the last may be shorter. The results are
    at least float32. A label that no rank has, such as one that a loss ignores, picks zero.
    """

    name = "head_log_sum_and_pick"
    positions = (2,)
    of_reals = True
    between = "..."
    passes = 1
    logit_bytes = (14.0, 2.0)  # converted, and read for the largest and for the sum
    kernels = (4, 3)
    cap_passes, cap_held = 2.0, 0
    examples = (
        Example(
            ("f64[4, 3, 5]", "f64[18, 5]", "i64[4, 3]"),
            {"pieces": 6, "chunks": 2},
            ranges={2: (0, 18)},
        ),
        Example(
            ("f64[6, 4]", "f64[4, 12]", "i64[6]", "f64[12]"),
            {"transpose_b": False, "pieces": 4, "chunks": 4},
            ranges={2: (-1, 13)},
        ),
        Example(("f64[5]", "f64[6, 5]", "i64[]"), {"cap": 3.0}, ranges={2: (0, 6)}),
    )

    @property
    def has_bias(self) -> bool:
        """Whether there is a fourth operand."""
        return len(self.operand_types) == 4

    def results(self, differentiated: list[str]) -> list[str]:
        """Return that of log sums, and of the logits at labels."""
        return ["... p", "..."]

    def summed(self, rule: Rule) -> Iterator[str]:
        """Yield the pieces: one of them has the label."""
        yield "p"

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of log sums."""
        return self.wide, self.wide

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Compute chunk by chunk."""
        hidden, weight, labels, *bias = operands
        (local, inside), pieces = self.local_labels(labels, view), view.sizes["p"]
        flat = hidden.reshape(-1, hidden.shape[-1])
        sums, picked = (np.empty((len(flat), *n), _held(hidden)) for n in ((pieces,), ()))
        for rows in self.rows(len(flat)):
            x = self.capped(self.logits(flat[rows], weight, bias[0] if bias else None))
            picked[rows] = x[np.arange(len(x)), local[rows]]
            x = x.reshape(len(x), pieces, -1)
            peak = x.max(axis=-1)
            shift = np.where(np.isfinite(peak), peak, 0)
            with np.errstate(divide="ignore"):  # of a piece that is all minus infinity
                x = np.exp(x - shift[..., None])
                sums[rows] = shift + np.log(np.add.reduce(x, axis=-1))
        leading = hidden.shape[:-1]
        return sums.reshape(*leading, pieces), kept_inside(picked, inside).reshape(leading)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Save the operands and the log sums for backward."""
        hidden, weight, labels, *bias = at.operands
        operands = (hidden, weight, *at.cotangents, at.results[0], labels, *bias)
        found = build.emit_all("head_log_sum_and_pick_gradient", *operands, **self.written)
        return [*found[:2], None, *found[2:]]


@register
class HeadLogSumAndPickGradient(OverChunks):
    """The gradients by hidden states, weight and bias.

    From hidden states, weight, both cotangents, log sums, labels and the bias. The logits of a
    chunk are made again, and are followed by the products with their gradient before the next.
    """

    name = "head_log_sum_and_pick_gradient"
    positions = (5,)
    linear = ((2, 3),)
    between = "... p, ..., ... p, ..."
    passes = 3
    logit_bytes = (20.0, 2.0)  # converted, read for their gradient, and that converted
    kernels = (6, 4)
    cap_passes, cap_held = 5.0, 1
    examples = (
        Example(
            ("f64[4, 3, 5]", "f64[6, 5]", "f64[4, 3, 2]", "f64[4, 3]", "f64[4, 3, 2]", "i64[4, 3]"),
            {"pieces": 2, "chunks": 3},
            ranges={5: (0, 6)},
        ),
        Example(
            ("f64[6, 4]", "f64[4, 12]", "f64[6, 4]", "f64[6]", "f64[6, 4]", "i64[6]", "f64[12]"),
            {"transpose_b": False, "pieces": 4, "chunks": 4, "cap": 2.0},
            ranges={5: (-1, 13)},
        ),
    )

    @property
    def has_bias(self) -> bool:
        """Whether there is a seventh operand."""
        return len(self.operand_types) == 7

    def results(self, differentiated: list[str]) -> list[str]:
        """Return that of hidden states, weight and bias."""
        return differentiated

    def summed(self, rule: Rule) -> Iterator[str]:
        """Yield the pieces, for hidden states, and the tokens, for the weight."""
        yield "p"
        yield from (name for dims in rule.operands[-1 - self.has_bias] for name in dims)

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the types of hidden states, weight and bias."""
        differentiated = (*self.operand_types[:2], *self.operand_types[6:])
        return tuple(kind.dtype for kind in differentiated)

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Add up the gradients chunk by chunk."""
        hidden, weight, d_sums, d_picked, sums, labels, *bias = operands
        local, inside = self.local_labels(labels, view)
        own, pieces = kept_inside(d_picked.ravel(), inside), view.sizes["p"]
        flat = hidden.reshape(-1, hidden.shape[-1])
        flat_sums, flat_d = (x.reshape(len(flat), pieces) for x in (sums, d_sums))
        flat_sums = np.where(np.isfinite(flat_sums), flat_sums, 0)
        wide, transposed = _held(hidden), self.attributes["transpose_b"]
        d_hidden = np.empty(flat.shape, wide)
        d_weight, d_bias = np.zeros(weight.shape, wide), [np.zeros(b.shape, wide) for b in bias]
        for rows in self.rows(len(flat)):
            before = self.logits(flat[rows], weight, bias[0] if bias else None)
            x = self.capped(before)
            parts = x.reshape(len(x), pieces, -1)  # a view
            np.exp(parts - flat_sums[rows, :, None], out=parts)
            parts *= flat_d[rows, :, None]
            x[np.arange(len(x)), local[rows]] += own[rows]
            if cap := self.attributes["cap"]:
                x *= cap * (1 - np.square(np.tanh(before)))
            d_hidden[rows] = self.product(x, weight if transposed else weight.T)
            left, right = (x, flat[rows]) if transposed else (flat[rows], x)
            d_weight += self.product(left.T, right)
            for total in d_bias:
                total += x.sum(axis=0)
        found = (d_hidden.reshape(hidden.shape), d_weight, *d_bias)
        differentiated = (hidden, weight, *bias)
        return tuple(
            x.astype(y.dtype, copy=False) for x, y in zip(found, differentiated, strict=True)
        )
