"""Experts to which products with masks send tokens: rows of experts, or exact as they are."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402

from shardwright.dataflow.cotangents import gradient_name  # noqa: E402
from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.passes.differentiate import Differentiate  # noqa: E402

TOKENS, HIDDEN, INNER, EXPERTS = 12, 8, 16, 4


class Masked(torch.nn.Module):
    """GShard's experts (Lepikhin et al., 2020); with one choice Switch's (Fedus et al., 2021)."""

    def __init__(self, choices: int, slots: int) -> None:
        super().__init__()
        self.choices, self.slots = choices, slots
        self.router = torch.nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.first = torch.nn.Parameter(torch.randn(EXPERTS, HIDDEN, INNER))
        self.bias = torch.nn.Parameter(torch.randn(EXPERTS, 1, INNER))
        self.late = torch.nn.Parameter(torch.randn(EXPERTS, 1, HIDDEN))
        self.second = torch.nn.Parameter(torch.randn(EXPERTS, INNER, HIDDEN))

    def forward(self, x: Any) -> Any:
        scores = self.router(x).softmax(-1)
        if self.choices == 1:
            chosen = scores.argmax(-1, keepdim=True)
            weights = scores.gather(-1, chosen)
        else:
            weights, chosen = scores.topk(self.choices, -1)
        mask = torch.nn.functional.one_hot(chosen, EXPERTS)
        place = self.numbered(mask)
        kept = (mask * (place < self.slots)).sum(-1).to(x.dtype)
        slot = (place * mask).sum(-1).clamp(max=self.slots - 1)
        at = torch.nn.functional.one_hot(slot, self.slots).to(x.dtype)
        combine = torch.einsum("tk,tke,tkc->tec", weights * kept, mask.to(x.dtype), at)
        sent, back = self.masks(combine)
        rows = torch.einsum("tec,tm->ecm", sent, x)
        inner = torch.relu(torch.einsum("ecm,emf->ecf", rows, self.first) + self.bias)
        made = torch.einsum("ecf,efm->ecm", inner, self.second) + self.late
        return torch.einsum("tec,ecm->tm", back, made)

    def numbered(self, mask: Any) -> Any:
        """Return the slot of each token and choice: first choices come first."""
        order = mask.transpose(0, 1).reshape(-1, EXPERTS).cumsum(0) - 1
        return order.reshape(self.choices, -1, EXPERTS).transpose(0, 1)

    def masks(self, combine: Any) -> Any:
        """Return the masks that send tokens, and that bring them back."""
        return (combine > 0).to(combine.dtype), combine


class Loss(torch.nn.Module):
    def __init__(self, experts: Any) -> None:
        super().__init__()
        self.experts = experts

    def forward(self, x: Any) -> Any:
        return (self.experts(x) ** 2).mean()


def _agree(module: Any, x: Any, found: Any) -> None:
    module.zero_grad()
    module(x).backward()
    graph = Differentiate().run(found.graph)
    right = {n: p.grad.numpy() for n, p in module.named_parameters()}
    names = [gradient_name(name) for name in right]
    made = compare.run(graph, found.initial, {"x": x.numpy()}, names)
    for name, gradient in right.items():
        assert np.abs(made[gradient_name(name)] - gradient).max() < 1e-9, name


@pytest.mark.parametrize(("choices", "slots"), [(2, 12), (2, 3), (1, 4)])
def test_masks_are_choices_within_a_capacity(choices: int, slots: int) -> None:
    torch.manual_seed(0)
    module = Loss(Masked(choices, slots)).double()
    x = torch.randn(TOKENS, HIDDEN, dtype=torch.float64)
    found = import_module(module, (x,))
    assert found.warnings == ()
    kinds = Counter(node.operator for node in found.graph.nodes)
    assert kinds["dispatch"] == kinds["combine"] == 1
    assert kinds["grouped_matmul"] == 2
    assert kinds["within_capacity"] == (slots < TOKENS)
    assert not kinds["einsum"]
    _agree(module, x, found)


class InOrder(Masked):
    """All choices of a token come before those of the next one."""

    def numbered(self, mask: Any) -> Any:
        order = mask.reshape(-1, EXPERTS).cumsum(0) - 1
        return order.reshape(-1, self.choices, EXPERTS)


class WeightedFirst(Masked):
    """Experts compute tokens that are multiplied by their weights."""

    def masks(self, combine: Any) -> Any:
        return combine, (combine > 0).to(combine.dtype)


@pytest.mark.parametrize("kind", [InOrder, WeightedFirst])
def test_what_masks_cost_is_said_where_they_are_no_such_choices(kind: Any) -> None:
    torch.manual_seed(0)
    slots = 3
    module = Loss(kind(2, slots)).double()
    x = torch.randn(TOKENS, HIDDEN, dtype=torch.float64)
    found = import_module(module, (x,))
    moving = 2 * 2 * TOKENS * EXPERTS * slots * HIDDEN
    needed = 2 * 2 * EXPERTS * slots * HIDDEN * INNER
    assert found.warnings == (
        "tokens go to slots of experts by products with masks in `experts`, "
        f"{moving / needed:.2g} times the operations of the experts; experts compute "
        f"{EXPERTS * slots} rows for {TOKENS * 2} choices",
    )
    _agree(module, x, found)


def test_a_choice_without_masks_is_no_such_mixture() -> None:
    class Best(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = torch.nn.Linear(HIDDEN, EXPERTS)

        def forward(self, x: Any) -> Any:
            weights, chosen = self.scores(x).topk(2, -1)
            spread = torch.nn.functional.one_hot(chosen, EXPERTS).to(x.dtype)
            return torch.einsum("tk,tke->te", weights, spread).mean()

    assert import_module(Best(), (torch.randn(TOKENS, HIDDEN),)).warnings == ()
