"""Communication moves layouts as it says, keeps the tensor, and its gradient is its transpose."""

from collections.abc import Iterator
from itertools import permutations, product

import numpy as np
import pytest

from shardwright.ir.attributes import Attribute, Attributes
from shardwright.ir.errors import IRError, StrategyError
from shardwright.ir.graph import Value
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.checks.spmd import Parts, assemble, exchange, execute, scatter
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import Array, Linearization, operator_info

MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 2), MeshAxis("z", 2)))
TYPE = TensorType("float64", (8, 8))
ORDERS = tuple(order for n in (1, 2, 3) for order in permutations(MESH.names, n))


def layouts(reduction: str) -> Iterator[Layout]:
    """Give every layout of a matrix: axes split rows, columns, are partial, or hold copies."""
    for order in permutations(MESH.names):
        for places in product(range(4), repeat=3):
            splits = tuple(
                tuple(a for a, p in zip(order, places, strict=True) if p == d) for d in (0, 1)
            )
            partial = MESH.ordered(a for a, p in zip(order, places, strict=True) if p == 2)
            yield Layout(splits, partial, reduction if partial else "sum")


LAYOUTS = {kind: tuple(dict.fromkeys(layouts(kind))) for kind in ("sum", "max", "min")}


def spread(whole: Array, layout: Layout, random: np.random.Generator) -> Parts:
    """Return shards of `whole`; where the layout is partial, of random terms that make it up."""
    count = MESH.extent(layout.partial)
    rest = random.integers(0, 9, (count, *whole.shape)).astype(float)
    owner = random.integers(0, count, whole.shape) == np.arange(count)[:, None, None]
    if layout.reduction == "sum":
        terms = np.where(owner, whole + rest - rest.sum(axis=0), rest)
    else:
        terms = np.where(owner, whole, whole + (rest if layout.reduction == "min" else -rest))
    shards = [scatter(term, layout, MESH) for term in terms]
    return [shards[MESH.index(rank, layout.partial)][rank] for rank in range(MESH.size)]


def moves(operator: str) -> Iterator[dict[str, Attribute]]:
    """Give every set of attributes that could fit some layout of a matrix."""
    for axes in ORDERS:
        if operator in ("all_gather", "local_slice", "reduce_scatter"):
            for d in (0, 1):
                yield {"axes": axes, "dimension": d}
        elif operator == "all_to_all":
            for d in (0, 1):
                yield {"axes": axes, "split_dimension": d, "concat_dimension": 1 - d}
        elif operator == "collective_permute":
            for previous, d in product(permutations(axes), (0, 1)):
                yield {"axes": axes, "previous": previous, "dimension": d}
        else:
            yield {"axes": axes}


def moved(info: Communication, layout: Layout) -> Layout | None:
    try:
        return info.infer_layouts([layout], MESH)[1][0]
    except StrategyError:
        return None


def info_of(operator: str, attributes: Attributes) -> Communication:
    info = operator_info(operator, [TYPE], attributes)
    assert isinstance(info, Communication)
    return info


def assert_transpose(info: Communication, before: Layout, after: Layout, whole: Array) -> None:
    """Pull a cotangent back: it is the same tensor, in the split of the operand."""
    build = Builder(MESH)
    due = after.reduced()
    operand, result = Value("operand", TYPE, before), Value("result", TYPE, after)
    cotangent = build.input(Value("cotangent", TYPE, due))
    (gradient,) = info.gradient(build, Linearization([operand], [result], [cotangent]))
    if gradient is None:
        assert info.attributes["reduction"] != "sum"
        return
    tensors = {"cotangent": (TYPE, due, scatter(whole, due, MESH))}
    _, layout, parts = execute(build.nodes, tensors, MESH)[gradient.name]
    assert layout == before.reduced()
    np.testing.assert_array_equal(assemble(parts, layout, TYPE.shape, MESH), whole)


@pytest.mark.parametrize(
    ("operator", "reduction"),
    [
        ("all_reduce", "sum"),
        ("all_reduce", "max"),
        ("all_reduce", "min"),
        ("reduce_scatter", "sum"),
        ("reduce_scatter", "max"),
        ("all_gather", "sum"),
        ("local_slice", "sum"),
        ("all_to_all", "sum"),
        ("collective_permute", "sum"),
        ("to_partial", "sum"),
    ],
)
def test_moves_keep_the_tensor(operator: str, reduction: str) -> None:
    random = np.random.default_rng(0)
    whole = random.integers(-50, 50, TYPE.shape).astype(float)
    found = 0
    for attributes in moves(operator):
        if operator in ("all_reduce", "reduce_scatter"):
            attributes["reduction"] = reduction
        info = info_of(operator, attributes)
        for before in LAYOUTS[reduction]:
            after = moved(info, before)
            if after is None:
                continue
            found += 1
            parts = exchange(info, spread(whole, before, random), MESH)
            result = assemble(parts, after, TYPE.shape, MESH)
            np.testing.assert_array_equal(result, whole)
            if before.reduction == "sum":
                assert_transpose(info, before, after, whole)
    assert found > 50


