"""Experts of transformers: imported as rows of experts, no token is dropped."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
transformers = pytest.importorskip("transformers", reason="needs transformers")

import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402

import shardwright  # noqa: E402
import shardwright.frontends.torch.experts  # noqa: E402 - defines the operators
from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.errors import ModelError  # noqa: E402


def _mixtral(**options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=options.pop("num_hidden_layers", 1),
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=options.pop("num_local_experts", 4),
        use_cache=False,
        **options,
    )
    tokens = {name: torch.randint(0, 32, (4, 6)) for name in ("input_ids", "labels")}
    return transformers.MixtralForCausalLM(config).eval(), tokens


def test_outputs_of_the_default_experts_are_those_of_pytorch() -> None:
    module, tokens = _mixtral()
    assert compare.outputs_differ(module, tokens) < 1e-5


_POOLED = {"output_router_logits": True, "num_hidden_layers": 2, "router_aux_loss_coef": 0.3}


_ONE = {"num_local_experts": 1, "num_experts_per_tok": 1}


@pytest.mark.parametrize(
    "options", [{}, _POOLED, _ONE], ids=["alone", "losses pooled over layers", "one expert"]
)
def test_loss_and_gradients_are_those_of_autograd(options: Any) -> None:
    module, tokens = _mixtral(**options)
    module.config._experts_implementation = "eager"  # the default has no float64
    wide = compare.Wide(module.double())
    found = compare.gradients_differ(wide, tokens)
    assert max(found.loss, found.gradient) < 1e-9
    assert not found.missing
    assert max(compare.on_ranks(wide, tokens, 4, dataset_strategy="data_parallel")) < 1e-9


def test_a_choice_that_is_masked_before_the_experts_keeps_its_weight() -> None:
    """A router may have a class more than there are experts, which skips the layer."""
    module, tokens = _mixtral(num_experts_per_tok=1)
    module.config._experts_implementation = "eager"

    def skipping(_: Any, given: Any) -> Any:
        x, chosen, weights = given
        return x, chosen.masked_fill(chosen == 3, 0), weights.masked_fill(chosen == 3, 0) * 0.5

    module.model.layers[0].mlp.experts.register_forward_pre_hook(skipping)
    found = compare.gradients_differ(compare.Wide(module.double()), tokens)
    assert max(found.loss, found.gradient) < 1e-9


def test_experts_compute_the_rows_of_the_tokens_that_chose_them() -> None:
    graph = import_module(*_mixtral()).graph
    inside = [node for node in graph.nodes if node.results[0].type.ragged]
    assert {"dispatch", "grouped_matmul", "silu", "mul"} <= {node.operator for node in inside}
    for node in inside:
        assert node.results[0].type.size_texts[:2] == ("2/4*1.04", "24~")
    products = [node for node in graph.nodes if node.operator == "grouped_matmul"]
    assert all(node.results[0].type.ragged for node in products)


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


def test_tensor_ranks_divide_gates_and_inner_features_of_one_weight() -> None:
    module, tokens = _mixtral()
    module.config._experts_implementation = "eager"
    wide = compare.Wide(module.double())
    plan = "tensor=2,data=2,zero=1"
    assert max(compare.on_ranks(wide, tokens, 4, plan=plan)) < 1e-9
    program = shardwright.compile(module, 4, example_inputs=tokens, plan=plan).plan.program
    (weight,) = (p for p in program.parameters if p.name.endswith("gate_up_proj"))
    assert weight.value.layout is not None
    assert {"tensor", "data"} <= {*weight.value.layout.split_axes}
    inner = [n for n in program.nodes if n.scope.endswith("experts") and n.operator == "all_gather"]
    assert not any("tensor" in node.attributes["axes"] for node in inner)


@pytest.mark.parametrize("kind", ["dbrx", "jetmoe", "longcat", "nllb-moe", "switch"])
def test_experts_in_loops_are_computed_for_every_token(kind: str) -> None:
    torch.manual_seed(0)
    module, inputs = _LOOPS[kind]()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)  # no equal scores of experts
    before = [type(part).forward for part in module.modules()]
    found = compare.gradients_differ(compare.Wide(module.double().eval()), inputs)
    assert max(found.loss, found.gradient) < 1e-9
    assert not found.missing
    assert [type(part).forward for part in module.modules()] == before


def _tokens() -> dict[str, Any]:
    return {name: torch.randint(3, 32, (2, 5)) for name in ("input_ids", "labels")}


def _dbrx() -> Any:
    config = transformers.DbrxConfig(
        d_model=16,
        n_heads=4,
        n_layers=1,
        vocab_size=32,
        use_cache=False,
        attn_config={"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4},
        ffn_config={
            "ffn_hidden_size": 8,
            "hidden_size": 16,
            "moe_num_experts": 4,
            "moe_top_k": 2,
        },
    )
    return transformers.DbrxForCausalLM(config), _tokens()


def _jetmoe() -> Any:
    config = transformers.JetMoeConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=1,
        num_key_value_heads=2,
        kv_channels=4,
        intermediate_size=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        use_cache=False,
    )
    return transformers.JetMoeForCausalLM(config), _tokens()


def _nllb() -> Any:
    config = transformers.NllbMoeConfig(
        vocab_size=32,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=8,
        decoder_ffn_dim=8,
        encoder_sparse_step=1,
        decoder_sparse_step=1,
        num_experts=4,
        max_position_embeddings=16,
        use_cache=False,
    )
    return transformers.NllbMoeForConditionalGeneration(config), _tokens()


def _switch() -> Any:
    config = transformers.SwitchTransformersConfig(
        vocab_size=32,
        d_model=16,
        d_kv=8,
        d_ff=8,
        num_layers=1,
        num_sparse_encoder_layers=1,
        num_decoder_layers=1,
        num_sparse_decoder_layers=1,
        num_heads=2,
        num_experts=2,
        expert_capacity=2,  # others are dropped
        use_cache=False,
        decoder_start_token_id=0,
        router_z_loss_coef=0.0,
        router_aux_loss_coef=0.0,
    )
    inputs = _tokens()
    inputs |= {"attention_mask": torch.ones_like(inputs["input_ids"])}
    inputs |= {f"decoder_{name}": inputs[name] for name in ("input_ids", "attention_mask")}
    return transformers.SwitchTransformersForConditionalGeneration(config), inputs


def _longcat() -> Any:
    config = transformers.LongcatFlashConfig(
        vocab_size=32,
        hidden_size=16,
        num_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        ffn_hidden_size=8,
        expert_ffn_hidden_size=8,
        n_routed_experts=4,
        zero_expert_num=2,  # those return a token as it is
        moe_topk=3,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_nope_head_dim=4,
        qk_rope_head_dim=4,
        v_head_dim=4,
        head_dim=4,
        use_cache=False,
    )
    return transformers.LongcatFlashForCausalLM(config), _tokens()


_LOOPS = {
    "dbrx": _dbrx,
    "jetmoe": _jetmoe,
    "longcat": _longcat,
    "nllb-moe": _nllb,
    "switch": _switch,
}
