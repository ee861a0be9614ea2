"""Heads that predict further tokens, against layers of transformers put together by hand."""

import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
transformers = pytest.importorskip("transformers", reason="needs transformers")


from shardwright.frontends import configs  # noqa: E402
from shardwright.zoo import load  # noqa: E402
from tests.frontends.configs.decoder_weights import weights  # noqa: E402
from tests.frontends.configs.test_decoders import FEW, HEAD, LATENT, check_training, made, wide  # noqa: E402

LENGTH, WEIGHT = 7, 0.3
CASES = {
    "llama": ("Llama", {}),
    "qwen3_moe": ("Qwen3Moe", {**FEW, **HEAD, "num_experts": 5, "norm_topk_prob": True}),
    "deepseek_v3": ("DeepseekV3", {**FEW, **LATENT, "n_group": 4, "topk_group": 2}),
    "nemotron_h": (
        "NemotronH",
        {
            **FEW,
            **HEAD,
            "layers_block_type": ["moe", "mlp", "full_attention"],
            "num_hidden_layers": 3,
            "moe_latent_size": 7,
            "n_routed_experts": 6,
            "moe_shared_expert_intermediate_size": 10,
        },
    ),
}
ONE = {
    "NemotronH": {"layers_block_type": ["full_attention", "moe"], "num_hidden_layers": 2},
    "DeepseekV3": {"num_hidden_layers": 1, "first_k_dense_replace": 0},
}


def random(*shape: int) -> Any:
    return torch.nn.Parameter(torch.randn(*shape, dtype=torch.float64) * 0.3)


def normalized(x: Any, scale: Any, epsilon: float) -> Any:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + epsilon) * scale


def further_losses(main: Any, depths: list[Any], joins: list[Any], ids: Any, labels: Any) -> Any:
    """The loss by the formula: every depth over the positions that have a word so far ahead."""
    epsilon = main.config.__dict__.get("rms_norm_eps") or main.config.layer_norm_epsilon
    table = main.get_input_embeddings().weight
    with wide():
        x = main.model(input_ids=ids, use_cache=False).last_hidden_state
    loss = torch.nn.functional.cross_entropy(main.lm_head(x).flatten(0, 1), labels.flatten())
    for ahead, (depth, join) in enumerate(zip(depths, joins, strict=True), 1):
        kept = LENGTH - ahead
        words = torch.zeros_like(ids)
        words[:, :kept] = ids[:, ahead:]
        both = [normalized(table[words], join[0], epsilon), normalized(x, join[1], epsilon)]
        with wide():
            read = torch.cat(both, -1) @ join[2].T
            x = depth.model(inputs_embeds=read, use_cache=False).last_hidden_state
        scores = main.lm_head(x)[:, :kept].flatten(0, 1)
        own = torch.nn.functional.cross_entropy(scores, labels[:, ahead:].flatten())
        loss = loss + own * WEIGHT / len(depths)
    return loss


def arrays(module: Any, kind: str) -> dict[str, np.ndarray]:
    """Parameters or gradients; those that have none are zero."""
    named = dict(module.named_parameters())
    if kind == "data":
        named |= {n: b for n, b in module.named_buffers() if n.endswith("e_score_correction_bias")}
        return {n: p.detach().numpy() for n, p in named.items()}
    found = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in named.items()}
    return {n: p.detach().numpy() for n, p in found.items()}


def placed(main: Any, depths: list[Any], joins: list[Any], of: Any, kind: str) -> dict[str, Any]:
    """Arrays by the names of the program."""
    found = {f"decoder.{n}": x for n, x in weights(arrays(main, kind), of[0]).items()}
    for i, (depth, join) in enumerate(zip(depths, joins, strict=True)):
        own = weights(arrays(depth, kind), of[1])
        kept = (n for n in own if n.startswith(("blocks.", "norm.")))
        found |= {f"depths.{i}.{n}": own[n] for n in kept}
        names = ("of_words.gamma", "of_features.gamma", "product.weight")
        for name, one in zip(names, join, strict=True):
            tensor = one if kind == "data" else one.grad
            found[f"depths.{i}.{name}"] = tensor.detach().numpy()
    return found


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_are_those_of_the_formula(case: str, repeated: bool, tmp_path: Any):
    kind, fields = CASES[case]
    main, one = made(kind, fields), {**fields, **ONE.get(kind, {"num_hidden_layers": 1})}
    ahead = 2
    own = [made(kind, one) for _ in range(1 if repeated else ahead)]
    hidden = main.config.hidden_size
    joins = [(random(hidden), random(hidden), random(hidden, 2 * hidden)) for _ in own]
    described = []
    for name, module in (("main", main), ("depth", own[0])):
        (tmp_path / name).mkdir()
        module.config.save_pretrained(tmp_path / name)
        described.append(configs.read_model(str(tmp_path / name / "config.json")).architecture)
    ids, labels = (torch.randint(3, 48, (2, LENGTH)) for _ in range(2))
    times = ahead // len(own)
    loss = further_losses(main, own * times, joins * times, ids, labels)
    loss.backward()
    sizes = f"batch=2,sequence={LENGTH},dtype=float64,mtp={ahead},mtp_weight={WEIGHT}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = tmp_path / "main" / "config.json"
        definition = load(f"{path}:{sizes}{',mtp_repeated=true' if repeated else ''}")
    initial = placed(main, own, joins, described, "data")
    right = placed(main, own, joins, described, "gradients")
    trained = {p.name: p.value.type.shape for p in definition.graph.parameters if p.trainable}
    assert {n: x.shape for n, x in initial.items() if n in right} == trained
    feed = {"tokens": ids.numpy(), "labels": labels.numpy()}
    check_training(definition, initial, right, feed, loss)
