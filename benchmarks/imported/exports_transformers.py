"""Loads models by what ``export --to hf`` writes, and compares them with the model on one device.

    python benchmarks/imported/exports_transformers.py [MODEL ...]

For each model of transformers and named plan: `from_pretrained` with the `DistributedConfig` of the
plan on 4 processes over gloo, then the loss and every gradient in
float64 against one process; data ranks take their samples. Writes the rows into the table of
`docs/export.md`. Needs `torch`, `transformers` and `accelerate`.
"""

import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from documents import put_rows
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import start_processes
from transformers.distributed.configuration_utils import DistributedConfig

import shardwright
from shardwright.exports.table import export
from shardwright.ir.errors import ShardwrightError

DOCUMENT = Path(__file__).parents[2] / "docs" / "export.md"
RANKS, BATCH, LENGTH, VOCABULARY = 4, 8, 16, 96
KINDS = ("llama", "qwen3", "phi3", "gpt_neox", "gemma2", "gpt2")
PLANS = ("tensor=4,data=1", "tensor=2,data=2", "tensor=2,data=2,zero=3", "data=4,zero=3")
_HEAD = """| model | plan | loss | gradients |
|---|---|---|---|"""


def network(kind: str) -> transformers.PreTrainedModel:
    """Return a small model with random weights."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "intermediate_size": 64, "pad_token_id": 0}
    if kind not in ("gpt2", "gpt_neox"):
        sizes["num_key_value_heads"] = 2
    if kind in ("qwen3", "gemma2"):
        sizes["head_dim"] = 8
    if kind not in ("gpt2", "gemma2"):
        sizes["tie_word_embeddings"] = False
    config = transformers.AutoConfig.for_model(kind, **sizes)
    config.use_cache = False
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def inputs() -> dict[str, torch.Tensor]:
    """Return the tokens of a step."""
    tokens = torch.randint(
        1, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1)
    )
    return {"input_ids": tokens, "labels": tokens.clone()}


def row(kind: str, plan: str) -> str:
    """Return the row of a model and a plan."""
    module = network(kind)
    try:
        compilation = shardwright.compile(
            module, RANKS, example_inputs=inputs(), cluster="cpu", plan=plan, optimizer="adam"
        )
        made = export(compilation.plan, "hf").files["distributed_config.json"]
    except ShardwrightError as error:
        return f"| {kind} | {plan} | refused: {str(error).partition(';')[0]} | |"
    with tempfile.TemporaryDirectory() as folder:
        module.double().save_pretrained(folder)
        start_processes(
            _worker, (folder, kind, json.loads(made)), nprocs=RANKS, start_method="spawn"
        )
        loss, gradients = torch.load(Path(folder) / "found.pt")
    return f"| {kind} | {plan} | {loss:.0e} | {gradients:.0e} |"


def _worker(rank: int, folder: str, kind: str, config: dict[str, Any]) -> None:
    """Compare on a process; the first one writes what it found."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    where = {"init_method": f"file://{folder}/meeting", "rank": rank, "world_size": RANKS}
    dist.init_process_group("gloo", **where)
    alone, batch = network(kind).double(), inputs()
    right = alone(**batch).loss
    right.backward()
    found = type(alone).from_pretrained(
        folder, distributed_config=DistributedConfig(**config), dtype=torch.float64
    )
    ranks = RANKS // config["tp_size"]
    own = {k: tensor.chunk(ranks)[rank // config["tp_size"]] for k, tensor in batch.items()}
    loss = found(**own).loss
    loss.backward()
    worst, wanted = 0.0, dict(alone.named_parameters())
    for name, parameter in found.named_parameters():
        held = parameter.grad
        gradient = held.full_tensor() if isinstance(held, DTensor) else held
        expected = wanted.pop(name).grad
        worst = max(worst, float((gradient - expected).abs().max() / expected.abs().max()))
    assert not wanted, wanted.keys()
    mean = loss.detach().double()
    dist.all_reduce(mean)
    if rank == 0:
        difference = abs(float(mean) / RANKS - float(right)) / float(right)
        torch.save((difference, worst), Path(folder) / "found.pt")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Compare the models that were asked for, or all."""
    logging.disable(logging.WARNING)
    kinds = sys.argv[1:] or KINDS
    rows = []
    for kind in kinds:
        for plan in PLANS:
            rows.append(row(kind, plan))
            print(rows[-1], flush=True)
    put_rows(DOCUMENT, _HEAD, rows, [(kind, plan) for kind in KINDS for plan in PLANS])


if __name__ == "__main__":
    main()
