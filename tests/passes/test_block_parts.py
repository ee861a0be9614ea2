"""Parts of blocks that are recomputed: which operators they are, and that nothing else changes."""

from collections import Counter
from functools import cache

import pytest

from shardwright.api import compile
from shardwright.dataflow.block_parts import PARTS
from shardwright.dataflow.recompute_rules import MODULES
from shardwright.frontends import configs
from shardwright.ir.errors import OptionError, StrategyError
from shardwright.ir.text import parse
from shardwright.passes.recompute import Recompute
from shardwright.search.named_plan import NamedPlan
from shardwright.tracing import Definition
from shardwright.zoo import load
from shardwright.zoo.decoder import decoder
from tests.equivalence import assert_equal, trained
from tests.extent import first
from tests.shardwright.zoo.test_decoder import HIGHS, KINDS, small
from tests.shardwright.zoo.test_decoder import SMALL as FIELDS
from tests.zoo_sizes import SMALL

LATENT = small("deepseek_v3")
UP = {"reshape", "transpose", "slice", "concat", "rotary_embedding", "broadcast_to"}
UP |= {"rms_norm", "matmul"}
GATED = {"matmul": 3, "silu": 1, "mul": 1}


def recomputed(definition: Definition, rule: str) -> Counter[tuple[str, str]]:
    """Return how many operators of a rule are in each cell of a block, by their kinds."""
    graph = definition.graph
    marks = set(Recompute(rule).run(graph).recomputed)
    return Counter(
        (node.scope.split("/")[2], node.operator) for node in graph.nodes if node.name in marks
    )


def test_parts_are_those_of_the_cells_of_a_decoder():
    """The cells have names, which the structure that parts are found by does not read."""
    found = {part: recomputed(LATENT, part) for part in PARTS}
    assert found["layernorm"] == {("norm1", "rms_norm"): 2, ("norm2", "rms_norm"): 2}
    assert {kind for _, kind in found["mla_up_proj"]} == UP
    assert {cell for cell, _ in found["mla_up_proj"]} == {"attention"}
    # Of two layers the up projections of queries, and of keys and values; each behind its norm.
    assert found["mla_up_proj"]["attention", "matmul"] == 4
    assert found["mla_up_proj"]["attention", "rms_norm"] == 4
    assert found["mlp"] == {("feed_forward", kind): n for kind, n in GATED.items()}
    assert found["shared_experts"] == found["mlp"]
    assert found["moe_act"] == {("feed_forward", "silu"): 1, ("feed_forward", "mul"): 1}
    for kind in ("dispatch", "combine", "top_k", "matmul", "sigmoid"):
        assert found["moe"]["feed_forward", kind] > 0
    assert found["moe"]["feed_forward", "grouped_matmul"] == 3


def test_all_of_a_block_but_its_residual_values_is_in_a_part():
    graph = LATENT.graph
    whole = set(Recompute("full").run(graph).recomputed)
    parts = set(Recompute("layernorm+mla_up_proj+mlp+moe").run(graph).recomputed)
    assert parts < whole
    left = Counter(node.operator for node in graph.nodes if node.name in whole - parts)
    # The down projections, attention and its way out, sums, and the statistics of the router.
    assert left["matmul"] == 2 * 3
    assert left["scaled_dot_product_attention"] == 2
    assert left["grouped_matmul"] == left["rms_norm"] == 0


PARALLEL = """
graph parallel {
  input x: f32[4, 8]
  parameter g: f32[8]
  parameter v: f32[8, 8]
  parameter w: f32[8, 8]
  n: f32[4, 8] = rms_norm(x, g) {epsilon=1e-06} in 'blocks/0'
  s: f32[4, 8] = softmax(n) {axis=1} in 'blocks/0'
  a: f32[4, 8] = matmul(s, v) in 'blocks/0'
  m: f32[4, 8] = matmul(n, w) in 'blocks/0'
  both: f32[4, 8] = add(a, m) in 'blocks/0'
  y: f32[4, 8] = add(x, both) in 'blocks/0'
  z: f32[4, 8] = relu(y)
  return z
}
"""


def test_a_feed_forward_network_that_shares_its_sum_with_attention_has_no_part():
    graph = parse(PARALLEL)
    assert Recompute("layernorm").run(graph).recomputed == ("n",)
    with pytest.raises(StrategyError, match="`mlp` is recomputed, and no block of the model has"):
        Recompute("mlp").run(graph)


