"""The price and the memory of products by recipes of low precision."""

import numpy as np
import pytest

from shardwright import compile as compile_plan
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.efficiency.cluster_files import device_names
from shardwright.cost_model.efficiency.hardware import Device
from shardwright.cost_model.efficiency.program_work import Repetition, program_work
from shardwright.cost_model.efficiency.quantized_copies import quantized_sizes
from shardwright.cost_model.efficiency.software import software
from shardwright.cost_model.efficiency.work import Product, Work, work_seconds
from shardwright.cost_model.roofline import operator_seconds, operator_work
from shardwright.cost_model.timeline import simulate
from shardwright.ir.errors import ClusterError, OptionError, PassError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.models import training_definition
from shardwright.operators.info import operator_info
from shardwright.operators.models.optimizer import Optimizer
from shardwright.operators.models.precision import precision_named
from shardwright.operators.models.recipes import RECIPES
from shardwright.passes.apply_precision import ApplyPrecision, QuantizeProducts
from shardwright.planner.options import CompileOptions
from shardwright.search.named_plan import NamedPlan
from shardwright.verification.comparison import verify_plan
from tests.extent import ANY_PLAN, long_after

M, K, N = 8192, 4096, 2048
SMALL = "llama:layers=2,hidden=64,heads=4,kv_heads=2,inner=128,batch=8,sequence=16,vocabulary=64"
WHOLE = [Layout.replicated(2)] * 2


def product(recipe: str, **attributes: object):
    types = [TensorType("bfloat16", (M, K)), TensorType("bfloat16", (K, N))]
    return operator_info("quantized_matmul", types, {"recipe": recipe, **attributes})


