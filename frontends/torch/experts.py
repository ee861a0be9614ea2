"""Experts of transformers, exported as rows of experts.

Modules of experts in transformers choose among implementations of one function. Those that it has
sort tokens by their expert, so that sizes depend on data. This one makes rows of experts and sums
them, as `operators.models.routing` does.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from shardwright.frontends.common.errors import UnsupportedError

_NAME = "shardwright"
_INTERFACE = "transformers.integrations.moe"


# Operators that exports have and PyTorch never runs; `converters.own` imports them.
torch.library.define(
    "shardwright::dispatch", "(Tensor tokens, Tensor chosen, int experts) -> Tensor"
)
torch.library.define(
    "shardwright::grouped_matmul", "(Tensor rows, Tensor matrices, bool transposed) -> Tensor"
)
torch.library.define(
    "shardwright::combine", "(Tensor rows, Tensor chosen, Tensor weights) -> Tensor"
)


def _dispatched(tokens: torch.Tensor, chosen: torch.Tensor, experts: int) -> torch.Tensor:
    return tokens.new_empty(experts, *tokens.shape)


def _multiplied(rows: torch.Tensor, matrices: torch.Tensor, transposed: bool) -> torch.Tensor:
    return rows.new_empty(*rows.shape[:-1], matrices.shape[1 if transposed else 2])


def _combined(rows: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return rows.new_empty(rows.shape[1:])


torch.library.register_fake("shardwright::dispatch", _dispatched)
torch.library.register_fake("shardwright::grouped_matmul", _multiplied)
torch.library.register_fake("shardwright::combine", _combined)


@contextmanager
def experts_in_rows(module: torch.nn.Module) -> Iterator[None]:
    """Let the experts of a module compute on rows of experts, until the end of the context."""
    interface = getattr(sys.modules.get(_INTERFACE), "ALL_EXPERTS_FUNCTIONS", None)
    parts = [part for part in module.modules() if hasattr(part, "_is_expert_parallel")]
    configs = {id(part.config): part.config for part in parts}
    before = [(config, config._experts_implementation) for config in configs.values()]
    if interface is None or not before:
        yield
        return
    interface[_NAME] = _forward
    try:
        for config, _ in before:
            config._experts_implementation = _NAME
        yield
    finally:
        for config, chosen in before:
            config._experts_implementation = chosen
        del interface[_NAME]


def _forward(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Compute all experts of a module of transformers on their rows."""
    if self._is_expert_parallel:
        raise UnsupportedError("a module whose experts are split over devices already")
    held = torch.ops.shardwright.dispatch(hidden_states, top_k_index, self.num_experts)
    if self.has_gate:
        inner = self._apply_gate(_product(self, held, "gate_up_proj"))
    else:
        inner = self.act_fn(_product(self, held, "up_proj"))
    made = _product(self, inner, "down_proj")
    if getattr(self, "has_post_expert_norm", False):
        made = self.post_expert_norm(made)
    dtype = torch.promote_types(made.dtype, top_k_weights.dtype)
    weights = top_k_weights.to(dtype)
    found = torch.ops.shardwright.combine(made.to(dtype), top_k_index, weights)
    summed: torch.Tensor = found.to(hidden_states.dtype)
    return summed


def _product(experts: Any, x: torch.Tensor, name: str) -> torch.Tensor:
    """Return ``[expert, token, feature]`` times the weights of each expert, plus its bias."""
    weight = getattr(experts, name)
    found = torch.ops.shardwright.grouped_matmul(x, weight, not experts.is_transposed)
    return found + getattr(experts, f"{name}_bias").unsqueeze(1) if experts.has_bias else found
