"""LoRA of decoders: exact, nothing is kept for frozen weights, and only asked products count."""

from functools import cache

import numpy as np
import pytest

from shardwright.api import compile
from shardwright.cost_model.model_flops import model_flops
from shardwright.dataflow.cotangents import gradient_name, untrained_parameters
from shardwright.ir.errors import ModelError
from shardwright.ir.text import to_text
from shardwright.ir.types import item_bytes
from shardwright.operators.linear.nf4 import quantized, unpacked
from shardwright.tracing import Definition
from shardwright.zoo.loading import load
from tests.equivalence import assert_equal, trained
from tests.extent import crossed, first, long_after

SIZES = "layers=2,hidden=16,heads=4,kv_heads=2,inner=24,batch=4,sequence=8,vocabulary=48"
SMALL = f"llama:{SIZES},lora=4,lora_alpha=6"
MIXTURE = f"mixtral:{SIZES},lora=4,capacity=4"
HIGHS = {"tokens": 48, "labels": 48}
EXPERT_PLANS = ("expert=2,tensor=2,expert_tensor=2", "data=4,expert=2,zero=3", "expert=4")
PLANS = ("tensor=2,data=2,zero=1,sequence_parallel", "data=4,zero=3", "context=2,tensor=2")
PRODUCTS = (
    *(f"attention.{name}" for name in ("query", "key", "value", "projection")),
    *(f"feed_forward.{name}" for name in ("gate", "up", "down")),
)


@cache
def definition(model: str) -> Definition:
    return load(model)


@cache
def initial(model: str) -> dict[str, np.ndarray]:
    """Return random values of the second products of adapters, which begin as zeros."""
    random = np.random.default_rng(0)
    parameters = definition(model).graph.parameters
    return {
        p.name: random.normal(size=p.value.type.shape) for p in parameters if ".lora_b." in p.name
    }


@cache
def alone(model: str) -> dict[str, np.ndarray]:
    how = {"mode": "stand_alone", "optimizer": "adam", "precision": "float32"}
    program = compile(definition(model), 1, **how).plan.program
    return trained(program, 1, HIGHS, initial(model))


@pytest.mark.parametrize(
    ("model", "plan"), long_after(1, first(3, crossed((SMALL, MIXTURE), PLANS)))
)
def test_a_plan_trains_as_one_device(plan: str, model: str) -> None:
    compiled = compile(definition(model), 4, plan=plan, optimizer="adam", precision="float32")
    found, whole = trained(compiled.plan.program, 1, HIGHS, initial(model)), alone(model)
    assert_equal({n: x for n, x in found.items() if n in whole}, whole)


@pytest.mark.parametrize("plan", long_after(1, first(2, EXPERT_PLANS)))
def test_plans_of_experts_train_their_adapters_as_one_device(plan: str) -> None:
    compiled = compile(definition(MIXTURE), 4, plan=plan, optimizer="adam", precision="float32")
    found, whole = trained(compiled.plan.program, 1, HIGHS, initial(MIXTURE)), alone(MIXTURE)
    assert_equal({n: x for n, x in found.items() if n in whole}, whole)


def test_only_adapters_have_gradients_and_states() -> None:
    graph = definition(SMALL).graph
    adapters = {
        f"blocks.{i}.{product}.lora_{half}.weight"
        for i in range(2)
        for product in PRODUCTS
        for half in "ab"
    }
    assert {p.name for p in graph.parameters if p.trainable} == adapters
    assert untrained_parameters(graph) == ()
    program = compile(definition(SMALL), 4, plan=PLANS[0], optimizer="adam").plan.program
    gradients = {p.name for p in program.parameters if gradient_name(p.name) in program.values}
    assert gradients == adapters
    assert {p.weight for p in program.parameters if p.weight} == adapters


@pytest.mark.parametrize("targets", ["query+value", "feed_forward", "attention.query + down"])
def test_targets_are_products_or_parts(targets: str) -> None:
    graph = load(f"{SMALL},lora_targets={targets}").graph
    wanted = {name.strip() for name in targets.split("+")}
    trained = (p.name for p in graph.parameters if p.trainable)
    adapted = {name[len("blocks.0.") : -len(".lora_a.weight")] for name in trained}
    assert adapted == {x for x in PRODUCTS if wanted & {x, *x.split(".")}}


