"""Named plans: their text, their mesh, and the programs that they build."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwright as sw
from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import Cluster, Level, cluster
from shardwright.ir.errors import InfeasibleError, OptionError, ShardwrightError
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.search.named_plan import NamedPlan
from tests.equivalence import assert_equal, trained
from tests.extent import first, long_after
from tests.random_graphs import random_graph
from tests.zoo_sizes import SMALL

POD = cluster("h100-pod:figures=datasheet")
WRONG = (
    ("", "the plan `` has an empty item; write `tensor=8,data=4,zero=1,sequence_parallel`"),
    ("tensor=2,,data=2", "the plan `tensor=2,,data=2` has an empty item; "),
    ("tensr=2", "a named plan has no `tensr`; did you mean `tensor`?"),
    ("tensor=2,tensor=2", "the plan gives `tensor` twice; give it once"),
    ("tensor", "`tensor` of the plan has no value; write `tensor=...`"),
    ("tensor=0", "`tensor` of the plan is 0, expected an integer of at least 1"),
    ("tensor=-2", "`tensor` of the plan is -2, expected an integer of at least 1"),
    ("tensor=two", "`tensor` of the plan is the text `two`, expected an integer of at least 1"),
    ("data=1.5", "`data` of the plan is 1.5, expected an integer of at least 1"),
    ("micro_batch=0x2", "`micro_batch` of the plan is the text `0x2`, expected an integer of at"),
    ("zero=-1", "`zero` of the plan is -1, expected 0, 1, 2 or 3"),
    ("zero=4", "`zero` of the plan is 4, expected 0, 1, 2 or 3"),
    ("zero=yes", "`zero` of the plan is the text `yes`, expected 0, 1, 2 or 3"),
    ("schedule=2f2b,pipeline=2", "`schedule` of the plan is `2f2b`, expected gpipe, 1f1b, inter"),
    ("schedule=gpipe", "`schedule=gpipe` orders the stages of a pipeline, and the plan has one"),
    ("pipeline=2,chunks=2,schedule=1f1b", "the schedule `1f1b` has one chunk for each device"),
    ("pipeline=2,schedule=interleaved", "the schedule `interleaved` needs at least 2 chunks"),
    (
        "recompute=all",
        "`recompute` of the plan is `all`, expected none, selective, operators, full, core_attn",
    ),
    ("sequence_parallel=1,tensor=2", "`sequence_parallel` of the plan has the value `1`, expected"),
    ("sequence_parallel", "`sequence_parallel` splits activations over tensor ranks, and"),
    ("chunks=2", "`chunks=2` interleaves stages, and the plan has one stage; leave `chunks` out"),
    (
        "data=6,expert=4",
        "`expert=4` of the plan does not divide the 6 ranks of a stage, `data=6`; use degrees",
    ),
    (
        "tensor=4,data=8,expert=6,expert_tensor=1",
        "`expert_tensor=1` of the plan divides tokens between tensor ranks, which all hold the "
        "same without `sequence_parallel`; add `sequence_parallel`",
    ),
    (
        "tensor=4,data=3,expert=6,expert_tensor=1,sequence_parallel",
        "`expert=6` of the plan does not fold onto `tensor=4`: groups of 4 and of 6 ranks would "
        "overlap in part; use degrees of which products divide each other, such as powers of two",
    ),
    ("expert_tensor=0", "`expert_tensor` of the plan is 0, expected an integer of at least 1"),
    ("tensor=8,data=1,zero=1", "`zero=1` divides over the data ranks, and the plan has one"),
    ("ring", "`ring` passes keys round the context ranks, and the plan has one; leave it out"),
    ("context=2,ring=1", "`ring` of the plan has the value `1`, expected the word alone"),
    ("data=4,shard=3", "`shard=3` does not divide `data=4`: groups of ranks that share the batch"),
    ("expert=4,shard=6", "`shard=6` makes groups of 6 ranks, no larger multiple of `expert=4`: gr"),
    ("expert=2,shard=2", "`shard=2` makes groups of 2 ranks, no larger multiple of `expert=2`: gr"),
    ("shard=4,zero=0", "`shard` of the plan says how many ranks `zero` divides over, and `zero`"),
    ("shard=0", "`shard` of the plan is 0, expected an integer of at least 1"),
    ("context=0", "`context` of the plan is 0, expected an integer of at least 1"),
)


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_wrong_plan_is_refused_with_one_sentence(text, message):
    with pytest.raises(OptionError) as caught:
        NamedPlan.parse(text)
    assert str(caught.value).startswith(message)


@given(
    st.builds(
        NamedPlan,
        tensor=st.integers(2, 64),
        context=st.sampled_from((2, 4, 8)),
        ring=st.booleans(),
        data=st.none() | st.integers(1, 32).map(lambda n: 2 * n),
        expert=st.sampled_from((1, 2)),
        expert_tensor=st.none(),
        pipeline=st.integers(2, 16),
        chunks=st.integers(1, 4),
        micro_batch=st.none() | st.integers(1, 8),
        recompute=st.sampled_from(("none", "selective", "operators", "full", "mlp+moe_act")),
        zero=st.sampled_from((0, 1, 2, 3)),
        sequence_parallel=st.booleans(),
    )
)
def test_the_text_of_a_plan_is_read_back(plan):
    assert NamedPlan.parse(plan.text) == plan


def test_data_takes_the_devices_that_are_left():
    assert NamedPlan.parse("tensor=4").on(64).data == 16
    assert NamedPlan.parse("tensor=1").text == "tensor=1"
    with pytest.raises(OptionError) as caught:
        NamedPlan.parse("tensor=4,data=2").on(64)
    assert str(caught.value) == (
        "the product of the plan's degrees tensor=4 * data=2 is 8, there are 64 devices; leave "
        "`data` out, and it takes the devices that the others leave"
    )
    with pytest.raises(OptionError, match="degrees tensor=3 does not divide the 8 devices"):
        NamedPlan.parse("tensor=3").on(8)
    with pytest.raises(OptionError, match="`expert=4` of the plan does not divide the 8 ranks"):
        NamedPlan.parse("tensor=4,expert=4").on(8)


@pytest.mark.parametrize(
    ("text", "devices", "mesh", "levels"),
    [
        ("tensor=1", 1, "one device", []),
        ("tensor=8", 8, "tensor=8", [0]),
        ("tensor=8", 64, "data=8 x tensor=8", [1, 0]),
        ("tensor=4", 64, "data_pod=8 x data_node=2 x tensor=4", [1, 0, 0]),
        ("tensor=16", 64, "data=4 x tensor_pod=2 x tensor_node=8", [1, 1, 0]),
        ("shard=8", 64, "data=8 x shard=8", [1, 0]),
        ("tensor=2,shard=8", 64, "data=4 x shard_pod=2 x shard_node=4 x tensor=2", [1, 1, 0, 0]),
        ("expert=2,shard=8", 64, "data=8 x shard=4 x expert=2", [1, 0, 0]),
        ("tensor=8,context=4,data=2", 64, "data=2 x context=4 x tensor=8", [1, 1, 0]),
        ("expert=8,tensor=2", 64, "data=4 x expert_pod=2 x expert_node=4 x tensor=2", [1, 1, 0, 0]),
    ],
)
def test_tensor_ranks_are_nearest_to_each_other(text, devices, mesh, levels):
    made = NamedPlan.parse(text).mesh(POD, devices)
    assert str(made) == mesh
    assert [axis.level for axis in made.axes] == levels


def test_a_degree_that_does_not_fit_a_level_is_refused():
    six = Cluster(
        name="six",
        device=POD.device,
        levels=(
            Level(name="node", size=6, bandwidth=1e9, latency=1e-6),
            Level(name="pod", size=4, bandwidth=1e9, latency=1e-6),
        ),
    )
    with pytest.raises(OptionError) as caught:
        NamedPlan.parse("tensor=4").mesh(six, 24)
    assert str(caught.value).startswith(
        "`tensor=4` does not fit the `node` of six: 2 of it are to be divided between 3; use a"
    )


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"search": "fully_sharded"}, "`search` has no effect with `plan`, which decides it"),
        ({"recompute": "full"}, "which decides it; write `recompute=full` in the plan"),
        ({"optimizer_parallel": True}, "which decides it; write `zero=1` in the plan"),
        ({"pins": {"matmul_0": ((1, 1), (1, 1))}}, "`pins` has no effect with `plan`, "),
        ({"mode": "data_parallel"}, "`plan` has no effect in the mode `data_parallel`"),
        ({"mode": "stand_alone"}, "`plan` has no effect in the mode `stand_alone`"),
    ],
)
def test_options_that_the_plan_decides_are_refused(options, message):
    with pytest.raises(OptionError) as caught:
        CompileOptions(plan="tensor=2", **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("mesh", "2x4"), ("dataset_strategy", "full_batch")])
def test_arguments_that_the_plan_decides_are_refused(name, value):
    with pytest.raises(OptionError) as caught:
        sw.compile("mlp:batch=16", 8, plan="tensor=2", **{name: value})
    assert str(caught.value).startswith(f"`{name}` has no effect with `plan`, which decides it")


def test_a_plan_must_be_a_text_or_a_value():
    with pytest.raises(OptionError, match="`plan` is 8, expected a named plan; write"):
        CompileOptions(plan=8)  # type: ignore[arg-type]
    assert CompileOptions(plan="zero=1,data=2").plan == NamedPlan(zero=1, data=2)


# Plans

GPT = "gpt:layers=1,hidden=32,heads=4,batch=8,sequence=8,vocabulary=64"
MIXTRAL = "mixtral:layers=1,hidden=16,heads=4,kv_heads=2,inner=24,batch=8,sequence=8,vocabulary=48"


@pytest.mark.parametrize(
    ("model", "plan", "message"),
    [
        (
            GPT,
            "data=8,expert=2",
            "`expert=2` of the plan divides nothing: the model has no product",
        ),
        (
            GPT.replace("batch=8", "batch=6"),
            "data=8",
            "the batch of 6 cannot be split over `data=8`",
        ),
        (GPT.replace("sequence=8", "sequence=6"), "tensor=4,sequence_parallel", "divides nothing"),
        ("two_matmul:batch=64,inputs=4,hidden=4,outputs=4", "zero=1", "`zero=1` of the plan div"),
        ("lenet5:batch=8,side=20", "tensor=2,sequence_parallel", "`sequence_parallel` of the plan"),
    ],
)
def test_a_degree_that_divides_nothing_is_refused(model, plan, message):
    with pytest.raises(ShardwrightError) as caught:
        sw.compile(model, 8, plan=plan)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("tensor=2", "which the cost model does not allow; use the cost model `time`"),
        ("data=8,zero=1", "which the cost model does not allow; use the cost model `time`"),
        ("data=4,tensor=2,micro_batch=1", "the cost model `mindspore` prices no micro-batches"),
    ],
)
def test_a_cost_model_without_the_choices_of_a_plan_refuses_it(plan, message):
    with pytest.raises(ShardwrightError) as caught:
        sw.compile(GPT, 8, plan=plan, cost_model="mindspore")
    assert message in str(caught.value)


def counts(model, plan, devices=8):
    """Return how often each collective runs over each kind of axes, forward and backward."""
    compilation = sw.compile(model, devices, plan=plan, optimizer="adam", objective="serial")
    found: dict[tuple[str, str, str], int] = {}
    first = next(
        i for i, n in enumerate(compilation.plan.program.nodes) if n.provenance.role == "backward"
    )
    for i, node in enumerate(compilation.plan.program.nodes):
        axes = node.attributes.get("axes")
        if isinstance(axes, tuple) and axes:
            kinds = "+".join(dict.fromkeys(str(axis).partition("_")[0] for axis in axes))
            key = (node.operator, kinds, "backward" if i >= first else "forward")
            found[key] = found.get(key, 0) + 1
    return found


def of_one_layer(model, plan):
    """Return the collectives of one block: those of two less those of one."""
    two, one = (counts(model.replace("layers=1", f"layers={n}"), plan) for n in (2, 1))
    return {key: two[key] - one.get(key, 0) for key in two if two[key] != one.get(key, 0)}


def test_a_block_under_tensor_parallelism_has_the_published_collectives():
    # Shoeybi et al., 2019, section 3: two all-reduces forward and two backward.
    found = of_one_layer(GPT, "tensor=4,data=2")
    assert found[("all_reduce", "tensor", "forward")] == 2
    assert found[("all_reduce", "tensor", "backward")] == 2
    assert {key for key in found if key[1] != "data"} == {
        ("all_reduce", "tensor", "forward"),
        ("all_reduce", "tensor", "backward"),
    }


def test_a_block_under_sequence_parallelism_has_the_published_collectives():
    # Korthikanti et al., 2022, section 4.2.2: two all-gathers and two reduce-scatters each way;
    # what the norms make is saved split, and gathered again.
    found = of_one_layer(GPT, "tensor=4,data=2,sequence_parallel")
    for direction in ("forward", "backward"):
        again = 2 * (direction == "backward")
        assert found[("all_gather", "tensor", direction)] == 2 + again
        assert found[("reduce_scatter", "tensor", direction)] == 2
    assert ("all_reduce", "tensor", "forward") not in found
    # Norms, and the biases behind the two rows, see a part of the positions on each tensor rank.
    norms = found[("all_reduce", "data+tensor", "backward")]
    assert norms == 6
    assert ("all_reduce", "tensor", "backward") not in found


def test_table_head_and_loss_are_split_by_words():
    # The looked-up rows; the maximum, the sum of exponentials and the score of the label.
    block, whole = of_one_layer(GPT, "tensor=4"), counts(GPT, "tensor=4")
    outside = {key: whole[key] - block.get(key, 0) for key in whole}
    assert outside[("all_reduce", "tensor", "forward")] == 4
    assert outside[("all_reduce", "tensor", "backward")] == 1  # the gradient by the head's operand
    program = sw.compile(GPT, 8, plan="tensor=4").plan.document.parameters
    assert program["embedding.embedding_table"].slice_shape == (16, 32)


def test_gradients_of_weights_are_reduced_over_the_data_ranks_alone():
    found = counts(GPT, "tensor=4,data=2")
    # Each parameter once; the fused all-reduces of the loss and of tensors are others.
    parameters = len(sw.compile(GPT, 8, plan="tensor=4").compiled.source.parameters)
    assert found[("all_reduce", "data", "backward")] == parameters


def test_zero_reduces_scattered_and_gathers_once_or_twice():
    zero = {stage: counts(GPT, f"data=8,zero={stage}") for stage in (1, 2, 3)}
    gathers = {
        stage: {way: found.get(("all_gather", "data", way), 0) for way in ("forward", "backward")}
        for stage, found in zero.items()
    }
    parameters = len(sw.compile(GPT, 8, plan="data=8").compiled.source.parameters)
    assert zero[1] == zero[2]
    assert gathers[1] == {"forward": parameters, "backward": 0}
    assert gathers[3]["forward"] == parameters
    assert 0 < gathers[3]["backward"] < parameters  # biases are not read for the gradient
    assert all(
        found[("reduce_scatter", "data", "backward")] == parameters for found in zero.values()
    )


def test_blocks_are_recomputed_with_their_forward_communication():
    once = counts(GPT, "tensor=4,data=2,sequence_parallel")
    again = counts(GPT, "tensor=4,data=2,sequence_parallel,recompute=full")
    gather, scatter = ((kind, "tensor", "backward") for kind in ("all_gather", "reduce_scatter"))
    # Both operands of the columns are gathered again either way; of the two sums that are made
    # again the last is not needed.
    assert (again[gather] - once[gather], again[scatter] - once[scatter]) == (0, 1)
    program = sw.compile(GPT, 8, plan="tensor=4,recompute=full").compiled.source
    assert program.recomputed
    assert not sw.compile(GPT, 8, plan="tensor=4,recompute=selective").compiled.source.recomputed


def test_zero_says_when_micro_batches_gather_and_reduce():
    passes, often = 2, {}
    for zero in (0, 1, 2, 3):
        compilation = sw.compile(GPT, 4, plan=f"data=4,zero={zero},micro_batch=1", optimizer="adam")
        found = compilation.plan.document.communication
        often[zero] = {
            kind: found[kind].count for kind in ("all_gather", "reduce_scatter") if kind in found
        }
        assert compilation.plan.document.micro_batches == passes
    parameters = len(compilation.compiled.source.parameters)
    assert often[0] == {}  # gradients are all-reduced after the last micro-batch
    assert often[1] == {"all_gather": parameters, "reduce_scatter": parameters}
    assert often[2]["all_gather"] == parameters
    single = 1  # the tied table has two readers: it is gathered and reduced once
    assert often[2]["reduce_scatter"] == passes * (parameters - single) + single
    assert often[3]["reduce_scatter"] == often[2]["reduce_scatter"]
    assert often[3]["all_gather"] > passes * (parameters - single)


def test_micro_batches_are_samples_of_a_data_rank():
    plan = NamedPlan.parse("tensor=2,micro_batch=2")
    assert (plan.passes(32, 8), NamedPlan.parse("tensor=2").passes(32, 8)) == (4, 1)
    with pytest.raises(OptionError) as caught:
        sw.compile(GPT, 8, plan="data=4,tensor=2,micro_batch=3")
    assert str(caught.value) == (
        "`micro_batch=3` does not divide the 2 samples of each data rank; use a divisor of 2"
    )
    found = sw.compile(GPT, 4, plan="data=4", micro_batches=2)
    assert found.plan.document.micro_batches == 2
    assert sw.compile(GPT, 4, plan="data=4,micro_batch=1", micro_batches=2)
    with pytest.raises(OptionError) as caught:
        sw.compile(GPT, 4, plan="data=2,tensor=2,micro_batch=1", micro_batches=2)
    assert str(caught.value) == (
        "`micro_batches` is 2, and `micro_batch=1` of the plan makes 4 of the batch of 8; leave "
        "one of them out"
    )


def test_tokens_go_to_their_experts_and_back():
    found = of_one_layer(MIXTRAL, "data=8,expert=2")
    assert found[("all_to_all", "expert", "forward")] == 2
    assert found[("all_to_all", "expert", "backward")] == 2
    stored = sw.compile(MIXTRAL, 8, plan="data=8,expert=2").plan.document.parameters
    assert stored["decoder.blocks.0.feed_forward.gate.weight"].slice_shape == (4, 16, 24)


def test_expert_ranks_divide_products_of_experts_alone():
    # The skip of a state space layer is a parameter of [heads, 1, 1] times the values of its heads.
    model = (
        "nemotron-3-nano:hidden_size=16,hybrid_override_pattern=ME,num_attention_heads=2,head_dim=8,"
        "vocab_size=32,mamba_num_heads=4,mamba_head_dim=8,n_groups=2,ssm_state_size=4,"
        "moe_intermediate_size=12,moe_shared_expert_intermediate_size=12,n_routed_experts=4,"
        "num_experts_per_tok=2,sequence=8,dtype=float32"
    )
    program = sw.compile(model, 4, batch=8, plan="data=4,expert=2").plan.program
    moved = [n for n in program.nodes if n.operator == "all_to_all"]
    assert moved
    assert all(node.results[0].type.ragged is not None for node in moved)


def test_shards_are_gathered_inside_of_a_group_and_gradients_reduced_over_all():
    plan = sw.compile(GPT.replace("batch=8", "batch=16"), 16, plan="shard=8").plan
    nodes = [n for n in plan.program.nodes if n.operator == "all_gather"]
    of_parameters = [n for n in nodes if n.provenance.role in ("redistribution", "recompute")]
    assert {n.attributes["axes"] for n in of_parameters} == {("shard",)}
    weight = plan.program.values["blocks.0.feed_forward.mapping.weight"]
    assert weight.layout is not None
    assert weight.layout.split_axes == ("shard",)


VERIFIED = (
    ("gpt", "tensor=2,sequence_parallel,zero=1"),
    ("gpt", "shard=4"),
    ("mixtral", "expert=2,shard=4,zero=1"),
    ("llama", "tensor=2,zero=3,micro_batch=1,recompute=full"),
    ("mixtral", "tensor=2,expert=2,sequence_parallel,zero=1"),
    ("mixtral", "expert=4,zero=3,recompute=full"),
    ("bert", "tensor=2,sequence_parallel,zero=1"),
    ("vit", "tensor=4,zero=1"),
    ("gpt", "tensor=2,zero=1,sequence_parallel,micro_batch=1"),
    ("gpt", "tensor=2,zero=3"),
    ("llama", "tensor=4,zero=1"),
    ("llama", "tensor=2,zero=2,sequence_parallel"),
    ("mixtral", "expert=8,zero=3"),
    ("gpt", "tensor=2,zero=1,sequence_parallel,recompute=full"),
)


@pytest.mark.long
@pytest.mark.parametrize(("model", "plan"), first(4, VERIFIED))
def test_a_named_plan_computes_its_model(model, plan):
    precision = "bfloat16" if model in ("llama", "mixtral") else "float32"
    how = {"optimizer": "adam", "precision": precision}
    verdict = sw.verify(sw.compile(SMALL[model], 8, plan=plan, **how), steps=1)
    assert verdict.equal
    assert verdict.proof.proven
    assert verdict.max_relative_error < 1e-9


@pytest.mark.parametrize(
    "plan", long_after(1, first(2, ["tensor=4,sequence_parallel,zero=1", "zero=3", "tensor=2"]))
)
def test_the_exact_search_on_the_same_mesh_is_never_worse(plan):
    named = sw.compile(GPT, 8, plan=plan)
    found = sw.compile(GPT, 8, mesh=named.compiled.mesh)
    assert found.plan.document.objective <= named.plan.document.objective * (1 + 1e-9)
    assert named.plan.document.search == "named_plan"
    assert named.compiled.result.how == NamedPlan.parse(plan).on(8).text


def test_a_named_plan_that_does_not_fit_is_proven_not_to():
    with pytest.raises(InfeasibleError) as caught:
        sw.compile(GPT, 8, plan="tensor=2", memory_limit=1000)
    assert str(caught.value).startswith("the plan `tensor=2,data=4` takes at least ")
    assert caught.value.least_memory_bound > 1000
    assert str(caught.value).endswith(
        "; try a larger `tensor`, `zero=3`, `recompute=full` or a smaller `micro_batch`, or leave "
        "the plan out and search"
    )

    whole = sw.compile(GPT, 8, plan="tensor=2", objective="serial")
    counted, needed = whole.compiled.result.memory_bytes, whole.plan.document.memory.peak_bytes
    assert counted < needed
    with pytest.raises(InfeasibleError, match=r"`tensor=2,data=4` takes [0-9.]+ KiB \(") as last:
        sw.compile(GPT, 8, plan="tensor=2", memory_limit=(counted + needed) / 2)
    assert last.value.hint == caught.value.hint


@pytest.mark.parametrize(
    ("plan", "hint"),
    [
        (
            "tensor=2",
            "try a larger `tensor`, `zero=3`, `recompute=full` or a smaller `micro_batch`",
        ),
        ("tensor=2,zero=3,recompute=full", "try a larger `tensor` or a smaller `micro_batch`"),
        ("tensor=2,data=1,micro_batch=1", "try a larger `tensor` or `recompute=full`"),
        ("data=2,zero=3,micro_batch=1,recompute=full", "try a larger `tensor`"),
    ],
)
def test_the_hint_names_what_a_plan_leaves_unused(plan, hint):
    assert NamedPlan.parse(plan).hint == f"{hint}, or leave the plan out and search"


def test_the_plan_says_what_is_recomputed():
    for plan in ("tensor=2", "tensor=2,recompute=full"):
        with pytest.raises(OptionError) as caught:
            sw.compile(GPT, 8, plan=plan, recompute="search")
        assert str(caught.value) == (
            "`recompute` has no effect with `plan`, which decides it; write `recompute=full` in "
            "the plan"
        )


RANDOM = (
    "data=4",
    "data=4,zero=1",
    "tensor=2,zero=3",
    "tensor=4",
    "tensor=2,zero=1",
    "data=4,zero=3",
)


def test_on_random_programs_a_named_plan_is_equal_and_the_search_never_worse():
    cpu, adam, built = cluster("cpu"), Optimizer("adam"), 0
    for seed in first(24, range(80)):
        graph, plan = random_graph(seed, nodes=6), RANDOM[seed % len(RANDOM)]
        try:
            named = compile_graph(graph, cpu, 4, CompileOptions(plan=plan, optimizer=adam))
        except OptionError:  # nothing can be divided over tensor ranks
            continue
        built += 1
        alone = compile_graph(graph, cpu, 1, CompileOptions(mode="stand_alone", optimizer=adam))
        assert_equal(trained(named.program), trained(alone.program))
        found = compile_graph(graph, cpu, 4, CompileOptions(optimizer=adam), named.mesh)
        assert found.result.lower_bound <= named.result.cost * (1 + 1e-9)
        assert found.result.cost <= named.result.cost * (1 + 1e-3)  # the gap of the search
    assert built > 10  # of some nothing can be divided over tensor ranks
