"""Documents in one row: the loss and gradients of transformers, which masks blocks of a row."""

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
pytest.importorskip("transformers", reason="needs transformers")

import torch_compare as compare  # noqa: E402

from shardwright.api import compile  # noqa: E402
from shardwright.dataflow.cotangents import gradient_name  # noqa: E402
from shardwright.frontends import configs  # noqa: E402
from shardwright.ir.mesh import Mesh  # noqa: E402
from shardwright.passes.differentiate import Differentiate  # noqa: E402
from shardwright.runtime.communicator import LocalCommunicator  # noqa: E402
from shardwright.runtime.executor import Executor  # noqa: E402
from shardwright.runtime.state import assemble, initialize  # noqa: E402
from shardwright.tracing import Definition  # noqa: E402
from shardwright.zoo import load  # noqa: E402
from tests.frontends.configs.decoder_weights import weights  # noqa: E402
from tests.frontends.configs.test_decoders import CASES, by_name, made, wide  # noqa: E402

LENGTHS = ((3, 1, 4), (8,), (5, 3), (2, 2, 2, 2))  # of the documents of each row
KINDS = ("llama", "mistral", "gemma2", "gpt_oss", "llama4", "deepseek_v3", "qwen3_moe")
PLANS = (
    "data=4,zero=3",
    "tensor=2,data=2,zero=1,sequence_parallel",
    "context=2,tensor=2",
    "context=4",
    "data=2,pipeline=2,micro_batch=1",
)


def batch() -> dict[str, np.ndarray]:
    """Return tokens, positions that restart, and labels of which most rows ignore some."""
    random = np.random.default_rng(0)
    tokens, labels = (random.integers(3, 48, (4, 8)) for _ in range(2))
    labels[0, :5], labels[1, ::2], labels[3] = -100, -100, -100
    rows = [np.concatenate([np.arange(n) for n in row]) for row in LENGTHS]
    return {"tokens": tokens, "positions": np.array(rows), "labels": labels}


def masks(window: int) -> dict[str, Any]:
    """Return what is added to scores: its module makes masks without looking at positions."""
    keys, documents = np.arange(8), np.cumsum(batch()["positions"] == 0, axis=1)
    seen = (documents[:, :, None] == documents[:, None]) & (keys <= keys[:, None])
    near = seen & (keys > keys[:, None] - window)
    found = {"full_attention": seen, "sliding_attention": near}
    return {n: torch.tensor(np.where(x, 0.0, -np.inf))[:, None] for n, x in found.items()}


@cache
def module_and_loss(case: str) -> tuple[Any, Any]:
    """Return the module of transformers with its gradients, and its loss."""
    module, own = made(*CASES[case]), {n: torch.tensor(x) for n, x in batch().items()}
    mask = masks(module.config.sliding_window) if case == "gpt_oss" else None
    with wide():
        logits = module(
            input_ids=own["tokens"],
            attention_mask=mask,
            position_ids=own["positions"],
            use_cache=False,
        ).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), own["labels"].flatten())
    loss.backward()
    return module, loss.detach().numpy()


def definition_of(case: str, path: Path, dtype: str) -> Definition:
    module_and_loss(case)[0].config.save_pretrained(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(f"{path}/config.json:batch=4,sequence=8,dtype={dtype},documents=3")


def expected(case: str, path: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the parameters and their gradients by the names of the zoo."""
    module, architecture = module_and_loss(case)[0], configs.read_model(str(path)).architecture
    assert architecture is not None
    data, right = (weights(by_name(module, kind), architecture) for kind in ("data", "gradients"))
    return data, right


def assert_same(found: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    least = max(float(np.abs(x).max()) for x in right.values()) * 1e-6
    for name, gradient in right.items():
        scale = max(least, float(np.abs(gradient).max()))
        assert np.abs(found[gradient_name(name)] - gradient).max() < 1e-9 * scale, name


@pytest.mark.parametrize("case", KINDS)
def test_loss_and_gradients_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    definition = definition_of(case, tmp_path, "float64")
    initial, right = expected(case, tmp_path / "config.json")
    graph = Differentiate().run(definition.graph)
    wanted = [graph.outputs[0], *(gradient_name(n) for n in right)]
    found = compare.run(graph, {**definition.initial, **initial}, batch(), wanted)
    assert compare.difference(found[wanted[0]], module_and_loss(case)[1]) < 1e-12
    assert_same(found, right)


@pytest.mark.parametrize("plan", PLANS)
def test_plans_have_the_gradients_of_transformers(plan: str, tmp_path: Path) -> None:
    definition = definition_of("mistral", tmp_path, "float32")
    initial, right = expected("mistral", tmp_path / "config.json")
    program = compile(definition, 4, plan=plan, precision="float32").plan.program
    communicator = LocalCommunicator(program.mesh or Mesh(()))
    state = initialize(program, 0, communicator, initial, float_dtype="float64")
    names = [gradient_name(n) for n in right]
    result = Executor(program, communicator, float_dtype="float64").step(
        batch(), state, fetch=names
    )
    parts = {**result.outputs, **result.fetched}
    found = {name: assemble(program, name, x, tolerance=1e-9) for name, x in parts.items()}
    loss = found[program.outputs[0]]
    assert compare.difference(loss, module_and_loss("mistral")[1]) < 1e-9
    assert_same(found, right)
