"""Four processes that run parallelized modules; see `test_parallelize.py`."""

import json
import sys
import warnings
from collections import Counter
from copy import deepcopy
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist
from parallel_models import WRONG, made
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.multiprocessing.spawn import start_processes

RANKS = 4
COMPARED = ("perceptron_parts",)  # by the function of the file, too
KINDS = {
    "all_reduce": "all_reduce",
    "allreduce_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "_allgather_base_": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
}


def compared(name):
    """Return the largest differences of loss and gradients, and the collectives of a step."""
    module, inputs, _ = made(name)
    file = import_module(name)
    alone, mesh = deepcopy(module), file.make_mesh("cpu")
    said = max(file.difference(module, mesh, **inputs).values()) if name in COMPARED else 0.0
    samples = [mesh[n].size() for n in ("replicate", "shard") if n in mesh.mesh_dim_names]
    tensor = mesh["tensor"].size() if "tensor" in mesh.mesh_dim_names else 1
    count = RANKS // tensor
    assert not samples or torch.tensor(samples).prod() == count
    own = {key: x.chunk(count)[dist.get_rank() // tensor] for key, x in inputs.items()}
    example = (own,) if "tensor" in mesh.mesh_dim_names else ()
    shared = file.parallelize(module, mesh, *example)
    with CommDebugMode() as counted:
        loss = shared(**own)
        loss.backward()
    right = alone(**inputs)
    right.backward()
    wanted = {n: p.grad for n, p in alone.named_parameters()}
    least = 1e-6 * max(float(g.abs().max()) for g in wanted.values())
    worst = 0.0
    for n, parameter in shared.named_parameters():
        gradient, expected = parameter.grad, wanted.pop(n)
        whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        far = (whole - expected).abs().max() / expected.abs().max().clamp(min=least)
        worst = max(worst, float(far))
    assert not wanted
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    far = float(abs(mean / RANKS / right.detach() - 1))
    counts = Counter()
    for kind, number in counted.get_comm_counts().items():
        counts[KINDS[str(kind).rpartition(".")[2]]] += number
    return {"loss": far, "gradients": worst, "said": said, "counts": counts}


def refused(name):
    """Return what is said of a module whose code has numbers of its own."""
    module, inputs, _ = made(name)
    file = import_module(name)
    try:
        file.parallelize(module, file.make_mesh("cpu"), inputs)
    except ValueError as error:
        return str(error)
    return ""


def process(rank, folder, names):
    """Run everything on one process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    address = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
    found = {name: (refused if name in WRONG else compared)(name) for name in names}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    start_processes(process, (sys.argv[1], sys.argv[2:]), nprocs=RANKS, start_method="fork")