@pytest.mark.parametrize(
    "operator",
    ["all_gather", "local_slice", "reduce_scatter", "all_to_all", "collective_permute"],
)
def test_moves_keep_tensors_of_unequal_slices(operator: str) -> None:
    """Eight ranks and sizes that two, four and eight do not divide."""
    random = np.random.default_rng(0)
    whole = random.integers(-50, 50, (9, 11)).astype(float)
    found = 0
    for attributes in moves(operator):
        info = operator_info(operator, [TensorType("float64", whole.shape)], attributes)
        assert isinstance(info, Communication)
        for before in LAYOUTS["sum"]:
            after = moved(info, before)
            if after is None:
                continue
            found += 1
            parts = exchange(info, spread(whole, before, random), MESH)
            np.testing.assert_array_equal(assemble(parts, after, whole.shape, MESH), whole)
    assert found > 50 or operator == "collective_permute"


def test_a_mirror_sums_the_gradients_of_its_copies() -> None:
    random = np.random.default_rng(0)
    whole = random.integers(-50, 50, TYPE.shape).astype(float)
    layout = Layout((("x",), ()))
    info = info_of("mirror", {"axes": ("y", "z"), "group_size": 4})
    assert moved(info, layout) == layout
    build, partial = Builder(MESH), layout.with_partial(("y", "z"))
    operand = Value("operand", TYPE, layout)
    cotangent = build.input(Value("cotangent", TYPE, partial))
    (gradient,) = info.gradient(build, Linearization([operand], [operand], [cotangent]))
    tensors = {"cotangent": (TYPE, partial, spread(whole, partial, random))}
    assert gradient is not None
    _, found, parts = execute(build.nodes, tensors, MESH)[gradient.name]
    assert found == layout
    result = assemble(parts, found, TYPE.shape, MESH)
    np.testing.assert_array_equal(result, whole)


@pytest.mark.parametrize(
    ("operator", "attributes", "shape"),
    [
        ("all_gather", {"dimension": 1}, (4, 12)),
        ("local_slice", {"dimension": 0}, (2, 6)),
        ("reduce_scatter", {"dimension": 1}, (4, 3)),
        ("all_to_all", {"split_dimension": 0, "concat_dimension": 1}, (2, 12)),
        ("all_reduce", {}, (4, 6)),
    ],
)
def test_group_size_changes_a_rank_s_own_shape(
    operator: str, attributes: Attributes, shape: tuple[int, ...]
) -> None:
    given = {**attributes, "axes": ("x",), "group_size": 2}
    info = operator_info(operator, [TensorType("float64", (4, 6))], given)
    assert info.result_types[0].shape == shape


def test_wrong_communication_is_refused() -> None:
    with pytest.raises(IRError) as error:
        info_of("local_slice", {"axes": ("x",), "group_size": 3})
    assert str(error.value) == (
        "local_slice: a dimension of size 8 cannot be divided among 3 ranks"
    )
    with pytest.raises(StrategyError) as refused:
        info_of("all_gather", {"axes": ("x",)}).infer_layouts([Layout((("y",), ()))], MESH)
    assert str(refused.value) == (
        "all_gather: dimension 0 is split over ['y'], it must end with ['x']"
    )
    with pytest.raises(StrategyError) as refused:
        info_of("all_reduce", {"axes": ("x",)}).infer_layouts([Layout((("y",), ()))], MESH)
    assert str(refused.value) == (
        "all_reduce: the operand is partial over [] (sum), it must be partial over ['x'] (sum)"
    )
    with pytest.raises(StrategyError) as refused:
        info_of("redistribute", {}).infer_layouts([Layout((("y",), ()))], MESH)
    assert str(refused.value) == "redistribute: there is no target layout"


# Moves that would not keep the tensor are refused where layouts are inferred.

X, Y, Z = ("x",), ("y",), ("z",)


