"""Checks that an operator keeps what its rule, linear sets and gradient promise.

The operator's examples are drawn with random operands. For every strategy on a few meshes the
kernel runs on the slices, the results are put together as the rule says, and compared with the
whole; likewise the gradient, which is compared with central differences too.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.ir.errors import IRError, OperatorError, ShardwrightError
from shardwright.ir.graph import Value
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.text import parse_type
from shardwright.ir.types import numpy_dtype
from shardwright.operators.builder import Builder
from shardwright.operators.info import (
    Array,
    Example,
    Linearization,
    OperatorInfo,
    operator_class,
    operator_info,
    whole_kernel,
)
from shardwright.operators.spmd import (
    Parts,
    assemble,
    check_results,
    execute,
    node_of,
    run_shards,
    scatter,
    splits_windows,
)
from shardwright.operators.windows.halo_exchange import emit_split, emit_split_gradient

MESHES = (
    Mesh((MeshAxis("x", 2), MeshAxis("y", 2))),
    Mesh((MeshAxis("x", 2), MeshAxis("y", 3))),
)
_SEEDS = (0, 1, 2)  # of operands on which a rule is found out to be false
_EXACT = 1e-12
_NUMERIC = 1e-6  # what central differences can tell


@dataclass(frozen=True)
class Case:
    """One example of one operator, as something to check."""

    operator: str
    number: int

    @property
    def example(self) -> Example:
        """The example."""
        return operator_class(self.operator).examples[self.number]

    def info(self, real: str = "f64") -> OperatorInfo:
        """Return the operator on operands of the example's types, real ones of type `real`."""
        texts = [operand.replace("f64", real) for operand in self.example.operands]
        return operator_info(
            self.operator, [parse_type(text)[0] for text in texts], self.example.attributes
        )

    def operands(self, info: OperatorInfo, seed: int = 0) -> list[Array]:
        """Return random operands in the ranges of the example."""
        random = np.random.default_rng((seed, self.number, *self.operator.encode()))
        drawn = []
        for position, operand in enumerate(info.operand_types):
            default = (-2.0, 2.0) if operand.is_float else (0, 3)
            low, high = self.example.ranges.get(position, default)
            values: Array = np.asarray(random.uniform(low, high, operand.shape))
            if operand.dtype == "bool":
                values = random.uniform(0, 1, operand.shape) < 0.5
            elif not operand.is_float:
                values = np.floor(values)
            drawn.append(np.asarray(values, numpy_dtype(operand.dtype)))
        return drawn

    def __str__(self) -> str:
        return f"{self.operator}-{self.number}"


def cases_of(operator: str) -> Iterator[Case]:
    """Give every example of an operator."""
    for number in range(len(operator_class(operator).examples)):
        yield Case(operator, number)


@dataclass(frozen=True)
class Checked:
    """What was checked of an operator.

    Parameters
    ----------
    operator : str
        Its name.
    examples, strategies : int
        How many examples it has, and how many strategies of them were run.
    gradient : bool
        Whether it has a gradient, which was checked too.
    """

    operator: str
    examples: int
    strategies: int
    gradient: bool

    def __str__(self) -> str:
        gradient = "values and gradients agree" if self.gradient else "values agree"
        return (
            f"`{self.operator}`: {gradient} for {self.strategies} strategies of "
            f"{self.examples} example{'s' if self.examples > 1 else ''}"
        )


def check_operator(name: str, *, never_partial: bool = False) -> Checked:
    """Check that an operator keeps what its rule, linear sets and gradient promise.

    Parameters
    ----------
    name : str
        Name of a registered operator that has examples.
    never_partial : bool
        Do not ask that `linear` names every set of operands in which the operator is linear.

    Returns
    -------
    Checked
        What was checked; printed, it says so in a sentence.

    Raises
    ------
    OperatorError
        At the first promise that is not kept; names the example and the strategy.
    """
    cases = list(cases_of(name))
    if not cases:
        hint = 'give its class `examples = (Example(("f64[4, 6]",)),)`'
        raise OperatorError(f"`{name}` has no examples to check it on", hint=hint)
    strategies = 0
    for case in cases:
        check_types(case)
        check_whole_factors(case)
        check_numeric_gradient(case)
        check_linear_sets(case, complete=not never_partial)
        check_partial_operands(case)
        for mesh in MESHES:
            for strategy in case.info().generate_strategies(mesh):
                strategies += 1
                check_strategy(case, strategy, mesh)
    return Checked(name, len(cases), strategies, has_gradient(cases[0].info()))


