"""Products in TF32: how factors are rounded, which products they are of, prices, proofs, files."""

import json
from dataclasses import replace
from math import prod

import numpy as np
import pytest

import shardwright as sw
from shardwright.compiler.evaluation.evaluator import Evaluator
from shardwright.cost_model.cluster import cluster, preset_names
from shardwright.cost_model.efficiency.work import Product as Sizes
from shardwright.cost_model.efficiency.work import Work, work_seconds
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.pipelines.mixed import any_cluster, mean_device
from shardwright.cost_model.pipelines.mixed import check_products as check
from shardwright.exports.table import export
from shardwright.ir.errors import ClusterError, IRError, OptionError, PassError
from shardwright.ir.graph import Value
from shardwright.ir.text import parse, to_text
from shardwright.ir.types import TF32
from shardwright.models import load_model
from shardwright.operators.builder import Builder
from shardwright.operators.checks.cases import cases_of, has_gradient
from shardwright.operators.info import (
    Linearization,
    info_of,
    operator_class,
    operator_info,
    operator_names,
    whole_kernel,
)
from shardwright.operators.linear.quantized import QuantizedProduct
from shardwright.operators.models.optimizer import Optimizer
from shardwright.operators.products import Product, as_tf32
from shardwright.planner.options import CompileOptions
from shardwright.proof import prove
from shardwright.search.named_plan import NamedPlan
from shardwright.tools.main import main
from shardwright.tracing import Definition, InputSpec
from tests.any_operators import any_graph
from tests.extent import ANY_PLAN, first, long_after

TEXT = "batch=4,sequence=8,vocabulary=32"
GPT = f"gpt:layers=2,hidden=16,heads=2,{TEXT}"
MODELS = [
    f"llama:layers=1,hidden=16,heads=2,kv_heads=1,inner=32,{TEXT}",
    "mlp:batch=8,hidden=16",
    f"mixtral:layers=1,hidden=16,heads=2,kv_heads=1,inner=32,experts=4,{TEXT}",
    "resnet:layers=18,small=true,side=8,width=4,batch=4,classes=5",
    f"gpt:layers=1,hidden=16,heads=2,{TEXT}",
]
# A product of large matrices takes most of the step.
LARGE = "mlp:batch=8192,inputs=4096,hidden=8192,classes=1024"
ON = {"cluster": "a100", "precision": TF32}
PRODUCTS = [
    name
    for name in operator_names()
    if issubclass(operator_class(name), Product)
    and not issubclass(operator_class(name), QuantizedProduct)
]


# Rounding


def nearest(x):
    """Return the nearest number with 10 bits of fraction, of two the even one, by definition."""
    with np.errstate(over="ignore"):
        exact = np.float64(x)
        if not np.isfinite(exact) or not exact:
            return np.float32(x)
        exponent = max(int(np.frexp(exact)[1]) - 1, -126)
        unit = 2.0 ** (exponent - 10)
        return np.float32(np.rint(exact / unit) * unit)


def test_factors_are_rounded_to_the_nearest_number_of_10_bits():
    random = np.random.default_rng(5)
    bits = random.integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32)
    ties = (bits & ~np.uint32(0x1FFF)) | np.uint32(0x1000)
    near = ties + random.integers(-1, 2, len(ties)).astype(np.uint32)
    drawn = np.concatenate((bits, ties, near)).view(np.float32)
    largest = np.finfo(np.float32).max
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, largest, -largest, 1e-45, -1e-45, 1e-38]
    signalling = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    x = np.concatenate((drawn, np.array(special, np.float32), signalling))
    found = as_tf32(x)
    expected = np.array([nearest(one) for one in x], np.float32)
    is_number = ~np.isnan(x)
    assert np.array_equal(found.view(np.uint32)[is_number], expected.view(np.uint32)[is_number])
    assert np.isnan(found[~is_number]).all()
    assert np.array_equal(as_tf32(found), found, equal_nan=True)
    assert as_tf32(x.reshape(-1, 2).T).shape == (2, len(x) // 2)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_round_their_factors_and_nothing_in_float64(name):
    """Operators alone; a result is off by a few roundings, and by some."""
    off = 0.0
    for case in cases_of(name):
        info = case.info("f32")
        own = operator_info(name, info.operand_types, {**info.stated, "products": TF32})
        operands = case.operands(info)
        plain, found = (whole_kernel(one, *operands) for one in (info, own))
        for a, b in zip(plain, found, strict=True):
            far = float(np.linalg.norm((a - b).astype(np.float64)))
            off = max(off, far)
            assert far <= 0.02 * max(float(np.linalg.norm(a.astype(np.float64))), 1.0)
        wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in operands]
        for a, b in zip(whole_kernel(info, *wide), whole_kernel(own, *wide), strict=True):
            assert np.array_equal(a, b, equal_nan=True)
    assert off or not operator_class(name).examples  # those on rings have none


