"""Runs modules that ``export --to parallelize`` parallelizes, on 4 processes.

    python benchmarks/imported/exports_parallelize.py [MODEL ...]

For each model of transformers and each plan: loss and every gradient in float64 against autograd on
one device, and the collectives that `CommDebugMode` counts in a step against those of the plan.
Where another plan stands for one without this form, its degrees are in the row. Writes the rows of
the models that were asked for, or all, into the table of `docs/export.md`.
Needs `torch` and `transformers`.
"""

import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import exports_torch
import torch
import torch.distributed as dist
from documents import put_rows
from exports_torch import MODELS, RANKS, made
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.multiprocessing.spawn import start_processes
from torch_compare import WideFloats

import shardwright
from shardwright.exports.degrees.nearest import named
from shardwright.exports.table import export, write_export
from shardwright.ir.errors import ShardwrightError

DOCUMENT = Path(__file__).parents[2] / "docs" / "export.md"
PLANS: dict[str, dict[str, Any]] = {
    "data parallel": {"plan": "data=4"},
    "tensor parallel": {"plan": "tensor=2,data=2"},
    "tensor and sequence parallel": {"plan": "tensor=2,data=2,sequence_parallel,zero=3"},
    "fully sharded, blocks computed again": {"plan": "data=4,zero=3,recompute=full"},
    "found": exports_torch.PLANS["found"],
}
_HEAD = """| model | plan | loss | gradients | collectives of a step of the plan | \
counted by PyTorch |
|---|---|---|---|---|---|"""
_KINDS = {
    "all_reduce": "all_reduce",
    "allreduce_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "_allgather_base_": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
}


def row(name: str, plan: str) -> str:
    """Return the row of a model and a plan."""
    module, inputs = made(name)
    compilation = shardwright.compile(
        module, RANKS, example_inputs=inputs, optimizer="adam", effort=1 / 3, **PLANS[plan]
    )
    try:
        exported = export(compilation.plan, "parallelize")
    except ShardwrightError as error:
        return f"| {name} | {plan} | refused: {str(error).partition(';')[0]} | | | |"
    with tempfile.TemporaryDirectory() as folder:
        write_export(Path(folder) / "exported", exported)
        start_processes(_worker, (folder, module, inputs), nprocs=RANKS, start_method="fork")
        found = torch.load(Path(folder) / "found.pt", weights_only=False)
    written = exported.instead or compilation.plan
    instead = f"`{named(written)}`: " if exported.instead else ""
    volumes = written.document.communication
    expected = {kind: volume.count for kind, volume in volumes.items()}
    errors = f"{found['loss']:.0e} | {found['gradients']:.0e}"
    return f"| {name} | {plan} | {errors} | {instead}{_counts(expected)} | {found['counts']} |"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()) if n) or "none"


def _worker(rank: int, folder: str, module: nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    """Compare on a process; the first one writes what it found."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    address = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
    sys.path.insert(0, f"{folder}/exported")
    file = import_module("parallelize")
    alone, mesh = deepcopy(module), file.make_mesh("cpu")
    tensor = mesh["tensor"].size() if "tensor" in mesh.mesh_dim_names else 1
    groups = RANKS // tensor
    own = {key: x.chunk(groups)[rank // tensor] for key, x in inputs.items()}
    if hasattr(file, "checkpoint"):  # what is computed again has wide casts, too
        file.checkpoint = partial(file.checkpoint, context_fn=lambda: (nullcontext(), WideFloats()))
    example = (own,) if "tensor" in mesh.mesh_dim_names else ()
    shared = file.parallelize(module, mesh, *example)
    loss = shared(**own)
    loss.backward()
    gradients = {n: _whole(p.grad) for n, p in shared.named_parameters() if p.grad is not None}
    counts = _counted(shared, own)
    right = alone(**inputs)
    right.backward()
    wanted = {n: p.grad for n, p in alone.named_parameters() if p.grad is not None}
    largest = max(float(g.abs().max()) for g in wanted.values())
    worst = 0.0
    missing = wanted.keys() ^ gradients.keys()
    assert not missing, missing
    for n, expected in wanted.items():
        far = float((gradients[n] - expected).abs().max())
        worst = max(worst, far / max(float(expected.abs().max()), 1e-6 * largest))
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if rank == 0:
        far = abs(float(mean) / RANKS / right.item() - 1)
        found = {"loss": far, "gradients": worst, "counts": counts}
        torch.save(found, Path(folder) / "found.pt")
    dist.barrier()
    dist.destroy_process_group()


def _whole(gradient: torch.Tensor) -> torch.Tensor:
    whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    return whole.clone()  # the next step adds to it


def _counted(shared: nn.Module, own: dict[str, torch.Tensor]) -> str:
    """Return the collectives of a step, in words."""
    counts: Counter[str] = Counter()
    try:
        with CommDebugMode() as counted:
            shared(**own).backward()
    except IndexError:
        return "`CommDebugMode` fails on modules that are called twice"
    for kind, n in counted.get_comm_counts().items():
        counts[_KINDS[str(kind).rpartition(".")[2]]] += n
    return _counts(counts)


def main(*models: str) -> None:
    """Compare all models, or those that are named."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    for name in models or MODELS:
        for plan in PLANS:
            found = row(name, plan)
            print(found, flush=True)
            put_rows(DOCUMENT, _HEAD, [found], [(m, p) for m in MODELS for p in PLANS])


if __name__ == "__main__":
    main(*sys.argv[1:])
