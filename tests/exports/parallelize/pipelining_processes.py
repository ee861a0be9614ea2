"""Processes that run the stages of plans; see `test_pipelining.py`."""

import json
import sys
import warnings
from copy import deepcopy
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from parallel_models import PIPELINES, scores
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import start_processes
from torch.nn import functional as F  # noqa: N812


def _loss(outputs, targets):
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def watch(file):
    """Return a list that gets an item whenever a block that is computed again is computed."""
    calls, checkpoint = [], file.checkpoint

    def watched(function, *args, **options):
        def counted(*inputs):
            calls.append(1)
            return function(*inputs)

        return checkpoint(counted, *args, **options)

    file.checkpoint = watched
    return calls


def compared(name):
    """Return the loss and the largest difference of gradients of the stages of this process."""
    torch.manual_seed(1)
    module, ids = scores(name)
    targets, alone, file = ids.roll(1, 1), deepcopy(module), import_module(name)
    samples = dist.get_world_size() // file.GROUPS
    own, wanted = (x.chunk(samples)[dist.get_rank() % samples] for x in (ids, targets))
    example = (own.chunk(file.MICRO_BATCHES)[0],)
    blocks = watch(file) if name == "recomputed" else []
    schedule = file.make_schedule(module, _loss, example, "cpu")
    found = file.step(schedule, (own,), wanted)
    right = _loss(alone(ids), targets)
    right.backward()
    least = 1e-6 * max(float(p.grad.abs().max()) for p in alone.parameters())
    worst = 0.0
    for n, parameter in file.parameters(schedule).items():
        gradient, expected = parameter.grad, alone.get_parameter(n).grad
        whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        far = (whole - expected).abs().max() / expected.abs().max().clamp(min=least)
        worst = max(worst, float(far))
    names = sorted(file.parameters(schedule))
    if name == "tied":
        with pytest.raises(RuntimeError, match="there are gradients already"):
            file.step(schedule, (own,), wanted)
    loss = None if found is None else float(found)
    return {
        "loss": loss,
        "right": float(right),
        "gradients": worst,
        "names": names,
        "blocks": len(blocks),
    }


def process(rank, folder, size, names):
    """Run everything of as many processes on one of them."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    address = f"file://{folder}/meeting{size}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
    found = {name: compared(name) for name in names}
    (Path(folder) / f"{size}_{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    for number in (2, 4):
        if names := [name for name in sys.argv[2:] if PIPELINES[name][0] == number]:
            arguments = (sys.argv[1], number, names)
            start_processes(process, arguments, nprocs=number, start_method="fork")
