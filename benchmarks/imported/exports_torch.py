"""Runs exported plans in PyTorch, on 4 processes, and compares them with the module itself.

    python benchmarks/imported/exports_torch.py [MODEL ...]

For each model of transformers and each plan: loss and every gradient of the exported program in
float64 against autograd on one device, the loss after three steps of Adam, and the collectives that
`CommDebugMode` counts in a step against those of the plan. Writes the rows of the models that were
asked for, or all, into the table of `docs/export.md`. Needs `torch` and `transformers`.
"""

import logging
import sys
import tempfile
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from documents import put_rows
from torch import nn
from torch.distributed.tensor.debug import CommDebugMode
from torch.multiprocessing.spawn import start_processes
from torch_compare import Wide, called, first_of

import shardwright
from shardwright.exports.table import export, write_export

DOCUMENT = Path(__file__).parents[2] / "docs" / "export.md"
RANKS, BATCH, LENGTH, VOCABULARY = 4, 8, 16, 64
PLANS: dict[str, dict[str, Any]] = {
    "data parallel": {"plan": "data=4"},
    "tensor and sequence parallel": {"plan": "tensor=2,data=2,sequence_parallel"},
    "fully sharded": {"plan": "data=4,zero=3"},
    "found": {"dataset_strategy": "data_parallel", "cluster": "cpu"},
}
_HEAD = """| model | plan | loss | gradients | loss after 3 steps | collectives of a step | \
counted by PyTorch |
|---|---|---|---|---|---|---|"""
_KINDS = {
    "c10d.allreduce_": "all_reduce",
    "c10d._allgather_base_": "all_gather",
    "c10d._reduce_scatter_base_": "reduce_scatter",
    "c10d.alltoall_base_": "all_to_all",
}
Made = tuple[nn.Module, dict[str, torch.Tensor]]


def _tokens() -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, LENGTH))


def _causal(kind: str, **options: Any) -> Made:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.AutoConfig.for_model(kind, **{**sizes, **options})
    config.use_cache = False
    more = {"experts_implementation": "batched_mm"} if kind == "mixtral" else {}
    network = transformers.AutoModelForCausalLM.from_config(config, **more)
    return network.eval(), {"input_ids": _tokens(), "labels": _tokens()}


def _bert() -> Made:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}
    config = transformers.BertConfig(
        **sizes, num_attention_heads=4, intermediate_size=64, max_position_embeddings=LENGTH
    )
    network = transformers.BertForMaskedLM(config)
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[1, -2:] = 0
    return network.eval(), {"input_ids": _tokens(), "attention_mask": mask, "labels": _tokens()}


def _t5() -> Made:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4
    )
    config.use_cache = False
    config.decoder_start_token_id = 0
    network = transformers.T5ForConditionalGeneration(config)
    return network.eval(), {"input_ids": _tokens(), "labels": _tokens()}


MODELS = {
    "llama": lambda: _causal("llama", num_key_value_heads=2),
    "gpt2": lambda: _causal("gpt2", n_positions=LENGTH),
    "mixtral": lambda: _causal("mixtral", num_key_value_heads=2, num_local_experts=4),
    "bert": _bert,
    "t5": _t5,
}


def made(name: str) -> Made:
    """Return a model in float64, which returns its loss alone, and its inputs."""
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    return Loss(Wide(module.double())), inputs


class Loss(nn.Module):
    """A module that returns its first output alone."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        return first_of(self.module(**inputs))


def row(name: str, plan: str) -> str:
    """Return the row of a model and a plan."""
    module, inputs = made(name)
    compilation = shardwright.compile(
        module, RANKS, example_inputs=inputs, optimizer="adam", effort=1 / 3, **PLANS[plan]
    )
    with tempfile.TemporaryDirectory() as folder:
        write_export(Path(folder) / "exported", export(compilation.plan, "torch"))
        start_processes(_worker, (folder, module, inputs), nprocs=RANKS, start_method="fork")
        found = torch.load(Path(folder) / "found.pt", weights_only=False)
    volumes = compilation.plan.document.communication
    expected = {kind: volume.count for kind, volume in volumes.items()}
    return f"| {name} | {plan} | {_cells(found, expected)} |"


def _cells(found: Mapping[str, Any], expected: Mapping[str, int]) -> str:
    same = "the same" if found["counts"] == expected else _counts(found["counts"])
    errors = [f"{found[key]:.0e}" for key in ("loss", "gradients", "after")]
    return " | ".join([*errors, _counts(expected), same])


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()) if n) or "none"


def _worker(rank: int, folder: str, module: nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    """Compare on a process; the first one writes what it found."""
    torch.set_num_threads(1)
    address = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
    sys.path.insert(0, folder)
    trainer = import_module("exported").Trainer(module)
    with CommDebugMode() as counted:
        step = trainer.gradients(**inputs)
        trainer.update(*step)
    counts = {_KINDS[str(k)]: n for k, n in counted.get_comm_counts().items()}
    loss = next(iter(trainer.outputs.values())).item()
    gradients = {name: trainer.whole(name, part) for name, part in step[0].items()}
    losses = [trainer.step(**inputs).item() for _ in range(3)]
    if rank == 0:
        found = _compared(module, inputs, loss, gradients, losses[-1])
        torch.save({**found, "counts": counts}, Path(folder) / "found.pt")
    dist.barrier()
    dist.destroy_process_group()


def _compared(
    module: nn.Module,
    inputs: dict[str, torch.Tensor],
    loss: float,
    gradients: Mapping[str, torch.Tensor],
    last: float,
) -> dict[str, float]:
    """Return the differences from the module trained by PyTorch alone."""
    parameters = dict(module.named_parameters())
    optimizer = torch.optim.Adam(parameters.values(), lr=1e-3)
    right = called(module, inputs)
    right.backward()
    wanted = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    missing = wanted.keys() ^ gradients.keys()
    assert not missing, missing
    largest = max(float(g.abs().max()) for g in wanted.values())
    worst = max(
        float((gradients[n] - g).abs().max()) / max(float(g.abs().max()), 1e-6 * largest)
        for n, g in wanted.items()
    )
    for _ in range(3):
        optimizer.step()
        optimizer.zero_grad()
        after = called(module, inputs)
        after.backward()
    return {
        "loss": abs(loss / right.item() - 1),
        "gradients": worst,
        "after": abs(last / after.item() - 1),
    }


def main(*models: str) -> None:
    """Compare all models, or those that are named."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    for name in models or MODELS:
        for plan in PLANS:
            found = row(name, plan)
            print(found, flush=True)
            if DOCUMENT.exists():
                put_rows(DOCUMENT, _HEAD, [found], [(m, p) for m in MODELS for p in PLANS])


if __name__ == "__main__":
    main(*sys.argv[1:])