# Bytes of an element of a copy, and how often it is read before.
COPIES = {
    "fp8-current": (1.0, 1.0, 2),
    "fp8-delayed": (1.0, 1.0, 1),
    "fp8-rowwise": (1.0, 1.0, 1),
    "fp8-blockwise": (1 + 4 / 128, 1 + 4 / 128**2, 1),
    "mxfp8": (1 + 1 / 32, 1 + 1 / 32, 1),
    "nvfp4": (0.5 + 1 / 16, 0.5 + 1 / 256, 2),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_product_takes_its_rate_its_casts_and_their_memory(recipe: str) -> None:
    info, mesh, (a, b, reads) = product(recipe), Mesh(()), COPIES[recipe]
    copies = M * K * a + K * N * b
    assert info.workspace_bytes(WHOLE, mesh) == pytest.approx(copies)
    name = "h100" if recipe in cluster("h100").device.recipes else "gb200-nvl72"
    bare = cluster(f"{name}:figures=datasheet")
    device = bare.device
    found = operator_seconds(info, WHOLE, WHOLE[:1], mesh, bare)
    flops = 2.0 * M * K * N / device.peak_flops[RECIPES[recipe].rate]
    casts = (2 * reads * (M * K + K * N) + copies) / device.memory_bandwidth
    launches = (1 + 2 * reads) * device.launch_seconds
    assert found == pytest.approx(flops + casts + launches)
    work = operator_work(info, WHOLE, WHOLE[:1], mesh)
    assert work.nbytes == pytest.approx(copies + 2 * M * N)
    made = {way: (nbytes, kernels) for way, nbytes, kernels in work.casts}
    assert made["kept"] == pytest.approx((reads * M * K + M * K * a, reads / 2))  # no weights
    each = 2 * reads * (M * K + K * N) + copies
    of_two = 2 if RECIPES[recipe].rows.is_of_tensor else 1
    assert made["shared"] == pytest.approx((each / of_two, 2 * reads / of_two))
    assert made["each"] == pytest.approx((each, 2 * reads))
    assert work.between == pytest.approx(each)
    assert work.launches == 1 + 2 * reads
    half = cluster(f"{name}:figures=attained").device
    assert half.recipes[recipe].source


@pytest.mark.parametrize("recipe", RECIPES)
def test_products_of_the_same_rows_quantize_them_as_often_as_one_product(recipe: str) -> None:
    """Bytes and kernels of three products, where copies are kept or shared."""
    mesh, whole = Mesh(()), Layout.replicated(2)
    rows, slope = TensorType("bfloat16", (M, K)), TensorType("bfloat16", (M, N))
    weight = TensorType("bfloat16", (K, N))
    operands = {
        ("rows", "weight"): [rows, weight],
        ("gradient", "weight"): [slope, TensorType("bfloat16", (N, K))],
        ("rows", "gradient"): [TensorType("bfloat16", (K, M)), slope],
    }

    def casts(kinds: tuple[str, str], readers: int) -> dict[str, np.ndarray]:
        own = {"recipe": recipe, "kinds": kinds, "readers": readers}
        info = operator_info("quantized_matmul", operands[kinds], own)
        found = operator_work(info, [whole, whole], [whole], mesh)
        return {way: np.array(made) for way, *made in found.casts}

    copy, _, reads = COPIES[recipe]
    of_two = 2 if RECIPES[recipe].rows.is_of_tensor else 1
    of_rows = {
        "each": np.array([0.0, 0.0]),  # all products make their own
        "kept": np.array([reads * M * K + M * K * copy, reads / 2]),
        "shared": np.array([2 * reads * M * K + M * K * copy, reads]) / of_two,
    }
    for kinds in operands:
        alone, third = casts(kinds, 1), casts(kinds, 3)
        for way, once in of_rows.items():
            saved = 2 * once if "rows" in kinds else 0.0 * once
            assert 3 * (alone[way] - third[way]) == pytest.approx(saved)


def test_readers_of_a_copy_are_counted_in_a_layer() -> None:
    """Three of queries, keys and values; two of gate and up; backward of the weights as well."""
    program = evaluated("mxfp8", "megatron-core").program
    found: dict[str, set[object]] = {}
    for node in program.nodes:
        if node.operator.startswith("quantized_"):
            of = node.scope.split("/", 2)[-1]
            kinds = node.attributes.get("kinds", ("rows", "weight"))
            own = node.attributes.get("readers", 1)
            assert "rows" in kinds or own == 1
            if "rows" in kinds:
                found.setdefault(of, set()).add(own)
    of_three = {f"attention/{name}": {3} for name in ("query", "key", "value")}
    of_two = {f"feed_forward/{name}": {2} for name in ("up", "gate")}
    of_one = {name: {1} for name in ("attention/projection", "feed_forward/down")}
    assert found == of_three | of_two | of_one


def test_the_two_narrow_products_of_latent_attention_share_a_copy() -> None:
    """As Megatron-Core has it with ``--mla-down-proj-fusion``; without, each makes its own."""
    definition, _ = training_definition("deepseek-v3:layers=4,sequence=64", 1, 1)
    low = ApplyPrecision(precision_named("bfloat16")).run(definition.graph)
    program = QuantizeProducts(RECIPES["mxfp8"]).run(low)
    readers = {
        node.scope.removeprefix("blocks/3/"): node.attributes.get("readers", 1)
        for node in program.nodes
        if node.operator.startswith("quantized_") and node.scope.startswith("blocks/3/")
    }
    shared = {f"attention/{name}" for name in ("query_down", "down")}
    shared |= {
        f"feed_forward/{part}/{name}" for part in ("shared", "experts") for name in ("gate", "up")
    }
    assert {name for name, count in readers.items() if count == 2} == shared
    assert set(readers.values()) == {1, 2}


def test_a_share_of_a_recipe_is_of_the_share_of_16_bits() -> None:
    described, products = cluster("h100"), (Product(8192.0, 8448.0, 4096.0),)
    launch, device = described.device.launch_seconds, described.device
    flops = products[0].flops
    short, low = (
        work_seconds(Work("product", "bfloat16", flops, 0.0, products, recipe=own), described)
        for own in ("", "fp8-current")
    )
    peaks = device.peak_flops["float8"] / device.peak_flops["bfloat16"]
    share = device.recipes["fp8-current"].value
    assert (short - launch) / (low - launch) == pytest.approx(peaks * share)


def test_delayed_scaling_multiplies_as_current_scaling_and_reads_each_operand_once() -> None:
    device = cluster("h100").device
    assert device.recipes["fp8-delayed"] == device.recipes["fp8-current"]
    assert "fp8-delayed" not in cluster("a100-selene").device.recipes
    late, now = (
        operator_work(product(name), WHOLE, WHOLE[:1], Mesh(()))
        for name in ("fp8-delayed", "fp8-current")
    )
    assert late.nbytes == now.nbytes
    assert now.between - late.between == 2 * (M * K + K * N)
    for way, run_by in (("kept", "megatron-core"), ("shared", "torchtitan")):
        where = cluster("h100").run_by(software(run_by))
        assert where.software is not None
        assert where.software.casts == way
        assert work_seconds(late, where) < work_seconds(now, where)


def test_no_device_has_a_recipe_without_its_rate_and_most_have_none_of_16_bits_alone() -> None:
    content = {
        "name": "x",
        "peak_flops": {"float32": 1e12},
        "memory_bandwidth": 1e12,
        "memory_bytes": 1,
        "launch_seconds": 0.0,
    }
    figure = {"value": 1, "tag": "assumed", "source": "a test"}
    with pytest.raises(ValueError, match="`float8` of the recipe `mxfp8` is missing"):
        Device.model_validate({**content, "recipes": {"mxfp8": figure}})
    with pytest.raises(ValueError, match="no recipe is called `fp6`, expected fp8-current, "):
        Device.model_validate({**content, "recipes": {"fp6": figure}})
    assert "h100" in device_names()


@pytest.mark.parametrize(
    ("where", "recipe", "sentence"),
    [
        (
            "a100-selene",
            "nvfp4",
            "A100 SXM4 80GB has no rate of products by the recipe `nvfp4`; it has none of low "
            "precision; use `bfloat16`",
        ),
        (
            "h100",
            "mxfp8",
            "H100 SXM5 80GB has no rate of products by the recipe `mxfp8`; it has fp8-current, "
            "fp8-rowwise, fp8-blockwise or fp8-delayed",
        ),
    ],
)
def test_a_recipe_that_a_device_lacks_is_refused(where: str, recipe: str, sentence: str) -> None:
    with pytest.raises(ClusterError) as caught:
        compile_plan(SMALL, devices=2, cluster=where, precision=recipe)
    assert str(caught.value) == sentence


def test_a_model_without_such_products_and_other_names_are_refused() -> None:
    with pytest.raises(PassError, match="the precision `fp8-current` quantizes products of rep"):
        compile_plan("mlp:batch=8,inputs=32,hidden=32", devices=2, precision="fp8-current")
    with pytest.raises(PassError, match="none between its first and its last block"):
        compile_plan(SMALL, devices=2, precision="mxfp8+first-last-bf16", cluster="gb200-nvl72")
    with pytest.raises(OptionError, match="fp6"):
        compile_plan(SMALL, devices=2, precision="fp6")


@pytest.mark.parametrize("policy", long_after(1, ["fp8-current", "fp8-current+first-last-bf16"]))
def test_a_plan_by_a_recipe_is_the_model_and_as_far_from_float64_as_one_device(
    policy: str,
) -> None:
    model = SMALL.replace("layers=2", "layers=3")
    found = compile_plan(model, devices=4, precision=policy, **ANY_PLAN)
    assert found.plan.document.precision == policy
    verdict = verify_plan(found.plan, 1)
    assert verdict.equal
    rounding = verdict.rounding
    assert rounding is not None
    assert rounding.recipe == "fp8-current"
    assert 0.02 < rounding.error <= rounding.bound < 0.4  # bfloat16 alone is at 0.006


def evaluated(precision: str, run_by: str | None):
    definition, _ = training_definition(SMALL, None, 1)
    options = CompileOptions(optimizer=Optimizer("adam"), micro_batches=1, precision=precision)
    where = cluster("gb200-nvl72").without_host()
    own = None if run_by is None else software(run_by)
    model = EvaluatedModel(definition.graph, where, options, own)
    return model.evaluation(NamedPlan.parse("data=2,tensor=2,micro_batch=2"), 4)


def test_software_keeps_quantized_copies_of_weights_and_activations() -> None:
    """Of a weight two copies beside it; an activation that products alone read is its copy."""
    program = evaluated("mxfp8", "megatron-core").program
    found = quantized_sizes(program, {name: 1e6 for name in program.values}, {}, "any")
    first = next(n for n in program.nodes if n.operator == "quantized_matmul")
    rows, weight = first.operands
    each = 1 + 1 / 32
    assert found[rows] == pytest.approx(1e6 * each / 2)
    elements = 64 * 64 / 2  # of the queries of a layer, over two tensor ranks
    assert found[weight] == pytest.approx(1e6 + 2 * elements * each)
    plain = evaluated("bfloat16", "megatron-core").program
    assert quantized_sizes(plain, {name: 1e6 for name in plain.values}, {}, "any") == {}
    whole = evaluated("fp8-current", "megatron-core").program
    for layouts, copies in (("contracted", 2), ("any", 1)):
        found = quantized_sizes(whole, {name: 1e6 for name in whole.values}, {}, layouts)
        assert found[weight] == pytest.approx(1e6 + copies * elements)


def test_a_recipe_takes_less_time_where_products_are_large_and_no_less_memory() -> None:
    large = "llama:layers=2,hidden=4096,heads=32,kv_heads=8,inner=14336,sequence=8192,batch=2"
    steps = {}
    for precision in ("bfloat16", "mxfp8", "nvfp4"):
        definition, _ = training_definition(large, None, 1)
        options = CompileOptions(optimizer=Optimizer("adam"), micro_batches=1, precision=precision)
        where = cluster("gb200-nvl72").without_host()
        model = EvaluatedModel(definition.graph, where, options, None)
        found = model.evaluation(NamedPlan.parse("data=2,micro_batch=1"), 2)
        steps[precision] = found.seconds, found.in_order.peak_bytes
    assert steps["nvfp4"][0] < steps["mxfp8"][0] < steps["bfloat16"][0]
    assert steps["mxfp8"][1] >= steps["bfloat16"][1]


def test_a_program_is_timed_again_without_its_operators() -> None:
    program, where = evaluated("mxfp8", "megatron-core").program, cluster("gb200-nvl72")
    own = software("megatron-core")
    timed = where.used_by(4)
    step = simulate(program, timed.run_by(own)).step_seconds
    passes = Repetition(2, 2)
    found = program_work(program, timed).seconds(timed.run_by(own), passes)
    assert found == pytest.approx(step, rel=1e-9)
