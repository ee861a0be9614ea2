"""Measuring the kernels of this machine: the operators of training steps, as they are run.

Small models are trained for some steps on one device, and the least time of every node is taken.
So gradients and updates are measured, too, in the buffers that a step has.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from shardwright.api import compile, run
from shardwright.cost_model.roofline import operator_work
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import info_of
from shardwright.runtime.flat.timeline import RunTimeline
from shardwright.tools.calibrate.fitting import Sample

MODELS = (
    "mlp:batch=16,hidden=128",
    "mlp:batch=128,hidden=512",
    "mlp:batch=64,hidden=1024",
    "lenet5:batch=8",
    "lenet5:batch=64",
    "resnet18-cifar:batch=4,side=16,width=8",
    "resnet18-cifar:batch=16,side=16,width=16",
    "gpt:layers=1,hidden=64,heads=2,batch=4,sequence=32,vocabulary=256",
    "gpt:layers=1,hidden=256,heads=4,batch=8,sequence=64,vocabulary=1024",
)
"""The models whose steps are measured, by default."""


@dataclass(frozen=True)
class Machine:
    """What bounds every operator of this machine.

    Parameters
    ----------
    flops : dict of str to float
        Rate of a large matrix product, by element type.
    bandwidth : float
        Bytes per second that a copy reads and writes.
    memory_bytes : int
        Memory of the machine.
    """

    flops: dict[str, float]
    bandwidth: float
    memory_bytes: int


def least_seconds(call: Callable[[], object], repeats: int) -> float:
    """Return the least time of a call; other processes only make it longer."""
    found = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return min(found[1:])


def machine(size: int = 1024, nbytes: int = 2**27, repeats: int = 5) -> Machine:
    """Return the peaks of this machine.

    Parameters
    ----------
    size : int
        Rows and columns of the product.
    nbytes : int
        Bytes that are copied.
    repeats : int
        Number of measurements, of which the least time counts.
    """
    flops = {}
    for dtype in ("float32", "float64"):
        a = np.ones((size, size), dtype)
        product = np.empty_like(a)
        seconds = least_seconds(partial(np.matmul, a, a, product), repeats)
        flops[dtype] = 2.0 * size**3 / seconds
    source = np.ones(nbytes // 8)
    target = np.empty_like(source)
    bandwidth = 2 * nbytes / least_seconds(partial(np.copyto, target, source), repeats)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(flops, bandwidth, memory)


def operator_samples(models: Sequence[str], steps: int) -> dict[str, list[Sample]]:
    """Return the measured operators, by name.

    Parameters
    ----------
    models : sequence of str
        The models whose training steps are measured.
    steps : int
        Steps of each; the least time of every node counts.
    """
    found: dict[str, list[Sample]] = {}
    for model in models:
        plan = compile(model, 1, cluster="cpu", mode="stand_alone").plan
        timeline = RunTimeline()
        for _ in run(plan, steps, timeline=timeline):
            pass
        for operator, sample in _samples(plan.program, timeline):
            found.setdefault(operator, []).append(sample)
    return found


def _samples(program: Graph, timeline: RunTimeline) -> list[tuple[str, Sample]]:
    least: dict[str, float] = {}
    for step in timeline.steps:
        for span in step:
            name, seconds = span.name.rpartition(" ")[2], span.end - span.begin
            least[name] = min(least.get(name, seconds), seconds)
    found = []
    for node in program.nodes:
        info = info_of(program, node)
        if node.name not in least or info.is_view or isinstance(info, Communication):
            continue
        operands = [Layout.replicated(t.rank) for t in info.operand_types]
        results = [Layout.replicated(t.rank) for t in info.result_types]
        work = operator_work(info, operands, results, Mesh(()))
        found.append((info.name, Sample(1.0, work.amount, least[node.name])))
    return found
