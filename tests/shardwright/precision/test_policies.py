"""Policies of mixed precision: casts, master weights, memory, proofs and numbers."""

from collections import Counter
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import shardwright as sw
from shardwright import zoo
from shardwright.cost_model.memory import peak_memory
from shardwright.ir.errors import PassError, ShardwrightError
from shardwright.ir.text import parse, to_text
from shardwright.ir.types import numpy_dtype
from shardwright.operators.models.precision import PRECISIONS
from shardwright.proof import prove
from shardwright.runtime import Executor, LocalCommunicator, initialize
from shardwright.tools.main import main
from shardwright.tracing import Definition, InputSpec
from shardwright.verification.comparison import random_batches
from shardwright.zoo.loading import LANGUAGE_MODELS
from tests.any_operators import any_graph
from tests.extent import ANY_PLAN, first, long_after

TEXT = "batch=4,sequence=8,vocabulary=32"
LLAMA = f"llama:layers=1,hidden=16,heads=2,kv_heads=1,inner=32,{TEXT}"
GPT = f"gpt:layers=1,hidden=16,heads=2,{TEXT}"
MIXTRAL = f"mixtral:layers=1,hidden=16,heads=2,kv_heads=1,inner=32,experts=4,{TEXT}"
MODELS = ["mlp:batch=8,hidden=16", GPT, f"{GPT},tied=false", LLAMA, MIXTRAL]


PLACES = [
    {"devices": 2, **ANY_PLAN},
    {"devices": 4, "mesh": "2x2", "search": "fully_sharded"},
    {"devices": 1, "mode": "stand_alone"},
    {"devices": 4, "mesh": "2x2", "optimizer_parallel": True, **ANY_PLAN},
    {"devices": 4, "cost_model": "mindspore", **ANY_PLAN},
]
CASES = [
    *((model, "auto_parallel", "bfloat16") for model in MODELS),
    (LLAMA, "data_parallel", "bfloat16"),
    (MIXTRAL, "data_parallel", "float16"),
    (GPT, "semi_auto_parallel", "float16"),
    ("mlp:batch=8,hidden=16", "semi_auto_parallel", "bfloat16"),
]


@pytest.mark.parametrize(("model", "mode", "policy"), long_after(2, first(4, CASES[::-1])))
def test_a_plan_in_a_policy_is_right(model, mode, policy):
    scattered = mode == "auto_parallel"
    found = sw.compile(
        model,
        4,
        mesh="2x2",
        mode=mode,
        precision=policy,
        optimizer="adam",
        optimizer_parallel=scattered,
        **(ANY_PLAN if mode == "auto_parallel" else {}),
    )
    verdict = sw.verify(found, 2)
    assert verdict.proof.proven, verdict.proof
    assert verdict.equal, verdict
    rounding = verdict.rounding
    assert 0 < rounding.error <= rounding.bound
    assert rounding.dtype == policy
    assert rounding.bound < (0.2 if policy == "bfloat16" else 0.02)
    assert found.plan.document.precision == policy
    stored = {p.value.type.dtype for p in found.plan.program.parameters}
    assert stored == {"float32", "int64"}


def test_parameters_are_cast_where_they_are_stored_and_gathered_in_low_precision():
    found = sw.compile(
        LLAMA, 4, mesh="2x2", precision="bfloat16", optimizer="adam", search="fully_sharded"
    )
    program = found.plan.program
    weights = {p.name: p.value for p in program.parameters if p.role == "weight"}
    casts = [n for n in program.nodes if n.operator == "cast" and n.operands[0] in weights]
    assert {cast.operands[0] for cast in casts} == set(weights)
    for cast in casts:
        assert cast.results[0].layout == weights[cast.operands[0]].layout
    moved = Counter(
        program.values[node.operands[0]].type.dtype
        for node in program.nodes
        if node.operator in ("all_gather", "reduce_scatter")
    )
    assert moved["bfloat16"] >= 2 * len(weights)
    assert moved["float32"] == 0
    gradients = {program.values[f"{name}.grad"].type.dtype for name in weights}
    assert gradients == {"bfloat16"}


