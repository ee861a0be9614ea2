"""Four processes that train exported packages, and try the collectives; see `test_package.py`."""

import sys
from ast import literal_eval
from copy import deepcopy
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from exported_models import CASES, made
from ring_checks import check_rings
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.multiprocessing.spawn import start_processes

from shardwright.exports.torch.support.mesh import Mesh, Totals
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh as IRMesh
from shardwright.ir.mesh import MeshAxis

RANKS, RATE = 4, 0.01
KINDS = {
    "c10d.allreduce_": "all_reduce",
    "c10d._allgather_base_": "all_gather",
    "c10d._reduce_scatter_base_": "reduce_scatter",
    "c10d.alltoall_base_": "all_to_all",
}
ON_ROWS = ("experts_in_passes", "experts_and_tensor", "two_experts", "experts_with_biases")
SIZES = {"x": 2, "y": 2}
ORDERS = [("x",), ("y",), ("x", "y"), ("y", "x")]


def close(found, right, least=0.0):
    """Check that a tensor is another, relative to its largest element or to `least`."""
    scale = max(float(right.abs().max()), least, 1e-30)
    assert float((found - right).abs().max()) / scale < 1e-9, (found, right)


def trains(folder, name):
    """Check that a package does what the module does."""
    module, inputs, _ = made(name)
    trainer = import_module(f"package_{name}").Trainer(module)
    alone = deepcopy(module)
    optimizer = torch.optim.SGD(alone.parameters(), lr=RATE)
    for _ in range(3):
        with CommDebugMode() as counted:
            gradients, others = trainer.gradients(**inputs)
            trainer.update(gradients, others)
        (loss,) = trainer.outputs.values()
        optimizer.zero_grad()
        right = loss_of(alone, inputs, 2 if name == "statistics" else 1)
        right.backward()
        close(loss, right.detach())
        wanted = dict(alone.named_parameters())
        assert gradients.keys() == wanted.keys()
        largest = max(float(p.grad.abs().max()) for p in wanted.values())
        for parameter, part in gradients.items():
            close(trainer.whole(parameter, part), wanted[parameter].grad, 1e-6 * largest)
        optimizer.step()
    counts = {KINDS[str(k)]: n for k, n in counted.get_comm_counts().items()}
    expected = literal_eval((folder / f"package_{name}" / "counts.txt").read_text())
    expected = {kind: n for kind, n in expected.items() if n}
    assert {kind: n // 3 for kind, n in trainer.mesh.counts.items()} == expected
    text = (folder / f"package_{name}" / "program.py").read_text()
    assert ("rows.dispatch" in text) == (name in ON_ROWS)
    if of_rows := text.count("all_to_all_rows("):  # which rows they are goes before them
        expected["all_to_all"] *= 1 + of_rows / (of_rows + text.count("all_to_all("))
    assert counts == expected, (counts, expected)
    trainer.write_back()
    for parameter, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            close(tensor, alone.state_dict()[parameter])
    held = {parameter: tensor.clone() for parameter, tensor in trainer.state_dict().items()}
    before = {parameter: part.clone() for parameter, part in trainer.state.items()}
    assert held.keys() == before.keys()
    for parameter, tensor in held.items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        close(whole, trainer.whole(parameter))
    for part in trainer.state.values():
        part.zero_()
    trainer.load_state_dict(held)
    assert all(torch.equal(trainer.state[n], part) for n, part in before.items())


def loss_of(module, inputs, passes):
    """Return the mean loss of micro-batches, each of which has statistics of its own."""
    chunks = zip(*(tensor.chunk(passes) for tensor in inputs.values()), strict=True)
    losses = [module(**dict(zip(inputs, chunk, strict=True))) for chunk in chunks]
    return torch.stack(losses).mean()


def moves():
    """Check the collectives on uneven parts, along axes in every order."""
    mesh, ir = Mesh(SIZES, {}, ORDERS), IRMesh(tuple(MeshAxis(*item) for item in SIZES.items()))
    whole = torch.arange(7 * 5 * 6, dtype=torch.float64).reshape(7, 5, 6)
    for axes in ORDERS:
        for dimension, other in ((0, 1), (1, 2), (2, 0)):
            splits = [()] * 3
            splits[dimension] = axes
            part = mesh.own(whole, splits)
            place = Layout(tuple(splits)).slices(whole.shape, ir, mesh.rank)
            assert torch.equal(part, whole[place])
            assert torch.equal(mesh.whole(part, whole.shape, splits), whole)
            assert torch.equal(mesh.local_slice(whole, axes, dimension), part)
            members = mesh._group(axes).members
            weight = sum(rank + 1 for rank in members)
            terms = whole * (mesh.rank + 1)
            close(mesh.all_reduce(terms, axes), whole * weight)
            close(mesh.reduce_scatter(terms, axes, dimension), part * weight)
            largest = mesh.all_reduce(terms, axes, "max")
            close(largest, whole * (max(members) + 1))
            turned = [()] * 3
            turned[other] = axes
            moved = mesh.all_to_all(part, axes, other, dimension, whole.shape[dimension])
            assert torch.equal(moved, mesh.own(whole, turned))
            summed = mesh.all_reduce(mesh.to_partial(whole, axes), axes)
            assert torch.equal(summed, whole)
    even = torch.arange(8.0)
    found = mesh.collective_permute(mesh.own(even, [("x", "y")]), ("y", "x"), ("x", "y"), 0)
    assert torch.equal(found, mesh.own(even, [("y", "x")]))
    check_rings(mesh, close)
    totals = Totals()
    for number in range(3):
        totals.reduce("sum", torch.full((2,), float(number)))
        totals.reduce("max", torch.full((2,), float(number)), "max")
        totals.append("parts", torch.full((1,), float(number)), 0)
    found = torch.cat([totals["sum"], totals["max"], totals["parts"]])
    assert np.array_equal(found.numpy(), [3, 3, 2, 2, 0, 1, 2])


def process(rank, folder, names, trains, *before):
    """Run everything on one process."""
    torch.set_num_threads(1)
    address = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
    for check in before:
        check()
    for name in names:
        trains(Path(folder), name)
        if rank == 0:
            print(name, flush=True)
    dist.barrier()
    dist.destroy_process_group()


def on_processes(names, trains, *before):
    """Train every package in the folder of the command line, after some other checks."""
    folder = sys.argv[1]
    sys.path.insert(0, folder)
    arguments = (folder, names, trains, *before)
    start_processes(process, arguments, nprocs=RANKS, start_method="fork")


if __name__ == "__main__":
    on_processes(CASES, trains, moves)
