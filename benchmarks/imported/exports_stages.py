"""Runs exported plans with pipeline stages in PyTorch, and compares them with one device.

    python benchmarks/imported/exports_stages.py [MODEL ...]

For each model and each plan, on 4 processes over gloo, in float64: loss and every gradient of the
exported program, the loss after three steps of Adam, and the collectives and sends of every
process against those of its device group in the plan. One device is PyTorch's autograd and its Adam
for a model of transformers, the runtime on numpy for models of the zoo. Writes the rows of the
models that were asked for, or all, into the table of `docs/export.md`. Needs `torch` and
`transformers`.
"""

import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from documents import put_rows
from exports_torch import Loss, Made, _causal
from torch.multiprocessing.spawn import start_processes
from torch_compare import Wide, called

import shardwright
from shardwright.compiler.plans.plan import Plan
from shardwright.dataflow.cotangents import gradient_name
from shardwright.dataflow.stages import pipeline_of
from shardwright.exports.table import export, write_export
from shardwright.ir.graph import Graph, Node
from shardwright.ir.mesh import Mesh
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.communication.rings import RingOperator
from shardwright.operators.info import operator_class
from shardwright.runtime import Executor, LocalCommunicator, initialize

DOCUMENT = Path(__file__).parents[2] / "docs" / "export.md"
RANKS, BATCH, LENGTH, VOCABULARY, STEPS = 4, 8, 16, 64, 3
_SIZES = f"layers=4,hidden=32,heads=4,batch={BATCH},sequence={LENGTH},vocabulary={VOCABULARY}"
ZOO = {
    "gpt": f"gpt:{_SIZES},dtype=float64",
    "mixtral": f"mixtral:{_SIZES},kv_heads=2,inner=32,experts=4,dtype=float64",
}
PLANS = {
    "tensor and sequence parallel": "pipeline=2,tensor=2,sequence_parallel,micro_batch=2",
    "states split, computed again": "pipeline=2,data=2,zero=1,recompute=full,micro_batch=1",
    "four stages": "pipeline=4,micro_batch=2",
    "interleaved, fully sharded": "pipeline=2,data=2,chunks=2,zero=3,micro_batch=1",
    "zero bubble": "pipeline=2,tensor=2,schedule=zero_bubble,micro_batch=2",
    "zero bubble, four stages": "pipeline=4,schedule=zero_bubble,micro_batch=1",
    "GPipe, context ranks": "pipeline=2,context=2,schedule=gpipe,micro_batch=2",
    "expert ranks": "pipeline=2,data=2,expert=2,micro_batch=1",
}
_OF_EXPERTS = "expert ranks"
MODELS = ("gpt", "llama", "mixtral")
ROWS = [(m, p) for m in MODELS for p in PLANS if m == "mixtral" or p != _OF_EXPERTS]
_HEAD = """| model | plan | loss | gradients | loss after 3 steps | communication of a step, by \
device group | counted |
|---|---|---|---|---|---|---|"""
Arrays = Mapping[str, np.ndarray[Any, Any]]
_LOCAL = ("local_slice", "to_partial", "mirror")


@dataclass(frozen=True)
class Case:
    """A plan with what it is given, and what one device makes of it.

    Parameters
    ----------
    plan : Plan
        The plan.
    weights : Module or mapping of str to Tensor
        What the trainer takes.
    inputs : mapping of str to Tensor
        What a step takes.
    losses : list of float
        The losses of one device, of the first step and those after it.
    gradients : mapping of str to array
        Its gradients in the first step.
    """

    plan: Plan
    weights: Any
    inputs: Mapping[str, torch.Tensor]
    losses: list[float]
    gradients: Arrays


def of_zoo(name: str, plan: str) -> Case:
    """Return the case of a model of the zoo."""
    options: dict[str, Any] = {"optimizer": "adam", "cluster": "cpu"}
    found = shardwright.compile(ZOO[name], RANKS, plan=plan, **options).plan
    # Experts balance the tokens of a micro-batch.
    alone = shardwright.compile(ZOO[name], 1, micro_batches=found.mesh.passes, **options).plan
    communicator = LocalCommunicator(alone.mesh)
    state = initialize(alone.program, 0, communicator, alone.initial)
    weights = {n: torch.from_numpy(np.array(parts[0])) for n, parts in state.items()}
    random = np.random.default_rng(0)
    inputs = {
        value.name: random.integers(3, VOCABULARY, value.type.shape).astype(value.type.dtype)
        for value in alone.program.inputs
    }
    names = [p.name for p in alone.program.parameters if p.trainable and p.role == "weight"]
    executor, losses, gradients = Executor(alone.program, communicator), [], {}
    for _ in range(STEPS + 1):
        step = executor.step(inputs, state, [gradient_name(n) for n in names])
        losses.append(float(step.outputs[alone.program.outputs[0]][0]))
        gradients = gradients or {n: step.fetched[gradient_name(n)][0].copy() for n in names}
    given = {name: torch.from_numpy(array) for name, array in inputs.items()}
    return Case(found, weights, given, losses, gradients)


