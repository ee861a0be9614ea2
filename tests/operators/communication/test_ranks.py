"""Communication between single ranks of hand-written programs: its values and its transposes."""

import numpy as np
import pytest

from shardwright.ir.attributes import Attributes
from shardwright.ir.errors import IRError, StrategyError
from shardwright.ir.graph import Value
from shardwright.ir.layout import Layout
from shardwright.operators.builder import Builder
from shardwright.operators.checks.spmd import Parts, exchange
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import Linearization, operator_info
from tests.operators.test_communication import MESH, TYPE, info_of

# Operators of hand-written programs: what each rank holds is a tensor of its own.


def inner(a: Parts, b: Parts) -> float:
    return sum(float((x * y).sum()) for x, y in zip(a, b, strict=True))


def pulled(info: Communication, cotangent: Parts, operand: Parts | None = None) -> Parts:
    """Run the gradient on tensors that differ from rank to rank."""
    build = Builder()
    x = build.input(Value("operand", info.operand_types[0]))
    y = build.input(Value("result", info.result_types[0]))
    dy = build.input(Value("cotangent", info.result_types[0]))
    (gradient,) = info.gradient(build, Linearization([x], [y], [dy]))
    assert gradient is not None
    held = {"cotangent": cotangent}
    if operand is not None:
        held |= {"operand": operand, "result": exchange(info, operand, MESH)}
    graph = build.graph("gradient", (gradient.name,))
    for node in build.nodes:
        kinds = [value.type for value in graph.operand_values(node)]
        emitted = operator_info(node.operator, kinds, node.attributes)
        read = [held[name] for name in node.operands]
        if isinstance(emitted, Communication):
            held[node.name] = exchange(emitted, read[0], MESH)
        else:
            view = emitted.rule.view()
            held[node.name] = [emitted.kernel(view, *own) for own in zip(*read, strict=True)]
    return held[gradient.name]


@pytest.mark.parametrize("wrap", [True, False])
@pytest.mark.parametrize("shift", [-1, 1, 2])
def test_neighbor_exchange_and_its_gradient_are_transposes(shift: int, wrap: bool) -> None:
    random = np.random.default_rng(0)
    axes = ("x", "z")
    info = info_of("neighbor_exchange", {"axes": axes, "shift": shift, "wrap": wrap})
    x, y = ([random.standard_normal(TYPE.shape) for _ in range(8)] for _ in range(2))
    passed = exchange(info, x, MESH)
    assert inner(passed, y) == pytest.approx(inner(x, pulled(info, y)), rel=1e-12)
    for group in MESH.groups(axes):
        for i, rank in enumerate(group):
            source = i - shift
            inside = wrap or 0 <= source < len(group)
            expected = x[group[source % len(group)]] if inside else np.zeros(TYPE.shape)
            np.testing.assert_array_equal(passed[rank], expected)


GROUPS = ((0, 3, 5), (7, 1, 2), (4, 6))
EVEN = ((0, 3, 5, 6), (7, 1, 2, 4))
COUNTS = ((0, 1, 2, 5), (3, 0, 5, 0), (4, 2, 1, 1), (1, 5, 0, 2))
UNEVEN = ((0, 1, 2, 5), (0, 0, 0, 0), (4, 0, 1, 0), (1, 0, 0, 2))
OF_RANKS: list[tuple[str, Attributes]] = [
    ("send_receive", {"axes": ("x", "y"), "pairs": ((1, 2),)}),
    ("send_receive", {"axes": ("y", "x"), "pairs": ((0, 1), (0, 2), (2, 0))}),
    ("send_receive", {"groups": EVEN, "pairs": ((3, 0), (0, 3))}),
    ("send_receive", {"axes": ("x",)}),
    ("reduce", {"axes": ("y", "z"), "root": 2}),
    ("reduce", {"groups": GROUPS, "root": 1}),
    ("collective_gather", {"axes": ("x",), "group_size": 2, "dimension": 1, "root": 1}),
    ("collective_gather", {"groups": EVEN, "group_size": 4, "root": 3}),
    ("collective_scatter", {"axes": ("x", "z"), "group_size": 4, "root": 1}),
    ("collective_scatter", {"groups": EVEN, "group_size": 4, "dimension": 1}),
    ("all_to_all_v", {"axes": ("z", "x"), "counts": COUNTS}),
    ("all_to_all_v", {"groups": EVEN, "group_size": 4, "counts": COUNTS}),
    ("all_to_all_v", {"axes": ("z", "x"), "counts": UNEVEN}),
    ("all_to_all", {"groups": EVEN, "group_size": 4, "split_dimension": 1}),
    ("neighbor_exchange", {"groups": GROUPS, "shift": 1}),
    ("neighbor_exchange", {"groups": GROUPS, "shift": -2, "wrap": False}),
    ("barrier", {"groups": GROUPS}),
    ("keep_members", {"groups": GROUPS, "members": (0, 2)}),
]


