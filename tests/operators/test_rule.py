from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.ir.errors import IRError, StrategyError
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.operators.indexing.shape import common_refinement
from shardwright.operators.notation import resolve

MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 2)))
MATMUL = resolve("... m k+, ... k+ n -> ... m n", [(3, 4, 8), (8, 6)])


def test_notation_is_filled_in() -> None:
    assert MATMUL.operands == ((("d0",), ("m",), ("k",)), (("k",), ("n",)))
    assert MATMUL.results == ((("d0",), ("m",), ("n",)),)
    assert MATMUL.sizes == {"d0": 3, "m": 4, "k": 8, "n": 6}
    assert MATMUL.kinds == {"d0": "parallel", "m": "parallel", "k": "sum", "n": "parallel"}
    assert (MATMUL.points, MATMUL.result_shapes) == (3 * 4 * 8 * 6, ((3, 4, 6),))


def test_broadcast_dimensions_have_no_factor() -> None:
    rule = resolve("..., ... -> ...", [(4, 1), (2, 1, 6)])
    assert rule.operands == ((("d1",), ()), (("d0",), (), ("d2",)))
    assert rule.result_shapes == ((2, 4, 6),)


def test_a_contracted_factor_leaves_partial_sums() -> None:
    strategy = Strategy.of({"m": ("x",), "k": ("y",)})
    assert MATMUL.result_layouts(strategy, MESH) == (Layout(((), ("x",), ()), ("y",)),)
    assert MATMUL.mirror_axes(0, strategy, MESH) == ()
    assert MATMUL.mirror_axes(1, strategy, MESH) == ("x",)


def test_strategies_are_all_and_only_the_legal_ones() -> None:
    found = MATMUL.strategies(MESH)
    legal = set()
    for x, y in product([None, *MATMUL.sizes], repeat=2):
        axes: dict[str, tuple[str, ...]] = {}
        for name, factor in (("x", x), ("y", y)):
            if factor:
                axes[factor] = (*axes.get(factor, ()), name)
        strategy = Strategy.of({factor: axes[factor] for factor in MATMUL.sizes if factor in axes})
        try:
            MATMUL.check(strategy, MESH)
        except StrategyError:
            continue
        legal.add(strategy)
    assert len(found) == len(set(found))
    assert set(found) == legal
    assert (str(found[0]), found[-1]) == ("d0=x, m=y", Strategy())


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ({"q": ("x",)}, "there is no factor `q`; the factors are ('d0', 'm', 'k', 'n')"),
        ({"m": ("x",), "n": ("x",)}, "a mesh axis is used twice in `m=x, n=x`"),
        ({"d0": ("x", "y")}, "factor `d0` of size 3 cannot be split 4 ways"),
    ],
)
def test_wrong_strategies_are_refused(strategy: dict[str, tuple[str, ...]], message: str) -> None:
    with pytest.raises(StrategyError) as error:
        MATMUL.check(Strategy.of(strategy), MESH)
    assert str(error.value) == message


def test_whole_factors_are_refused() -> None:
    rule = resolve("... c^ -> ... c^", [(4, 8)])
    with pytest.raises(StrategyError) as error:
        rule.check(Strategy.of({"c": ("x",)}), MESH)
    assert str(error.value) == "factor `c` must stay whole on a device"
    assert {factor for s in rule.strategies(MESH) for factor in s.axes} == {"d0"}


def test_operands_that_disagree_are_refused() -> None:
    with pytest.raises(StrategyError) as error:
        MATMUL.strategy_from([Layout(((), (), ("x",))), Layout((("y",), ()))], MESH)
    assert str(error.value) == (
        "factor `k` is split over ['x'] in one tensor and over ['y'] in another"
    )


