"""Weights of Hugging Face folders in decoders of the zoo, and adapters in the files of peft."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
transformers = pytest.importorskip("transformers", reason="needs transformers")
peft = pytest.importorskip("peft", reason="needs peft")
pytest.importorskip("safetensors", reason="needs safetensors")

import torch_compare as compare  # noqa: E402

from shardwright.api import compile, run  # noqa: E402
from shardwright.dataflow.cotangents import gradient_name  # noqa: E402
from shardwright.ir.errors import ModelError  # noqa: E402
from shardwright.passes.differentiate import Differentiate  # noqa: E402
from shardwright.tools.main import main  # noqa: E402
from shardwright.zoo.loading import load  # noqa: E402
from tests.frontends.configs.test_decoders import CASES, SMALL, wide  # noqa: E402

WORDS = SMALL["vocab_size"]
MIXTURES = ("qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3")
HALVES = {"lora_A": "lora_a", "lora_B": "lora_b"}
SOME = ("q_proj", "o_proj", "down_proj")


def saved(case: str, folder: Path) -> Any:
    """Return a module of transformers in float64 whose random weights a folder has."""
    kind, fields = CASES[case]
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **fields})
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    module = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.add_(torch.randn_like(tensor), alpha=0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module.save_pretrained(folder, max_shard_size="5KB")
    with wide():  # its rotations, too
        exact = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    exact.load_state_dict(module.state_dict())
    return exact


def with_adapter(module: Any, folder: Path, targets: Any) -> Any:
    """Return a module of peft with a random adapter, which a folder has."""
    lora = peft.LoraConfig(r=3, lora_alpha=5, target_modules=targets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = peft.get_peft_model(module, lora).eval()
        with torch.no_grad():
            for name, tensor in adapted.named_parameters():
                if "lora_" in name:
                    tensor.copy_(torch.randn(tensor.shape).float())
        adapted.save_pretrained(folder)
    return adapted.double()


def loaded(model: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(model)


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    found = [torch.randint(3, WORDS, (2, 7)) for _ in range(2)]
    return found[0], found[1]


def loss_of(module: Any, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    with wide():
        logits = module(input_ids=ids, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def check(model: str, module: Any, gradients: dict[str, torch.Tensor]) -> None:
    """Check the loss of a model, and its gradients by names of the zoo."""
    ids, labels = tokens()
    definition = loaded(f"{model},batch=2,sequence=7,dtype=float64")
    loss = loss_of(module, ids, labels)
    if gradients:
        module.zero_grad()
        loss.backward()
    graph = Differentiate().run(definition.graph)
    right_loss = float(loss.detach())
    wanted = [graph.outputs[0], *map(gradient_name, gradients)]
    feed = {"tokens": ids.numpy(), "labels": labels.numpy()}
    with wide():
        found = compare.run(graph, definition.initial, feed, wanted)
    assert abs(float(found[wanted[0]]) - right_loss) < 1e-9 * right_loss
    for name, parameter in gradients.items():
        assert parameter.grad is not None
        right = parameter.grad.numpy()
        assert np.abs(found[gradient_name(name)] - right).max() < 1e-9 * np.abs(right).max(), name


@pytest.mark.parametrize("case", ["llama", "phi3", *MIXTURES])
def test_a_decoder_begins_with_the_weights_of_a_folder(case: str, tmp_path: Path) -> None:
    module = saved(case, tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    check(f"{tmp_path}:weights={tmp_path}", module, {})


@pytest.mark.parametrize("targets", ["all-linear", SOME], ids=str)
def test_an_adapter_of_peft_goes_on(targets: Any, tmp_path: Path) -> None:
    folder, own = tmp_path / "base", tmp_path / "adapter"
    module = with_adapter(saved("qwen3", folder), own, targets)
    names = {
        "self_attn.q_proj": "attention.query",
        "self_attn.o_proj": "attention.projection",
        "mlp.down_proj": "feed_forward.down",
    }
    gradients = {
        f"blocks.{i}.{ours}.{HALVES[half]}.weight": parameter
        for theirs, ours in names.items()
        for half in HALVES
        for i in range(2)
        for name, parameter in module.named_parameters()
        if f"layers.{i}.{theirs}.{half}." in name
    }
    assert len(gradients) == 2 * 2 * 3
    check(f"{folder}:weights={folder},adapter={own}", module, gradients)


def test_peft_reads_the_adapter_that_a_plan_has_trained(tmp_path: Path, capsys: Any) -> None:
    base, out = tmp_path / "base", tmp_path / "adapter"
    module = saved("llama", base)
    sizes = f"weights={base},batch=4,sequence=7,lora=3,lora_alpha=5"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = f"{base}:{sizes},lora_targets=q_proj+down_proj"
        how = {"precision": "float32", "optimizer": "adam:learning_rate=0.05"}
        compile(model, 4, plan="tensor=2,data=2,zero=1", **how).write(tmp_path / "plan")
        list(run(tmp_path / "plan", 3, checkpoints=tmp_path / "trained"))
    command = ["reshard", tmp_path / "trained", "--adapter", tmp_path / "plan", "--out", out]
    assert main([str(word) for word in command]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: ")
    config = json.loads((out / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (3, 5)
    assert config["target_modules"] == ["down_proj", "q_proj"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = peft.PeftModel.from_pretrained(module, out).double().eval()
    assert any(bool(p.any()) for n, p in adapted.named_parameters() if "lora_B" in n)
    check(f"{base}:weights={base},adapter={out}", adapted, {})


def test_what_has_no_place_is_refused(tmp_path: Path) -> None:
    base, own = tmp_path / "base", tmp_path / "adapter"
    with_adapter(saved("llama", base), own, ["q_proj"])
    weights = f"{base}:weights={base}"
    config = json.loads((own / "adapter_config.json").read_text())
    (own / "adapter_config.json").write_text(json.dumps({**config, "use_rslora": True}))
    for model, message in (
        (
            f"{base}:adapter={own}",
            "`adapter` is given without the weights that it was trained on; add `weights=FOLDER`",
        ),
        (
            f"{weights},adapter={own},lora=2",
            "`lora` is given, and `adapter` says or has none; leave one out",
        ),
        (
            f"{weights},adapter={own}",
            f"`use_rslora` of the adapter in `{own}` is true, expected false",
        ),
        (
            f"{weights},num_hidden_layers=1",
            "the tensor `model.layers.1.input_layernorm.weight` and 8 others of the weights is no "
            "part of the decoder",
        ),
        (f"{weights},num_hidden_layers=3", "the weights have no layer 2, which the decoder has"),
        (
            f"{base}:weights={own}",
            f"there is neither `model.safetensors` nor `model.safetensors.index.json` in `{own}`; "
            "give a folder of `save_pretrained` as `weights`",
        ),
    ):
        with pytest.raises(ModelError) as error:
            loaded(model)
        assert str(error.value) == message
