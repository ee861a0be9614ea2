"""LoRA as peft has it: the zoo's adapters are its adapters, and its modules are imported."""

import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
transformers = pytest.importorskip("transformers", reason="needs transformers")
peft = pytest.importorskip("peft", reason="needs peft")

import torch_compare as compare  # noqa: E402

from shardwright.api import compile  # noqa: E402
from shardwright.dataflow.cotangents import gradient_name  # noqa: E402
from shardwright.frontends import configs  # noqa: E402
from shardwright.passes.differentiate import Differentiate  # noqa: E402
from shardwright.tracing import Definition  # noqa: E402
from shardwright.zoo.imported import from_torch  # noqa: E402
from shardwright.zoo.loading import load  # noqa: E402
from tests.equivalence import trained  # noqa: E402
from tests.frontends.configs.decoder_weights import weights  # noqa: E402
from tests.frontends.configs.test_decoders import wide  # noqa: E402

RANK, ALPHA, WORDS = 3, 5, 48
HALVES = {"lora_A": "lora_a", "lora_B": "lora_b"}


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: Any) -> tuple[Any, str]:
    """Return a Llama with adapters of peft, all weights random, and its config.json."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="eager",
        use_cache=False,
    )
    path = tmp_path_factory.mktemp("llama")
    config.save_pretrained(path)
    lora = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear")
    with wide(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft asks what transformers will rename
        module = peft.get_peft_model(transformers.LlamaForCausalLM(config), lora).double().eval()
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.add_(torch.randn_like(tensor), alpha=0.2)
    return module, str(path / "config.json")


def by_zoo(module: Any, path: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the weights and the gradients of adapters by the names of the zoo."""
    architecture = configs.read_model(path).architecture
    assert architecture is not None
    root = "base_model.model."
    whole = {
        n.removeprefix(root).replace(".base_layer", ""): p.detach().numpy()
        for n, p in module.named_parameters()
        if "lora_" not in n
    }
    found, gradients = weights(whole, architecture), {}
    halves = {}
    for half, own in HALVES.items():
        named = {
            n.removeprefix(root).replace(f".{half}.default", ""): p
            for n, p in module.named_parameters()
            if half in n
        }
        full = {**whole, **{n: p.detach().numpy() for n, p in named.items()}}
        slopes = {**whole, **{n: p.grad.numpy() for n, p in named.items()}}
        for kind, taken in ((halves, full), (gradients, slopes)):
            for name, array in weights(taken, architecture).items():
                if "attention." in name or "feed_forward." in name:
                    kind[name.replace(".weight", f".{own}.weight")] = array
    return {**found, **halves}, gradients


def run_torch(module: Any, tokens: Any, labels: Any) -> float:
    module.zero_grad()
    with wide():
        logits = module(input_ids=tokens, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    return float(loss.detach())


def assert_close(found: np.ndarray, right: np.ndarray, name: str) -> None:
    assert np.abs(found - right).max() <= 1e-9 * np.abs(right).max(), name


def decoder(path: str, batch: int, dtype: str = "float32") -> Definition:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sizes = f"batch={batch},sequence=8,dtype={dtype}"
        return load(f"{path}:{sizes},lora={RANK},lora_alpha={ALPHA}")


def test_loss_and_gradients_of_adapters_are_those_of_peft(adapted: tuple[Any, str]) -> None:
    module, path = adapted
    tokens, labels = (torch.randint(0, WORDS, (2, 8)) for _ in range(2))
    loss = run_torch(module, tokens, labels)
    initial, gradients = by_zoo(module, path)
    graph = Differentiate().run(decoder(path, 2, "float64").graph)
    assert {p.name for p in graph.parameters if p.trainable} == gradients.keys()
    feed = {"tokens": tokens.numpy(), "labels": labels.numpy()}
    wanted = [graph.outputs[0], *map(gradient_name, gradients)]
    with wide():
        found = compare.run(graph, initial, feed, wanted)
    assert abs(float(found[wanted[0]]) - loss) < 1e-12 * loss
    for name, right in gradients.items():
        assert_close(found[gradient_name(name)], right, name)


@pytest.mark.parametrize("plan", ["tensor=2,data=2", "data=4,zero=3"])
def test_four_ranks_have_the_gradients_of_peft(adapted: tuple[Any, str], plan: str) -> None:
    module, path = adapted
    random = np.random.default_rng(1)  # as `trained` draws its inputs
    drawn = (random.integers(WORDS, size=(4, 8), dtype="int32") for _ in range(2))
    tokens, labels = (torch.tensor(x, dtype=torch.int64) for x in drawn)
    loss = run_torch(module, tokens, labels)
    initial, gradients = by_zoo(module, path)
    program = compile(decoder(path, 4), 4, plan=plan, precision="float32").plan.program
    found = trained(program, 1, {"tokens": WORDS, "labels": WORDS}, initial)
    assert abs(float(found["0.loss"]) - loss) < 1e-9 * loss
    for name, right in gradients.items():
        assert_close(found[f"0.{gradient_name(name)}"], right, name)


def test_a_module_of_peft_trains_its_adapters_alone(adapted: tuple[Any, str]) -> None:
    module, _ = adapted
    tokens, labels = (torch.randint(0, WORDS, (2, 8)) for _ in range(2))
    with wide():
        definition = from_torch(module, {"input_ids": tokens, "labels": labels})
        module.zero_grad()
        loss = module(input_ids=tokens, labels=labels, use_cache=False).loss
    loss.backward()
    right = {n: p.grad.numpy() for n, p in module.named_parameters() if p.grad is not None}
    graph = Differentiate().run(definition.graph)
    assert {p.name for p in graph.parameters if p.trainable} == right.keys()
    assert all("lora_" in name for name in right)
    feed = {"input_ids": tokens.numpy(), "labels": labels.numpy()}
    wanted = [graph.outputs[0], *map(gradient_name, right)]
    with wide():
        found = compare.run(graph, definition.initial, feed, wanted)
    assert abs(float(found[wanted[0]]) - float(loss.detach())) < 1e-12 * float(loss.detach())
    for name, gradient in right.items():
        assert_close(found[gradient_name(name)], gradient, name)
