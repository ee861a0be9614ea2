"""Training of the ONNX project's own tests: gradients on 4 ranks against those on one.

Real inputs become parameters, and the mean of the sine of every real result is the loss, so that no
two elements have equal gradients.
"""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from onnx.backend.test.case.test_case import TestCase
from onnx_tests import (
    MESH,
    ONE,
    imported_case,
    is_plain,
    model_of,
    random_decisions,
)

from shardwright.cost_model.cluster import cluster
from shardwright.dataflow.cotangents import gradient_name
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.graph import Graph, Parameter, Value
from shardwright.ir.mesh import Mesh
from shardwright.operators.builder import Builder
from shardwright.passes.annotate import Annotate
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.differentiate import Differentiate
from shardwright.passes.insert_mirrors import InsertMirrors
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager
from shardwright.passes.partition import Partition
from shardwright.runtime import Executor, LocalCommunicator, assemble, initialize

Array = np.ndarray[Any, Any]
_EXACT = "float64"


def train_cases(cases: Iterable[TestCase], seed: int = 0) -> tuple[int, dict[str, str]]:
    """Return how many tests have gradients, and what is wrong with those of some."""
    count, wrong = 0, {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases:
            found = train_case(case, seed) if is_plain(model_of(case)) else None
            count += found is not None
            if found:
                wrong[case.name] = found
    return count, wrong


def train_case(case: TestCase, seed: int = 0) -> str | None:
    """Compare the gradients of a test.

    Returns
    -------
    str or None
        What is wrong, empty where nothing is; None where there is no gradient.
    """
    made = imported_case(case)
    if made is None:
        return None
    imported, inputs = made
    graph = _with_loss(imported.graph)
    fed = imported.graph.inputs
    if graph is None or any(inputs[value.name].shape != value.type.shape for value in fed):
        return None
    weights = {p.name: inputs[p.name] for p in graph.parameters if p.name in inputs}
    data = {**imported.initial, **weights}
    rest = {value.name: inputs[value.name] for value in graph.inputs}
    try:
        alone = _gradients(Differentiate().run(graph), data, rest, ONE)
        if not alone:
            return None
        random = np.random.default_rng((seed, *case.name.encode()))
        found = _gradients(_sharded(graph, random), data, rest, MESH)
    except ShardwrightError as error:
        return error.what
    different = [name for name, right in alone.items() if not _equal(found[name], right)]
    return f"differs: {', '.join(different)}" if different else ""


def _with_loss(graph: Graph) -> Graph | None:
    """Return the graph with real inputs as parameters and a loss; None if it has none of either."""
    real = [value for value in graph.inputs if value.type.is_float]
    results = [graph.values[n] for n in graph.outputs if graph.values[n].type.is_float]
    if not real or not results:
        return None
    build = Builder(graph=graph)
    total: Value | None = None
    for result in results:
        mean = build.emit("reduce_mean", build.emit("sin", result))
        term = build.emit("cast", mean, dtype=_EXACT)
        total = term if total is None else build.emit("add", total, term)
    assert total is not None
    weights = tuple(Parameter(v, {"initializer": "data", "trainable": True}) for v in real)
    return Canonicalize().run(
        replace(
            graph,
            inputs=tuple(value for value in graph.inputs if not value.type.is_float),
            parameters=graph.parameters + weights,
            nodes=tuple(build.nodes),
            outputs=(total.name,),
            updates=(),
        )
    )


def _sharded(graph: Graph, random: np.random.Generator) -> Graph:
    decisions = random_decisions(graph, random)
    lowering = LowerRedistributions(cluster("cpu"))
    pipeline = (Annotate(decisions), Partition(), InsertMirrors(), Differentiate(), lowering)
    return PassManager().run_all(pipeline, graph)


def _gradients(
    program: Graph, data: Mapping[str, Array], inputs: Mapping[str, Array], mesh: Mesh
) -> dict[str, Array]:
    communicator = LocalCommunicator(mesh)
    executor = Executor(program, communicator, float_dtype=_EXACT)
    state = initialize(program, 0, communicator, data, _EXACT)
    names = [gradient_name(p.name) for p in program.parameters if p.trainable]
    names = [name for name in names if name in program.values]
    with np.errstate(all="ignore"):
        fetched = executor.step(inputs, state, names).fetched
    return {
        name: assemble(program, name, communicator.collect(fetched[name]), mesh, 1e-9)
        for name in names
    }


def _equal(found: Array, right: Array) -> bool:
    finite = np.abs(right[np.isfinite(right)])
    scale = float(finite.max()) if finite.size else 1.0
    return np.allclose(found, right, rtol=1e-9, atol=1e-9 * scale, equal_nan=True)