def has_gradient(info: OperatorInfo) -> bool:
    """Return whether an operator says how it is differentiated."""
    return real_results(info) and type(info).gradient is not OperatorInfo.gradient


def real_results(info: OperatorInfo) -> bool:
    """Return whether all results are real numbers."""
    return all(result.is_float for result in info.result_types)


def _expect(condition: bool, otherwise: str, place: str, hint: str | None = None) -> None:
    if not condition:
        raise OperatorError(otherwise, place, hint)


def _expect_close(found: Array, whole: Array, what: str, place: str, tolerance: float) -> None:
    """Check that two arrays agree, and say by how much they do not."""
    if np.allclose(found, whole, rtol=tolerance, atol=tolerance, equal_nan=True):
        return
    worst = np.nanmax(np.abs(np.asarray(found, float) - np.asarray(whole, float)))
    raise OperatorError(f"{what}: they differ by up to {worst:.3g}", place)


# Values


def check_types(case: Case) -> None:
    """Check that the kernel returns what is declared, whatever the type of real numbers."""
    for real in ("f64", "f32", "f16"):
        info = case.info(real)
        try:
            found = whole_kernel(info, *case.operands(info))
            check_results(info.result_types, info.rule.result_shapes, found)
        except ShardwrightError as error:
            raise OperatorError(error.what, f"{case} in {real}") from error
        _expect(info.flops >= 0, f"the number of flops is {info.flops}", str(case))


def check_strategy(case: Case, strategy: Strategy, mesh: Mesh, seed: int = 0) -> None:
    """Check values and gradients of one strategy, and that its layouts tell which it is."""
    info = case.info()
    info.check_strategy(strategy, mesh)
    taken, left = info.infer_tensor_layouts(strategy, mesh)
    place = f"{case} split by {strategy or 'nothing'} on {mesh}"
    if not splits_windows(info, strategy):
        told = info.infer_layouts(taken, mesh, [layout.reduced() for layout in left])
        _expect(told == (strategy, left), f"the layouts of the operands tell {told[0]}", place)
    check_split(info, case, strategy, mesh, seed)


def check_split(
    info: OperatorInfo, case: Case, strategy: Strategy, mesh: Mesh, seed: int = 0
) -> None:
    """Check values and gradients of one strategy under a rule that `info` has."""
    place = f"{case} split by {strategy or 'nothing'} on {mesh}"
    try:
        _check_values(info, case, strategy, mesh, seed)
        _check_split_gradient(info, case, strategy, mesh, seed)
    except OperatorError as error:
        raise OperatorError(error.what, place, error.hint) from None
    except ShardwrightError as error:
        raise OperatorError(error.what, place, error.hint) from error


def _check_values(
    info: OperatorInfo, case: Case, strategy: Strategy, mesh: Mesh, seed: int
) -> None:
    operands = case.operands(info, seed)
    taken, left = info.infer_tensor_layouts(strategy, mesh)
    shards = [scatter(x, layout, mesh) for x, layout in zip(operands, taken, strict=True)]
    results = run_shards(info, strategy, mesh, shards)
    for parts, layout, whole in zip(results, left, whole_kernel(info, *operands), strict=True):
        found = assemble(parts, layout, whole.shape, mesh)
        what = f"the slices put together as {layout} are not the whole"
        _expect_close(found, whole, what, str(case), _EXACT)


def with_kind(info: OperatorInfo, factor: str, kind: str) -> OperatorInfo:
    """Return the operator with another claim about one factor."""
    changed = copy.copy(info)
    changed.rule = replace(info.rule, kinds={**info.rule.kinds, factor: kind})
    changed._inferred = {}
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


