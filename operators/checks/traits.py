"""Checks of the traits of an operator that its kernel can disprove."""

import numpy as np

from shardwright.operators.checks.cases import Case, expect
from shardwright.operators.info import Array, OperatorInfo, operator_info, whole_kernel


def check_traits(case: Case) -> None:
    """Check that `is_identity`, `is_scaling` and `is_commutative` are true of the kernel."""
    info = case.info()
    operands = case.operands(info)
    if info.is_identity:
        same = np.array_equal(_result(info, operands), operands[0])
        expect(same, "`is_identity` is set, and the result differs from the operand", str(case))
    if info.is_scaling:
        whole = np.floor(operands[0])  # which a cast to integers does not round
        doubled = _result(info, [2 * whole])
        linear = np.array_equal(doubled, 2 * _result(info, [whole]))
        expect(linear, "`is_scaling` is set, and doubling does not scale the result", str(case))
    if info.is_commutative:
        types = info.operand_types[::-1]
        swapped = operator_info(info.name, types, case.example.attributes)
        equal = np.array_equal(_result(info, operands), _result(swapped, operands[::-1]))
        expect(equal, "`is_commutative` is set, and the order of operands matters", str(case))


def _result(info: OperatorInfo, operands: list[Array]) -> Array:
    return whole_kernel(info, *operands)[0]
