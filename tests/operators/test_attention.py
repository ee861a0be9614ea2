import numpy as np
import pytest

from shardwright.ir.errors import IRError
from shardwright.ir.layout import Strategy
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.attention import scaled_dot_product as attention
from shardwright.operators.attention.reach import visible_pairs
from shardwright.operators.checks.spmd import assemble, run_shards, scatter
from shardwright.operators.info import Array, operator_info, whole_kernel

B, H, S, T, D, E = 2, 3, 8, 8, 4, 5


def operands() -> list[Array]:
    random = np.random.default_rng(0)
    return [random.standard_normal(s) for s in ((B, H, S, D), (B, H, T, D), (B, H, T, E))]


def types(arrays: list[Array]) -> list[TensorType]:
    return [TensorType("float64", x.shape) for x in arrays]


def expected(q: Array, k: Array, v: Array, causal: bool) -> Array:
    """Attention one query at a time."""
    out = np.zeros((B, H, S, E))
    for b, h, s in np.ndindex(B, H, S):
        keys = range(s + 1 if causal else T)
        weights = np.array([np.exp(q[b, h, s] @ k[b, h, t] / D**0.5) for t in keys])
        out[b, h, s] = sum(w * v[b, h, t] for w, t in zip(weights, keys, strict=True))
        out[b, h, s] /= weights.sum()
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("at_once", [1, 3 * B * H * T, 1 << 22])
def test_attention_one_query_at_a_time(
    causal: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", at_once)
    q, k, v = operands()
    info = operator_info("scaled_dot_product_attention", types([q, k, v]), {"causal": causal})
    (out,) = whole_kernel(info, q, k, v)
    np.testing.assert_allclose(out, expected(q, k, v, causal), rtol=1e-12)


@pytest.mark.parametrize("at_once", [1, 3 * B * H * T])
def test_the_gradient_does_not_depend_on_the_blocks(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = operands()
    dy = np.random.default_rng(1).standard_normal((B, H, S, E))
    name = "scaled_dot_product_attention_gradient"
    info = operator_info(name, types([dy, q, k, v]), {"causal": True})
    whole = whole_kernel(info, dy, q, k, v)
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", at_once)
    for found, right in zip(whole_kernel(info, dy, q, k, v), whole, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-15)


def test_queries_split_with_a_causal_mask_leave_partial_gradients_of_keys() -> None:
    q, k, v = operands()
    arrays = [np.random.default_rng(1).standard_normal((B, H, S, E)), q, k, v]
    name = "scaled_dot_product_attention_gradient"
    info = operator_info(name, types(arrays), {"causal": True})
    mesh, strategy = Mesh((MeshAxis("x", 4),)), Strategy.of({"s": ("x",)})
    taken, left = info.infer_tensor_layouts(strategy, mesh)
    assert [layout.partial for layout in left] == [(), ("x",), ("x",)]
    shards = [scatter(x, layout, mesh) for x, layout in zip(arrays, taken, strict=True)]
    results = run_shards(info, strategy, mesh, shards)
    for parts, layout, whole in zip(results, left, whole_kernel(info, *arrays), strict=True):
        found = assemble(parts, layout, whole.shape, mesh)
        np.testing.assert_allclose(found, whole, rtol=1e-12, atol=1e-14)


def test_flops_count_the_products_over_the_features() -> None:
    info = operator_info("scaled_dot_product_attention", types(operands()), {})
    assert info.flops == B * H * S * T * (2 * (D + E) + 5)


def test_features_of_values_are_split_only_on_demand() -> None:
    info = operator_info("scaled_dot_product_attention", types(operands()), {})
    mesh = Mesh((MeshAxis("x", 5),))
    assert not any("e" in strategy.axes for strategy in info.generate_strategies(mesh))
    info.check_strategy(Strategy.of({"e": ("x",)}), mesh)


@pytest.mark.parametrize("causal", [False, True])
def test_heads_of_keys_are_shared(causal: bool) -> None:
    random = np.random.default_rng(2)
    q, k, v = (random.standard_normal((B, heads, S, D)) for heads in (6, 2, 2))
    repeated = [np.repeat(x, 3, axis=1) for x in (k, v)]
    (shared,), (copied,) = (
        whole_kernel(
            operator_info("scaled_dot_product_attention", types(list(x)), {"causal": causal}), *x
        )
        for x in ((q, k, v), (q, *repeated))
    )
    np.testing.assert_allclose(shared, copied, rtol=1e-12)


def test_heads_of_queries_are_split_beyond_those_of_keys() -> None:
    arrays = [np.zeros((B, heads, S, D)) for heads in (8, 2, 2)]
    info = operator_info("scaled_dot_product_attention", types(arrays), {})
    mesh = Mesh((MeshAxis("x", 2), MeshAxis("y", 2)))
    strategy = Strategy.of({"h": ("x",), "g": ("y",)})
    assert strategy in info.generate_strategies(mesh)
    assert info.split_counts(strategy, mesh) == ((1, 4, 1, 1), (1, 2, 1, 1), (1, 2, 1, 1))


def test_what_is_masked_is_not_read() -> None:
    q, k, v = operands()
    seen = np.array([True, False, True, True, False, False, True, False])
    mask = np.broadcast_to(seen, (B, 1, S, T)).copy()
    mask[0, 0, 0] = False
    added = np.where(mask, 0.0, -np.inf)
    name = "scaled_dot_product_attention"
    arrays = [q, k, v]
    kinds = types(arrays)
    by_truth = operator_info(name, [*kinds, TensorType("bool", mask.shape)], {})
    (found,) = whole_kernel(by_truth, q, k, v, mask)
    assert not found[0, :, 0].any(), "a query that reads no key gives zero"
    (few,) = whole_kernel(
        operator_info(name, types([q, k[:, :, seen], v[:, :, seen]]), {}),
        q,
        k[:, :, seen],
        v[:, :, seen],
    )
    np.testing.assert_allclose(found[1], few[1], rtol=1e-12)
    by_sum = operator_info(name, [*kinds, TensorType("float64", added.shape)], {})
    np.testing.assert_array_equal(whole_kernel(by_sum, q, k, v, added)[0], found)


def restricted(
    arrays: list[Array], window: int, chunk: int, cap: float, sinks: Array | None
) -> Array:
    """Attention with a window, a chunk, capped scores or sinks, one query at a time."""
    q, k, v = arrays
    shared = q.shape[1] // k.shape[1]
    out = np.zeros((*q.shape[:3], v.shape[3]))
    for b, h, s in np.ndindex(q.shape[:3]):
        first = max(0, s - window + 1) if window else s // chunk * chunk if chunk else 0
        scores = k[b, h // shared, first : s + 1] @ q[b, h, s] / q.shape[3] ** 0.5
        weights = np.exp(cap * np.tanh(scores / cap) if cap else scores)
        total = weights.sum() + (0 if sinks is None else np.exp(sinks[h]))
        out[b, h, s] = weights @ v[b, h // shared, first : s + 1] / total
    return out


@pytest.mark.parametrize("at_once", [1, 1 << 22])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("cap", [0.0, 0.7])
@pytest.mark.parametrize(("window", "chunk"), [(0, 0), (1, 0), (3, 0), (20, 0), (0, 3), (0, 8)])
def test_windows_chunks_caps_and_sinks_one_query_at_a_time(
    window: int,
    chunk: int,
    cap: float,
    with_sinks: bool,
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", at_once)
    random = np.random.default_rng(3)
    arrays = [random.standard_normal(s) for s in ((B, 4, S, D), (B, 2, S, D), (B, 2, S, E))]
    sinks = [random.standard_normal(4)] * with_sinks
    attributes = {"window": window, "chunk": chunk, "soft_cap": cap, "sinks": with_sinks}
    info = operator_info(
        "scaled_dot_product_attention", types([*arrays, *sinks]), {"causal": True, **attributes}
    )
    (found,) = whole_kernel(info, *arrays, *sinks)
    right = restricted(arrays, window, chunk, cap, sinks[0] if sinks else None)
    np.testing.assert_allclose(found, right, rtol=1e-12)


@pytest.mark.parametrize("at_once", [1, 1 << 22])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize(("window", "chunk"), [(0, 0), (2, 0), (0, 3)])
def test_documents_are_as_rows_of_their_own(
    window: int, chunk: int, with_sinks: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", at_once)
    random = np.random.default_rng(4)
    arrays = [random.standard_normal(s) for s in ((B, 4, S, D), (B, 2, S, D), (B, 2, S, E))]
    sinks = [random.standard_normal(4)] * with_sinks
    lengths = ((3, 5), (1, 4, 3))
    positions = np.array([np.concatenate([np.arange(n) for n in row]) for row in lengths])
    attributes = {"causal": True, "window": window, "chunk": chunk, "sinks": with_sinks}
    kinds = types(arrays) + [TensorType("int64", positions.shape)] + types(sinks)
    name = "scaled_dot_product_attention"
    info = operator_info(name, kinds, {**attributes, "documents": 3})
    (found,) = whole_kernel(info, *arrays, positions, *sinks)
    for row, own in enumerate(lengths):
        for end, length in zip(np.cumsum(own), own, strict=True):
            part = [x[row : row + 1, :, end - length : end] for x in arrays]
            alone = operator_info(name, types([*part, *sinks]), attributes)
            (right,) = whole_kernel(alone, *part, *sinks)
            np.testing.assert_allclose(found[row, :, end - length : end], right[0], rtol=1e-12)


@pytest.mark.parametrize(("window", "chunk"), [(0, 0), (2, 0), (0, 3)])
def test_documents_cost_as_rows_of_their_own(window: int, chunk: int) -> None:
    for queries, length in ((12, 4), (12, 5), (7, 7), (5, 9)):
        lengths = [length] * (queries // length) + [queries % length]
        alone = sum(visible_pairs(n, n, True, window, chunk) for n in lengths)
        assert visible_pairs(queries, queries, True, window, chunk, length) == alone


@pytest.mark.parametrize("keys", [3, 8, 11])
@pytest.mark.parametrize(("window", "chunk"), [(0, 0), (1, 0), (3, 0), (20, 0), (0, 3), (0, 20)])
def test_operations_are_those_of_the_pairs_that_are_read(
    keys: int, window: int, chunk: int
) -> None:
    for queries in range(12):
        pairs = sum(
            j <= i and (not window or j > i - window) and (not chunk or j >= i // chunk * chunk)
            for i in range(queries)
            for j in range(keys)
        )
        assert visible_pairs(queries, keys, True, window, chunk) == pairs


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"window": 2}, "a window or chunk needs `causal`, which is False"),
        ({"causal": True, "window": 2, "chunk": 2}, "it has a window (2) and a chunk (2), not one"),
        ({"window": -1}, "a window, chunk, document or soft cap is negative, expected 0 or more"),
        ({"documents": 2}, "documents need `causal`, which is False"),
        (
            {"causal": True, "documents": 2, "sinks": True},
            "with documents there are 5 operands, the last of them positions of queries and scores "
            "of heads, and no mask; found 3",
        ),
        (
            {"sinks": True},
            "with sinks there are 4 operands, the last of them scores of heads, and no mask; "
            "found 3",
        ),
    ],
)
def test_restrictions_that_contradict_each_other_are_refused(
    attributes: dict[str, object], message: str
) -> None:
    with pytest.raises(IRError) as caught:
        operator_info("scaled_dot_product_attention", types(operands()), attributes)
    assert caught.value.what == f"scaled_dot_product_attention: {message}"
