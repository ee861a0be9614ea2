"""Running a training program, and comparing what two programs make of the same data."""

from collections.abc import Mapping

import numpy as np

from shardwright.dataflow.cotangents import gradient_name
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.runtime.communicator import LocalCommunicator
from shardwright.runtime.executor import Executor
from shardwright.runtime.state import assemble, initialize


def random_inputs(
    program: Graph, highs: Mapping[str, int], random: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return random data: normal numbers, and integers below their bounds."""
    found = {}
    for value in program.inputs:
        shape = value.type.shape
        if value.type.is_float:
            found[value.name] = random.normal(size=shape)
        else:
            found[value.name] = random.integers(
                highs[value.name], size=shape, dtype=value.type.dtype
            )
    return found


def trained(
    program: Graph,
    steps: int = 2,
    highs: Mapping[str, int] | None = None,
    initial: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Run a training program and return its losses, gradients and parameters, whole."""
    communicator = LocalCommunicator(program.mesh or Mesh(()))
    executor = Executor(program, communicator, float_dtype="float64")
    state = initialize(program, 0, communicator, initial, float_dtype="float64")
    random = np.random.default_rng(1)
    gradients = [n for p in program.parameters if (n := gradient_name(p.name)) in program.values]
    found = {}
    for step in range(steps):
        inputs = random_inputs(program, highs or {}, random)
        result = executor.step(inputs, state, fetch=gradients)
        for name, parts in {**result.outputs, **result.fetched}.items():
            kind = "loss" if name not in gradients else name
            found[f"{step}.{kind}"] = assemble(program, name, parts, tolerance=1e-9)
    for parameter in program.parameters:
        parts = state[parameter.name]
        found[parameter.name] = assemble(program, parameter.name, parts, tolerance=1e-9)
    return found


def assert_equal(plan: dict[str, np.ndarray], whole: dict[str, np.ndarray]) -> None:
    assert plan.keys() == whole.keys()
    for name, expected in whole.items():
        scale = max(1e-6, float(np.abs(expected).max()))
        assert np.abs(plan[name] - expected).max() <= 1e-9 * scale, name
