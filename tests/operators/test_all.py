"""Every operator keeps what its rule, linear sets and gradient promise.

The tests run over the registry, on the examples beside each operator: a new operator is tested by
existing.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from shardwright.ir.errors import IRError, StrategyError
from shardwright.ir.graph import Value
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.operators.builder import Builder
from shardwright.operators.info import (
    Array,
    Linearization,
    OperatorInfo,
    operator_class,
    whole_kernel,
)
from tests.operators.cases import MESHES, Case, cases, computing_operators
from tests.operators.spmd import (
    Parts,
    assemble,
    check_results,
    execute,
    run_shards,
    scatter,
)

CASES = list(cases())
SEEDS = (0, 1, 2)
# Why an operator that is linear does not take partial sums.
NEVER_PARTIAL = {
    "cast": "rounding each partial sum is not rounding the sum",
    "exp_gradient": "the result of `exp` that it keeps is whole",
    "scaled_dot_product_attention": "its gradient reads the value in a product of three",
    "square_gradient": "the operand of `square` that it keeps is whole",
}

all_cases = pytest.mark.parametrize("case", CASES, ids=str)
on_meshes = pytest.mark.parametrize("mesh", MESHES, ids=str)


@pytest.mark.parametrize("name", computing_operators())
def test_every_operator_has_examples(name: str) -> None:
    assert operator_class(name).examples, (
        f'`{name}` has no examples: give its class `examples = (Example(("f64[4, 6]",)),)`'
    )


@all_cases
@pytest.mark.parametrize("real", ["f64", "f32", "f16"])
def test_kernel_keeps_the_declared_types(case: Case, real: str) -> None:
    info = case.info(real)
    found = whole_kernel(info, *case.operands(info))
    check_results(info.result_types, info.rule.result_shapes, found)
    assert info.flops >= 0


# The rule: values


def assert_values(
    info: OperatorInfo, case: Case, strategy: Strategy, mesh: Mesh, seed: int
) -> None:
    operands = case.operands(info, seed)
    taken, left = info.infer_tensor_layouts(strategy, mesh)
    shards = [scatter(x, layout, mesh) for x, layout in zip(operands, taken, strict=True)]
    results = run_shards(info, strategy, mesh, shards)
    for parts, layout, whole in zip(results, left, whole_kernel(info, *operands), strict=True):
        found = assemble(parts, layout, whole.shape, mesh)
        np.testing.assert_allclose(found, whole, rtol=1e-12, atol=1e-12)


@all_cases
@on_meshes
def test_rule_is_true(case: Case, mesh: Mesh) -> None:
    info = case.info()
    for strategy in info.generate_strategies(mesh):
        info.check_strategy(strategy, mesh)
        assert_values(info, case, strategy, mesh, seed=0)


@all_cases
@on_meshes
def test_layouts_determine_the_strategy(case: Case, mesh: Mesh) -> None:
    info = case.info()
    for strategy in info.generate_strategies(mesh):
        taken, left = info.infer_tensor_layouts(strategy, mesh)
        wanted = [layout.reduced() for layout in left]
        assert info.infer_layouts(taken, mesh, wanted) == (strategy, left)


# The rule: nothing is whole without need


def with_kind(info: OperatorInfo, factor: str, kind: str) -> OperatorInfo:
    changed = copy.copy(info)
    changed.rule = replace(info.rule, kinds={**info.rule.kinds, factor: kind})
    return changed


def split_of(info: OperatorInfo, factor: str) -> tuple[Strategy, Mesh]:
    """Split a factor the least it can be; factors that are major to it are split fully."""
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


def other_kinds(info: OperatorInfo, factor: str) -> list[str]:
    present = [any(factor in dim for dim in dims) for dims in info.rule.results]
    return ["parallel"] * any(present) + ["sum", "max", "min"] * (not all(present))


def is_right(info: OperatorInfo, case: Case, strategy: Strategy, mesh: Mesh) -> bool:
    try:
        for seed in SEEDS:
            assert_values(info, case, strategy, mesh, seed)
            assert_gradient(info, case, strategy, mesh, seed)
    except (AssertionError, ValueError, IndexError, TypeError, IRError, StrategyError):
        return False
    return True


@all_cases
def test_whole_factors_have_to_be_whole(case: Case) -> None:
    info = case.info()
    kinds, sizes = info.rule.kinds, info.rule.sizes
    for factor in (f for f in kinds if kinds[f] == "whole" and sizes[f] > 1):
        strategy, mesh = split_of(info, factor)
        for kind in other_kinds(info, factor):
            right = is_right(with_kind(info, factor, kind), case, strategy, mesh)
            assert not right, f"{case}: factor `{factor}` may be `{kind}`, its rule says whole"


# Gradients


def real_results(info: OperatorInfo) -> bool:
    return all(result.is_float for result in info.result_types)


def cotangents_of(info: OperatorInfo, seed: int) -> list[Array]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(result.shape) for result in info.result_types]


def emitted(
    info: OperatorInfo, mesh: Mesh, layouts: tuple[Sequence[Layout], Sequence[Layout]]
) -> tuple[Builder, list[Value], list[Value | None]]:
    """Build the gradient; returns the builder, what it reads, and the gradients."""
    taken, left = layouts
    build = Builder(mesh)
    operands = [
        build.input(Value(f"operand{i}", kind, layout))
        for i, (kind, layout) in enumerate(zip(info.operand_types, taken, strict=True))
    ]
    results = [
        build.input(Value(f"result{i}", kind, layout))
        for i, (kind, layout) in enumerate(zip(info.result_types, left, strict=True))
    ]
    cotangents = [
        build.input(Value(f"cotangent{i}", r.type, r.layout and r.layout.reduced()))
        for i, r in enumerate(results)
    ]
    gradients = info.gradient(build, Linearization(operands, results, cotangents))
    assert len(gradients) == len(operands)
    return build, [*operands, *results, *cotangents], list(gradients)


def whole_gradients(info: OperatorInfo, operands: list[Array], seed: int) -> list[Array | None]:
    """Run the gradient on one device."""
    one = Mesh(())
    layouts = info.infer_tensor_layouts(Strategy(), one)
    build, inputs, gradients = emitted(info, one, layouts)
    results = list(whole_kernel(info, *operands))
    arrays = [*operands, *results, *cotangents_of(info, seed)]
    tensors = {
        value.name: (value.type, value.layout or Layout.replicated(value.type.rank), [array])
        for value, array in zip(inputs, arrays, strict=True)
    }
    found = execute(build.nodes, tensors, one)
    return [None if value is None else found[value.name][2][0] for value in gradients]


def numeric_gradient(
    info: OperatorInfo, operands: list[Array], position: int, seed: int, step: float = 1e-5
) -> Array:
    """Return the central difference by every element of one operand."""
    weights = cotangents_of(info, seed)

    def loss() -> float:
        found = whole_kernel(info, *operands)
        return sum(float((w * y).sum()) for w, y in zip(weights, found, strict=True))

    target = operands[position] = operands[position].copy()
    gradient = np.zeros_like(target)
    for index in np.ndindex(target.shape):
        value = target[index]
        target[index] = value + step
        above = loss()
        target[index] = value - step
        gradient[index] = (above - loss()) / (2 * step)
        target[index] = value
    return gradient


@all_cases
def test_gradient_is_the_central_difference(case: Case) -> None:
    info = case.info()
    if not real_results(info) or type(info).gradient is OperatorInfo.gradient:
        return
    operands = case.operands(info)
    for position, found in enumerate(whole_gradients(info, operands, seed=0)):
        if position in case.example.constants or not info.operand_types[position].is_float:
            assert found is None, f"{case}: operand {position} has no gradient"
            continue
        if found is None:
            found = np.zeros(info.operand_types[position].shape)
        expected = numeric_gradient(info, operands, position, seed=0)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=str(position))


def assert_gradient(
    info: OperatorInfo, case: Case, strategy: Strategy, mesh: Mesh, seed: int
) -> None:
    """Check the gradient of the split operator against that of the whole one."""
    if not real_results(info):
        return
    operands = case.operands(info, seed)
    layouts = info.infer_tensor_layouts(strategy, mesh)
    shards = [scatter(x, layout, mesh) for x, layout in zip(operands, layouts[0], strict=True)]
    check_gradients(info, strategy, mesh, layouts, shards, operands, seed)


def check_gradients(
    info: OperatorInfo,
    strategy: Strategy,
    mesh: Mesh,
    layouts: tuple[Sequence[Layout], Sequence[Layout]],
    shards: Sequence[Parts],
    operands: list[Array],
    seed: int = 0,
) -> None:
    """Build the gradient on the mesh, run it on the shards, compare with the whole operands'.

    It has the operand's split; it is partial over the axes that split factors the operand lacks,
    and over those of partial sums in other operands.
    """
    taken, left = layouts
    build, inputs, gradients = emitted(info, mesh, layouts)
    results = run_shards(info, strategy, mesh, shards)
    reduced = [layout.reduced() for layout in left]
    pulled = [
        scatter(x, layout, mesh)
        for x, layout in zip(cotangents_of(info, seed), reduced, strict=True)
    ]
    tensors = {
        value.name: (value.type, value.layout, parts)
        for value, parts in zip(inputs, [*shards, *results, *pulled], strict=True)
        if value.layout is not None
    }
    found = execute(build.nodes, tensors, mesh)
    carried = {axis for layout in taken for axis in layout.partial}
    expected = whole_gradients(info, operands, seed)
    assert [value is None for value in gradients] == [whole is None for whole in expected]
    for position, (value, whole) in enumerate(zip(gradients, expected, strict=True)):
        if value is None or whole is None:
            continue
        mirrored = info.infer_mirror_ops(strategy, mesh)[position]
        if not taken[position].partial:
            mirrored = mesh.ordered({*mirrored, *carried})
        kind, layout, parts = found[value.name]
        assert kind == info.operand_types[position]
        assert layout == taken[position].with_partial(mirrored), (position, strategy)
        array = assemble(parts, layout, whole.shape, mesh)
        np.testing.assert_allclose(array, whole, rtol=1e-12, atol=1e-12)


@all_cases
@on_meshes
def test_gradient_of_shards_is_the_shard_of_the_gradient(case: Case, mesh: Mesh) -> None:
    info = case.info()
    for strategy in info.generate_strategies(mesh):
        assert_gradient(info, case, strategy, mesh, seed=0)


# Linear sets


def is_linear(info: OperatorInfo, case: Case, positions: tuple[int, ...]) -> bool:
    """Whether f(a + b) = f(a) + f(b) in these operands, the others fixed."""
    first, second = case.operands(info, 0), case.operands(info, 1)
    second = [
        b if i in positions else a for i, (a, b) in enumerate(zip(first, second, strict=True))
    ]
    both = [
        a + b if i in positions else a for i, (a, b) in enumerate(zip(first, second, strict=True))
    ]
    found = [whole_kernel(info, *operands) for operands in (first, second, both)]
    return all(np.allclose(a + b, c, rtol=1e-9, atol=1e-9) for a, b, c in zip(*found, strict=True))


@all_cases
def test_partial_sums_pass_through_exactly_where_declared(case: Case) -> None:
    info = case.info()
    reals = tuple(i for i, kind in enumerate(info.operand_types) if kind.is_float)
    for positions in info.linear_sets:
        assert is_linear(info, case, positions), f"{case} is not linear in {positions}"
    if not real_results(info) or not reals or case.operator in NEVER_PARTIAL:
        return
    for positions in {reals, *((i,) for i in reals)} - set(info.linear_sets):
        assert not is_linear(info, case, positions), f"{case}: `linear` lacks {positions}"


@all_cases
def test_gradient_takes_partial_operands(case: Case) -> None:
    """The operands of a linear set arrive as two terms each; gradients still come out right."""
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
        assert all(layout.partial == ("p",) for layout in left)
        operands = [
            [a, b] if i in positions else [a, a]
            for i, (a, b) in enumerate(zip(*terms, strict=True))
        ]
        summed = [sum(parts) if i in positions else parts[0] for i, parts in enumerate(operands)]
        check_gradients(info, strategy, mesh, (taken, left), operands, summed)


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
