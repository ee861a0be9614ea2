"""Measured kernels of a device: their curves, what reads them, and devices that are scaled."""

import numpy as np
import pytest

from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.efficiency.cluster_files import base_device
from shardwright.cost_model.efficiency.hardware import Device
from shardwright.cost_model.efficiency.kernels import Curve, Kernels
from shardwright.cost_model.efficiency.software import software
from shardwright.cost_model.efficiency.work import Product, Work, work_seconds
from shardwright.cost_model.roofline import operator_seconds
from shardwright.ir.errors import ClusterError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.text import parse_type
from shardwright.operators.info import operator_info

H100 = cluster("h100:nodes=1")
ORIGIN = {"tag": "measured", "source": "a test"}
# Milliseconds of one H100 SXM (batch, heads, length, width of a head): cuDNN, forward, backward.
ATTENTION = (
    (2, 32, 4096, 128, 0.58243, 1.67478),
    (1, 32, 8192, 128, 1.02189, 2.91059),
    (1, 16, 32768, 128, 7.9536, 20.12435),
    (2, 32, 4096, 64, 0.37574, 1.04704),
    (2, 16, 4096, 256, 0.52282, 2.04838),
)


def attention(batch: int, heads: int, length: int, width: int, kind: str, **more: object) -> float:
    """Return the seconds of causal attention of some sizes, or of its gradient."""
    tensor = parse_type(f"bf16[{batch}, {heads}, {length}, {width}]")[0]
    sums = parse_type(f"f32[{batch}, {heads}, {length}]")[0]
    whole, rows = Layout.replicated(4), Layout.replicated(3)
    attributes = {"causal": True, **more}
    info = operator_info("scaled_dot_product_attention", (tensor,) * 3, attributes)
    count = len(info.result_types)
    if kind == "backward":
        operands = (tensor,) * 4
        back = operator_info("scaled_dot_product_attention_gradient", operands, attributes)
        return operator_seconds(back, (whole,) * 4, (whole,) * 3, Mesh(()), H100)
    results = (whole, rows)[:count]
    assert sums is not None
    return operator_seconds(info, (whole,) * 3, results, Mesh(()), H100)


@pytest.mark.parametrize(("batch", "heads", "length", "width", "forward", "backward"), ATTENTION)
def test_attention_takes_about_what_was_measured(batch, heads, length, width, forward, backward):
    for kind, measured in (("forward", forward), ("backward", backward)):
        found = attention(batch, heads, length, width, kind)
        assert found == pytest.approx(measured / 1e3, rel=0.15)


def test_a_window_has_the_rate_of_as_many_keys():
    windowed = attention(1, 32, 32768, 128, "forward", window=2048)
    short = attention(16, 32, 2048, 128, "forward")  # 1,024 keys in the mean, and 1,984
    assert windowed / short == pytest.approx(1984 / 1024, rel=0.2)
    assert windowed < 1984 / 1024 * short


def test_a_curve_has_half_of_its_share_at_its_half():
    curve = Curve(share=0.8, halves={"k": 100}, **ORIGIN)
    assert curve.attained({"k": 100}) == pytest.approx(0.4)
    assert curve.attained({"k": 1e9}) == pytest.approx(0.8)
    wide = Curve(share=0.8, widths=((64, 0.5), (128, 1.0)), **ORIGIN)
    found = [wide.attained({}, width) for width in (32, 64, 96, 128, 256)]
    assert found == pytest.approx([0.4, 0.4, 0.6, 0.8, 0.8])


def test_a_product_takes_its_curve_and_what_is_sustained():
    kernels = H100.device.kernels
    product = Product(128 * 132, 1280, 4096)  # ten whole waves of tiles
    work = Work("product", "bfloat16", product.flops, 1.0, (product,), 0.0, 2)
    share = kernels.products["bfloat16"].attained({"k": 4096}) * kernels.sustained.value
    exact = product.flops / (989e12 * share) + H100.device.launch_seconds
    assert work_seconds(work, H100) == pytest.approx(exact)
    half = Work("product", "float16", product.flops, 1.0, (product,), 0.0, 2)
    assert work_seconds(half, H100) == pytest.approx(exact)


def test_more_work_takes_no_less_time():
    draws = np.random.default_rng(0)
    for _ in range(200):
        m, n, k = (int(2 ** draws.uniform(0, 14)) for _ in range(3))
        for experts in ("", "matrices", "rows"):
            count = 8 if experts else 1
            sizes = [(m, n, k), (2 * m, n, k), (m, 2 * n, k), (m, n, 2 * k)]
            found = []
            for size in sizes:
                product = Product(*size, count, experts=experts)
                work = Work("product", "bfloat16", product.flops, 1.0, (product,), 0.0, 2)
                found.append(work_seconds(work, H100))
            assert min(found) == found[0]


def seconds_by(name: str, device: str, length: int, options: str) -> float:
    """Return the seconds of a head's attention as a training software runs it."""
    scores, mixed = Product(length, length, 128), Product(length, 128, length)
    flops = (scores.flops + mixed.flops) / 2
    work = Work("attention", "bfloat16", flops, 1.0, (scores, mixed), 0.0, 2)
    described = cluster(device).run_by(software(f"{name}{options}"))
    return work_seconds(work, described) - described.device.launch_seconds