def test_float32_inserts_nothing():
    given = f"{GPT},dtype=float32"
    plain, asked = (sw.compile(given, 2, **how) for how in ({}, {"precision": "float32"}))
    assert plain.plan.program == asked.plan.program
    assert plain.compiled.passes.records[0].name == "canonicalize"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_model_in_a_type_of_its_own_has_no_master_weights(dtype):
    with pytest.raises(PassError, match=f"needs float32 parameters, `.*` is {dtype}"):
        sw.compile(f"{GPT},dtype={dtype}", 2, precision="bfloat16")
    assert sw.verify(sw.compile(f"{GPT},dtype={dtype}", 2, **ANY_PLAN)).is_right


def test_wrong_policies_are_refused():
    for wrong in ("bf16", "int8", 16, None):
        with pytest.raises(ShardwrightError, match="precision"):
            sw.compile(GPT, 2, precision=wrong)


def test_a_plans_own_strategies_are_pins(tmp_path):
    found = sw.compile(LLAMA, 4, mesh="2x2", precision="bfloat16", optimizer_parallel=True)
    pins = {n: s.split_counts for n, s in found.plan.document.strategies.items()}
    again = sw.compile(
        LLAMA, 4, mesh="2x2", precision="bfloat16", optimizer_parallel=True, strategies=pins
    )
    assert again.plan.program == found.plan.program
    with pytest.raises(ShardwrightError, match=r"`head`, which `head\.bf16` casts, cannot be"):
        sw.compile(LLAMA, 4, precision="bfloat16", strategies={"head.bf16": ((3, 1),)})


@pytest.mark.parametrize(
    "size",
    [
        "gpt:layers=2,batch=1,sequence=16",
        "llama:layers=1,hidden=1024,"
        "heads=8,kv_heads=8,inner=4096,vocabulary=4096,batch=1,sequence=16",
    ],
)
def test_bytes_of_a_parameter_with_adam(size):
    """4 of the master weight, 8 of the states, 2 of the copy that the gradient's 2 replace."""
    found = sw.compile(size, 1, mode="stand_alone", precision="bfloat16", optimizer="adam")
    parameters = found.plan.model.parameters
    elements = sum(p.value.type.elements for p in parameters)
    kinds = found.plan.document.memory.by_kind
    assert kinds["optimizer states"] == pytest.approx(8 * elements, rel=1e-3)
    held = kinds["parameters"] + kinds["optimizer states"] + kinds["gradients"]
    assert 13.9 * elements <= held <= 16 * elements
    program = found.plan.program
    assert {program.values[f"{p.name}.grad"].type.dtype for p in parameters} == {"bfloat16"}
    copies = [n.results[0] for n in program.nodes if n.operator == "cast"]
    low = sum(v.type.nbytes for v in copies if v.type.dtype == "bfloat16")
    assert low >= 2 * elements


@pytest.mark.filterwarnings("ignore::shardwright.ir.errors.ShardwrightWarning")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of functions outside of their domain
@pytest.mark.parametrize("seed", first(4, range(15)))
def test_random_programs_in_any_policy(seed):
    random = np.random.default_rng(seed)
    text = to_text(any_graph(seed, nodes=6)).replace("f64[", "f32[")
    graph = parse(text.replace("'float64'", "'float32'"))
    inputs = tuple(InputSpec(value.name, value.type, 3) for value in graph.inputs)
    policies = [n for n, one in PRECISIONS.items() if one.recipe is None and not one.products]
    policy = policies[1 + seed % (len(policies) - 1)]
    place = PLACES[seed % len(PLACES)]
    try:
        found = sw.compile(
            Definition(graph, inputs),
            **place,
            precision=policy,
            loss_scale=(1.0, 8.0, "dynamic")[random.integers(3)],
            optimizer=("sgd", "momentum", "adam")[random.integers(3)],
        )
    except PassError as error:
        assert "trainable parameters would be updated" in str(error)  # noqa: PT017
        return
    assert parse(to_text(found.plan.program)) == found.plan.program
    verdict = sw.verify(found, 2)
    assert verdict.is_right, verdict
    if verdict.rounding is not None and np.isfinite(verdict.rounding.error):
        assert verdict.rounding.is_within


