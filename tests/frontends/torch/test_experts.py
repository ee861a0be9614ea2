"""Experts of transformers: imported as slots of experts, no token is dropped."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
transformers = pytest.importorskip("transformers", reason="needs transformers")

import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402

import shardwright.frontends.torch.experts  # noqa: E402, F401 - defines the operators
from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.errors import ModelError  # noqa: E402


def _mixtral(**options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        use_cache=False,
        **options,
    )
    tokens = {name: torch.randint(0, 32, (4, 6)) for name in ("input_ids", "labels")}
    return transformers.MixtralForCausalLM(config).eval(), tokens


def test_outputs_of_the_default_experts_are_those_of_pytorch() -> None:
    module, tokens = _mixtral()
    assert compare.outputs_differ(module, tokens) < 1e-5


@pytest.mark.parametrize("options", [{}, {"output_router_logits": True}])
def test_loss_and_gradients_are_those_of_autograd(options: Any) -> None:
    module, tokens = _mixtral(**options)
    module.config._experts_implementation = "eager"  # the default has no float64
    wide = compare.Wide(module.double())
    found = compare.gradients_differ(wide, tokens)
    assert max(found.loss, found.gradient) < 1e-9
    assert not found.missing
    assert max(compare.on_ranks(wide, tokens, 4, dataset_strategy="data_parallel")) < 1e-9


def test_there_is_a_slot_for_every_token_of_a_sequence() -> None:
    graph = import_module(*_mixtral()).graph
    nodes = [node for node in graph.nodes if node.operator == "dispatch"]
    assert [node.attributes["capacity"] for node in nodes] == [6]


def test_the_implementation_of_the_user_is_back_after_an_import_that_fails() -> None:
    module, tokens = _mixtral()
    before = module.config._experts_implementation
    with pytest.raises(ModelError):
        import_module(module, {"wrong": tokens["labels"]})
    import_module(module, tokens)
    assert module.config._experts_implementation == before


class Chosen(nn.Module):
    """Experts that an input chooses: both choices of a token may be one expert."""

    def forward(self, x: Any, chosen: Any, weights: Any) -> Any:
        held = torch.ops.shardwright.dispatch(x, chosen, 3)
        factors = torch.arange(1.0, 4.0)[:, None, None]
        return torch.ops.shardwright.combine(held * factors, chosen, weights)


def test_an_expert_that_is_chosen_twice_counts_twice() -> None:
    chosen = torch.tensor([[2, 2], [1, 2], [2, 0]])
    x, weights = torch.randn(3, 4), torch.rand(3, 2)
    imported = import_module(Chosen(), (x, chosen, weights), loss="none")
    feed = compare.arrays_of(imported, (x, chosen, weights))
    (found,) = compare.run(
        imported.graph, imported.initial, feed, list(imported.graph.outputs)
    ).values()
    factor = ((chosen + 1) * weights).sum(1, keepdim=True)
    assert compare.difference(found, (x * factor).numpy()) < 1e-6
