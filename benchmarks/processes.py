"""Data parallelism on processes: our step against a hand-written one, and PyTorch's.

    python benchmarks/processes.py            # prints processes.md's tables

Needs ``mpiexec``, mpi4py, and for its rows PyTorch. Every step trains the same network on the same
batches from the same initial values; the losses are compared before anything is measured. All
contestants run in the same processes, in turns, so that the machine's other load meets all of them;
a ratio is that of two turns of one round. Where the arrays of a process lie in memory may favour
either, so the processes are started several times.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
from launched import launched

import shardwright as sw
from shardwright import nn, ops
from shardwright.communication import init

Batch = tuple[np.ndarray, np.ndarray]
Step = Callable[[Batch], float]
Pairs = list[tuple[float, float]]  # wall seconds and CPU seconds of a step, in each round
RATE, MOMENTUM = 0.05, 0.9
LARGEST_DIFFERENCE = 1e-5  # of a loss in eight steps, relatively
# Sizes of the layers, and samples of a process.
NETWORKS = {
    "784-64-32-10": ((784, 64, 32, 10), 32),
    "784-512-512-10": ((784, 512, 512, 10), 64),
    "1024-1024-1024-1024-10": ((1024, 1024, 1024, 1024, 10), 128),
}


# Contestants


class HandWritten:
    """Dense layers in numpy, with buffers made once, and a reduction for every layer.

    The reduction of a layer starts as soon as its gradient is there; MPI gets a moment after every
    product. Parameters, gradients and momenta of a layer are one array each, updated in place.
    """

    def __init__(self, world: Any, mpi: Any, layers: Sequence[Batch], rows: int) -> None:
        self.world, self.mpi, self.rows = world, mpi, rows
        self.sizes = [(w.shape[1], w.shape[0]) for w, _ in layers]
        self.flat = [np.concatenate([w.ravel(), b]) for w, b in layers]
        self.gradient = [np.zeros_like(flat) for flat in self.flat]
        self.momentum = [np.zeros_like(flat) for flat in self.flat]
        self.room = [np.zeros_like(flat) for flat in self.flat]
        outs = [after for _, after in self.sizes]
        self.values = [np.zeros((rows, n), np.float32) for n in outs]
        self.deltas = [np.zeros((rows, n), np.float32) for n in outs]
        self.masks = [np.zeros((rows, n), bool) for n in outs]
        self.places = np.arange(rows)
        self.loss = np.zeros(1, np.float32)

    def _parts(self, flat: np.ndarray, layer: int) -> Batch:
        before, after = self.sizes[layer]
        return flat[: before * after].reshape(after, before), flat[before * after :]

    def step(self, batch: Batch) -> float:
        """Train one step, and return the mean loss of all processes."""
        x, labels = batch
        self._forward(x)
        requests = [self._start(self._loss(labels))]
        for layer in reversed(range(len(self.sizes))):
            delta, before = self.deltas[layer], self.values[layer - 1] if layer else x
            weight, bias = self._parts(self.gradient[layer], layer)
            np.matmul(delta.T, before, out=weight)
            np.sum(delta, axis=0, out=bias)
            requests.append(self._start(self.gradient[layer]))
            if layer:
                np.matmul(
                    delta, self._parts(self.flat[layer], layer)[0], out=self.deltas[layer - 1]
                )
                np.greater(before, 0, out=self.masks[layer - 1])
                self.deltas[layer - 1] *= self.masks[layer - 1]
            self._move(requests)
        for layer, request in zip(reversed(range(len(self.sizes))), requests[1:], strict=True):
            self._wait(request)
            self._update(layer)
        self._wait(requests[0])
        return float(self.loss[0])

    def _forward(self, x: np.ndarray) -> None:
        for layer, value in enumerate(self.values):
            weight, bias = self._parts(self.flat[layer], layer)
            np.matmul(x, weight.T, out=value)
            value += bias
            if layer < len(self.values) - 1:
                np.maximum(value, 0, out=value)
            x = value

    def _loss(self, labels: np.ndarray) -> np.ndarray:
        """Set the gradient of the scores; return the loss of this process's samples."""
        scores, delta, total = self.values[-1], self.deltas[-1], self.rows * self.world.size
        np.subtract(scores, scores.max(axis=1, keepdims=True), out=delta)
        picked = delta[self.places, labels]
        np.exp(delta, out=delta)
        sums = delta.sum(axis=1, keepdims=True)
        self.loss[0] = (np.log(sums[:, 0]) - picked).sum() / total
        delta /= sums
        delta[self.places, labels] -= 1
        delta /= total
        return self.loss

    def _update(self, layer: int) -> None:
        momentum, room = self.momentum[layer], self.room[layer]
        momentum *= MOMENTUM
        momentum += self.gradient[layer]
        np.multiply(momentum, RATE, out=room)
        self.flat[layer] -= room

    def _start(self, array: np.ndarray) -> Any:
        return None if self.world.size == 1 else self.world.Iallreduce(self.mpi.IN_PLACE, array)

    def _move(self, requests: Sequence[Any]) -> None:
        if self.world.size > 1:
            requests[-1].Test()

    def _wait(self, request: Any) -> None:
        if request is not None:
            request.Wait()


