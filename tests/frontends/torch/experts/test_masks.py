"""Experts to which products with masks send tokens: exact as they are, and the import says so."""

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
        self.second = torch.nn.Parameter(torch.randn(EXPERTS, INNER, HIDDEN))

    def forward(self, x: Any) -> Any:
        scores = self.router(x).softmax(-1)
        if self.choices == 1:
            chosen = scores.argmax(-1, keepdim=True)
            weights = scores.gather(-1, chosen)
        else:
            weights, chosen = scores.topk(self.choices, -1)
        mask = torch.nn.functional.one_hot(chosen, EXPERTS)
        order = mask.transpose(0, 1).reshape(-1, EXPERTS).cumsum(0) - 1
        place = order.reshape(self.choices, -1, EXPERTS).transpose(0, 1)
        kept = (mask * (place < self.slots)).sum(-1).to(x.dtype)
        slot = (place * mask).sum(-1).clamp(max=self.slots - 1)
        at = torch.nn.functional.one_hot(slot, self.slots).to(x.dtype)
        combine = torch.einsum("tk,tke,tkc->tec", weights * kept, mask.to(x.dtype), at)
        rows = torch.einsum("tec,tm->ecm", (combine > 0).to(x.dtype), x)
        inner = torch.relu(torch.einsum("ecm,emf->ecf", rows, self.first))
        made = torch.einsum("ecf,efm->ecm", inner, self.second)
        return torch.einsum("tec,ecm->tm", combine, made)


class Loss(torch.nn.Module):
    def __init__(self, experts: Any) -> None:
        super().__init__()
        self.experts = experts

    def forward(self, x: Any) -> Any:
        return (self.experts(x) ** 2).mean()


@pytest.mark.parametrize(("choices", "slots"), [(2, 8), (2, 3), (1, 4)])
def test_what_masks_cost_is_said_and_nothing_changes(choices: int, slots: int) -> None:
    torch.manual_seed(0)
    module = Loss(Masked(choices, slots)).double()
    x = torch.randn(TOKENS, HIDDEN, dtype=torch.float64)
    found = import_module(module, (x,))
    moving = 2 * 2 * TOKENS * EXPERTS * slots * HIDDEN
    needed = 2 * 2 * EXPERTS * slots * HIDDEN * INNER
    assert found.warnings == (
        "tokens go to slots of experts by products with masks in `experts`, "
        f"{moving / needed:.2g} times the operations of the experts; experts compute "
        f"{EXPERTS * slots} rows for {TOKENS * choices} choices",
    )
    module(x).backward()
    graph = Differentiate().run(found.graph)
    right = {n: p.grad.numpy() for n, p in module.named_parameters()}
    names = [gradient_name(name) for name in right]
    made = compare.run(graph, found.initial, {"x": x.numpy()}, names)
    for name, gradient in right.items():
        assert np.abs(made[gradient_name(name)] - gradient).max() < 1e-9, name


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
