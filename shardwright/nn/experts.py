"""Gated feed-forward, and many of them as experts between which tokens choose."""

from math import ceil, sqrt
from typing import Any

from shardwright import ops
from shardwright.ir.errors import ModelError
from shardwright.ir.values import NOT_NEGATIVE_INTEGER, POSITIVE, POSITIVE_INTEGER
from shardwright.nn.cell import Cell
from shardwright.nn.layers import Dense, get_activation
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor, apply, apply_all
from shardwright.tracer import current_tracer

_SCORES = ("softmax", "sigmoid", "softmax_after")
_LIMIT, _SLOPE = 7.0, 1.702  # of gpt-oss: the largest gate, and the slope of its sigmoid


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
    weighs_inputs : bool
        Whether an expert reads a token times its weight, rather than that its result is weighted
        (Llama 4); a token goes through one expert then.
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


class RoutedExperts(Cell):
    """Feed-forwards, of which every token goes through the few that a router gives it.

    No token is dropped, unless there is a capacity: then the tokens of a group, the first dimension
    of ``[group, token, hidden]``, share room for ``capacity_factor top_k tokens / experts`` choices
    in each expert, and a choice that finds its expert full is dropped.

    Parameters
    ----------
    hidden_size, ffn_hidden_size : int
        Size outside and inside an expert.
    experts, top_k : int
        How many there are, and how many a token goes through.
    scores : str
        How the products of a token and the rows of the router become weights: ``softmax`` over all
        experts, ``sigmoid``, or ``softmax_after`` the choice, over the chosen ones alone.
    groups, top_groups : int
        In how many groups the experts are, and in how many of them a token may choose: those with
        the greatest score, or under ``sigmoid`` with the greatest sum of two (DeepSeek-AI, 2024).
    selection_bias : bool
        Whether a number for each expert is added to its score for the choice alone. In every step
        it moves by `selection_rate` towards equal loads (Wang et al., 2024).
    selection_rate : float
        By how much it moves.
    normalized : bool
        Whether the weights of a token's choices are divided by their sum.
    scale : float
        What they are multiplied by.
    latent_size : int
        Features to which a product narrows tokens before they are sent to their experts, and from
        which another widens what comes back; 0 where experts read tokens as they are.
    latent_bias : bool
        Whether these two products have biases.
    gated : bool
        Whether an expert is ``down(activation(gate(x)) up(x))`` or ``down(activation(up(x)))``.
    activation : str
        An activation; ``swigluoai`` is that of gpt-oss, of gates and inner features together.
    has_bias, router_bias : bool
        Whether the experts add biases, and whether the router does.
    capacity_factor : float, optional
        Room for each choice there is; by default nothing is dropped.
    weight_init : str, optional
        How the weights begin.
    dtype : str
        Element type of the parameters.

    Attributes
    ----------
    balance : Tensor or None
        After a call, the loss that is least where all experts get equally much (Fedus et al.,
        2021): one at best.
    z_loss : Tensor or None
        After a call, the mean square of the logarithm of the sum of the router's exponentials,
        which keeps them small (Zoph et al., 2022).
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        experts: int,
        top_k: int = 2,
        *,
        scores: str = "softmax",
        groups: int = 1,
        top_groups: int = 1,
        selection_bias: bool = False,
        selection_rate: float = 1e-3,
        normalized: bool = True,
        scale: float = 1.0,
        latent_size: int = 0,
        latent_bias: bool = False,
        gated: bool = True,
        weighs_inputs: bool = False,
        activation: str = "silu",
        has_bias: bool = False,
        router_bias: bool = False,
        capacity_factor: float | None = None,
        weight_init: str | None = None,
        dtype: str = "float32",
    ) -> None:
        _check_choice(scores, experts, top_k, weighs_inputs)
        _check_groups(experts, top_k, groups, top_groups)
        _check_experts(activation, gated, selection_rate, latent_size)
        self.weighs_inputs = weighs_inputs
        self.experts, self.top_k, self.scores = experts, top_k, scores
        self.groups, self.top_groups = groups, top_groups
        self.normalized, self.scale, self.capacity_factor = normalized, scale, capacity_factor
        self.selection_rate = selection_rate
        self.router = Dense(hidden_size, experts, weight_init, has_bias=router_bias, dtype=dtype)
        bias = Parameter("zeros", shape=experts, dtype=dtype, requires_grad=False)
        self.selection_bias = bias if selection_bias else None

        def product(inputs: int, outputs: int) -> ExpertDense:
            return ExpertDense(experts, inputs, outputs, weight_init, has_bias, dtype)

        read = latent_size or hidden_size
        self.narrow = _latent(hidden_size, latent_size, latent_bias, weight_init, dtype)
        self.widen = _latent(latent_size, hidden_size, latent_bias, weight_init, dtype)
        self.gate = product(read, ffn_hidden_size) if gated else None
        self.up = product(read, ffn_hidden_size)
        self.down = product(ffn_hidden_size, read)
        self.activation = None if activation == "swigluoai" else get_activation(activation)
        self.balance: Tensor | None = None
        self.z_loss: Tensor | None = None
        self._moved: tuple[Any, ...] = ()  # the tracer, and the loads of the calls in its step

    def construct(self, x: Tensor) -> Tensor:
        """Route, go through the experts, bring back."""
        weights, chosen = self._route(x)
        if self.capacity_factor is not None:
            chosen = self._within_capacity(x, chosen)
        x = x if self.narrow is None else self.narrow(x)
        if self.weighs_inputs:
            x, weights = x * weights, apply("ones_like", weights)
        parts = (self.top_groups, self.groups) if self.top_groups < self.groups else (1, 1)
        rows = apply("dispatch", x, chosen, experts=self.experts, parts=parts)
        made = apply("combine", self.down(self._inner(rows)), chosen, weights)
        return made if self.widen is None else self.widen(made)

    def _inner(self, rows: Tensor) -> Tensor:
        """Return the inner features of the rows."""
        gates = None if self.gate is None else self.gate(rows)
        inner = self.up(rows)
        if self.activation is None:
            assert gates is not None
            return _swigluoai(gates, inner)
        return self.activation(inner) if gates is None else self.activation(gates) * inner

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weight and the expert of each choice of each token."""
        products = self.router(x)
        if self.scores == "sigmoid":
            scores = ops.sigmoid(products)
            shares = scores / scores.sum(-1, keep_dims=True)
        else:
            scores = shares = ops.softmax(products, axis=-1)
        self.z_loss = (apply("cumlogsumexp", products, axis=-1)[..., -1] ** 2).mean()
        of_choice = products if self.scores == "softmax_after" else scores
        ranked = of_choice
        if self.selection_bias is not None:
            ranked = ops.stop_gradient(of_choice) + self.selection_bias
        if self.groups > 1:
            ranked = self._in_top_groups(ranked)
        weights, chosen = apply_all("top_k", ranked, k=self.top_k, axis=-1)
        if ranked is not of_choice:
            weights = apply("gather_elements", of_choice, chosen, axis=-1)
        loads = apply("one_hot", chosen, depth=self.experts, dtype=x.dtype)
        loads = loads.mean(tuple(range(x.ndim)))
        self.balance = (loads * shares.mean(tuple(range(x.ndim - 1)))).sum() * float(self.experts)
        if self.selection_bias is not None and self.trains:
            self._move_bias(loads)
        if self.scores == "softmax_after":
            weights = ops.softmax(weights, axis=-1)
        elif self.normalized:
            weights = weights / weights.sum(-1, keep_dims=True)
        return (weights * self.scale if self.scale != 1.0 else weights), chosen

    def _in_top_groups(self, scores: Tensor) -> Tensor:
        """Return the scores, and minus infinity for experts of groups without a great score."""
        leading, size = scores.shape[:-1], self.experts // self.groups
        parts = scores.reshape(*leading, self.groups, size)
        best = min(2, size) if self.scores == "sigmoid" else 1
        sums = apply_all("top_k", parts, k=best, axis=-1)[0].sum(-1)
        groups = apply_all("top_k", sums, k=self.top_groups, axis=-1)[1]
        allowed = apply("one_hot", groups, depth=self.groups, dtype=scores.dtype).sum(-2)
        kept = ops.broadcast_to(allowed.reshape(*leading, self.groups, 1), parts.shape) > 0
        least = apply("fill", shape=(), dtype=scores.dtype, value=float("-inf"))
        return apply("where", kept, parts, least).reshape(*scores.shape)

    def _move_bias(self, loads: Tensor) -> None:
        """Move the bias of experts of less than the mean load up, of others down.

        Where a cell is called several times in a step, by the sum of its loads.
        """
        assert self.selection_bias is not None
        tracer = current_tracer()
        moved, name = self._moved, self.selection_bias.value(tracer).name
        before = moved[1:] if moved[:1] == (tracer,) else ()
        tracer.updates[:] = [pair for pair in tracer.updates if pair[0] != name]
        loads, mean = ops.stop_gradient(loads), (len(before) + 1) / self.experts
        self._moved = (tracer, *before, loads)
        step = apply("sign", mean - sum(before, start=loads)) * self.selection_rate
        dtype = self.selection_bias.dtype
        with tracer.reading_as(dtype):  # whatever type the cell computes in
            following = (self.selection_bias + step.of_real_type(dtype)).value(tracer)
        tracer.updates.append((name, following.name))

    def _within_capacity(self, x: Tensor, chosen: Tensor) -> Tensor:
        """Return the choices, without those that find their expert full."""
        if x.ndim != 3:
            raise ModelError(f"tokens are [group, token, hidden], these have the shape {x.shape}")
        assert self.capacity_factor is not None
        capacity = ceil(self.capacity_factor * self.top_k * x.shape[1] / self.experts)
        if capacity >= x.shape[1]:
            return chosen
        return apply("within_capacity", chosen, experts=self.experts, capacity=capacity)