def ours(world: Any, layers: Sequence[Batch], *, deterministic: bool) -> Step:
    """Return a training step of ours, in data parallelism on several processes."""

    class Layer(nn.Cell):
        def __init__(self, weight: np.ndarray, bias: np.ndarray) -> None:
            super().__init__()
            self.weight, self.bias = sw.Parameter(weight), sw.Parameter(bias)
            self.product, self.add = ops.MatMul(transpose_b=True), ops.Add()

        def construct(self, x: Any) -> Any:
            return self.add(self.product(x, self.weight), self.bias)

    dense = [Layer(weight.copy(), bias.copy()) for weight, bias in layers]
    cells = [cell for layer in dense[:-1] for cell in (layer, nn.ReLU())]
    network = nn.SequentialCell(*cells, dense[-1])
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(network.trainable_params(), RATE, MOMENTUM)
    gradients_of = sw.value_and_grad(lambda x, y: loss(network(x), y), None, optimizer.parameters)

    def train(x: Any, y: Any) -> Any:
        value, gradients = gradients_of(x, y)
        optimizer(gradients)
        return value

    mode = "data_parallel" if world.size > 1 else "stand_alone"
    net = sw.AutoParallel(train, mode, deterministic=deterministic)
    return lambda batch: float(net(*batch))


# Measurement


def contestants(world: Any, mpi: Any, layers: Sequence[Batch], rows: int) -> dict[str, Step]:
    """Return the steps to compare, by name."""
    found: dict[str, Step] = {
        "hand-written": HandWritten(world, mpi, layers, rows).step,
        "ours, fast": ours(world, layers, deterministic=False),
    }
    if world.size > 1:
        found["ours, deterministic"] = ours(world, layers, deterministic=True)
    if find_spec("torch") is not None:
        step = import_module("processes_torch").torch_step
        found["DistributedDataParallel"] = step(world, layers, RATE, MOMENTUM)
    return found


def batches(sizes: Sequence[int], rows: int, count: int, rank: int) -> list[Batch]:
    """Return samples of a process."""
    random = np.random.default_rng(rank)
    return [
        (
            random.standard_normal((rows, sizes[0]), np.float32),
            random.integers(0, sizes[-1], rows).astype(np.int32),
        )
        for _ in range(count)
    ]


def initial(sizes: Sequence[int]) -> list[Batch]:
    """Return the weight and the bias of each layer."""
    random = np.random.default_rng(0)
    return [
        (random.standard_normal((n, m), np.float32) / m**0.5, np.zeros(n, np.float32))
        for m, n in pairwise(sizes)
    ]


def compare(steps: dict[str, Step], data: Sequence[Batch]) -> float:
    """Return the greatest relative difference of a loss from the hand-written step's."""
    losses = {name: [step(batch) for batch in data] for name, step in steps.items()}
    expected = losses["hand-written"]
    return max(
        abs(loss - other) / abs(other)
        for found in losses.values()
        for loss, other in zip(found, expected, strict=True)
    )


def measure(
    world: Any, steps: dict[str, Step], data: Sequence[Batch], rounds: int, seconds: float
) -> dict[str, Pairs]:
    """Return the wall seconds and the CPU seconds of a step in each round, of all processes."""
    counts = {}
    for name, step in steps.items():
        begin = time.perf_counter()
        for batch in data:
            step(batch)
        taken = world.allreduce(time.perf_counter() - begin) / world.size / len(data)
        counts[name] = max(len(data), round(seconds / taken))
    count = min(counts.values())
    found: dict[str, Pairs] = {name: [] for name in steps}
    names = list(steps)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            world.Barrier()
            begin, cpu = time.perf_counter(), time.process_time()
            for i in range(count):
                steps[name](data[i % len(data)])
            spent = np.array([time.perf_counter() - begin, time.process_time() - cpu])
            wall, cpu = world.allreduce(spent) / world.size / count
            found[name].append((float(wall), float(cpu)))
    return found


def work(options: argparse.Namespace) -> None:
    """Run as one of the processes; the first one prints what it found."""
    mpi = import_module("mpi4py.MPI")  # which starts MPI
    world = mpi.COMM_WORLD
    init()
    sizes, rows = NETWORKS[options.network]
    steps = contestants(world, mpi, initial(sizes), rows)
    data = batches(sizes, rows, 8, world.rank)
    difference = compare(steps, data)
    if difference > LARGEST_DIFFERENCE:
        raise SystemExit(f"the losses differ by {difference:.2g}, relatively")
    found = measure(world, steps, data, options.rounds, options.seconds)
    if world.rank == 0:
        print(json.dumps(found))


# The tables


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Return the median of some values, and the least and the greatest."""
    low, high = min(values), max(values)
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def run(network: str, processes: int, options: argparse.Namespace) -> dict[str, Pairs]:
    """Measure one network on some processes: the seconds of each step, in rounds of all starts."""
    arguments = ("--network", network, "--rounds", options.rounds, "--seconds", options.seconds)
    found: dict[str, Pairs] = {}
    for _ in range(options.starts):
        for name, pairs in launched(__file__, processes, *arguments).items():
            found.setdefault(name, []).extend(pairs)
    return found


def tell(network: str, processes: int, result: dict[str, Pairs]) -> None:
    """Print the row of each contestant."""
    base = result["hand-written"]
    for name, pairs in result.items():
        ratios = [
            spread([mine[i] / other[i] for mine, other in zip(pairs, base, strict=True)])
            for i in (0, 1)
        ]
        wall, cpu = (statistics.median(pair[i] for pair in pairs) * 1e3 for i in (0, 1))
        row = (network, processes, name, f"{wall:.3f}", f"{cpu:.3f}", *ratios)
        print(f"| {' | '.join(map(str, row))} |", flush=True)


def main() -> None:
    """Compare the steps, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--network", choices=NETWORKS)
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5, help="of each start")
    parser.add_argument("--seconds", type=float, default=0.3, help="of a turn")
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    print("| network | processes | step | wall ms | CPU ms | ratio of wall | ratio of CPU |")
    print("|---|---|---|---|---|---|---|")
    for network in [options.network] if options.network else NETWORKS:
        for processes in options.processes:
            tell(network, processes, run(network, processes, options))


if __name__ == "__main__":
    main()
