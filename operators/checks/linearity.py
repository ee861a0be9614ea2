"""Checks of the linear sets, through which partial sums pass."""

import numpy as np

from shardwright.ir.errors import IRError, OperatorError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.operators.checks.cases import Case, expect, real_results
from shardwright.operators.checks.gradients import check_gradients
from shardwright.operators.checks.spmd import run_shards
from shardwright.operators.info import (
    OperatorInfo,
    whole_kernel,
)


def is_linear(info: OperatorInfo, case: Case, positions: tuple[int, ...]) -> bool:
    """Return whether f(a + b) = f(a) + f(b) in some operands, with the others fixed."""
    first, second = case.operands(info, 0), case.operands(info, 1)
    second = [
        b if i in positions else a for i, (a, b) in enumerate(zip(first, second, strict=True))
    ]
    both = [
        a + b if i in positions else a for i, (a, b) in enumerate(zip(first, second, strict=True))
    ]
    found = [whole_kernel(info, *operands) for operands in (first, second, both)]
    return all(np.allclose(a + b, c, rtol=1e-9, atol=1e-9) for a, b, c in zip(*found, strict=True))


def check_linear_sets(case: Case, complete: bool = True) -> None:
    """Check that the operator is linear in exactly the sets of operands that `linear` names.

    Parameters
    ----------
    case : Case
        The example.
    complete : bool
        Whether `linear` has to name every set of operands in which the operator is linear.
    """
    info = case.info()
    for positions in info.linear_sets:
        what = f"it is not linear in the operands {positions}, `linear` says so"
        expect(is_linear(info, case, positions), what, str(case))
    reals = tuple(i for i, kind in enumerate(info.operand_types) if kind.is_float)
    if not complete or not real_results(info) or not reals:
        return
    for positions in {reals, *((i,) for i in reals)} - set(info.linear_sets):
        what = f"it is linear in the operands {positions}, which `linear` lacks"
        hint = "name them, so that partial sums can pass through it"
        expect(not is_linear(info, case, positions), what, str(case), hint)


def check_partial_operands(case: Case) -> None:
    """Check the gradient on partial operands: each operand of a linear set is a sum of two."""
    info = case.info()
    if not real_results(info):
        return
    mesh = Mesh((MeshAxis("p", 2),))
    whole = [Layout.replicated(kind.rank) for kind in info.operand_types]
    terms = [case.operands(info, seed) for seed in (0, 1)]
    for positions in info.linear_sets:
        taken = [x.with_partial(("p",)) if i in positions else x for i, x in enumerate(whole)]
        wanted = [Layout.replicated(kind.rank) for kind in info.result_types]
        strategy, left = info.infer_layouts(taken, mesh, wanted)
        carried = all(layout.partial == ("p",) for layout in left)
        expect(carried, "partial operands do not leave partial results", str(case))
        operands = [
            [a, b] if i in positions else [a, a]
            for i, (a, b) in enumerate(zip(*terms, strict=True))
        ]
        summed = [sum(parts) if i in positions else parts[0] for i, parts in enumerate(operands)]
        try:
            results = run_shards(info, strategy, mesh, operands)
            check_gradients(info, strategy, mesh, (taken, left), operands, results, summed)
        except IRError as error:
            raise OperatorError(error.what, f"{case} with partial operands") from error