@pytest.mark.parametrize("attributes", [{}, {"transpose_a": True, "transpose_b": True}])
def test_a_product_is_that_of_rounded_factors_summed_in_float32(attributes):
    random = np.random.default_rng(3)
    a, b = random.standard_normal((2, 24, 24), np.float32)
    kinds = [sw.ir.types.TensorType("float32", (24, 24))] * 2
    plain, own = (
        operator_info("matmul", kinds, attributes | more) for more in ({}, {"products": TF32})
    )
    (found,), (expected,) = whole_kernel(own, a, b), whole_kernel(plain, as_tf32(a), as_tf32(b))
    assert found.dtype == np.float32
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_a_gradient_are_of_the_same_type(name):
    for case in cases_of(name):
        info = case.info("f32")
        if not has_gradient(info):
            continue
        build = Builder()
        kinds = [*info.operand_types, *info.result_types, *info.result_types]
        values = [build.input(Value(f"x{i}", kind)) for i, kind in enumerate(kinds)]
        operands, values = np.split(np.array(values, object), [len(info.operand_types)])
        results, cotangents = np.split(values, 2)
        at = Linearization(list(operands), list(results), list(cotangents))
        own = operator_info(name, info.operand_types, {**info.stated, "products": TF32})
        build.gradients(own, at)
        assert products_of(build.graph("gradient", ()), several=False) <= {TF32}


def products_of(program, several=True):
    """Return the types of the products of a program; at least `several` operators have some."""
    infos = [info_of(program, node) for node in program.nodes]
    found = [info.products for info in infos if isinstance(info, Product)]
    assert len(found) > 2 * several
    return set(found)


def test_only_products_of_float32_have_such_factors():
    for dtype, products in (("bfloat16", TF32), ("float64", TF32), ("float32", "bfloat16")):
        kinds = [sw.ir.types.TensorType(dtype, (2, 2))] * 2
        with pytest.raises(IRError, match=f"`{products}` products of {dtype}, expected `tf32`"):
            operator_info("matmul", kinds, {"products": products})


# Programs


@pytest.mark.parametrize("model", long_after(2, MODELS))
def test_a_plan_in_tf32_is_right_and_holds_what_float32_does(model):
    places = {"mesh": "2x2", "optimizer": "adam", "optimizer_parallel": True, **ANY_PLAN}
    found = sw.compile(model, 4, **places, **ON)
    program = found.plan.program
    assert products_of(program) == {TF32}
    assert parse(to_text(program)) == program
    verdict = sw.verify(found, 2)
    assert verdict.is_right, verdict
    rounding = verdict.rounding
    assert (rounding.dtype, rounding.recipe) == (TF32, TF32)
    assert 0 < rounding.error <= rounding.bound
    kinds = {value.type.dtype for value in program.values.values() if value.type.is_float}
    assert kinds == {"float32"}


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        (GPT, "data=2,tensor=2,zero=1,sequence_parallel"),
        *long_after(0, [(GPT, "data=4,micro_batch=1"), (MODELS[2], "data=4,expert=4,zero=1")]),
    ],
)
def test_memory_and_messages_are_those_of_float32(model, plan):
    """Of the same plan; messages under way are held for as long as computation takes beside."""
    plans = [
        sw.compile(model, 4, cluster="a100", plan=plan, precision=one, optimizer="adam")
        for one in (TF32, "float32")
    ]
    ours, theirs = (one.plan for one in plans)
    assert peak_memory(ours.program) == peak_memory(theirs.program)
    plain = [
        replace(node, attributes={k: v for k, v in node.attributes.items() if k != "products"})
        for node in ours.program.nodes
    ]
    assert ours.program.with_nodes(tuple(plain)) == theirs.program
    assert ours.document.objective <= theirs.document.objective