def is_right(info: OperatorInfo, case: Case, strategy: Strategy, mesh: Mesh) -> bool:
    """Return whether a rule is true of all random operands."""
    try:
        for seed in _SEEDS:
            check_split(info, case, strategy, mesh, seed)
    except (ShardwrightError, ValueError, IndexError, TypeError):
        return False
    return True


def check_whole_factors(case: Case) -> None:
    """Check that no factor is said to be whole which could be split."""
    info = case.info()
    kinds, sizes = info.rule.kinds, info.rule.sizes
    for factor in (f for f in kinds if kinds[f] == "whole" and sizes[f] > 1):
        strategy, mesh = split_of(info, factor)
        present = [any(factor in dim for dim in dims) for dims in info.rule.results]
        others = ["parallel"] * any(present) + ["sum", "max", "min"] * (not all(present))
        for kind in others:
            right = is_right(with_kind(info, factor, kind), case, strategy, mesh)
            what = f"factor `{factor}` may be `{kind}`, its rule says that it is whole"
            _expect(not right, what, str(case))


# Gradients


def _cotangents(info: OperatorInfo, seed: int) -> list[Array]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(result.shape) for result in info.result_types]


def _emitted(
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
    gradients = list(info.gradient(build, Linearization(operands, results, cotangents)))
    count = f"the gradient returns {len(gradients)} values for {len(operands)} operands"
    _expect(len(gradients) == len(operands), count, info.name)
    return build, [*operands, *results, *cotangents], gradients


def _emitted_with_halos(
    info: OperatorInfo, strategy: Strategy, mesh: Mesh
) -> tuple[Builder, list[Value], list[Value | None]]:
    """Build the operator with its halos, and the gradient of both."""
    build, (taken, left) = Builder(mesh), info.infer_tensor_layouts(strategy, mesh)
    operands = [
        build.input(Value(f"operand{i}", kind, layout))
        for i, (kind, layout) in enumerate(zip(info.operand_types, taken, strict=True))
    ]
    emitted = emit_split(build, node_of(info, operands), operands, strategy)
    found = tuple(value.layout for value in emitted.results)
    _expect(found == left, f"what comes out lies as {found}, its rule says {left}", info.name)
    cotangents = [
        build.input(Value(f"cotangent{i}", kind, layout.reduced()))
        for i, (kind, layout) in enumerate(zip(info.result_types, left, strict=True))
    ]
    gradients = emit_split_gradient(build, emitted, cotangents)
    return build, [*operands, *cotangents], gradients


def _whole_gradients(info: OperatorInfo, operands: list[Array], seed: int) -> list[Array | None]:
    """Run the gradient on one device."""
    one = Mesh(())
    layouts = info.infer_tensor_layouts(Strategy(), one)
    build, inputs, gradients = _emitted(info, one, layouts)
    results = list(whole_kernel(info, *operands))
    arrays = [*operands, *results, *_cotangents(info, seed)]
    tensors = {
        value.name: (value.type, value.layout or Layout.replicated(value.type.rank), [array])
        for value, array in zip(inputs, arrays, strict=True)
    }
    found = execute(build.nodes, tensors, one)
    return [None if value is None else found[value.name][2][0] for value in gradients]


def _numeric_gradient(
    info: OperatorInfo, operands: list[Array], position: int, seed: int, step: float = 1e-5
) -> Array:
    """Return the central difference by every element of one operand."""
    weights = _cotangents(info, seed)

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


def check_numeric_gradient(case: Case) -> None:
    """Check the gradient against central differences."""
    info = case.info()
    if not has_gradient(info):
        return
    operands = case.operands(info)
    for position, found in enumerate(_whole_gradients(info, operands, seed=0)):
        place = f"operand {position} of {case}"
        if position in case.example.constants or not info.operand_types[position].is_float:
            _expect(found is None, "there is a gradient where none is wanted", place)
            continue
        if found is None:
            found = np.zeros(info.operand_types[position].shape)
        expected = _numeric_gradient(info, operands, position, seed=0)
        what = "the gradient is not the central difference"
        _expect_close(found, expected, what, place, _NUMERIC)


def _check_split_gradient(
    info: OperatorInfo, case: Case, strategy: Strategy, mesh: Mesh, seed: int
) -> None:
    """Check the gradient of the split operator against that of the whole one."""
    if not real_results(info):
        return
    operands = case.operands(info, seed)
    layouts = info.infer_tensor_layouts(strategy, mesh)
    shards = [scatter(x, layout, mesh) for x, layout in zip(operands, layouts[0], strict=True)]
    _check_gradients(info, strategy, mesh, layouts, shards, operands, seed)


def _check_gradients(
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
    if splits_windows(info, strategy):
        build, inputs, gradients = _emitted_with_halos(info, strategy, mesh)
        results = []
    else:
        build, inputs, gradients = _emitted(info, mesh, layouts)
        results = run_shards(info, strategy, mesh, shards)
    reduced = [layout.reduced() for layout in left]
    pulled = [
        scatter(x, layout, mesh) for x, layout in zip(_cotangents(info, seed), reduced, strict=True)
    ]
    tensors = {
        value.name: (value.type, value.layout, parts)
        for value, parts in zip(inputs, [*shards, *results, *pulled], strict=True)
        if value.layout is not None
    }
    found = execute(build.nodes, tensors, mesh)
    carried = {axis for layout in taken for axis in layout.partial}
    expected = _whole_gradients(info, operands, seed)
    for position, (value, whole) in enumerate(zip(gradients, expected, strict=True)):
        place = f"operand {position}"
        _expect((value is None) == (whole is None), "the gradient is there only if whole", place)
        if value is None or whole is None:
            continue
        mirrored = info.infer_mirror_ops(strategy, mesh)[position]
        if not taken[position].partial:
            mirrored = mesh.ordered({*mirrored, *carried})
        kind, layout, parts = found[value.name]
        wanted = info.operand_types[position], taken[position].with_partial(mirrored)
        what = f"the gradient of operand {position} is {kind} {layout}, expected {wanted[0]} "
        _expect((kind, layout) == wanted, f"{what}{wanted[1]}", place)
        array = assemble(parts, layout, whole.shape, mesh)
        what = f"the gradient of operand {position} differs from that of the whole"
        _expect_close(array, whole, what, place, _EXACT)


# Linear sets


def is_linear(info: OperatorInfo, case: Case, positions: tuple[int, ...]) -> bool:
    """Return whether f(a + b) = f(a) + f(b) in these operands, the others fixed."""
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
    """Check that partial sums pass through exactly where `linear` says so.

    Parameters
    ----------
    case : Case
        What is checked.
    complete : bool
        Whether `linear` has to name every set of operands in which the operator is linear.
    """
    info = case.info()
    for positions in info.linear_sets:
        what = f"it is not linear in the operands {positions}, `linear` says so"
        _expect(is_linear(info, case, positions), what, str(case))
    reals = tuple(i for i, kind in enumerate(info.operand_types) if kind.is_float)
    if not complete or not real_results(info) or not reals:
        return
    for positions in {reals, *((i,) for i in reals)} - set(info.linear_sets):
        what = f"it is linear in the operands {positions}, which `linear` lacks"
        hint = "name them, so that partial sums can pass through it"
        _expect(not is_linear(info, case, positions), what, str(case), hint)


def check_partial_operands(case: Case) -> None:
    """Check the gradient where the operands of a linear set arrive as two terms each."""
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
        _expect(carried, "partial operands do not leave partial results", str(case))
        operands = [
            [a, b] if i in positions else [a, a]
            for i, (a, b) in enumerate(zip(*terms, strict=True))
        ]
        summed = [sum(parts) if i in positions else parts[0] for i, parts in enumerate(operands)]
        try:
            _check_gradients(info, strategy, mesh, (taken, left), operands, summed)
        except IRError as error:
            raise OperatorError(error.what, f"{case} with partial operands") from error
