"""Checks of the sharding rule: every strategy gives the values of the whole tensors."""

import copy
from dataclasses import replace

from shardwright.ir.errors import OperatorError, ShardwrightError
from shardwright.ir.layout import Strategy
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.rounding import OF_SUM
from shardwright.operators.checks.cases import (
    Case,
    expect,
    expect_close,
    real_results,
)
from shardwright.operators.checks.gradients import check_gradients
from shardwright.operators.checks.spmd import (
    assemble,
    check_results,
    run_shards,
    scatter,
    splits_windows,
)
from shardwright.operators.info import (
    OperatorInfo,
    whole_kernel,
)

_SEEDS = (0, 1, 2)  # operands that disprove a wrong rule


def check_types(case: Case) -> None:
    """Check that the kernel returns the declared types and shapes in every floating-point type."""
    for real in ("f64", "f32", "f16"):
        info = case.info(real)
        try:
            found = whole_kernel(info, *case.operands(info))
            check_results(info.result_types, info.rule.result_shapes, found)
        except ShardwrightError as error:
            raise OperatorError(error.what, f"{case} in {real}") from error
        expect(info.flops >= 0, f"the number of flops is {info.flops}", str(case))


def check_strategy(case: Case, strategy: Strategy, mesh: Mesh, seed: int = 0) -> None:
    """Check the values and gradients of one strategy, and that its layouts determine it."""
    info = case.info()
    info.check_strategy(strategy, mesh)
    taken, left = info.infer_tensor_layouts(strategy, mesh)
    place = f"{case} split by {strategy or 'nothing'} on {mesh}"
    if not splits_windows(info, strategy):
        told = info.infer_layouts(taken, mesh, [layout.reduced() for layout in left])
        what = f"the layouts of the operands give the strategy {told[0]}"
        expect(told == (strategy, left), what, place)
    check_split(info, case, strategy, mesh, seed)


def check_split(
    info: OperatorInfo, case: Case, strategy: Strategy, mesh: Mesh, seed: int = 0
) -> None:
    """Check the values and gradients of one strategy under the rule of `info`."""
    place = f"{case} split by {strategy or 'nothing'} on {mesh}"
    operands = case.operands(info, seed)
    try:
        layouts = info.infer_tensor_layouts(strategy, mesh)
        shards = [scatter(x, layout, mesh) for x, layout in zip(operands, layouts[0], strict=True)]
        results = run_shards(info, strategy, mesh, shards)
        wholes = whole_kernel(info, *operands)
        for parts, layout, whole in zip(results, layouts[1], wholes, strict=True):
            found = assemble(parts, layout, whole.shape, mesh)
            what = f"the slices, assembled as {layout}, are not the whole"
            expect_close(found, whole, what, str(case), OF_SUM)
        if real_results(info):
            check_gradients(info, strategy, mesh, layouts, shards, results, operands, seed)
    except OperatorError as error:
        raise OperatorError(error.what, place, error.hint) from None
    except ShardwrightError as error:
        raise OperatorError(error.what, place, error.hint) from error


def with_kind(info: OperatorInfo, factor: str, kind: str) -> OperatorInfo:
    """Return the operator with another kind of one factor."""
    changed = copy.copy(info)
    changed.rule = replace(info.rule, kinds={**info.rule.kinds, factor: kind}, forms=())
    changed._inferred = {}
    return changed


def split_of(info: OperatorInfo, factor: str) -> tuple[Strategy, Mesh]:
    """Return the smallest split of a factor, with factors that are major to it split fully."""
    majors = {
        major
        for dims in (*info.rule.operands, *info.rule.results)
        for factors in dims
        if factor in factors
        for major in factors[: factors.index(factor)]
    }
    sizes = {major: info.rule.sizes[major] for major in info.rule.sizes if major in majors}
    size = info.rule.sizes[factor]
    sizes[factor] = next(n for n in range(2, size + 1) if size % n == 0)
    mesh = Mesh(tuple(MeshAxis(name, n) for name, n in sizes.items()))
    return Strategy.of({name: (name,) for name in sizes}), mesh


def is_right(info: OperatorInfo, case: Case, strategy: Strategy, mesh: Mesh) -> bool:
    """Return whether a rule holds on all random operands."""
    try:
        for seed in _SEEDS:
            check_split(info, case, strategy, mesh, seed)
    except (ShardwrightError, ValueError, IndexError, TypeError):
        return False
    return True


def check_whole_factors(case: Case) -> None:
    """Check that no whole factor could be split."""
    info = case.info()
    kinds, sizes = info.rule.kinds, info.rule.sizes
    for factor in (f for f in kinds if kinds[f] == "whole" and sizes[f] > 1):
        strategy, mesh = split_of(info, factor)
        present = [any(factor in dim for dim in dims) for dims in info.rule.results]
        others = ["parallel"] * any(present) + ["sum", "max", "min"] * (not all(present))
        for kind in others:
            right = is_right(with_kind(info, factor, kind), case, strategy, mesh)
            what = f"the rule marks factor `{factor}` as whole, and it could be `{kind}`"
            expect(not right, what, str(case))