@pytest.mark.parametrize("name", ["a100", "h100", "b200", *long_after(0, ["l40s-pcie", "mi300x"])])
def test_a_step_of_products_is_between_those_of_bfloat16_and_float32(name):
    low, own, wide = (
        sw.compile(LARGE, 1, cluster=name, mode="stand_alone", precision=one).plan.document
        for one in ("bfloat16", TF32, "float32")
    )
    assert 1.5 * low.objective < own.objective < wide.objective / 1.5
    assert own.memory == wide.memory


@pytest.mark.parametrize("name", preset_names())
def test_products_take_the_rate_of_the_device_or_are_refused(name):
    """All NVIDIA devices from Ampere on have one, and AMD's of the third generation."""
    where = cluster(name)
    device = where.device
    assert (TF32 in device.peak_flops) == name.startswith(WITH_TF32)
    assert (device.tf32 is not None) == (TF32 in device.peak_flops)
    if device.tf32 is None:
        with pytest.raises(ClusterError, match=f"{device.name} has no rate of products") as refused:
            device.flops_per_second(TF32)
        assert "float32" in refused.value.hint
        return
    shape = (8192, 8192, 8192)
    flops, peak = 2 * prod(shape), device.peak_flops[TF32]
    kinds = ("bfloat16", TF32, "float32")
    seconds = {kind: work_seconds(work(shape, kind), where) for kind in kinds}
    assert 0.3 * peak < flops / seconds[TF32] < peak
    assert seconds["bfloat16"] < seconds[TF32] < seconds["float32"]
    bare = where.model_copy(update={"device": device.model_copy(update={"efficiency": None})})
    ideal = flops / peak + device.launch_seconds
    assert work_seconds(work(shape, TF32), bare) == pytest.approx(ideal)


WITH_TF32 = ("a100", "a800", "h", "b", "gb", "l40s", "rtx", "mi300", "mi325")


def work(shape, dtype):
    m, n, k = shape
    item = 2 if dtype == "bfloat16" else 4
    moved = item * (m * k + k * n + m * n)
    return Work("product", dtype, 2.0 * m * n * k, moved, (Sizes(m, n, k),), 0.0, item, "matmul")


@pytest.mark.parametrize("name", ["v100-pod", "tpu-v5p", "ascend910b-pod", "mi355x", "cpu"])
def test_a_device_without_such_products_refuses_the_precision(name, capsys):
    device = cluster(name).device
    with pytest.raises(ClusterError, match="has no rate of products in TF32"):
        sw.compile(GPT, 2, cluster=name, precision=TF32)
    assert main(["fit", GPT, "--devices", "2", "--cluster", name, "--precision", TF32]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"shardwright: {device.name} has no rate of products in TF32; it has ")
    assert told.count("\n") == 1


def test_all_kinds_of_a_cluster_need_a_rate():
    mixed = any_cluster("h100-a100")
    check(mixed, TF32)
    rates = [part.device.peak_flops[TF32] for part in mixed.parts]
    assert min(rates) < mean_device(mixed).peak_flops[TF32] < max(rates)
    old = cluster("v100-pod").model_copy(update={"name": "old"})
    parts = (mixed.parts[0], old)
    other = mixed.model_copy(update={"parts": parts})
    with pytest.raises(ClusterError, match="V100 SXM2 32GB has no rate of products in TF32"):
        check(other, TF32)
    assert TF32 not in mean_device(other).peak_flops


@pytest.mark.long
@pytest.mark.parametrize("plan", ["data=8,zero=1", "pipeline=2,tensor=2,data=2,micro_batch=2"])
def test_an_evaluation_has_the_numbers_of_the_compiled_program(plan):
    model = "gpt:layers=8,hidden=64,heads=4,sequence=32,vocabulary=100,batch=16"
    where = cluster("h100-pod")
    asked = CompileOptions(optimizer=Optimizer("adam"), precision=TF32)
    evaluator = Evaluator(load_model(model).graph, where.used_by(8), 8, asked)
    found = evaluator.evaluation(NamedPlan.parse(plan))
    built = sw.compile(model, 8, cluster=where, plan=plan, optimizer="adam", precision=TF32)
    assert found.seconds == pytest.approx(built.plan.document.objective, rel=1e-6)
    memory = built.plan.document.memory
    assert found.memory.by_kind == pytest.approx(dict(memory.by_kind), rel=1e-6)


