"""Values of equal terms are equal: what ranks hold is what one device computes."""

import numpy as np
import proofs
import pytest

from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.proof import training_step
from shardwright.proof.erasure import erase
from shardwright.runtime import Executor, LocalCommunicator, assemble, initialize
from tests.equivalence import random_inputs
from tests.extent import first

MODELS = (proofs.SMALL[0], proofs.SMALL[2], proofs.SMALL[5], proofs.SMALL[8])


def values(
    program: Graph, names: list[str], highs: dict[str, int], initial: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return what one step computes of some values, put together."""
    communicator = LocalCommunicator(program.mesh or Mesh(()))
    executor = Executor(program, communicator, float_dtype="float64")
    state = initialize(program, 0, communicator, initial, "float64")
    inputs = random_inputs(program, highs, np.random.default_rng(1))
    found = executor.step(inputs, state, fetch=names).fetched
    return {name: assemble(program, name, found[name], tolerance=1e-9) for name in names}


@pytest.mark.long
@pytest.mark.parametrize("model", first(1, [*MODELS[1:], MODELS[0]]))
def test_values_of_equal_terms_are_equal(model: str) -> None:
    for _, definition, program, rule in proofs.random_plans(2, 7, (model,), (4, 8)):
        step = training_step(definition.graph, rule)
        ours, theirs = erase(program), erase(step)
        known = {
            (theirs[r.name], r.type): r.name
            for node in step
            for r in node.results
            if isinstance(theirs[r.name], int)
        }
        pairs = {
            r.name: known[ours[r.name], r.type]
            for node in program
            for r in node.results
            if (ours[r.name], r.type) in known
        }
        assert len(pairs) > 0.8 * len(program)
        highs = {spec.name: spec.high or 2 for spec in definition.inputs}
        initial = dict(definition.initial)
        found = values(program, list(pairs), highs, initial)
        expected = values(step, list(dict.fromkeys(pairs.values())), highs, initial)
        for name, other in pairs.items():
            scale = max(float(np.abs(expected[other]).max(initial=0.0)), 1e-6)
            worst = np.abs(np.asarray(found[name], float) - expected[other]).max(initial=0.0)
            assert worst <= 1e-9 * scale, name
