"""Experts that a module computes in a loop over those that some token chose.

How many tokens an expert has depends on data, which no export can trace. Modules of transformers
that choose no implementation by `frontends.torch.experts` compute every expert for every token
here, times the weight that the token gives it, which is zero for most.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812


@contextmanager
def experts_without_loops(module: torch.nn.Module) -> Iterator[None]:
    """Let modules with such loops compute all experts, until the end of the context."""
    kinds = {type(part) for part in module.modules()}
    with ExitStack() as stack:
        for kind in kinds:
            if kind.__name__ in _FORWARDS and kind.__module__.startswith("transformers."):
                stack.enter_context(patch.object(kind, "forward", _FORWARDS[kind.__name__]))
        yield


def _dbrx(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Compute experts whose weights are the rows of three matrices."""
    x = hidden_states.reshape(-1, self.hidden_size)
    held = torch.ops.shardwright.dispatch(x, top_k_index, self.num_experts)
    shape = (self.num_experts, self.ffn_hidden_size, self.hidden_size)
    gates, inner, outer = (getattr(self.mlp, name).view(shape) for name in ("w1", "v1", "w2"))
    gate = self.mlp.activation_fn(held @ gates.transpose(1, 2))
    made = (gate * (held @ inner.transpose(1, 2))) @ outer
    found: Tensor = torch.ops.shardwright.combine(made, top_k_index, top_k_weights)
    return found.view(hidden_states.shape[0], -1, self.hidden_size)


def _switch(self: Any, hidden_states: Tensor, selected: Tensor, weights: Tensor) -> Tensor:
    """Compute experts that tokens choose by marks ``[token, choice, expert]``."""
    shares = (selected * weights.unsqueeze(-1)).sum(1)
    return _summed(self, hidden_states, shares)


def _nllb(self: Any, hidden_states: Tensor, router_mask: Tensor, router_probs: Tensor) -> Tensor:
    """Compute experts whose numbers are the elements of a table ``[token, choice]``."""
    marks = F.one_hot(router_mask, num_classes=self.num_experts)
    shares = (marks * router_probs.unsqueeze(-1)).sum(1)
    rest = self.token_dropout if self.training else lambda made: made * (1 - self.moe_token_dropout)
    return _summed(self, hidden_states, shares, rest)


def _summed(
    self: Any, x: Tensor, shares: Tensor, each: Callable[[Tensor], Tensor] = lambda made: made
) -> Tensor:
    """Return the sum of the results of all experts by their shares ``[token, expert]``."""
    results = (
        each(self[f"expert_{i}"](x) * shares[:, i, None]).to(x.dtype)
        for i in range(self.num_experts)
    )
    return torch.stack([*results]).sum(0)


def _longcat(self: Any, hidden_states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Compute experts of which the last ones return a token as it is."""
    marks = F.one_hot(chosen, num_classes=self.total_experts)
    shares = (marks * weights.unsqueeze(-1)).sum(1)
    count = self.num_routed_experts
    found = hidden_states * shares[:, count:].sum(1, keepdim=True)
    if self.gate_up_proj is not None:
        inner = hidden_states @ self.gate_up_proj[:count].transpose(1, 2)
        gate, up = inner.chunk(2, dim=-1)
        made = (self.act_fn(gate) * up) @ self.down_proj.transpose(1, 2)
        found = found + (made * shares[:, :count].t().unsqueeze(-1)).sum(0)
    return found.to(hidden_states.dtype)


def _jetmoe_choices(self: Any, hidden_states: Tensor) -> tuple[Tensor, ...]:
    """Return tokens in their own order, and the expert of each as marks in place of sizes."""
    logits = self.layer(hidden_states).float()
    found, chosen = logits.topk(self.top_k, dim=1)
    gates = torch.softmax(found, dim=1).type_as(hidden_states).flatten()
    places = torch.arange(chosen.numel(), device=chosen.device)
    marks = F.one_hot(chosen.flatten(), num_classes=self.num_experts)
    return places, places // self.top_k, gates, marks.to(hidden_states.dtype), logits


def _jetmoe_products(self: Any, inputs: Tensor, marks: Tensor) -> Tensor:
    """Return each row times the weights of its expert."""
    products = torch.einsum("ni,eoi->neo", inputs, self.weight)
    return (products * marks.unsqueeze(-1)).sum(1)


_FORWARDS: Mapping[str, Callable[..., Any]] = {
    "DbrxExperts": _dbrx,
    "SwitchTransformersExperts": _switch,
    "NllbMoeExperts": _nllb,
    "LongcatFlashExperts": _longcat,
    "JetMoeTopKGating": _jetmoe_choices,
    "JetMoeParallelExperts": _jetmoe_products,
}
