"""Weights of mixtures: from a Hugging Face folder into plans, over expert degrees, and back.

The folders have a module for each expert or fused weights, as the architecture has; transformers
reads and writes both.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
transformers = pytest.importorskip("transformers", reason="needs transformers")
safetensors = pytest.importorskip("safetensors.torch")

import shardwright  # noqa: E402
from shardwright.ir.types import TensorType  # noqa: E402
from shardwright.runtime import Executor, LocalCommunicator, initialize  # noqa: E402
from shardwright.runtime.checkpoints import (  # noqa: E402
    Progress,
    begin_writing,
    load_slices,
    open_checkpoint,
    reshard,
)

SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "use_cache": False,
}


def _qwen3() -> Any:
    sizes = {"intermediate_size": 24, "moe_intermediate_size": 6, "head_dim": 4}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1}
    return transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(**SMALL, **sizes, **experts)
    )


def _gpt_oss() -> Any:
    sizes = {"intermediate_size": 6, "head_dim": 4, "sliding_window": 4}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    config = transformers.GptOssConfig(**SMALL, **sizes, **experts)
    config._attn_implementation = "eager"
    return transformers.GptOssForCausalLM(config)


@pytest.mark.parametrize(
    ("made", "on_disk"),
    [
        (_qwen3, "model.layers.0.mlp.experts.3.gate_proj.weight"),
        (_gpt_oss, "model.layers.0.mlp.experts.gate_up_proj"),
    ],
    ids=["a module for each expert", "fused"],
)
def test_weights_go_from_a_folder_into_plans_and_back(
    made: Any, on_disk: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    made().save_pretrained(tmp_path / "given")
    assert on_disk in safetensors.load_file(tmp_path / "given" / "model.safetensors")
    module = type(made()).from_pretrained(tmp_path / "given")
    tokens = {name: torch.randint(0, 32, (4, 6)) for name in ("input_ids", "labels")}
    plans = {
        experts: shardwright.compile(
            module,
            4,
            example_inputs=tokens,
            plan=f"data=4,expert={experts}",
            optimizer="sgd:learning_rate=0.05",
        ).plan
        for experts in (4, 2)
    }
    program = plans[4].program
    communicator = LocalCommunicator(program.mesh)
    state = initialize(program, 0, communicator, plans[4].initial)
    kinds = {value.name: value.type for value in program.inputs}
    feed = {name: _as(kinds[name], tokens[name]) for name in kinds}
    Executor(program, communicator).step(feed, state)
    writer = begin_writing(tmp_path / "four", program, communicator)
    writer.save(state, Progress(step=1))
    writer.settle()
    path = reshard(open_checkpoint(tmp_path / "four"), plans[2].program, tmp_path / "two")
    of_two = LocalCommunicator(plans[2].program.mesh)
    halves = load_slices(open_checkpoint(path), plans[2].program, of_two)
    name = next(name for name in halves if name.endswith("experts.down_proj"))
    assert halves[name][0].shape[0] == 2
    merged = reshard(open_checkpoint(path), None, tmp_path / "whole")
    trained = safetensors.load_file(merged / "rank.0.safetensors")
    right = _trained(module, tokens)
    assert all(name.startswith("constant_") for name in trained.keys() - right.keys())
    for name, tensor in right.items():
        torch.testing.assert_close(trained[name], tensor, rtol=1e-4, atol=1e-6)
    assert not module.load_state_dict(trained, strict=False).missing_keys
    module.save_pretrained(tmp_path / "back")
    files = [tmp_path / folder / "model.safetensors" for folder in ("given", "back")]
    given, back = (safetensors.load_file(file) for file in files)
    assert given.keys() == back.keys()
    again = type(module).from_pretrained(tmp_path / "back").state_dict()
    assert all(
        torch.equal(again[name], tensor) for name, tensor in trained.items() if name in right
    )


def _as(kind: TensorType, tensor: Any) -> Any:
    return tensor.numpy().astype(np.dtype(kind.dtype))


def _trained(module: Any, tokens: Any) -> dict[str, Any]:
    """Return the weights after a step of PyTorch's own, and leave the module as it is."""
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module.config._experts_implementation = "eager"
    module(**tokens).loss.backward()
    torch.optim.SGD(module.parameters(), lr=0.05).step()
    after = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module.load_state_dict(before)
    return after
