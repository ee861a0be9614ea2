"""Profiles of training software: their options, what they hide."""

import pytest
from pydantic import ValidationError

from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.efficiency.software import (
    HeadWidths,
    Software,
    software,
    software_options,
)
from shardwright.cost_model.efficiency.work import Product, Work, work_seconds
from shardwright.cost_model.timeline import simulate
from shardwright.ir.errors import ClusterError
from tests.cost_model.test_efficiency import SELENE, SMALL, figure, profile, program, rate


def test_an_option_changes_its_figures_alone() -> None:
    plain, timed = software("torchtitan"), software("torchtitan+eager")
    assert plain is not None
    assert timed is not None
    assert timed.name == "torchtitan+eager"
    assert timed.pointwise.value > plain.pointwise.value
    assert plain.memory is not None
    assert timed.memory is not None
    assert timed.memory.logits == plain.memory.logits
    same = {"pointwise": plain.pointwise, "name": "torchtitan", "memory": plain.memory}
    assert timed.model_copy(update=same) == plain
    assert software_options("megatron") == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("megatron+fast", "software `megatron` has no option `fast`; it has no options"),
        ("ideal+fast", "software `ideal` has no option `fast`; it has no options"),
        (
            "torchtitan+float8",
            "software `torchtitan` has no option `float8`; say the type of products as "
            "`--precision fp8-current` or `fp8-rowwise`",
        ),
        (
            "torchtitan+fast",
            "software `torchtitan` has no option `fast`; there are eager, cudnn, async_tensor",
        ),
        (
            "torchtitan+eager+eager",
            "software `torchtitan+eager+eager` gives `eager` twice; give it once",
        ),
        (
            "megatron-core+separate_attention+local",
            "software `megatron-core+separate_attention+local` has two options that change "
            "`attention`; leave one out",
        ),
    ],
)
def test_wrong_options_are_told(text: str, sentence: str) -> None:
    with pytest.raises(ClusterError) as caught:
        software(text)
    assert str(caught.value) == sentence


def test_schedules_of_software_are_known() -> None:
    core = software("megatron-core")
    assert core is not None
    assert core.schedules == ("1f1b", "interleaved", "interleaved_pairs")
    with pytest.raises(ValidationError, match="`dualpipe` is no schedule; there are gpipe, 1f1b"):
        Software.model_validate({**core.model_dump(), "schedules": ["1f1b", "dualpipe"]})


def test_what_a_ring_computes_is_not_hidden_with_what_it_sends() -> None:
    graph = program(f"{SMALL},layers=2", "context=2,ring,micro_batch=1", 2, 2)
    hidden, whole = (
        simulate(graph, SELENE.run_by(profile(exposed_activations=rate(share), host=figure(0))))
        for share in (1e-9, 1)
    )
    assert hidden.compute_seconds == whole.compute_seconds
    assert hidden.compute_seconds <= hidden.step_seconds <= whole.step_seconds


def test_transfers_that_are_hidden_take_their_share() -> None:
    graph = program(f"{SMALL},layers=4", "pipeline=2,micro_batch=2", 2, 16)
    steps = [
        simulate(graph, SELENE.run_by(profile(exposed_transfers=share))).step_seconds
        for share in (rate(1e-9), rate(1.0), None)
    ]
    assert steps[0] < steps[1]
    assert steps[1] == steps[2]


def test_kernels_of_a_software_change_fused_attention_alone() -> None:
    attention = Work("attention", "float16", 1e12, 1e6, (Product(1, 1, 1),))
    twice, once = (
        work_seconds(attention, SELENE.run_by(profile(attention="fused", kernels=kernels)))
        for kernels in (figure(2), None)
    )
    launch = SELENE.device.launch_seconds
    assert once - launch == pytest.approx(2 * (twice - launch))


def test_a_software_attains_its_share_of_products_by_a_recipe_alone() -> None:
    products, own = (Product(8192.0, 8448.0, 4096.0),), {"fp8-rowwise": rate(0.5)}
    described = cluster("h100-3200g")
    whole, half = (
        {
            recipe: work_seconds(
                Work("product", "bfloat16", products[0].flops, 0.0, products, recipe=recipe), timed
            )
            - timed.device.launch_seconds
            for recipe in ("", "fp8-current", "fp8-rowwise")
        }
        for timed in (described.run_by(profile()), described.run_by(profile(recipes=own)))
    )
    assert half == pytest.approx(whole | {"fp8-rowwise": 2 * whole["fp8-rowwise"]})
    with pytest.raises(ValidationError, match="no recipe is called `fp6`, expected fp8-current, "):
        Software.model_validate({**profile().model_dump(), "recipes": {"fp6": rate(0.5)}})


def test_attention_has_a_rate_by_the_width_of_heads() -> None:
    own = software("automodel")
    assert own is not None
    assert own.widths is not None
    assert [own.widths.share(width) for width in (32, 64, 96, 128, 512)] == pytest.approx(
        [0.685, 0.685, 0.8425, 1.0, 0.878]
    )
    scores = {d: Product(4096, 4096, d, 32) for d in (64, 128)}
    works = {d: Work("attention", "bfloat16", 1e12, 0.0, (one, one)) for d, one in scores.items()}
    timed = cluster("h100-3200g").run_by(own)
    wide, narrow = (work_seconds(works[d], timed) - 2.5e-6 for d in (128, 64))
    assert narrow == pytest.approx(wide / 0.685)


def test_widths_that_do_not_rise_are_refused() -> None:
    with pytest.raises(ClusterError) as caught:
        HeadWidths(points=((128, 1.0), (64, 0.7)), tag="measured", source="a test")
    assert str(caught.value) == "`points`: the widths of points must rise, and 64 follows 128"
