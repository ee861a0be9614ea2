"""Small changes of programs: what two steps of numbers call wrong, the proof refuses."""

import numpy as np
import proofs
import pytest

from shardwright.proof import prove_program
from tests.extent import first, long_after

# What is refused although two steps agree is rare; how much of it there is, `benchmarks/proofs.md`
# tells. Here every wrong one must be refused, and of the programs themselves none.
MODELS = proofs.SMALL[:4] + proofs.SMALL[8:9]


@pytest.mark.parametrize("model", long_after(1, first(3, proofs.SMALL[2:] + proofs.SMALL[:2])))
def test_random_plans_are_proven(model: str) -> None:
    for _, definition, program, rule in proofs.random_plans(2, 3, (model,), (4, 6)):
        found = prove_program(definition.graph, program, rule)
        assert (found.proven, found.first_failure, found.reason) == (True, None, None)


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_wrong_mutants_are_refused(model: str) -> None:
    (_, definition, program, rule), *_ = proofs.random_plans(1, 5, (model,), (4,))
    highs = {spec.name: spec.high or 2 for spec in definition.inputs}
    expected = proofs.trained(program, 2, highs, definition.initial)
    assert prove_program(definition.graph, program, rule).proven
    wrong = 0
    made = proofs.mutants(program, np.random.default_rng(len(model)))
    for (kind, mutant), _ in zip(made, range(16), strict=False):
        if proofs.differs(expected, mutant, highs, definition.initial):
            wrong += 1
            found = prove_program(definition.graph, mutant, rule)
            assert found.proven is False, (kind, proofs.changes(program, mutant))
            assert found.first_failure
            assert found.reason
    assert wrong > 5