@pytest.mark.long
def test_a_published_step_in_tf32_is_met(capsys):
    """BERT-large on one A100, PyTorch and PaddlePaddle of NVIDIA's DeepLearningExamples."""
    how = ["--cluster", "a100", "--plan", "data=1,micro_batch=128", "--software", "megatron"]
    told = ["estimate", "bert-large:sequence=128", "--batch", "2048", *how, "--json"]
    assert main([*told, "--precision", TF32]) == 0
    rate = json.loads(capsys.readouterr().out)["samples_per_second"]
    assert 0.85 * 307 < rate < 1.15 * 317


def test_a_product_that_lost_its_type_is_refused():
    found = sw.compile(GPT, 2, optimizer="adam", **ON, **ANY_PLAN).plan
    program = found.program
    positions = [i for i, node in enumerate(program.nodes) if "products" in node.attributes]
    assert len(positions) > 20
    for i in positions:
        node = program.nodes[i]
        kept = {k: v for k, v in node.attributes.items() if k != "products"}
        nodes = (*program.nodes[:i], replace(node, attributes=kept), *program.nodes[i + 1 :])
        assert prove(replace(found, program=program.with_nodes(nodes))).proven is False


def test_a_model_without_such_products_is_refused():
    with pytest.raises(PassError, match="`tf32` is of products of float32, and the model has none"):
        sw.compile("mlp:dtype=bfloat16", 2, **ON)


@pytest.mark.filterwarnings("ignore::shardwright.ir.errors.ShardwrightWarning")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of functions outside of their domain
@pytest.mark.parametrize("seed", first(3, range(12)))
def test_random_programs_in_tf32(seed):
    text = to_text(any_graph(seed, nodes=8)).replace("f64[", "f32[")
    graph = parse(text.replace("'float64'", "'float32'"))
    inputs = tuple(InputSpec(value.name, value.type, 3) for value in graph.inputs)
    try:
        found = sw.compile(Definition(graph, inputs), 2, **ON, **ANY_PLAN)
    except PassError as error:
        told = str(error)
        assert "trainable parameters" in told or "and the model has none" in told
        return
    assert sw.verify(found, 2).is_right


# Files of others


def test_packages_switch_their_system_to_tf32():
    for to, switch in (
        ("torch", 'torch.set_float32_matmul_precision("high")\ntorch.backends.cudnn.allow_tf32 ='),
        ("jax", 'jax.config.update("jax_default_matmul_precision", "tensorfloat32")\n'),
    ):
        own, plain = (
            sw.compile(GPT, 2, cluster="a100", precision=one, **ANY_PLAN).plan
            for one in (TF32, "float32")
        )
        written, other = export(own, to), export(plain, to)
        assert switch in written.files["__init__.py"]
        compile(written.files["__init__.py"], "__init__.py", "exec")
        assert "to TF32, for all products of float32" in written.notes[-1]
        assert switch not in other.files["__init__.py"]
        assert "tf32" not in str(other.files)


def test_transformers_has_an_argument_and_layouts_a_note():
    plan = sw.compile(MODELS[0], 2, plan="tensor=2", **ON).plan
    written = json.loads(export(plan, "hf").files["training_arguments.json"])
    assert (written["tf32"], written["bf16"]) == (True, False)
    for to in ("placements", "mindspore"):
        assert "not that products are by `tf32`" in export(plan, to).notes[-1]


@pytest.mark.parametrize("to", ["megatron", "torchtitan", "deepspeed"])
def test_systems_without_a_word_for_it_refuse_it(to):
    plan = sw.compile(MODELS[0], 2, plan="data=2", **ON).plan
    with pytest.raises(OptionError, match="has no word for the precision `tf32`, expected float32"):
        export(plan, to)