@pytest.mark.parametrize(
    ("notation", "shapes", "message"),
    [
        (
            "m k+, k+ n -> m n",
            [(2, 3), (4, 5)],
            "factor `k` is 3 elsewhere but 4 here (in operand 1 of `m k+, k+ n -> m n`)",
        ),
        (
            "m k -> m k",
            [(2, 3, 4)],
            "the shape (2, 3, 4) has 3 dimensions, 2 expected (in operand 0 of `m k -> m k`)",
        ),
        ("m, m -> m", [(2,)], "1 operands were given, `m, m -> m` takes 2"),
        ("m -> m n", [(2,)], "the size of factor `n` of `m -> m n` is not given"),
        ("m! -> m", [(2,)], "`m!` is not a factor; write a name with `^`, `~`, `+` or nothing"),
        (
            "..., ... -> ...",
            [(2, 3), (2, 4)],
            "factor `d1` is 3 elsewhere but 4 here (in operand 1 of `..., ... -> ...`)",
        ),
    ],
)
def test_wrong_operands_are_refused(
    notation: str, shapes: list[tuple[int, ...]], message: str
) -> None:
    with pytest.raises(IRError) as error:
        resolve(notation, shapes)
    assert str(error.value) == message


# Compound dimensions


def test_a_minor_factor_is_split_only_under_a_full_major_one() -> None:
    rule = resolve("a b -> (a b)", [(2, 4)])
    rule.check(Strategy.of({"a": ("x",), "b": ("y",)}), MESH)
    with pytest.raises(StrategyError) as error:
        rule.check(Strategy.of({"b": ("y",)}), MESH)
    assert str(error.value) == (
        "factor `b` can be split only where `a`, of size 2, is split fully; it is split 1 ways"
    )


@pytest.mark.parametrize(
    ("before", "after", "operand", "result"),
    [
        ((32, 512, 7, 7), (32, 25088), "f0 f1 f2 f3", "f0 (f1 f2 f3)"),
        ((4, 6), (2, 2, 6), "(f0 f1) f2", "f0 f1 f2"),
        ((4, 6), (6, 4), "(f0 f1^) f3^", "(f0 f2^) f4^"),
        ((2, 3, 4), (3, 2, 4), "f0^ f2^ f4", "f1^ f3^ f4"),
        ((8, 1, 16), (8, 4, 1, 4), "f0 1 (f1 f2)", "f0 f1 1 f2"),
        ((1,), (), "1", ""),
    ],
)
def test_reshapes_share_factors(
    before: tuple[int, ...], after: tuple[int, ...], operand: str, result: str
) -> None:
    rule = common_refinement(before, after)

    def text(dims: tuple[tuple[str, ...], ...]) -> str:
        marked = [[f + "^" * (rule.kinds[f] == "whole") for f in factors] for factors in dims]
        joined = [f"({' '.join(m)})" if len(m) > 1 else "".join(m) or "1" for m in marked]
        return " ".join(joined)

    assert (text(rule.operands[0]), text(rule.results[0])) == (operand, result)


@given(st.permutations([2, 2, 3, 4, 5]), st.permutations([2, 2, 3, 4, 5]))
def test_reshapes_keep_both_shapes(before: list[int], after: list[int]) -> None:
    rule = common_refinement(tuple(before), tuple(after))
    assert rule.result_shapes == (tuple(after),)
    assert rule.view().operand_shapes == (tuple(before),)
    assert rule.kinds["f0"] == "whole" or before[0] % 2 == after[0] % 2


# What a rank sees


def test_views_divide_the_work() -> None:
    strategy = Strategy.of({"m": ("y", "x"), "k": ()})
    views = [MATMUL.view(strategy, MESH, rank) for rank in range(4)]
    assert [view.starts["m"] for view in views] == [0, 2, 1, 3]
    assert {view.sizes["m"] for view in views} == {1}
    assert views[0].operand_shapes == ((3, 1, 8), (8, 6))
    assert views[0].result_shapes == ((3, 1, 6),)


def test_the_last_factor_is_split_unevenly_where_the_others_are_split_fully() -> None:
    rule = resolve("(g n) c -> g n c", [(6, 2)], {"g": 2, "n": 3})
    full, part = Strategy.of({"g": ("x",), "n": ("y",)}), Strategy.of({"n": ("y",)})
    rule.check(full, MESH)
    assert rule.strategy_from(rule.operand_layouts(full), MESH) == full
    assert full not in rule.strategies(MESH)
    with pytest.raises(StrategyError, match="factor `n` of size 3 cannot be split 2 ways"):
        rule.check(part, MESH)
