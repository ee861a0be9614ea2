"""Every operator keeps what its rule, linear sets and gradient promise.

The tests run over the registry, on the examples of each operator: a new operator is tested by
existing.
"""

import pytest

from shardwright.ir.layout import Strategy
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.operators.checks.gradients import check_numeric_gradient
from shardwright.operators.checks.linearity import (
    check_linear_sets,
    check_partial_operands,
    is_linear,
)
from shardwright.operators.checks.strategies import (
    check_strategy,
    check_types,
    check_whole_factors,
    is_right,
    with_kind,
)
from shardwright.operators.info import operator_class
from tests.operators.cases import MESHES, Case, cases, computing_operators

CASES = list(cases())
# Why an operator that is linear does not take partial sums.
NEVER_PARTIAL = {
    "cast": "rounding each partial sum is not rounding the sum",
    "exp_gradient": "the result of `exp` that it keeps is whole",
    **dict.fromkeys(
        (
            *("quantized_matmul", "quantized_contract_leading"),
            *("quantized_grouped_matmul", "quantized_grouped_outer"),
        ),
        "quantizing each partial sum is not quantizing the sum",
    ),
    "on_gradient": "its zeros are sums of anything, and their gradients complete",
    "scaled_dot_product_attention": "its gradient reads the value in a product of three",
    "linear_attention": "its gradient reads all operands in products of three and more",
    "square_gradient": "the operand of `square` that it keeps is whole",
    "with_gradient_of": "its cotangent belongs to the second operand alone",
}

all_cases = pytest.mark.parametrize("case", CASES, ids=str)


def test_every_operator_has_examples() -> None:
    for name in computing_operators():
        assert operator_class(name).examples, (
            f'`{name}` has no examples: give its class `examples = (Example(("f64[4, 6]",)),)`'
        )


@all_cases
def test_every_strategy_keeps_values_and_gradients(case: Case) -> None:
    square, uneven = MESHES
    for strategy in case.info().generate_strategies(uneven):
        check_strategy(case, strategy, uneven)
    # Those that split by one axis of two are done; axes of one size may be exchanged.
    for strategy in case.info().generate_strategies(square, dict.fromkeys(square.names, 0)):
        if len({axis for _, axes in strategy.assignment for axis in axes}) > 1:
            check_strategy(case, strategy, square)


@all_cases
def test_what_an_operator_declares_is_true(case: Case) -> None:
    """Its types, factors that have to be whole, linear sets, and gradients of partial sums."""
    check_types(case)
    check_whole_factors(case)
    check_linear_sets(case, complete=case.operator not in NEVER_PARTIAL)
    check_partial_operands(case)


@all_cases
def test_gradient_is_the_central_difference(case: Case) -> None:
    check_numeric_gradient(case)


# These tests find what they look for


def test_a_false_rule_is_found() -> None:
    case, mesh = Case("matmul", 0), Mesh((MeshAxis("x", 2),))
    for factor, kind in (("k", "max"), ("k", "min")):
        info = with_kind(case.info(), factor, kind)
        assert not is_right(info, case, Strategy.of({"k": ("x",)}), mesh)
    assert is_right(case.info(), case, Strategy.of({"k": ("x",)}), mesh)


def test_a_false_linear_set_is_found() -> None:
    assert is_linear(Case("mul", 0).info(), Case("mul", 0), (0,))
    assert not is_linear(Case("mul", 0).info(), Case("mul", 0), (0, 1))
