"""The price of experts: rows that are filled, on the rank that has most of them."""

import pytest

from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.efficiency.software import software
from shardwright.cost_model.efficiency.work import work_seconds
from shardwright.cost_model.roofline import operator_work
from shardwright.ir.layout import Layout, local_bytes
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.text import parse_type
from shardwright.operators.info import operator_info

MESH = Mesh((MeshAxis("x", 8),))
# Seconds of one H100 SXM for 8,192 to 65,536 rows: of PyTorch's grouped product in bfloat16.
MEASURED = (
    (8, 8192, 4096, 14336, 1.29594e-3),
    (32, 32768, 2048, 768, 0.18768e-3),
    (128, 65536, 2048, 768, 0.3713e-3),
    (128, 8192, 2048, 768, 0.19514e-3),
    (16, 65536, 2048, 1536, 0.6081e-3),
)


def work_of(rows: str, matrices: str, layouts: tuple[Layout, Layout, Layout]):
    kinds = [parse_type(text)[0] for text in (rows, matrices)]
    info = operator_info("grouped_matmul", kinds, {})
    return operator_work(info, layouts[:2], layouts[2:], MESH)


@pytest.mark.parametrize(("experts", "rows", "k", "n", "seconds"), MEASURED)
def test_grouped_products_take_about_what_was_measured(experts, rows, k, n, seconds):
    tokens = rows // 2  # each chooses two
    whole = tuple(Layout.replicated(rank) for rank in (3, 3, 3))
    filled = f"bf16[2/{experts}, {tokens}~, {k}]"
    work = work_of(filled, f"bf16[{experts}, {k}, {n}]", whole)
    assert work.flops == 2 * rows * k * n
    assert work_seconds(
        work, cluster("h100-3200g").for_programs_of(software("megatron-core"))
    ) == pytest.approx(seconds, rel=0.2)


def test_the_busiest_rank_has_the_mean_times_the_imbalance_and_at_most_all():
    split = Layout((("x",), (), ()))
    layouts = split, split, split
    for imbalance, times in ((1.0, 1.0), (1.5, 1.5), (8.0, 8.0), (100.0, 8.0)):
        rows = f"bf16[2/64*{imbalance}, 4096~, 512]"
        work = work_of(rows, "bf16[64, 512, 256]", layouts)
        assert work.flops == 2 * (2 * 4096 / 8 * times) * 512 * 256
        kind, _ = parse_type(rows)
        assert local_bytes(kind, split, MESH) == 2 * (2 * 4096 / 8 * times) * 512
    tokens = Layout(((), ("x",), ()))
    kind, _ = parse_type("bf16[2/64*1.5, 4096~, 512]")
    assert local_bytes(kind, tokens, MESH) == 2 * (2 * 4096 / 8) * 512
