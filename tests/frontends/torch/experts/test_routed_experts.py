"""Experts as the architectures of transformers route them: our cells, and what is imported."""

from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
transformers = pytest.importorskip("transformers", reason="needs transformers")

import torch_compare as compare  # noqa: E402
from compared import difference, run  # noqa: E402
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek  # noqa: E402
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss  # noqa: E402
from transformers.models.mixtral import modeling_mixtral as mixtral  # noqa: E402
from transformers.models.qwen3_moe import modeling_qwen3_moe as qwen3  # noqa: E402

from shardwright import nn  # noqa: E402
from shardwright.dataflow.cotangents import gradient_name  # noqa: E402
from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.text import to_text  # noqa: E402
from shardwright.ir.types import TensorType  # noqa: E402
from shardwright.passes.canonicalize import Canonicalize  # noqa: E402
from shardwright.passes.differentiate import Differentiate  # noqa: E402
from shardwright.tracing import InputSpec, trace  # noqa: E402

HIDDEN, INNER, EXPERTS, TOP = 8, 6, 8, 2
SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "use_cache": False,
}


def _deepseek_config(**options: Any) -> Any:
    config = transformers.DeepseekV3Config(
        **{**SMALL, "num_key_value_heads": 4, **options},
        intermediate_size=24,
        moe_intermediate_size=INNER,
        n_routed_experts=EXPERTS,
        num_experts_per_tok=3,
        n_group=4,
        topk_group=2,
        n_shared_experts=1,
        first_k_dense_replace=0,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_nope_head_dim=4,
        qk_rope_head_dim=4,
        v_head_dim=4,
        routed_scaling_factor=2.5,
    )
    config._experts_implementation = "eager"
    return config


def _qwen3_config(**options: Any) -> Any:
    config = transformers.Qwen3MoeConfig(
        **{**SMALL, **options},
        intermediate_size=24,
        moe_intermediate_size=INNER,
        num_experts=EXPERTS,
        num_experts_per_tok=TOP,
        head_dim=4,
        norm_topk_prob=True,
        decoder_sparse_step=1,
    )
    config._experts_implementation = "eager"
    return config


def _gpt_oss_config(**options: Any) -> Any:
    config = transformers.GptOssConfig(
        **{**SMALL, **options},
        intermediate_size=INNER,
        num_local_experts=EXPERTS,
        num_experts_per_tok=TOP,
        head_dim=4,
        sliding_window=4,
    )
    config._experts_implementation = config._attn_implementation = "eager"
    return config


def _mixtral_config(**options: Any) -> Any:
    config = transformers.MixtralConfig(
        **{**SMALL, **options},
        intermediate_size=INNER,
        num_local_experts=EXPERTS,
        num_experts_per_tok=TOP,
    )
    config._experts_implementation = "eager"
    return config


def _randomized(module: Any) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.randn_like(tensor) * 0.3)
    return module.double()


# Our cells against the blocks of transformers


def _tokens(kind: str) -> Any:
    """Return tokens: random ones, equal ones (ties of choices), or ones that choose alike."""
    torch.manual_seed(1)
    x = torch.randn(3, 5, HIDDEN, dtype=torch.float64)
    if kind == "one expert":
        x = x[:1, :1] * (1 + torch.rand(3, 5, 1, dtype=torch.float64))
    return x


def _blocks() -> dict[str, tuple[Any, nn.Cell]]:
    size = {"hidden_size": HIDDEN}
    cell = partial(nn.RoutedExperts, dtype="float64")
    return {
        "mixtral": (
            mixtral.MixtralSparseMoeBlock(_mixtral_config(**size)),
            cell(HIDDEN, INNER, EXPERTS, TOP),
        ),
        "qwen3": (
            qwen3.Qwen3MoeSparseMoeBlock(_qwen3_config(**size)),
            cell(HIDDEN, INNER, EXPERTS, TOP),
        ),
        "deepseek_v3": (
            deepseek.DeepseekV3MoE(_deepseek_config(**size)),
            cell(
                *(HIDDEN, INNER, EXPERTS, 3),
                scores="sigmoid",
                groups=4,
                top_groups=2,
                selection_bias=True,
                scale=2.5,
            ),
        ),
        "gpt_oss": (
            gpt_oss.GptOssMLP(_gpt_oss_config(**size)),
            cell(
                *(HIDDEN, INNER, EXPERTS, TOP),
                scores="softmax_after",
                activation="swigluoai",
                has_bias=True,
                router_bias=True,
            ),
        ),
    }


