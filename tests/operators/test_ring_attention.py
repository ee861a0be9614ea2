"""Attention on a ring, beyond the examples of the operator, and the work of its turns."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from shardwright.ir.errors import ExecutionError, StrategyError
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.attention.ring import RingAttention
from shardwright.operators.checks.gradients import check_gradients
from shardwright.operators.checks.spmd import assemble, run_shards, scatter
from shardwright.operators.communication.rings import Exchange, RingOperator, Turns, run_ring
from shardwright.operators.info import (
    Array,
    OperatorInfo,
    operator_class,
    operator_info,
    operator_names,
    whole_kernel,
)

RINGS = [n for n in operator_names() if issubclass(operator_class(n), RingOperator)]


def attention(
    s: int, t: int, heads: int = 2, kv_heads: int = 1, causal: bool = True
) -> OperatorInfo:
    shapes = [(2, heads, s, 3), (2, kv_heads, t, 3), (2, kv_heads, t, 5)]
    types = [TensorType("float64", shape) for shape in shapes]
    return operator_info("scaled_dot_product_attention", types, {"causal": causal})


def operands_of(info: OperatorInfo) -> list[Array]:
    random = np.random.default_rng(0)
    return [3 * random.standard_normal(kind.shape) for kind in info.operand_types]


def ring(*axes: str) -> Strategy:
    return Strategy.of({"s": axes, "t": axes})


def on_ring(info: OperatorInfo) -> tuple[RingAttention, Strategy]:
    """Return the operator that ranks run, and its strategy."""
    form = info.rule.form_of(ring("x"))
    assert form is not None
    attributes, strategy = form.along(ring("x"))
    found = operator_info(form.operator, info.operand_types, attributes)
    assert isinstance(found, RingAttention)
    return found, strategy


def mesh_of(*sizes: int) -> tuple[Mesh, tuple[str, ...]]:
    names = tuple("xyz"[: len(sizes)])
    return Mesh(tuple(map(MeshAxis, names, sizes))), names


@pytest.mark.parametrize("form", ["ring", "causal ring", "balanced"])
@pytest.mark.parametrize("sizes", [(2,), (3,), (4,), (2, 3), (5,)])
@pytest.mark.parametrize("lengths", [(12, 12), (13, 13), (7, 7), (11, 8), (8, 11), (6, 6)])
def test_forms_compute_attention_and_its_gradients(
    sizes: tuple[int, ...], lengths: tuple[int, int], form: str
) -> None:
    mesh, names = mesh_of(*sizes)
    info = attention(*lengths, causal=form != "ring")
    strategy, operands = ring(*names), operands_of(info)
    if form == "balanced":
        strategy = Strategy.of({"s": names, "halves": names})
        if lengths[0] != lengths[1]:
            assert "halves" not in info.rule.marks
            return
    info.check_strategy(strategy, mesh)
    layouts = info.infer_tensor_layouts(strategy, mesh)
    shards = [scatter(x, layout, mesh) for x, layout in zip(operands, layouts[0], strict=True)]
    results = run_shards(info, strategy, mesh, shards)
    (whole,) = whole_kernel(info, *operands)
    np.testing.assert_allclose(
        assemble(results[0], layouts[1][0], whole.shape, mesh), whole, 1e-12, 1e-12
    )
    check_gradients(info, strategy, mesh, layouts, shards, results, operands)


@pytest.mark.parametrize("mark", ["t", "halves"])
@pytest.mark.parametrize("factor", ["b", "h", "g"])
def test_a_form_with_another_split(factor: str, mark: str) -> None:
    mesh, _ = mesh_of(2, 3)
    info = attention(7, 7)
    strategy = Strategy.of({factor: ("x",), "s": ("y",), mark: ("y",)})
    if factor == "h":  # its heads of keys
        types = [TensorType("float64", (2, 2, *kind.shape[2:])) for kind in info.operand_types]
        info = operator_info(info.name, types, {"causal": True})
    info.check_strategy(strategy, mesh)
    layouts, operands = info.infer_tensor_layouts(strategy, mesh), operands_of(info)
    shards = [scatter(x, layout, mesh) for x, layout in zip(operands, layouts[0], strict=True)]
    results = run_shards(info, strategy, mesh, shards)
    check_gradients(info, strategy, mesh, layouts, shards, results, operands)


@pytest.mark.parametrize("name", RINGS)
def test_every_ring_stands_for_an_operator_that_is_tested(name: str) -> None:
    kind = operator_class(name)
    assert issubclass(kind, RingOperator)
    assert operator_class(kind.whole).examples


def test_a_ring_splits_keys_like_queries_or_not_at_all() -> None:
    mesh, _ = mesh_of(2, 2)
    info = attention(8, 8)
    info.check_strategy(ring("x", "y"), mesh)
    with pytest.raises(StrategyError, match="asks for two forms"):
        info.check_strategy(Strategy.of({"s": ("x",), "t": ("x",), "halves": ("x",)}), mesh)
    for wrong in ({"s": ("x",), "t": ("y",)}, {"t": ("x",)}, {"s": ("x", "y"), "t": ("x",)}):
        with pytest.raises(StrategyError, match="it must be whole or split like `s`"):
            info.check_strategy(Strategy.of(wrong), mesh)
    with pytest.raises(StrategyError, match="used twice"):
        info.check_strategy(Strategy.of({"s": ("x",), "t": ("x",), "h": ("x",)}), mesh)


def test_split_keys_need_a_ring() -> None:
    mesh, _ = mesh_of(2)
    info = attention(8, 8)
    taken = info.rule.operand_layouts(ring("x"))
    with pytest.raises(StrategyError, match="every rank reads all of it") as caught:
        info.infer_layouts(taken, mesh)
    assert caught.value.hint == "use `ring_attention`"


def test_the_ring_is_along_the_split() -> None:
    mesh, _ = mesh_of(2, 2)
    types = attention(8, 8).operand_types
    info = operator_info("ring_attention", types, {"axes": ("x",)})
    layouts = [Layout(((), (), axes, ())) for axes in [("y",)] * 3]
    with pytest.raises(StrategyError, match="the ring is along"):
        info.infer_layouts(layouts, mesh)
    split = Strategy.of({"s": ("x",)})
    assert info.infer_layouts(info.rule.operand_layouts(split), mesh)[0] == split


def test_a_mask_needs_all_keys() -> None:
    types = [*attention(8, 8).operand_types, TensorType("bool", (2, 1, 8, 8))]
    info = operator_info("scaled_dot_product_attention", types, {})
    mesh, _ = mesh_of(2)
    assert not any("t" in strategy.axes for strategy in info.generate_strategies(mesh))
    with pytest.raises(StrategyError, match="must stay whole"):
        info.check_strategy(ring("x"), mesh)


@pytest.mark.parametrize("members", [2, 3, 4, 8])
def test_a_balanced_ring_computes_half_of_the_scores(members: int) -> None:
    mesh, _ = mesh_of(members)
    length = 96 * members
    info = attention(length, length)
    run, along = on_ring(info)
    layouts = run.rule.operand_layouts(along)
    busiest = sum(turn.flops for turn in run.rounds(layouts, mesh))
    assert info.flops / members <= busiest <= 1.02 * info.flops / members
    gathered = info.rule.operand_layouts(Strategy.of({"s": ("x",)}))
    assert info.imbalance(gathered, mesh) == pytest.approx(2 - 1 / members, rel=0.01)


@pytest.mark.parametrize("members", [2, 3, 4, 8])
def test_balanced_queries_have_half_of_the_scores_on_every_rank(members: int) -> None:
    mesh, _ = mesh_of(members)
    info = attention(24 * members, 24 * members)
    strategy = Strategy.of({"s": ("x",), "halves": ("x",)})
    form = info.rule.form_of(strategy)
    assert form is not None
    attributes, along = form.along(strategy)
    run = operator_info(form.operator, info.operand_types, attributes)
    assert isinstance(run, RingOperator)
    before, work, after = run.rounds(run.rule.operand_layouts(along), mesh)
    assert work.flops == pytest.approx(info.flops / members)
    share = 0.5 if members == 2 else 1.0
    queries, results = 8 * 2 * 2 * 24 * 3, 8 * 2 * 2 * 24 * 5
    assert (before.sent_bytes, after.sent_bytes) == (share * queries, share * results)


@pytest.mark.parametrize(("members", "length"), list(product((2, 3, 4), (12, 13, 23))))
def test_no_rank_of_a_balanced_ring_has_more_work_than_its_price(members: int, length: int) -> None:
    mesh, _ = mesh_of(members)
    info = attention(length, length)
    run, along = on_ring(info)
    turns = [t for t in run.rounds(run.rule.operand_layouts(along), mesh) if t.flops]
    queries, keys = run.parts([members])
    rows = 2 * 2  # samples and heads
    for turn, rank in product(range(members), range(members)):
        pairs = sum(
            max(0, min(key + count, q + 1) - key)
            for start, stop in queries.of(rank)
            for q in range(start, start + stop)
            for key, count in keys.of((rank - turn) % members)
        )
        assert rows * pairs * run.flops_per_score <= turns[turn].flops


def _silent(member: int) -> Turns:
    """Expect a message that nobody sends."""
    receive = yield Exchange({}, (1 - member,))
    return (receive()[1 - member][0][0],)


def _short(member: int) -> Turns:
    """End after as many exchanges as the member has number."""
    for _ in range(member):
        yield Exchange({}, ())
    return ()


@pytest.mark.parametrize(
    ("work", "message"), [(_silent, "expects messages of"), (_short, "have ended")]
)
def test_turns_that_do_not_fit_are_refused(work: Callable[[int], Turns], message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        run_ring([work(0), work(1)])
