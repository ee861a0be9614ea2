"""Gated feed-forward, and many of them as experts between which tokens choose."""

from math import ceil, sqrt

from shardwright import ops
from shardwright.ir.errors import ModelError
from shardwright.nn.cell import Cell
from shardwright.nn.layers import Dense, get_activation
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor, apply, apply_all


class GatedFeedForward(Cell):
    """``down(activation(gate(x)) up(x))`` (Shazeer, 2020).

    Parameters
    ----------
    hidden_size, ffn_hidden_size : int
        Size outside and inside.
    activation : str
        What the gate goes through.
    weight_init, out_init : str, optional
        How the weights of the first products and of the last begin.
    dtype : str
        Element type of the parameters.
    has_bias : bool
        Whether the products have biases.
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        activation: str = "silu",
        weight_init: str | None = None,
        out_init: str | None = None,
        dtype: str = "float32",
        *,
        has_bias: bool = False,
    ) -> None:
        def dense(inputs: int, outputs: int, init: str | None) -> Dense:
            zeros = "zeros" if has_bias and init is not None else None
            return Dense(inputs, outputs, init, zeros, has_bias=has_bias, dtype=dtype)

        self.gate = dense(hidden_size, ffn_hidden_size, weight_init)
        self.up = dense(hidden_size, ffn_hidden_size, weight_init)
        self.down = dense(ffn_hidden_size, hidden_size, out_init or weight_init)
        self.activation = get_activation(activation)

    def construct(self, x: Tensor) -> Tensor:
        """Widen twice, multiply, narrow."""
        return self.down(self.activation(self.gate(x)) * self.up(x))


class MixtureOfExperts(Cell):
    """Gated feed-forwards, of which every token goes through the few that a router gives it.

    Tokens of a group, the first dimension of ``[group, token, hidden]``, share the slots of the
    experts: ``capacity_factor top_k tokens / experts`` for each. A choice that finds its expert
    full is dropped.

    Parameters
    ----------
    hidden_size, ffn_hidden_size : int
        Size outside and inside an expert.
    experts, top_k : int
        How many there are, and how many a token goes through.
    capacity_factor : float
        Slots for each choice there is.
    activation : str
        What the gates of the experts go through.
    weight_init : str, optional
        How the weights begin.
    dtype : str
        Element type of the parameters.

    Attributes
    ----------
    balance : Tensor or None
        After a call, the loss that is least where all experts get equally much (Fedus et al.,
        2021): one at best.
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        experts: int,
        top_k: int = 2,
        capacity_factor: float = 1.25,
        activation: str = "silu",
        weight_init: str | None = None,
        dtype: str = "float32",
    ) -> None:
        if not 1 <= top_k <= experts:
            raise ModelError(f"a token is to go through {top_k} of {experts} experts")
        self.experts, self.top_k, self.capacity_factor = experts, top_k, capacity_factor
        self.router = Dense(hidden_size, experts, weight_init, has_bias=False, dtype=dtype)

        def weights(inputs: int, outputs: int) -> Parameter:
            init = weight_init or f"uniform({1 / sqrt(inputs):.6g})"
            return Parameter(init, shape=(experts, inputs, outputs), dtype=dtype)

        self.gate = weights(hidden_size, ffn_hidden_size)
        self.up = weights(hidden_size, ffn_hidden_size)
        self.down = weights(ffn_hidden_size, hidden_size)
        self.matmul = ops.MatMul()
        self.activation = get_activation(activation)
        self.balance: Tensor | None = None

    def construct(self, x: Tensor) -> Tensor:
        """Route, go through the experts, bring back."""
        if x.ndim != 3:
            raise ModelError(f"tokens are [group, token, hidden], these have the shape {x.shape}")
        capacity = ceil(self.capacity_factor * self.top_k * x.shape[1] / self.experts)
        capacity = min(capacity, x.shape[1])
        scores = ops.softmax(self.router(x), axis=-1)
        weights, chosen = apply_all("top_k", scores, k=self.top_k, axis=-1)
        self.balance = self._balance(scores, chosen)
        weights = weights / weights.sum(-1, keep_dims=True)
        slots = apply("expert_slots", chosen, experts=self.experts, capacity=capacity)
        held = apply("dispatch", x, slots, experts=self.experts, capacity=capacity)
        inner = self.activation(self.matmul(held, self.gate)) * self.matmul(held, self.up)
        made = self.matmul(inner, self.down)
        return apply("combine", made, slots, weights, capacity=capacity)

    def _balance(self, scores: Tensor, chosen: Tensor) -> Tensor:
        """Return the share of tokens times the mean score, summed over the experts."""
        ones = apply("one_hot", chosen, depth=self.experts, dtype=scores.dtype)
        share = ones.mean((0, 1, 2))
        return (share * scores.mean((0, 1))).sum() * float(self.experts)