# Presets


def test_the_command_line_knows_what_a_preset_assumes(capsys, tmp_path):
    model = "gpt2:layers=1,hidden=16,heads=2,batch=2,sequence=8,vocabulary=32"
    assert main(["dump", model, "--devices", "2", "--after", "apply_precision"]) == 0
    assert "bf16[32, 16] = cast(embedding.embedding_table)" in capsys.readouterr().out
    told = "compile", model, "--verbose", "--devices", "2", "--learning-rate", "0.1", "--out"
    assert main([*told, str(tmp_path / "plan"), "--verbose"]) == 0
    assert "the default of language models; optimizer adam" in " ".join(
        capsys.readouterr().out.split()
    )
    plain = ["dump", model, "--devices", "2", "--after", "apply_precision"]
    assert main([*plain, "--precision", "float32"]) == 2
    assert "pass `apply_precision` does not run" in capsys.readouterr().err


@pytest.mark.long
def test_a_language_model_gets_bfloat16_and_adam_as_a_preset_or_by_sizes():
    small = "layers=1,hidden=16,heads=2,batch=2,sequence=8,vocabulary=32"
    found = {
        name: sw.compile(name, 2, plan="data=2", **how).plan.document
        for name, how in {
            f"gpt2:{small}": {},
            f"bert-base:{small}": {"optimizer": "sgd"},
            f"gpt2-xl:{small}": {"precision": "float32"},
            f"gpt2-large:{small},dtype=bfloat16": {},
            f"gpt:{small}": {},
            f"llama:{small}".replace("heads=2", "heads=2,kv_heads=2,inner=24"): {},
            f"gpt:{small},dtype=float32": {},
            "resnet18-cifar:batch=2,side=8,width=2,classes=4": {},
        }.items()
    }
    assert [(d.precision, d.optimizer.kind) for d in found.values()] == [
        ("bfloat16", "adam"),
        ("bfloat16", "sgd"),
        ("float32", "adam"),
        ("float32", "sgd"),
        ("bfloat16", "adam"),
        ("bfloat16", "adam"),
        ("float32", "sgd"),
        ("float32", "sgd"),
    ]


def test_every_model_that_reads_tokens_is_a_language_model():
    of_tokens = {"bert", "gpt", "llama", "mixtral"}
    presets = {name for name in zoo.PRESETS if not name.startswith(("resnet", "vit"))}
    assert set(LANGUAGE_MODELS) == of_tokens | presets


# Numbers


def test_ranks_hold_what_the_program_says(tmp_path):
    found = sw.compile(GPT, 2, precision="bfloat16", optimizer="adam", search="fully_sharded")
    program, local = found.plan.program, LocalCommunicator(found.plan.mesh)
    executor, state = Executor(program, local), initialize(program, 0, local)
    batch = next(random_batches(found.plan.document.inputs, 1, 0))
    names = [node.name for node in program.nodes if node.name not in dict(program.updates).values()]
    before = dict(state)
    result = executor.step(batch, state, names)
    for name in names:
        assert result.fetched[name][0].dtype == numpy_dtype(program.values[name].type.dtype)
    cast = next(n for n in program.nodes if n.name == "position_table.bf16")
    master = before[cast.operands[0]][1]
    assert np.array_equal(result.fetched[cast.name][1], master.astype(ml_dtypes.bfloat16))
    peak = executor.step(batch, state).peak_bytes  # in program order: nothing is early or late
    assert peak == pytest.approx(peak_memory(program).peak_bytes, rel=0.03)
    assert peak <= found.plan.document.memory.peak_bytes


