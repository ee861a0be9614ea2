"""Halos: who reads what of whose slice; the exchange and the sum as transposes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.ir.errors import IRError, StrategyError
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.halo import Halo, deal
from shardwright.operators.info import OperatorInfo, operator_info
from shardwright.operators.notation import resolve
from shardwright.operators.rule import Rule
from shardwright.operators.windows.halo_exchange import halo_plan

halos = st.builds(
    Halo,
    size=st.integers(1, 40),
    windows=st.integers(1, 40),
    stride=st.integers(1, 3),
    before=st.integers(0, 3),
    span=st.integers(1, 5),
)
extents = st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple)


@given(st.integers(1, 50), extents)
def test_slices_are_dealt_as_the_mesh_deals_them(size: int, counts: tuple[int, ...]) -> None:
    mesh = Mesh(tuple(MeshAxis(f"a{i}", n) for i, n in enumerate(counts)))
    parts = tuple(mesh.part(size, mesh.names, rank) for rank in range(mesh.size))
    assert deal(size, counts) == parts


@given(halos, extents)
def test_margins_are_what_is_read_of_neighbours(halo: Halo, counts: tuple[int, ...]) -> None:
    owner = np.repeat(
        np.arange(len(deal(halo.size, counts))), [n for _, n in deal(halo.size, counts)]
    )
    before = after = 0
    for member, (begin, length) in enumerate(halo.runs(counts)):
        read = owner[max(begin, 0) : max(begin + length, 0)]
        if (np.abs(read - member) > 1).any():
            before = -1
            break
        before, after = max(before, (read < member).sum()), max(after, (read > member).sum())
    members = len(deal(1, counts))
    if before < 0 or min(halo.size, halo.windows) < members:
        assert halo.margins(counts) is None
    else:
        assert halo.margins(counts) == (before, after)


def moved(name: str, halo: Halo, counts: tuple[int, ...], parts: list) -> list:
    slices = len(parts)
    sizes = {"halo_exchange": halo.size, "halo_sum": slices * halo.length(slices)}
    attributes = {"axes": ("x",), "dimension": 1, "slices": slices, **vars(halo)}
    info = operator_info(name, [TensorType("float64", (2, sizes[name]))], attributes)
    assert isinstance(info, Communication)
    return info.exchange(parts, counts)


@given(halos, extents)
def test_exchange_and_sum_are_transposes(halo: Halo, counts: tuple[int, ...]) -> None:
    """<sum(y), x> = <y, exchange(x)>, and each leaves slices of the right sizes."""
    members = len(deal(1, counts))
    if min(halo.size, halo.windows) < members:
        return
    random = np.random.default_rng(0)
    x = [random.standard_normal((2, n)) for _, n in deal(halo.size, counts)]
    runs = moved("halo_exchange", halo, counts, x)
    y = [random.standard_normal(run.shape) for run in runs]
    back = moved("halo_sum", halo, counts, y)
    assert [part.shape for part in back] == [part.shape for part in x]
    left = sum(float((a * b).sum()) for a, b in zip(back, x, strict=True))
    right = sum(float((a * b).sum()) for a, b in zip(y, runs, strict=True))
    np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-9)


MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 2)))


def convolution(size: int, kernel: int, **attributes):
    kinds = [TensorType("float32", (1, 2, size, 4)), TensorType("float32", (2, 2, kernel, 1))]
    return operator_info("convolution", kinds, attributes)


def test_windows_wider_than_a_neighbour_are_not_split() -> None:
    info = convolution(12, 9, padding="same")
    split = {s.axes.get("s0", ()) for s in info.generate_strategies(MESH)}
    assert split == {(), ("x",), ("y",)}
    with pytest.raises(StrategyError, match="reach beyond the neighbours"):
        info.check_strategy(Strategy.of({"s0": ("x", "y")}), MESH)


def test_windows_that_tile_their_slices_exchange_nothing() -> None:
    kinds = [TensorType("float32", (1, 2, 8, 8))]
    info = operator_info("max_pool", kinds, {"kernel": 2, "stride": 2})
    plan = halo_plan(info, info.attributes, Strategy.of({"s0": ("x",)}), MESH)
    assert not plan.operands
    assert plan.attributes["slices"] == (2, 1)
    # Three windows a slice on one rank and two on the other do not.
    info = operator_info("max_pool", [TensorType("float32", (1, 2, 10, 8))], info.attributes)
    assert halo_plan(info, info.attributes, Strategy.of({"s0": ("x",)}), MESH).operands


def test_runs_exchanged_otherwise_than_split_are_refused() -> None:
    info = convolution(8, 3, padding="same")
    attributes = info.on_runs({"s0": 2})
    kinds = [TensorType("float32", (1, 2, 12, 4)), info.operand_types[1]]
    runs = operator_info("convolution", kinds, attributes)
    split = Layout(((), (), ("x",), ()))
    weight = Layout.replicated(4)
    assert runs.infer_layouts((split, weight), MESH)[1] == (split,)
    finer = Layout(((), (), ("x", "y"), ()))
    with pytest.raises(StrategyError, match="exchanged in 2 slices"):
        runs.infer_layouts((finer, weight), MESH)


def test_windows_that_nobody_describes_are_refused() -> None:
    class Smooth(OperatorInfo):
        name = "smooth"
        notation = "n h~ -> n h"

        def make_rule(self) -> Rule:
            return resolve(self.notation, [self.operand_types[0].shape], {"h": 4})

    with pytest.raises(IRError, match=r"has the factor `h~`, and `halos` does not tell"):
        Smooth([TensorType("float32", (2, 6))], {})