def test_frozen_weights_are_stored_in_the_type_that_is_computed_in() -> None:
    program = compile(definition(SMALL), 1, optimizer="adam", precision="bfloat16").plan.program
    types = {(p.role, p.value.type.dtype) for p in program.parameters if p.role != "state"}
    assert types == {("buffer", "bfloat16"), ("weight", "float32")}
    wide = compile(definition(SMALL), 1, optimizer="adam", precision="float32").plan.program
    assert all(p.value.type.dtype == "float32" for p in wide.parameters if p.role != "state")


def test_products_that_no_gradient_asks_for_do_not_count() -> None:
    tokens, hidden, inner, keys, words, rank = 32, 16, 24, 8, 48, 4
    by_layer = 2 * tokens * (2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * inner)
    widths = [hidden + hidden, hidden + keys, hidden + keys, hidden + hidden]
    adapters = 2 * tokens * rank * sum([*widths, *[hidden + inner] * 3])
    attention = 4 * tokens * 8 * hidden
    first_reads = 2 * tokens * (hidden * hidden + 2 * hidden * keys)
    first_downs = 2 * tokens * rank * 3 * hidden
    frozen = 2 * (2 * by_layer + 2 * tokens * hidden * words) - first_reads
    others = 3 * 2 * (adapters + attention) - first_downs
    assert model_flops(definition(SMALL).graph).total == frozen + others


def test_a_product_between_narrow_ones_is_not_summed_over_tensor_ranks() -> None:
    program = compile(definition(SMALL), 2, plan="tensor=2", optimizer="adam").plan.program
    layouts = {p.name: str(p.value.layout) for p in program.parameters}
    assert layouts["blocks.0.attention.query.lora_a.weight"] == "[*, *]"
    assert layouts["blocks.0.attention.query.lora_b.weight"] == "[tensor, *]"
    assert layouts["blocks.0.attention.projection.lora_a.weight"] == "[*, tensor]"
    assert layouts["blocks.0.attention.projection.lora_b.weight"] == "[*, *]"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ("lora=0", "`lora` of `llama` is 0, expected at least 1"),
        ("lora=-3", "`lora` of `llama` is -3, expected at least 1"),
        ("lora=few", "`lora` of `llama` is `few`, expected type int"),
        ("lora=4,lora_alpha=0", "`lora_alpha` of `llama` is 0, expected at least 1"),
        ("lora_alpha=4", "`lora_alpha` is given without a rank; write `lora=16`"),
        ("lora_targets=query", "`lora_targets` is given without a rank; write `lora=16`"),
        (
            "lora=4,lora_targets=query+c_attn",
            "`lora_targets` names `c_attn`, which is no product of the model; its products are "
            + ", ".join(PRODUCTS)
            + "; also q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, all-linear",
        ),
    ],
)
def test_wrong_sizes_are_refused(sizes: str, message: str) -> None:
    with pytest.raises(ModelError) as error:
        load(f"llama:{SIZES},{sizes}")
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("names", "ours"),
    [
        ("q_proj,v_proj", "query+value"),
        ("o_proj+down_proj", "attention.projection+feed_forward.down"),
        ("gate_proj,up_proj", "gate+up"),
        ("all-linear", "attention+feed_forward"),
    ],
)
def test_names_of_peft_are_products(names: str, ours: str) -> None:
    first, second = (
        load(f"llama:{SIZES},lora=4,lora_targets={x},lora_alpha=8") for x in (names, ours)
    )
    assert to_text(first.graph) == to_text(second.graph)


WIDE = "layers=2,hidden=64,heads=4,kv_heads=2,inner=128,batch=4,sequence=8,vocabulary=48"
PACKED = f"llama:{WIDE},lora=4,lora_alpha=6,lora_bits=4"


