"""Decoders that begin with the weights of files, and adapters that files of peft cannot have."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="needs safetensors")

from shardwright.ir.errors import ModelError
from shardwright.operators.linear.nf4 import quantized
from shardwright.runtime.checkpoints.tensor_file import tensors_content
from shardwright.zoo.loading import load, pretrained

HIDDEN, INNER, WORDS = 64, 128, 32
LLAMA = {
    "model_type": "llama",
    "vocab_size": WORDS,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
}
MIXTRAL = {
    **LLAMA,
    "model_type": "mixtral",
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "router_aux_loss_coef": 0.0,
}
FEED_FORWARD = {"gate_proj": (INNER, HIDDEN), "up_proj": (INNER, HIDDEN)}


def folder(path: Path, fields: dict[str, object], feed_forward: dict[str, tuple[int, ...]]) -> str:
    """Write a config.json with random weights, and return the name of the model with them."""
    layer = {
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (HIDDEN // 2, HIDDEN),
        "self_attn.v_proj": (HIDDEN // 2, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        **feed_forward,
    }
    shapes = {
        "model.embed_tokens": (WORDS, HIDDEN),
        "model.norm": (HIDDEN,),
        "lm_head": (WORDS, HIDDEN),
        **{f"model.layers.0.{name}": shape for name, shape in layer.items()},
    }
    random = np.random.default_rng(0)
    tensors = {
        f"{name}.weight": random.normal(size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    (path / "config.json").write_text(json.dumps(fields))
    (path / "model.safetensors").write_bytes(tensors_content(tensors, {}))
    return f"{path}:weights={path},batch=2,sequence=8"


def llama(path: Path) -> str:
    shapes = {**FEED_FORWARD, "down_proj": (HIDDEN, INNER)}
    return folder(path, LLAMA, {f"mlp.{name}": shape for name, shape in shapes.items()})


def mixtral(path: Path) -> str:
    shapes = {"w1": (INNER, HIDDEN), "w3": (INNER, HIDDEN), "w2": (HIDDEN, INNER)}
    experts = {
        f"block_sparse_moe.experts.{i}.{name}": shape
        for i in range(2)
        for name, shape in shapes.items()
    }
    return folder(path, MIXTRAL, {"block_sparse_moe.gate": (2, HIDDEN), **experts})


@pytest.mark.filterwarnings("ignore")
def test_weights_are_packed_where_products_have_4_bits(tmp_path: Path) -> None:
    model = llama(tmp_path)
    whole, packed = load(model).initial, load(f"{model},lora=2,lora_bits=4").initial
    name = "blocks.0.feed_forward.down"
    for part, right in vars(quantized(whole[f"{name}.weight"])).items():
        found = packed[f"{name}.packed.{part}"]
        assert found.shape == right.shape, part
        assert np.array_equal(found, right), part
    assert np.array_equal(packed["head"], whole["head"])


@pytest.mark.filterwarnings("ignore")
def test_experts_have_no_adapters_in_files(tmp_path: Path) -> None:
    begins, alpha = pretrained(f"{mixtral(tmp_path)},lora=2,lora_alpha=6")
    assert alpha == 6
    name = "blocks.0.feed_forward.up"
    trained = {f"{name}.lora_{half}.weight": np.zeros((2, 2, 2)) for half in "ab"}
    with pytest.raises(ModelError) as error:
        begins.adapter_files(trained, alpha)
    assert str(error.value) == (
        f"`{name}` is no module of the weights in `{tmp_path}` by itself, and files of peft have "
        "no adapter for it; train others, by `lora_targets`"
    )
    experts = load(mixtral(tmp_path)).initial[f"{name}.weight"]
    assert experts.shape == (2, HIDDEN, INNER)


@pytest.mark.filterwarnings("ignore")
def test_wrong_weights_are_refused(tmp_path: Path) -> None:
    model = llama(tmp_path)
    with pytest.raises(ModelError) as error:
        load(f"{model},vocab_size=64")
    assert str(error.value) == (
        f"`embedding.embedding_table` has the shape ({WORDS}, {HIDDEN}) in the weights, "
        f"expected (64, {HIDDEN})"
    )
    with pytest.raises(ModelError) as error:
        load(f"{model},mtp=1")
    assert str(error.value) == "`mtp` is given, and `weights` says or has none; leave one out"
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-8])
    with pytest.raises(ModelError, match=r"model\.safetensors` is no file of safetensors"):
        load(model)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../b"}}')
    with pytest.raises(ModelError, match="has no `weight_map` of names of files"):
        load(model)
