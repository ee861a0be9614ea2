"""Windows of every geometry may be split: values and gradients, over slices of unequal sizes."""

from typing import Any

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from shardwright.ir.errors import IRError
from shardwright.ir.graph import Value
from shardwright.ir.layout import Strategy
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.checks.spmd import assemble, execute, node_of, scatter
from shardwright.operators.info import Array, OperatorInfo, operator_info, whole_kernel
from shardwright.operators.windows.halo_exchange import emit_split, emit_split_gradient

MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 3)))
SPLITS = [{"s0": ("x",)}, {"s0": ("y",)}, {"s0": ("x", "y")}, {"s0": ("y",), "s1": ("x",)}]
sides = st.tuples(st.integers(0, 2), st.integers(0, 2))
geometries = st.fixed_dictionaries(
    {
        "kernel": st.tuples(st.integers(1, 3), st.integers(1, 3)),
        "stride": st.tuples(st.integers(1, 3), st.integers(1, 2)),
        "dilation": st.tuples(st.integers(1, 2), st.just(1)),
        "padding": st.tuples(sides, sides),
    }
)
spaces = st.tuples(st.integers(4, 19), st.integers(2, 7))


def check(info: OperatorInfo, arrays: list[Array], split: dict[str, tuple[str, ...]]) -> None:
    """Compare an operator and its gradient on slices with both on the whole."""
    strategy = Strategy.of(split)
    assume(strategy in info.generate_strategies(MESH))
    random = np.random.default_rng(1)
    results = [np.asarray(random.standard_normal(kind.shape)) for kind in info.result_types]
    found = [on_mesh(info, arrays, results, s, MESH) for s in (strategy, Strategy())]
    for split_up, whole in zip(*found, strict=True):
        np.testing.assert_allclose(split_up, whole, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(found[1][0], whole_kernel(info, *arrays)[0], rtol=1e-12)


def on_mesh(
    info: OperatorInfo, arrays: list[Array], pulled: list[Array], strategy: Strategy, mesh: Mesh
) -> list[Array]:
    build, (taken, left) = Builder(mesh), info.infer_tensor_layouts(strategy, mesh)
    values = [Value(f"operand{i}", info.operand_types[i], x) for i, x in enumerate(taken)]
    emitted = emit_split(build, node_of(info, values), values, strategy)
    cotangents = [
        Value(f"cotangent{i}", info.result_types[i], x.reduced()) for i, x in enumerate(left)
    ]
    gradients = emit_split_gradient(build, emitted, cotangents)
    given = zip([*values, *cotangents], [*arrays, *pulled], strict=True)
    tensors = {
        v.name: (v.type, v.layout, scatter(array, v.layout, mesh)) for v, array in given if v.layout
    }
    known = execute(build.nodes, tensors, mesh)
    wanted = [known[v.name] for v in (*emitted.results, *gradients) if v is not None]
    return [assemble(parts, layout, kind.shape, mesh) for kind, layout, parts in wanted]


def made(name: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any]) -> OperatorInfo:
    try:
        return operator_info(name, [TensorType("float64", s) for s in shapes], attributes)
    except IRError:  # no window fits, or one would cover padding alone
        assume(False)
        raise


def arrays_of(info: OperatorInfo) -> list[Array]:
    random = np.random.default_rng(0)
    return [np.asarray(random.standard_normal(kind.shape)) for kind in info.operand_types]


@given(geometries, spaces, st.sampled_from([1, 2]), st.sampled_from(SPLITS))
def test_convolutions(
    geometry: dict[str, Any], space: tuple[int, int], groups: int, split: dict[str, tuple[str, ...]]
) -> None:
    attributes = {**geometry, "groups": groups}
    kernel = attributes.pop("kernel")
    info = made("convolution", [(2, 2, *space), (2, 2 // groups, *kernel)], attributes)
    check(info, arrays_of(info), split)
    windows = info.result_types[0].shape
    back = made(
        "transposed_convolution",
        [windows, (2, 2 // groups, *kernel)],
        {**attributes, "size": space},
    )
    check(back, arrays_of(back), split)


@given(
    geometries,
    spaces,
    st.booleans(),
    st.sampled_from(["max_pool", "average_pool"]),
    st.sampled_from(SPLITS),
)
def test_poolings(
    geometry: dict[str, Any],
    space: tuple[int, int],
    ceil_mode: bool,
    name: str,
    split: dict[str, tuple[str, ...]],
) -> None:
    attributes = {**geometry, "ceil_mode": ceil_mode}
    if name == "average_pool":
        del attributes["dilation"]
        attributes["count_include_pad"] = not ceil_mode
    info = made(name, [(2, 2, *space)], attributes)
    check(info, arrays_of(info), split)


@given(
    st.integers(3, 12),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from(["nearest", "linear"]),
    st.sampled_from(["half_pixel", "asymmetric", "align_corners"]),
    st.sampled_from(["floor", "round_prefer_floor"]),
    st.sampled_from(SPLITS[:3]),
)
def test_resizing(
    size: int,
    factor: int,
    enlarge: bool,
    mode: str,
    coordinates: str,
    rounding: str,
    split: dict[str, tuple[str, ...]],
) -> None:
    sizes = (size, size * factor) if enlarge else (size * factor, size)
    how = {"mode": mode, "coordinates": coordinates, "rounding": rounding}
    info = made("resize", [(1, 2, sizes[0], 3)], {"size": (sizes[1], 5), **how})
    check(info, arrays_of(info), split)
    back = made("resize_gradient", [(1, 2, sizes[1], 5)], {"size": (sizes[0], 3), **how})
    check(back, arrays_of(back), split)