@pytest.mark.parametrize(
    ("operator", "attributes", "splits", "message"),
    [
        (
            "all_to_all",
            {"axes": X, "split_dimension": 0, "concat_dimension": 0},
            (X, ()),
            "all_to_all: `split_dimension` and `concat_dimension` are both 0, they must differ",
        ),
        (
            "collective_permute",
            {"axes": ("y", "x"), "previous": ("x", "y"), "dimension": 1},
            ((), ("x", "y")),
            "collective_permute: dimension 1 of size 6 is split 4 ways, its slices must be "
            "equally large",
        ),
        (
            "collective_permute",
            {"axes": Y, "previous": X, "dimension": 0},
            (X, ()),
            "collective_permute: `axes` is ['y'], it must be an order of `previous`, ['x']",
        ),
        (
            "all_gather",
            {"axes": ("x", "x"), "dimension": 0},
            (X, ()),
            "all_gather: `axes` is ['x', 'x'], expected distinct axes",
        ),
        (
            "all_gather",
            {"axes": X, "dimension": 0, "group_size": 2},
            (X, ()),
            "all_gather: `group_size` is 2, where tensors have layouts it must be 0",
        ),
        *(
            (
                operator,
                {"axes": X},
                splits,
                f"{operator}: moving the values of one rank is no change of layout; use "
                "it in a program without layouts (`hybrid_parallel`)",
            )
            for operator in ("broadcast", "send_receive", "reduce", "neighbor_exchange")
            for splits in ((X, ()), ((), ()))
        ),
    ],
)
def test_moves_that_would_not_keep_the_tensor_are_refused(
    operator: str, attributes: Attributes, splits: tuple[tuple[str, ...], ...], message: str
) -> None:
    info = operator_info(operator, [TensorType("float64", (8, 6))], attributes)
    with pytest.raises(StrategyError) as refused:
        info.infer_layouts([Layout(splits)], MESH)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("operator", "attributes", "message"),
    [
        ("all_gather", {"dimension": -1}, "all_gather: `dimension` is -1, the operand has 2 "),
        ("local_slice", {"dimension": 2}, "local_slice: `dimension` is 2, the operand has 2 "),
        (
            "all_to_all",
            {"split_dimension": 1, "concat_dimension": -2},
            "all_to_all: `concat_dimension` is -2, the operand has 2 ",
        ),
        ("halo_sum", {"dimension": -1}, "halo_sum: `dimension` is -1, the operand has 2 "),
    ],
)
def test_a_dimension_that_is_not_there_is_refused(
    operator: str, attributes: Attributes, message: str
) -> None:
    with pytest.raises(IRError) as refused:
        operator_info(operator, [TYPE], {"axes": X, **attributes})
    assert str(refused.value) == f"{message}dimensions; dimensions are counted from 0"


HALO = {"size": 8, "windows": 8, "stride": 1, "before": 1, "span": 3}


@pytest.mark.parametrize(
    ("attributes", "size", "message"),
    [
        (
            {"axes": Y, "slices": 2},
            8,
            "dimension 0 is split over ['x'], it must be split over ['y'], 2 ways",
        ),
        (
            {"axes": X, "slices": 4},
            8,
            "dimension 0 is split over ['x'], it must be split over ['x'], 4 ways",
        ),
        ({"axes": X, "slices": 2}, 12, "dimension 0 has the size 12, expected 8"),
    ],
)
def test_a_halo_of_other_slices_is_refused(attributes: Attributes, size: int, message: str) -> None:
    given = {**HALO, "dimension": 0, **attributes}
    info = operator_info("halo_exchange", [TensorType("float64", (size, 8))], given)
    with pytest.raises(StrategyError) as refused:
        info.infer_layouts([Layout((X, ()))], MESH)
    assert str(refused.value) == f"halo_exchange: {message}"


def test_runs_of_partial_maxima_are_not_added_up() -> None:
    info = operator_info(
        "halo_sum", [TensorType("float64", (12, 8))], {**HALO, "axes": X, "slices": 2}
    )
    assert moved(info, Layout((X, ()), ("y",))) == Layout((X, ()), ("y",))
    with pytest.raises(StrategyError) as refused:
        info.infer_layouts([Layout((X, ()), ("y",), "max")], MESH)
    assert str(refused.value) == (
        "halo_sum: the operand is partial over ['y'] (max), expected partial sums"
    )


def test_unequal_slices_are_not_packed() -> None:
    info = operator_info("pack", [TensorType("float64", (5, 4))], {"length": 24})
    with pytest.raises(StrategyError) as refused:
        info.infer_layouts([Layout((X, ()))], MESH)
    assert str(refused.value) == (
        "a part of shape (5, 4) is split 2x1 ways, slices in a buffer must be equally large"
    )
