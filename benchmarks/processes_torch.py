"""The step of PyTorch's DistributedDataParallel that `processes.py` compares with."""

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

Batch = tuple[np.ndarray, np.ndarray]
Step = Callable[[Batch], float]


def torch_step(world: Any, layers: Sequence[Batch], rate: float, momentum: float) -> Step:
    """Return a step of PyTorch's DistributedDataParallel over gloo."""
    torch.set_num_threads(1)
    if not dist.is_initialized():
        name = world.bcast(tempfile.mktemp() if world.rank == 0 else None)
        dist.init_process_group(
            "gloo", init_method=f"file://{name}", rank=world.rank, world_size=world.size
        )
    modules: list[Any] = []
    for weight, bias in layers:
        dense = torch.nn.Linear(weight.shape[1], weight.shape[0])
        dense.weight.data = torch.from_numpy(weight.copy())
        dense.bias.data = torch.from_numpy(bias.copy())
        modules += [dense, torch.nn.ReLU()]
    network: Any = torch.nn.Sequential(*modules[:-1])
    if world.size > 1:
        network = torch.nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), rate, momentum)
    criterion = torch.nn.CrossEntropyLoss()

    def train(batch: Batch) -> float:
        optimizer.zero_grad()
        loss = criterion(network(torch.from_numpy(batch[0])), torch.from_numpy(batch[1]).long())
        loss.backward()
        optimizer.step()
        value = loss.detach()
        if world.size > 1:
            dist.all_reduce(value)
        return float(value) / world.size

    return train
