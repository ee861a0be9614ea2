"""Lookups of masked elements: a slice has zero for those of other ranks, also of infinite ones."""

import numpy as np
import pytest

from shardwright.operators.checks.strategies import check_split
from tests.operators.cases import MESHES, Case, cases

LOOKUPS = ("exp_sum_and_pick", "gather", "gather_elements", "gather_nd", "pick")
_operands = Case.operands


def masked(case: Case, *about: object) -> list[np.ndarray]:
    """Return operands of which a third of the real elements are minus infinity."""
    found = _operands(case, *about)
    mask = np.random.default_rng(0).uniform(size=found[0].shape) < 0.3
    return [np.where(mask, -np.inf, found[0]), *found[1:]]


@pytest.mark.parametrize("case", [c for c in cases() if c.operator in LOOKUPS], ids=str)
def test_slices_of_masked_elements_make_up_the_whole(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Case, "operands", masked)
    info = case.info()
    for mesh in MESHES:
        for strategy in info.generate_strategies(mesh):
            check_split(info, case, strategy, mesh)
