"""Measuring the kernels of this machine: the operators of training steps, as they are run.

Small models are trained for some steps on one device, and the least time of every node is taken.
So gradients and updates are measured, too, in the buffers that a step has, and with what a call
takes. Several processes measure at once.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from shardwright.api import compile, run
from shardwright.compiler.plans.plan import Plan
from shardwright.cost_model.roofline import computing_nodes
from shardwright.ir.attributes import Attributes
from shardwright.ir.graph import Graph
from shardwright.ir.types import TensorType
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import Array, operator_info
from shardwright.runtime.flat.rank_timeline import RunTimeline, Span
from shardwright.tools.calibrate.fitting import Sample

Together = Callable[[dict[str, float]], dict[str, float]]
MODELS = (
    "mlp:batch=16,hidden=128",
    "mlp:batch=128,hidden=512",
    "mlp:batch=64,hidden=1024",
    "lenet5:batch=8",
    "lenet5:batch=16",
    "lenet5:batch=64",
    "lenet5:batch=256",
    "resnet18-cifar:batch=4,side=16,width=8",
    "resnet18-cifar:batch=16,side=16,width=16",
    "resnet18-cifar:batch=8,side=32,width=4",
    "resnet18-cifar:batch=4,side=16,width=16",
    "resnet18-cifar:batch=8,side=32,width=16",
    "gpt:layers=1,hidden=64,heads=2,batch=4,sequence=32,vocabulary=256",
    "gpt:layers=1,hidden=64,heads=4,batch=4,sequence=64,vocabulary=256",
    "gpt:layers=1,hidden=128,heads=2,batch=4,sequence=32,vocabulary=512",
    "gpt:layers=1,hidden=256,heads=4,batch=8,sequence=64,vocabulary=1024",
)
"""The models whose steps are measured, by default."""


ROUNDS = 4
"""How often everything is measured anew: a core that others share is slow for seconds at a time."""
_CUT = (
    *(((rows, rows), dimension) for rows in (4, 32, 256, 1024) for dimension in (0, 1)),
    *(((8, size, size, size), dimension) for size in (8, 16, 32) for dimension in (1, 3)),
)
"""The shapes that are cut, and along which dimension: along the last in short runs."""
_BETWEEN = 2**18  # numbers that are copied between two measurements: more than a core's own caches


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


def work_between(operands: Sequence[Array]) -> Callable[[], None]:
    """Return what a step does before it calls: other work, then it writes the operands.

    A call that is repeated alone finds its own code and messages in the caches of its core. In a
    step it does not, and takes up to twice as long.
    """
    source = np.ones(_BETWEEN)
    target = np.empty_like(source)

    def between() -> None:
        np.copyto(target, source)
        for operand in operands:
            operand.fill(1.0)

    return between


def least_seconds(
    call: Callable[[], object], repeats: int, between: Callable[[], None] = lambda: None
) -> float:
    """Return the least time of a call; other processes only make it longer.

    `between` runs before each call.
    """
    found = []
    for _ in range(repeats + 1):
        between()
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return min(found[1:])


def machine(size: int = 512, nbytes: int = 2**27, repeats: int = 20) -> Machine:
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


def measured_operators(
    models: Sequence[str], steps: int, together: Together = lambda least: least
) -> dict[str, list[Sample]]:
    """Return the measured operators of training steps, by name.

    Parameters
    ----------
    models : sequence of str
        The models whose training steps are measured.
    steps : int
        Steps of each; the least time of every node counts.
    together : callable
        Waits for the other processes, which measure the same, and returns the mean of theirs: so
        all processes share caches and memory, as they do in a run.
    """
    plans = [compile(model, 1, cluster="cpu", mode="stand_alone").plan for model in models]
    rounds = [
        [_least(plan, -(-steps // ROUNDS), together) for plan in plans] for _ in range(ROUNDS)
    ]
    found: dict[str, list[Sample]] = {}
    for plan, *measured in zip(plans, *rounds, strict=True):
        least = {name: min(of[name] for of in measured) for name in measured[0]}
        for operator, sample in _samples(plan.program, together(least)):
            found.setdefault(operator, []).append(sample)
    found["local_slice"] = slices(steps, together)
    return found


def slices(steps: int, together: Together = lambda least: least) -> list[Sample]:
    """Return the times of cutting the own half out of a tensor, by the bytes read and written."""
    least, amounts = dict[str, float](), dict[str, float]()
    for shape, dimension in _CUT:
        whole = np.ones(shape, np.float32)
        attributes: Attributes = {"axes": ("x",), "dimension": dimension}
        info = operator_info("local_slice", (TensorType("float32", whole.shape),), attributes)
        assert isinstance(info, Communication)
        name = f"{shape} {dimension}"
        cut = partial(_cut, info, whole)
        together({})
        least[name] = least_seconds(cut, max(steps, 20), work_between([whole]))
        amounts[name] = float(whole.nbytes)
    return [Sample(1.0, amounts[name], seconds) for name, seconds in together(least).items()]


def _cut(info: Communication, whole: Array) -> Array:
    return info.own_part(whole, 0, (2,)).copy()


def _least(plan: Plan, steps: int, together: Together) -> dict[str, float]:
    """Return the least time of a call of every node, over steps that all processes begin at once.

    One that begins early or late would have caches and memory to itself for a while.
    """
    timeline = RunTimeline()
    timeline.steps = deque(maxlen=steps)
    for _ in run(plan, steps + 1, timeline=timeline):
        together({})
    least: dict[str, float] = {}
    recording = _recording(max(steps, 20))
    for name, seconds in (node for step in timeline.steps for node in _nodes(step, recording)):
        least[name] = min(least.get(name, seconds), seconds)
    return least


def _nodes(step: Sequence[Span], recording: float) -> Iterator[tuple[str, float]]:
    """Yield the nodes of a step, each with the time from its begin to that of the next one.

    Arrays that are not read any more are freed between two nodes, which takes 2 to 5 us: a tenth of
    a step of many small nodes.
    """
    ends = [*(span.begin for span in step[1:]), step[-1].end + recording]
    for span, end in zip(step, ends, strict=True):
        name = span.name.rpartition(" ")[2]
        yield name, max(end - span.begin - recording, span.end - span.begin)


def _recording(repeats: int) -> float:
    """Return the time that the timeline takes for a node."""
    timeline = RunTimeline()
    timeline.begin_step()
    for _ in range(repeats):
        timeline.add("compute", "node", timeline.now)
    (spans,) = timeline.steps
    return min(after.begin - before.begin for before, after in pairwise(spans))


def _samples(program: Graph, least: Mapping[str, float]) -> list[tuple[str, Sample]]:
    """Return the operator, the work and the time of every node that computes."""
    return [
        (work.operator, Sample(1.0, work.amount, least[node.name], work.traffic))
        for node, work in computing_nodes(program)
        if node.name in least
    ]
