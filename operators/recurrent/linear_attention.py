"""Linear attention: states of keys and values that decay, by chunks of the sequence.

A head has a state S, a matrix of features of keys by features of values. At every position t it
decays, takes up the outer product of a key and a value, and is read by a query:

    S = exp(g) S' + k u,   o = scale q S

The value u is v itself (Mamba-2's state space duality), or with ``delta`` what is to be corrected
in what the state says of the key, times a rate: u = beta (v - exp(g) k S') (gated delta rule).

Within a chunk both are products of matrices; only states between chunks follow each other.

References
----------
Dao and Gu, "Transformers are SSMs", 2024, section 6. Yang, Kautz and Hatamizadeh, "Gated delta
networks: improving Mamba2 with delta rule", 2024, section 3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import item_bytes
from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    register,
)
from shardwright.operators.notation import resolve
from shardwright.operators.rule import Rule, ShardView
from shardwright.operators.workspace import WithWorkspace

CHUNK = 64  # positions; half of it halves the work within chunks and doubles the saved states
_STATE_BYTES = float(item_bytes("float32"))  # states are float32 in every published kernel
_RATES = {"delta": False, "scale": None}


class LinearAttentionFamily(WithWorkspace):
    """The base of linear attention and its gradient.

    Operands are queries and keys ``[batch, head, position, feature]``, values of several heads for
    each head of keys, ``[batch, (head group), position, feature]``, the logarithms of decays
    ``[batch, (head group), position]``, and with ``delta`` the rates, as the decays. Samples and
    heads may be split; positions stay whole, since states follow each other.
    """

    defaults: ClassVar = _RATES
    of_reals = True
    first: ClassVar[int]  # the operand with the queries
    times: ClassVar[float]  # the work of the operator over that of the forward one

    @property
    def has_rates(self) -> bool:
        """Whether values are corrected by the delta rule."""
        return bool(self.attributes["delta"])

    def check_count(self) -> None:
        """Refuse another number of operands.

        Raises
        ------
        IRError
            If there are more or fewer than are read.
        """
        count = self.first + 4 + self.has_rates
        if len(self.operand_types) != count:
            rates = "with" if self.has_rates else "without"
            raise IRError(
                f"{rates} `delta` it reads {count} operands, not {len(self.operand_types)}"
            )
        shapes = [operand.shape for operand in self.operand_types[self.first :]]
        if any(len(shape) != (4 if i < 3 else 3) for i, shape in enumerate(shapes)):
            raise IRError(f"the shapes are {shapes}, expected four dimensions, of decays three")
        if shapes[2][1] % shapes[0][1]:
            raise IRError(
                f"{shapes[2][1]} heads of values cannot share {shapes[0][1]} heads of keys evenly"
            )

    def resolved(self, notation: str) -> Rule:
        """Return the rule of a notation in which ``H`` stands for the heads of values."""
        shapes = [operand.shape for operand in self.operand_types]
        keys, values = shapes[self.first][1], shapes[self.first + 2][1]
        sizes = {"b": shapes[self.first][0], "h": keys, "g": values // keys}
        heads = "(h g)" if values != keys else "h"
        own = sizes if values != keys else None
        return resolve(notation.replace("H", heads), shapes, own)

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of the queries."""
        return (self.operand_types[self.first].dtype,) * len(self.rule.results)

    @property
    def flops(self) -> float:
        """Count the products of chunks, as published kernels compute them."""
        return self.product_flops

    @property
    def product_flops(self) -> float:
        """Count the products of chunks.

        For each position and head of values: the scores of a chunk and their products with values,
        2 C (d + e); reading and updating the state, 4 d e. The delta rule adds the products of keys
        with each other and the solution of a triangular system, 2 C d + C (d + e), and what the
        state says of a key, 2 d e.
        """
        sizes = self.rule.sizes
        d, e, length = (sizes[factor] for factor in "des")
        chunk = min(CHUNK, length)
        each = 2 * chunk * (d + e) + 4 * d * e
        if self.has_rates:
            each += 2 * chunk * d + chunk * (d + e) + 2 * d * e
        rows = prod(sizes.get(factor, 1) for factor in "bhg") * length
        return float(self.times * rows * each)

    def generate_strategies(
        self, mesh: Mesh, kinds: Mapping[str, int] | None = None
    ) -> tuple[Strategy, ...]:
        """Omit strategies that split features: they repeat what the cost would divide."""
        return tuple(
            s for s in super().generate_strategies(mesh, kinds) if not {"d", "e"} & {*s.axes}
        )

    def workspace_bytes(self, operands: Sequence[Layout], mesh: Mesh) -> float:
        """Return the states between chunks."""
        values = self.operand_types[self.first + 2].shape
        own = operands[self.first + 2].slice_shape(values, mesh)
        features = self.operand_types[self.first].shape[3]
        return _STATE_BYTES * own[0] * own[1] * -(-own[2] // CHUNK) * features * own[3]

    def scale(self) -> float:
        """Return the factor of the queries."""
        scale: Any = self.attributes["scale"]
        return float(self.rule.sizes["d"] ** -0.5 if scale is None else scale)


@dataclass(frozen=True)
class _Scan:
    """The arrays of a scan by heads of keys: ``[b, h, g, s, ...]``, queries and keys without g."""

    q: Array
    k: Array
    v: Array
    decay: Array
    rate: Array | None

    @staticmethod
    def of(operands: Sequence[Array], scale: float, delta: bool) -> "_Scan":
        q, k, v, decay, *rate = operands
        heads = (q.shape[0], q.shape[1], v.shape[1] // q.shape[1])
        v, decay, *rate = (x.reshape(*heads, *x.shape[2:]) for x in (v, decay, *rate))
        return _Scan(q * scale, k, v, np.exp(decay), rate[0] if delta else None)

    def decayed(self, state: Array, t: int) -> Array:
        return state * self.decay[..., t, None, None]

    def error(self, decayed: Array, t: int) -> Array:
        """Return the value less what the state says of the key."""
        said = np.einsum("bhd,bhgde->bhge", self.k[:, :, t], decayed)
        return self.v[:, :, :, t] - said

    def taken(self, decayed: Array, t: int) -> Array:
        """Return what the state takes up."""
        if self.rate is None:
            return self.v[:, :, :, t]
        return self.rate[..., t, None] * self.error(decayed, t)

    def after(self, decayed: Array, t: int) -> Array:
        taken = self.taken(decayed, t)
        return decayed + self.k[:, :, None, t, :, None] * taken[..., None, :]

    def start(self) -> Array:
        b, h, g = self.v.shape[:3]
        return np.zeros((b, h, g, self.k.shape[3], self.v.shape[4]), self.v.dtype)


@register
class LinearAttention(LinearAttentionFamily):
    """What queries read of states of keys and values."""

    name = "linear_attention"
    first = 0
    times = 1.0
    examples = (
        Example(
            ("f64[2, 2, 5, 3]", "f64[2, 2, 5, 3]", "f64[2, 4, 5, 2]", "f64[2, 4, 5]"),
            ranges={3: (-1.0, 0.0)},
        ),
        Example(
            (
                "f64[1, 2, 4, 3]",
                "f64[1, 2, 4, 3]",
                "f64[1, 2, 4, 2]",
                "f64[1, 2, 4]",
                "f64[1, 2, 4]",
            ),
            {"delta": True, "scale": 0.7},
            ranges={3: (-1.0, 0.0), 4: (0.0, 1.0)},
        ),
    )

    def make_rule(self) -> Rule:
        """Keep positions and features whole."""
        self.check_count()
        last, d = ", b H s^" * (1 + self.has_rates), "d^" if self.has_rates else "d"
        return self.resolved(f"b h s^ {d}, b h s^ {d}, b H s^ e{last} -> b H s e")

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Take the positions one by one."""
        scan = _Scan.of(operands, self.scale(), self.has_rates)
        state, found = scan.start(), np.empty_like(scan.v)
        for t in range(scan.v.shape[3]):
            state = scan.after(scan.decayed(state, t), t)
            found[:, :, :, t] = np.einsum("bhd,bhgde->bhge", scan.q[:, :, t], state)
        return found.reshape(view.result_shapes[0])

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Save only the operands for backward."""
        operands = (at.cotangents[0], *at.operands)
        return build.emit_all("linear_attention_gradient", *operands, **self.attributes)


@register
class LinearAttentionGradient(LinearAttentionFamily):
    """The gradients by all operands, from the cotangent and the operands."""

    name = "linear_attention_gradient"
    linear = ((0,),)
    first = 1
    times = 2.5  # the states again, and two products for each one
    examples = (
        Example(
            (
                "f64[2, 4, 5, 2]",
                "f64[2, 2, 5, 3]",
                "f64[2, 2, 5, 3]",
                "f64[2, 4, 5, 2]",
                "f64[2, 4, 5]",
            ),
            ranges={4: (-1.0, 0.0)},
        ),
        Example(
            (
                "f64[1, 2, 4, 2]",
                "f64[1, 2, 4, 3]",
                "f64[1, 2, 4, 3]",
                "f64[1, 2, 4, 2]",
                "f64[1, 2, 4]",
                "f64[1, 2, 4]",
            ),
            {"delta": True},
            ranges={4: (-1.0, 0.0), 5: (0.0, 1.0)},
        ),
    )

    def make_rule(self) -> Rule:
        """Sum over heads of values that share a head of keys, and over features of values."""
        self.check_count()
        taken, d = ", b H s^" * (1 + self.has_rates), "d^" if self.has_rates else "d"
        left = ", b H s" * (1 + self.has_rates)
        rule = self.resolved(
            f"b H s^ e, b h s^ {d}, b h s^ {d}, b H s^ e{taken} -> b h s d, b h s d, b H s e{left}"
        )
        sums = {factor: "sum" for factor in "gde" if factor in rule.kinds}
        if self.has_rates:
            del sums["d"]
        return replace(rule, kinds={**rule.kinds, **sums})

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Take the positions backwards, with the states of the way forwards."""
        scan = _Scan.of(operands[1:], self.scale(), self.has_rates)
        dy = operands[0].reshape(scan.v.shape)
        before, state = [], scan.start()
        for t in range(scan.v.shape[3]):
            decayed = scan.decayed(state, t)
            before.append(decayed)
            state = scan.after(decayed, t)
        dq, dk, dv = np.zeros_like(scan.q), np.zeros_like(scan.k), np.zeros_like(scan.v)
        ddecay, drate = np.zeros_like(scan.decay), np.zeros_like(scan.decay)
        slope = scan.start()
        for t in reversed(range(len(before))):
            decayed, k = before[t], scan.k[:, :, t]
            after = scan.after(decayed, t)
            slope = slope + scan.q[:, :, None, t, :, None] * dy[:, :, :, t, None, :]
            dq[:, :, t] = np.einsum("bhgde,bhge->bhd", after, dy[:, :, :, t]) * self.scale()
            dk[:, :, t] = np.einsum("bhgde,bhge->bhd", slope, scan.taken(decayed, t))
            dtaken = np.einsum("bhgde,bhd->bhge", slope, k)
            if scan.rate is None:
                dv[:, :, :, t] = dtaken
            else:
                drate[..., t] = (dtaken * scan.error(decayed, t)).sum(axis=-1)
                dtaken = dtaken * scan.rate[..., t, None]
                dv[:, :, :, t] = dtaken
                dk[:, :, t] -= np.einsum("bhgde,bhge->bhd", decayed, dtaken)
                slope = slope - k[:, :, None, :, None] * dtaken[..., None, :]
            ddecay[..., t] = (slope * decayed).sum(axis=(-2, -1))
            slope = scan.decayed(slope, t)
        found = (dq, dk, dv, ddecay, drate)[: 4 + self.has_rates]
        return tuple(x.reshape(s) for x, s in zip(found, view.result_shapes, strict=True))