class ExpertDense(Cell):
    """Rows of experts times the matrices of their experts, plus their biases."""

    def __init__(
        self,
        experts: int,
        inputs: int,
        outputs: int,
        weight_init: str | None,
        has_bias: bool,
        dtype: str,
    ) -> None:
        init = weight_init or f"uniform({1 / sqrt(inputs):.6g})"
        self.weight = Parameter(init, shape=(experts, inputs, outputs), dtype=dtype)
        self.bias = None
        if has_bias:
            self.bias = Parameter("zeros", shape=(experts, outputs), dtype=dtype)
        self.lora_a: ExpertDense | None = None
        self.lora_b: ExpertDense | None = None
        self.lora_scale = 1.0

    def adapt(self, rank: int, scale: float) -> None:
        """Freeze the parameters, and train two narrow matrices of each expert; see `nn.Dense`."""
        experts, inputs, outputs = self.weight.shape
        for parameter in self.get_parameters():
            parameter.requires_grad = False
        dtype = self.weight.dtype
        self.lora_a = ExpertDense(experts, inputs, rank, None, False, dtype)
        self.lora_b = ExpertDense(experts, rank, outputs, "zeros", False, dtype)
        self.lora_scale = scale

    def construct(self, rows: Tensor) -> Tensor:
        """Multiply ``[expert, token..., input]``."""
        found = apply("grouped_matmul", rows, self.weight)
        if self.bias is not None:
            experts, outputs = self.bias.shape
            found = found + self.bias.reshape(experts, *(1,) * (found.ndim - 2), outputs)
        if self.lora_a is not None and self.lora_b is not None:
            added = self.lora_b(self.lora_a(rows))
            found = found + (added if self.lora_scale == 1 else added * self.lora_scale)
        return found