def _held(name: str, block: Any) -> dict[str, Any]:
    """Return the parameters of a block of transformers by the names of our cell."""
    experts = block.experts
    router = block.router if name == "gpt_oss" else block.gate
    found = {"router.weight": router.weight}
    if name == "gpt_oss":
        found |= {"router.bias": router.bias}
        for part, at in (("gate", 0), ("up", 1)):
            found[f"{part}.weight"] = experts.gate_up_proj[..., at::2]
            found[f"{part}.bias"] = experts.gate_up_proj_bias[..., at::2]
        return found | {"down.weight": experts.down_proj, "down.bias": experts.down_proj_bias}
    gate, up = experts.gate_up_proj.chunk(2, dim=1)
    found |= {"gate.weight": gate.mT, "up.weight": up.mT, "down.weight": experts.down_proj.mT}
    if name == "deepseek_v3":
        found["selection_bias"] = router.e_score_correction_bias
    return found


class Summed(nn.Cell):
    """The sum of the results, each times its place: a loss of which all gradients differ."""

    def __init__(self, experts: nn.Cell) -> None:
        self.experts = experts

    def construct(self, x: Any, places: Any) -> Any:
        return (self.experts(x) * places).sum()


@pytest.mark.parametrize("tokens", ["random", "one expert"])
@pytest.mark.parametrize("name", ["mixtral", "qwen3", "deepseek_v3", "gpt_oss"])
def test_cells_route_as_transformers(name: str, tokens: str) -> None:
    block, cell = _blocks()[name]
    _randomized(block)
    if name == "deepseek_v3":  # its shared experts are another cell
        block.shared_experts = torch.nn.Identity()
    x = _tokens(tokens).requires_grad_()
    places = torch.arange(float(x.numel()), dtype=torch.float64).reshape(x.shape) / x.numel()
    held = {n: t.detach().clone().requires_grad_() for n, t in _held(name, block).items()}
    made = compare.Wide(block)(x)  # some routers compute in float32 else
    made = made[0] if isinstance(made, tuple) else made
    if name == "deepseek_v3":
        made = made - x
    loss = (made * places).sum()
    loss.backward()
    kind = TensorType("float64", tuple(x.shape))
    graph = trace(Summed(cell), [InputSpec("x", kind), InputSpec("places", kind)]).graph
    graph = Differentiate().run(Canonicalize().run(graph))
    initial = {f"experts.{n}": t.detach().numpy() for n, t in held.items()}
    gradients = {n: gradient_name(f"experts.{n}") for n in held if n != "selection_bias"}
    wanted = [graph.outputs[0], *gradients.values()]
    feed = {"x": x.detach().numpy(), "places": places.numpy()}
    found = run(graph, initial, feed, wanted)
    assert difference(found[graph.outputs[0]], loss.detach().numpy()) < 1e-9
    for part, gradient in _gradients(name, block).items():
        assert difference(found[gradients[part]], gradient.numpy()) < 1e-9, part


def _gradients(name: str, block: Any) -> dict[str, Any]:
    """Return the gradients of a block by the names of our cell."""
    with torch.no_grad():
        for tensor in block.parameters():
            tensor.copy_(tensor.grad)
    found = _held(name, block)
    found.pop("selection_bias", None)
    return {n: t.detach() for n, t in found.items()}


# Imports


def _imported(kind: str) -> Any:
    tokens = {name: torch.randint(0, 32, (4, 6)) for name in ("input_ids", "labels")}
    made = {
        "qwen3": lambda: transformers.Qwen3MoeForCausalLM(_qwen3_config()),
        "deepseek_v3": lambda: transformers.DeepseekV3ForCausalLM(_deepseek_config()),
        "gpt_oss": lambda: transformers.GptOssForCausalLM(_gpt_oss_config()),
    }
    return compare.Wide(_randomized(made[kind]()).eval()), tokens


@pytest.mark.parametrize("kind", ["qwen3", "deepseek_v3", "gpt_oss"])
def test_imported_experts_train_as_autograd_under_plans(kind: str) -> None:
    module, tokens = _imported(kind)
    found = compare.gradients_differ(module, tokens)
    assert max(found.loss, found.gradient) < 1e-9
    assert not found.missing
    assert max(compare.on_ranks(module, tokens, 4, plan="data=4,expert=2,zero=3")) < 1e-9


def test_implementations_of_transformers_are_one_program() -> None:
    tokens = {name: torch.randint(0, 32, (2, 4)) for name in ("input_ids", "labels")}
    module = _randomized(transformers.Qwen3MoeForCausalLM(_qwen3_config()).float().eval())
    graphs = []
    for kind in ("eager", "grouped_mm", "batched_mm"):
        module.config._experts_implementation = kind
        graphs.append(to_text(import_module(module, tokens).graph))
        assert module.config._experts_implementation == kind
    assert graphs[0] == graphs[1] == graphs[2]