def test_in_turn_sums_are_residual_values():
    text = PARALLEL.replace("add(a, m)", "add(x, a)").replace("add(x, both)", "add(both, m)")
    assert Recompute("mlp").run(parse(text)).recomputed == ("m",)


PLANS = (
    ("tensor=2,data=2,zero=1,sequence_parallel", "layernorm+mla_up_proj+moe_act"),
    ("tensor=2,pipeline=2,micro_batch=2", "mlp+moe"),
    ("data=4,expert=4,zero=3", "core_attn+moe_act+shared_experts"),
    ("data=4,expert=2,zero=1", "moe"),
    ("context=2,data=2", "layernorm+mlp"),
)


@pytest.mark.long
@pytest.mark.parametrize(("plan", "parts"), first(3, PLANS))
def test_parts_change_nothing_of_what_is_computed(plan, parts):
    compilation = compile(LATENT, 4, plan=f"{plan},recompute={parts}")
    assert compilation.compiled.source.recomputed
    whole = trained(compile(LATENT, 1, mode="stand_alone").plan.program, 1, HIGHS)
    found = trained(compilation.plan.program, 1, HIGHS)
    assert_equal({name: value for name, value in found.items() if name in whole}, whole)


# Three layers of a dense network and three of experts; two samples on a rank.
DEEP = {"model_type": "deepseek_v3", **FIELDS, **KINDS["deepseek_v3"]}
DEEP |= {"num_hidden_layers": 6, "first_k_dense_replace": 3}
TOKENS, HIDDEN, INNER, OF_EXPERT, CHOSEN, FLOAT32 = 2 * 32, 16, 24, 12, 2, 4


@cache
def activations(recompute: str) -> float:
    found = configs.read_fields("deepseek_v3", DEEP, {}).architecture
    assert found is not None
    definition = decoder(found, batch=8, sequence=32)
    plan = f"data=4,expert=4,recompute={recompute}"
    return compile(definition, 4, plan=plan, imbalance=1.0).plan.document.memory.by_kind[
        "activations"
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "elements"),
    [
        ("layernorm", 6 * 2 * TOKENS * HIDDEN),  # the results of both norms
        ("mlp", 3 * 4 * TOKENS * INNER),  # gate and up, the activation, and its product with up
        ("shared_experts", 3 * 4 * TOKENS * OF_EXPERT),
        ("moe_act", 3 * 2 * TOKENS * CHOSEN * OF_EXPERT),
    ],
)
def test_a_part_frees_its_results(part, elements):
    assert activations("none") - activations(part) == elements * FLOAT32


@pytest.mark.long
def test_more_parts_take_less_memory():
    rules = ("none", "moe_act", "mla_up_proj+moe_act", "layernorm+mla_up_proj+mlp+moe", "full")
    taken = [activations(rule) for rule in rules]
    assert taken == sorted(set(taken), reverse=True)


def test_the_search_keeps_what_is_asked_for():
    compilation = compile(load(SMALL["llama"]), 4, recompute="mlp")
    marks = set(compilation.compiled.source.recomputed)
    assert {"blocks/0/feed_forward/gate"} <= {
        node.scope for node in compilation.compiled.source.nodes if node.name in marks
    }


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("moe_actt", "expected none, selective, operators, full, core_attn, layernorm, mla_up"),
        ("mlp+mlp", "where `mlp` is there twice; name parts once each, of core_attn, layernorm"),
        ("mlp+full", "where `full` is no part of a block; name parts once each, of core_attn"),
        ("mlp+", "where `` is no part of a block; name parts once each, of core_attn, layernorm"),
    ],
)
def test_a_wrong_part_is_refused_with_one_sentence(value, message):
    with pytest.raises(OptionError) as caught:
        NamedPlan.parse(f"recompute={value}")
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"`recompute` of the plan is `{value}`, ")


def test_parts_have_one_order():
    assert NamedPlan.parse("recompute=moe_act+layernorm").text == "recompute=layernorm+moe_act"
    assert NamedPlan.parse("recompute=core_attn").recompute == "selective"
    assert NamedPlan.parse(f"recompute={'+'.join(MODULES)}").recompute == "+".join(MODULES)
