"""What the comparisons with PyTorch and JAX share: a program is run, tensors are compared."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.runtime import Executor, LocalCommunicator, assemble, initialize

Array = np.ndarray[Any, Any]
ONE = Mesh(())


def run(
    graph: Graph,
    initial: Mapping[str, Array],
    inputs: Mapping[str, Array],
    names: list[str],
    mesh: Mesh = ONE,
) -> dict[str, Array]:
    """Run a program once, and return whole tensors."""
    communicator = LocalCommunicator(mesh)
    executor = Executor(graph, communicator)
    state = initialize(graph, 0, communicator, initial)
    with np.errstate(all="ignore"):
        fetched = executor.step(inputs, state, names).fetched
    return {n: assemble(graph, n, communicator.collect(fetched[n]), mesh) for n in names}


def difference(found: Array, right: Array, least: float = 0.0) -> float:
    """Return the largest difference, relative to the largest element, which is at least `least`.

    It is infinite where only one of two elements is no number, or is infinite.
    """
    found, right = np.asarray(found, np.float64), np.asarray(right, np.float64)
    if found.shape != right.shape:
        return float("inf")
    is_same = (found == right) | (np.isnan(found) & np.isnan(right))
    is_finite = np.isfinite(found) & np.isfinite(right)
    if not (is_same | is_finite).all():
        return float("inf")
    found, right = found[is_finite], right[is_finite]
    largest = max(float(np.abs(right).max(initial=0.0)), least, 1e-30)
    return float(np.abs(found - right).max(initial=0.0) / largest)


def least_of(gradients: Mapping[str, Array]) -> float:
    """Return what the largest element of a gradient counts as at least.

    Some gradients are zero but for rounding, such as those of biases of keys.
    """
    return 1e-6 * max((float(np.abs(g).max(initial=0.0)) for g in gradients.values()), default=1.0)