def weights_of_4_bits(model: str, seed: int = 0) -> tuple[dict, dict]:
    """Return random frozen weights of all products, in 4 bits, and unpacked."""
    random, packed, whole = np.random.default_rng(seed), {}, {}
    shapes = {
        p.name: p.value.type.shape for p in load(model.replace(",lora_bits=4", "")).graph.parameters
    }
    for name in {p.name for p in definition(model).graph.parameters}:
        if name.endswith(".packed.codes"):
            weight = name.replace(".packed.codes", ".weight")
            own = quantized(random.normal(0, 0.2, shapes[weight]))
            packed |= {name.replace("codes", key): x for key, x in vars(own).items()}
            whole[weight] = unpacked(own)
    return packed, whole


@pytest.mark.long
@pytest.mark.parametrize("plan", first(2, ["data=2,pipeline=2,micro_batch=1", *PLANS]))
def test_weights_of_4_bits_train_as_what_they_stand_for(plan: str) -> None:
    packed, whole = weights_of_4_bits(PACKED)
    plain = PACKED.replace(",lora_bits=4", "")
    halves = initial(plain)
    alone = compile(definition(plain), 1, optimizer="adam", precision="float32").plan.program
    right = trained(alone, 1, HIGHS, {**halves, **whole})
    compiled = compile(definition(PACKED), 4, plan=plan, optimizer="adam", precision="float32")
    found = trained(compiled.plan.program, 1, HIGHS, {**halves, **packed})
    same = {n: x for n, x in right.items() if n not in whole}
    assert_equal({n: x for n, x in found.items() if n in same}, same)


def test_weights_of_4_bits_take_their_bytes_and_are_not_saved_unpacked() -> None:
    def memory(model: str) -> tuple[int, int]:
        program = compile(load(model), 1, precision="bfloat16", recompute="none").plan.program
        frozen = [p.value.type for p in program.parameters if p.role == "buffer"]
        return sum(x.elements * item_bytes(x.dtype) for x in frozen), len(program.nodes)

    products = 2 * 64 * (64 + 32 + 32 + 64 + 3 * 128)
    (packed, nodes), (whole, same) = memory(PACKED), memory(PACKED.replace(",lora_bits=4", ""))
    others = whole - 2 * products
    nested = 2 * sum(-(-n // 64 // 256) + 1 for n in (4096, 2048, 2048, 4096, *(8192,) * 3))
    assert packed - others == products // 2 + products // 64 + 4 * nested
    assert nodes == same, "no node unpacks a weight by itself"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            f"llama:{WIDE},lora_bits=4",
            "`lora_bits` is 4, and all weights are trained: one of 4 bits cannot be; write "
            "`lora=16`, which trains adapters beside frozen weights",
        ),
        (
            f"llama:{WIDE},lora=4,lora_bits=8",
            "`lora_bits` is 8, expected 4: bits of frozen weights; leave it out for weights of "
            "their own type",
        ),
        (
            f"llama:{SIZES},lora=4,lora_bits=4",
            "a weight of 4 bits has blocks of 64 inputs, and this one has 16 inputs",
        ),
        (
            f"mixtral:{WIDE},lora=4,lora_bits=4",
            "`lora_bits` knows no weights of experts, and `feed_forward.gate` is of experts; leave "
            "it out",
        ),
    ],
)
def test_what_cannot_have_4_bits_is_refused(model: str, message: str) -> None:
    with pytest.raises(ModelError) as error:
        load(model)
    assert str(error.value) == message


def test_down_proj_of_latent_attention_is_of_the_feed_forward() -> None:
    graph = load("deepseek-v3:num_hidden_layers=4,lora=4,lora_targets=down_proj").graph
    trained = {p.name for p in graph.parameters if p.trainable}
    dense = {f"blocks.{i}.feed_forward.down" for i in range(3)}
    routed = {f"blocks.3.feed_forward.{part}.down" for part in ("experts", "shared")}
    assert {name.rpartition(".lora_")[0] for name in trained} == dense | routed


def test_experts_have_adapters_each_and_routers_none() -> None:
    graph = definition(MIXTURE).graph
    shapes = {p.name: p.value.type.shape for p in graph.parameters if p.trainable}
    assert shapes["decoder.blocks.0.feed_forward.up.lora_a.weight"] == (8, 16, 4)
    assert shapes["decoder.blocks.0.feed_forward.up.lora_b.weight"] == (8, 4, 24)
    assert not any("router" in name for name in shapes)