def llama() -> Made:
    """Return a Llama of four blocks in float64, which returns its loss alone, and its inputs."""
    torch.manual_seed(0)
    module, inputs = _causal("llama", num_key_value_heads=2, num_hidden_layers=4)
    return Loss(Wide(module.double())), inputs


def of_transformers(plan: str) -> Case:
    """Return the case of a Llama of transformers."""
    module, inputs = llama()
    compilation = shardwright.compile(
        module, RANKS, example_inputs=inputs, optimizer="adam", cluster="cpu", plan=plan
    )
    alone, _ = llama()
    optimizer = torch.optim.Adam(alone.parameters(), lr=1e-3)
    losses, gradients = [], {}
    for _ in range(STEPS + 1):
        optimizer.zero_grad()
        loss = called(alone, inputs)
        loss.backward()
        losses.append(loss.item())
        pairs = alone.named_parameters()
        gradients = gradients or {n: p.grad.numpy().copy() for n, p in pairs if p.grad is not None}
        optimizer.step()
    return Case(compilation.plan, module, inputs, losses, gradients)


def row(name: str, plan: str) -> str:
    """Return the row of a model and a plan."""
    case = of_transformers(PLANS[plan]) if name == "llama" else of_zoo(name, PLANS[plan])
    with tempfile.TemporaryDirectory() as folder:
        write_export(Path(folder) / "exported", export(case.plan, "torch"))
        start_processes(_worker, (folder, case), nprocs=RANKS, start_method="fork")
        found = [torch.load(Path(folder) / f"{r}.pt", weights_only=False) for r in range(RANKS)]
    expected = communication(case.plan.program)
    size = RANKS // len(expected)
    right = all(item["counts"] == expected[rank // size] for rank, item in enumerate(found))
    names = {name for item in found for name in item["names"]}
    assert names == case.gradients.keys(), names ^ case.gradients.keys()
    figures = [f"{max(item[key] for item in found):.0e}" for key in ("loss", "gradients", "after")]
    counts = "; ".join(map(_text, expected))
    cells = (name, plan, *figures, counts, "the same" if right else str(found[0]["counts"]))
    return f"| {' | '.join(cells)} |"


def _text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))


def communication(program: Graph) -> list[dict[str, int]]:
    """Return how often each device group of a program communicates in a step."""
    pipeline = pipeline_of(program)
    assert pipeline is not None
    assert program.mesh is not None
    found = []
    for group in pipeline.groups:
        counts: Counter[str] = Counter()
        parts = [(runs, program.mesh.passes) for runs in group.segments.values()]
        for runs, times in (*parts, (group.before, 1), (group.after, 1)):
            for run in runs:
                node = program.nodes[run.position]
                if _moves(node, run.kind, group.group, program.mesh):
                    counts[node.operator] += times
        found.append({kind: n for kind, n in counts.items() if kind not in _LOCAL})
    return found


def _moves(node: Node, kind: str, group: int, mesh: Mesh) -> bool:
    """Return whether a device group sends something when it runs a node."""
    if node.operator == "transfer":  # what is for another stage of the group does not move
        layout = node.results[0].layout
        stage = None if layout is None else layout.stage
        return kind == "send" and (stage is None or stage % mesh.stages != group)
    axes: Any = node.attributes.get("axes") or ("",)
    moves = issubclass(operator_class(node.operator), Communication | RingOperator)
    return moves and not set(mesh.in_time) >= set(axes)


def _worker(rank: int, folder: str, case: Case) -> None:
    """Compare on a process, which writes what it found."""
    torch.set_num_threads(1)
    address = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
    sys.path.insert(0, folder)
    trainer = import_module("exported").Trainer(case.weights)
    step = trainer.gradients(**case.inputs)
    trainer.update(*step)
    counts = {kind: n for kind, n in trainer.mesh.counts.items() if n}
    loss = next(iter(trainer.outputs.values())).item()
    largest = max(float(np.abs(g).max()) for g in case.gradients.values())
    worst = 0.0
    for name, part in step[0].items():
        right = torch.from_numpy(case.gradients[name])
        far = float((trainer.whole(name, part) - right).abs().max())
        worst = max(worst, far / max(float(right.abs().max()), 1e-6 * largest))
    losses = [trainer.step(**case.inputs).item() for _ in range(STEPS)]
    found = {
        "loss": abs(loss / case.losses[0] - 1),
        "gradients": worst,
        "after": abs(losses[-1] / case.losses[-1] - 1),
        "counts": counts,
        "names": sorted(step[0]),
    }
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def main(*models: str) -> None:
    """Compare all models, or those that are named."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    for name, plan in ROWS:
        if not models or name in models:
            found = row(name, plan)
            print(found, flush=True)
            if DOCUMENT.exists():
                put_rows(DOCUMENT, _HEAD, [found], ROWS)


if __name__ == "__main__":
    main(*sys.argv[1:])