def test_training_software_takes_its_own_figures_but_for_a_kernel_that_it_names():
    described = cluster("h100-3200g")
    for found in (described.run_by, described.for_programs_of):
        assert found(software("torchtitan")).device.kernels is None
        ours = found(software("torchtitan+cudnn")).device.kernels
        assert list(ours.attention) == ["cudnn"]
        assert (ours.products, ours.grouped, ours.copies, ours.updates) == ({}, {}, None, None)
    length = 2**17
    curve = ours.attention["cudnn"].forward
    share = curve.attained({"keys": length / 2}, 128)
    found = seconds_by("torchtitan", "h100-3200g", length, "+cudnn")
    assert found == pytest.approx(2 * length**2 * 128 / (989e12 * share))
    plain = seconds_by("torchtitan", "h100-3200g", length, "")
    fitted = described.device.efficiency.profiled.attention.value
    assert plain == pytest.approx(2 * length**2 * 128 / (989e12 * fitted))
    elsewhere = [seconds_by("torchtitan", "b200-node", length, more) for more in ("", "+cudnn")]
    assert elsewhere[0] / elsewhere[1] == pytest.approx(2.29)


def test_kernels_of_a_relative_are_scaled_by_the_ratio_that_the_file_gives():
    own, base = base_device("h20")["kernels"], base_device("h100")["kernels"]
    found, given = own["products"]["bfloat16"], base["products"]["bfloat16"]
    assert found["share"] == pytest.approx(0.92 * given["share"])
    assert found["halves"] == given["halves"]
    assert found["tag"] == "scaled"
    assert found["source"].startswith("that of h100 times 0.92: the same multiprocessors")
    assert own["updates"] == {
        **base["updates"],
        "tag": "scaled",
        "source": "that of h100",
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"efficiency": None}, "`kernels` has no effect without `efficiency`"),
        (
            {"kernels": {**base_device("h100")["kernels"], "attention": {}}},
            "`kernels.attention` is `{}`, but Dictionary should have at least 1 item after "
            "validation",
        ),
    ],
)
def test_kernels_that_say_nothing_are_refused(changes, message):
    with pytest.raises(ClusterError) as caught:
        Device(**{**base_device("h100"), **changes})
    assert str(caught.value) == message


def changed(place: tuple[str, ...], **fields: object) -> dict[str, object]:
    """Return the kernels of H100 with other fields of one curve."""
    content = base_device("h100")["kernels"]
    at = content
    for key in place:
        at = at[key]
    at.update(fields)
    return content


@pytest.mark.parametrize(
    ("kernels", "message"),
    [
        (
            changed(("products", "bfloat16"), halves={"keys": 9}),
            "a product has no size `keys`, of which `halves` has one",
        ),
        (
            changed(("attention", "cudnn", "backward"), halves={"k": 9}),
            "attention has no size `k`, of which `halves` has one",
        ),
        (
            changed(("updates",), halves={"m": 9}),
            "a copy or an update has no size `m`, of which `halves` has one",
        ),
        (
            changed(("grouped", "bfloat16", "rows"), widths=[[64, 1.0]]),
            "a product has no heads, of which `widths` has some",
        ),
        (
            changed((), products={"bf16": {"share": 0.5, **ORIGIN}}),
            "no element type is called `bf16`",
        ),
        (
            changed(("products", "bfloat16"), halves={"rows": 9}),
            "`products.bfloat16.halves.rows.[key]` is `rows`, "
            "but should be 'm', 'n', 'k' or 'keys'",
        ),
        (
            changed(("products", "bfloat16"), share=1.2),
            "`products.bfloat16.share` is `1.2`, but should be less than or equal to 1",
        ),
    ],
)
def test_curves_of_sizes_that_kernels_do_not_have_are_refused(kernels, message):
    with pytest.raises(ClusterError) as caught:
        Kernels(**kernels)
    assert str(caught.value) == message


def test_widths_of_a_curve_rise():
    with pytest.raises(ClusterError) as caught:
        Curve(share=0.5, widths=((128, 1.0), (64, 0.7)), **ORIGIN)
    assert str(caught.value) == "`widths`: the widths of points must rise, and 64 follows 128"


def test_work_of_no_size_takes_the_launch_alone():
    none = Product(0, 0, 128)
    work = Work("attention", "bfloat16", 0.0, 0.0, (none, none), 0.0, 2)
    assert work_seconds(work, H100) == H100.device.launch_seconds


def test_a_kernel_that_a_software_names_counts_on_devices_without_figures_of_profiles():
    device = H100.device
    efficiency = device.efficiency.model_copy(update={"profiled": None})
    bare = device.model_copy(update={"efficiency": efficiency})
    assert [*bare.under_software("flash").kernels.attention] == ["flash"]
    assert bare.under_software("flash").kernels.products == device.kernels.products
    assert bare.under_software("another").kernels == device.kernels


def test_pairs_beside_each_other_are_refused_where_stages_run_in_step():
    found = software("megatron-core")
    with pytest.raises(ClusterError) as caught:
        type(found)(**{**found.model_dump(), "stages": "in_step"})
    assert str(caught.value) == "`pairs: beside` has no effect with `stages: in_step`"