def _check_choice(scores: str, experts: int, top_k: int, weighs_inputs: bool) -> None:
    """Refuse unknown scores, and choices that cannot be made."""
    if not 1 <= top_k <= experts:
        raise ModelError(f"a token is to go through {top_k} of {experts} experts")
    if scores not in _SCORES:
        raise ModelError(f"no scores are called `{scores}`", hint=f"use one of {_SCORES}")
    if weighs_inputs and top_k != 1:
        raise ModelError(f"inputs are weighted, and a token is to go through {top_k} experts")


def _check_experts(activation: str, gated: bool, rate: float, latent: int) -> None:
    """Refuse experts that cannot be made."""
    if activation == "swigluoai" and not gated:
        raise ModelError("`swigluoai` is of gates and inner features, and `gated` is False")
    POSITIVE.check("selection_rate", rate)
    NOT_NEGATIVE_INTEGER.check("latent_size", latent)


def _latent(
    inputs: int, outputs: int, has_bias: bool, weight_init: str | None, dtype: str
) -> Dense | None:
    """Return the product into or out of latent features; None where there are none."""
    if not inputs or not outputs:
        return None
    zeros = "zeros" if has_bias and weight_init is not None else None
    return Dense(inputs, outputs, weight_init, zeros, has_bias=has_bias, dtype=dtype)


def _check_groups(experts: int, top_k: int, groups: int, top_groups: int) -> None:
    """Refuse groups that experts do not make, or that have too few of them."""
    POSITIVE_INTEGER.check("groups", groups)
    POSITIVE_INTEGER.check("top_groups", top_groups)
    if experts % groups:
        raise ModelError(f"{experts} experts do not make {groups} equal groups")
    if top_groups > groups:
        raise ModelError(f"a token is to choose in {top_groups} of {groups} groups of experts")
    if top_k > experts // groups * top_groups:
        raise ModelError(
            f"a token is to go through {top_k} experts, {top_groups} groups of {experts // groups} "
            "have fewer"
        )


def _swigluoai(gates: Tensor, inner: Tensor) -> Tensor:
    """Return ``gate sigmoid(1.702 gate) (inner + 1)``, clamped as gpt-oss clamps (OpenAI, 2025)."""
    gates = _LIMIT - ops.relu(_LIMIT - gates)
    inner = ops.relu(2 * _LIMIT - ops.relu(_LIMIT - inner)) - _LIMIT
    return gates * ops.sigmoid(gates * _SLOPE) * (inner + 1.0)