@pytest.mark.parametrize(("operator", "attributes"), OF_RANKS)
def test_operators_of_ranks_have_a_transpose(operator: str, attributes: Attributes) -> None:
    random = np.random.default_rng(0)
    info = info_of(operator, attributes)
    x = [random.standard_normal(TYPE.shape) for _ in range(8)]
    y = [random.standard_normal(info.result_types[0].shape) for _ in range(8)]
    moved = exchange(info, x, MESH)
    assert [part.shape for part in moved] == [part.shape for part in y]
    assert inner(moved, y) == pytest.approx(inner(x, pulled(info, y)), rel=1e-12)


@pytest.mark.parametrize("groups", [GROUPS, ()])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("operator", ["all_reduce", "reduce", "reduce_scatter"])
def test_reductions_over_groups(operator: str, kind: str, groups: tuple[tuple[int, ...], ...]):
    """Against numpy, and the gradient against differences; a zero does not stop a product."""
    if operator == "reduce_scatter" and groups:
        groups = EVEN
    attributes: Attributes = {"axes": MESH.names, "reduction": kind, "groups": groups}
    members = groups or (tuple(range(8)),)
    if operator == "reduce_scatter":
        attributes |= {"group_size": len(members[0])}
    info = info_of(operator, attributes)
    random = np.random.default_rng(0)
    x = [random.standard_normal(TYPE.shape) for _ in range(8)]
    x[members[0][1]][:4] = 0.0
    moved = exchange(info, x, MESH)
    ufunc = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}[kind]
    y = [random.standard_normal(part.shape) for part in moved]
    for group in members:
        total = ufunc.reduce([x[rank] for rank in group])
        for i, rank in enumerate(group):
            expected = total if operator == "all_reduce" or i == 0 else np.zeros_like(total)
            if operator == "reduce_scatter":
                expected = np.split(total, len(group))[i]
            np.testing.assert_allclose(moved[rank], expected, rtol=1e-12)
            if operator == "all_reduce":  # one value, with one cotangent
                y[rank] = y[group[0]]
    gradient = pulled(info, y, x)
    direction = [random.standard_normal(part.shape) for part in x]
    heads = range(8) if operator != "all_reduce" else [group[0] for group in members]

    def along(step: float) -> float:
        at = [a + step * b for a, b in zip(x, direction, strict=True)]
        found = exchange(info, at, MESH)
        return sum(float((found[r] * y[r]).sum()) for r in heads)

    slope = (along(1e-6) - along(-1e-6)) / 2e-6
    assert inner(gradient, direction) == pytest.approx(slope, rel=1e-6, abs=1e-6)


def test_equal_extrema_share_the_cotangent() -> None:
    info = info_of("all_reduce", {"axes": MESH.names, "reduction": "max"})
    x = [np.full(TYPE.shape, float(rank >= 6)) for rank in range(8)]
    gradient = pulled(info, [np.ones(TYPE.shape)] * 8, x)
    assert [part[0, 0] for part in gradient] == [0.0] * 6 + [0.5] * 2


@pytest.mark.parametrize(
    ("operator", "attributes", "what"),
    [
        ("all_reduce", {"groups": ((0, 1), (1, 2))}, "expected each rank in one group"),
        (
            "all_gather",
            {"groups": ((0, 1), (2,)), "group_size": 2},
            "`all_gather` expects groups of one size: its result has one shape on all ranks",
        ),
        ("send_receive", {"pairs": ((0, 1), (2, 1))}, "a member receives twice"),
        ("all_to_all_v", {"counts": ((8, 0), (8,))}, "expected a number for each pair"),
        ("all_to_all_v", {"counts": ((4, 0), (4, 0))}, "the members send at most 4 elements of 8"),
        ("all_to_all_v", {"counts": ((9, -1), (4, 0))}, "expected no negative numbers"),
    ],
)
def test_wrong_groups_and_lists_are_refused(operator: str, attributes: Attributes, what: str):
    with pytest.raises(IRError) as error:
        info_of(operator, attributes)
    assert what in str(error.value)


def test_groups_have_no_layouts() -> None:
    info = info_of("all_reduce", {"axes": ("x",), "groups": ((0, 1), (2, 3))})
    with pytest.raises(StrategyError, match="where tensors have layouts the axes give the groups"):
        info.infer_layouts([Layout(((), ()), ("x",))], MESH)


def test_broadcast_copies_the_root() -> None:
    x = [np.full(TYPE.shape, rank) for rank in range(8)]
    info = info_of("broadcast", {"axes": ("y",), "root": 1})
    held = [int(part[0, 0]) for part in exchange(info, x, MESH)]
    assert held == [2, 3, 2, 3, 6, 7, 6, 7]