def test_products_accumulate_in_float32():
    lines = (
        "graph g {",
        "  input x: bf16[1, 4096]",
        "  input y: bf16[4096, 1]",
        "  z: bf16[1, 1] = matmul(x, y)",
        "  return z",
        "}",
    )
    graph = parse("\n".join(lines))
    ones = np.ones((1, 4096), np.float32)
    result = Executor(graph, LocalCommunicator()).step({"x": ones, "y": ones.T}, {})
    assert result.outputs["z"][0].item() == 4096  # in bfloat16, sums of ones end at 256


def test_rounding_of_a_bad_sum_is_beyond_the_policy():
    plan = sw.compile("mlp:batch=512,hidden=16", 2, precision="bfloat16", **ANY_PLAN).plan
    program = plan.program
    good = sw.verify(plan, 1).rounding
    assert good.is_within
    # A gradient that is stored with three digits instead of eight, twice.
    node = next(n for n in program.nodes if n.name == "layer1.weight.grad")
    at = program.nodes.index(node)
    result = replace(node.results[0], name="fine")
    coarse = [replace(node, results=(result,))]
    for i, factor in enumerate((1e-39, 1e39)):  # numbers below the smallest lose their digits
        name = "layer1.weight.grad" if i else "small"
        coarse.append(
            replace(
                node,
                operator="scale",
                operands=(coarse[-1].results[0].name,),
                results=(replace(result, name=name),),
                attributes={"factor": factor},
            )
        )
    nodes = (*program.nodes[:at], *coarse, *program.nodes[at + 1 :])
    verdict = sw.verify(replace(plan, program=program.with_nodes(nodes)), 1)
    assert verdict.equal
    assert not verdict.rounding.is_within


def test_only_low_precision_has_a_rounding():
    assert sw.verify(sw.compile("mlp:batch=8,hidden=16", 2), 1).rounding is None


def test_a_checkpoint_keeps_low_precision(tmp_path):
    found = sw.compile(f"{GPT},dtype=bfloat16", 2, **ANY_PLAN)
    whole = list(sw.run(found, 4, save=tmp_path / "whole.npz"))
    list(sw.run(found, 2, save=tmp_path / "half.npz"))
    assert (tmp_path / "half.npz").exists()
    rest = list(sw.run(found, 2, resume=tmp_path / "half.npz"))
    again = list(sw.run(found, 2, resume=tmp_path / "half.npz"))
    assert [r.loss for r in rest] == [r.loss for r in again]
    assert len(whole) == 4


# Proofs


def _mutated(program, position, node):
    nodes = program.nodes
    return replace(program, nodes=(*nodes[:position], *node, *nodes[position + 1 :]))


def test_a_lost_or_doubled_cast_is_refused():
    found = sw.compile(LLAMA, 2, precision="bfloat16", optimizer="adam", **ANY_PLAN)
    plan, program = found.plan, found.plan.program
    casts = [i for i, node in enumerate(program.nodes) if node.operator == "cast"]
    assert len(casts) > 12
    for position in casts:
        cast = program.nodes[position]
        types = cast.attributes["dtype"], program.operand_values(cast)[0].type.dtype
        other = next(name for name in ("bfloat16", "float16") if name not in types)
        kind = replace(cast.results[0].type, dtype=other)
        before = replace(cast.results[0], name="twice", type=kind)
        first = replace(cast, results=(before,), attributes={"dtype": other})
        doubled = _mutated(program, position, [first, replace(cast, operands=("twice",))])
        assert prove(replace(plan, program=doubled)).proven is False
        without = program.replacing({cast.name: cast.operands[0]})
        assert prove(replace(plan, program=without)).proven is False
