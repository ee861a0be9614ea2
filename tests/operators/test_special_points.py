"""Operators of elements that are zero, or infinite."""

import numpy as np
import pytest

from shardwright.operators.checks.gradients import check_numeric_gradient
from shardwright.operators.checks.strategies import check_split
from tests.operators.cases import MESHES, Case, cases

LOOKUPS = ("exp_sum_and_pick", "gather", "gather_elements", "gather_nd", "pick")
PRODUCTS = ("cumprod", "reduce_prod")
_operands = Case.operands


def with_third(number: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a third of the elements of the first operand of each case be a number."""

    def operands(case: Case, *about: object) -> list[np.ndarray]:
        first, *others = _operands(case, *about)
        chosen = np.random.default_rng(0).uniform(size=first.shape) < 1 / 3
        return [np.where(chosen, number, first), *others]

    monkeypatch.setattr(Case, "operands", operands)


@pytest.mark.parametrize("case", [c for c in cases() if c.operator in LOOKUPS], ids=str)
def test_slices_of_masked_elements_make_up_the_whole(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank has zero for an element of another rank, not the product of zero and its own."""
    with_third(-np.inf, monkeypatch)
    info = case.info()
    for mesh in MESHES:
        for strategy in info.generate_strategies(mesh):
            check_split(info, case, strategy, mesh)


@pytest.mark.parametrize("case", [c for c in cases() if c.operator in PRODUCTS], ids=str)
def test_gradients_of_products_with_zeros(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    with_third(0.0, monkeypatch)
    check_numeric_gradient(case)
