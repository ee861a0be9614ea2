"""Model flops against the published closed forms, and the size of a batch."""

import pytest

from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.model_flops import ModelFlops, batch_size, model_flops
from shardwright.zoo import load
from tests.zoo_sizes import SMALL


@pytest.mark.parametrize(
    ("layers", "hidden", "batch", "sequence", "vocabulary"),
    [(1, 64, 4, 32, 96), (3, 128, 2, 64, 512), (2, 256, 8, 128, 1000)],
)
def test_gpt_has_the_flops_of_the_paper(layers, hidden, batch, sequence, vocabulary):
    # Narayanan et al., 2021, eq. 3, without recomputation (72 for 96):
    # 72 b s l h^2 (1 + s / 6h + V / 12 l h)
    model = f"gpt:layers={layers},hidden={hidden},heads=4,batch={batch},sequence={sequence}"
    found = model_flops(load(f"{model},vocabulary={vocabulary}").graph).total
    b, s, h, n, v = batch, sequence, hidden, layers, vocabulary
    assert found == pytest.approx(
        72 * b * s * n * h**2 * (1 + s / (6 * h) + v / (12 * n * h)), rel=1e-12
    )


def test_gpt_has_six_flops_for_each_parameter_and_token_plus_attention():
    layers, hidden, batch, sequence = 2, 64, 4, 32
    definition = load("gpt:layers=2,hidden=64,heads=4,batch=4,sequence=32,vocabulary=96")
    products = 12 * layers * hidden**2 + 96 * hidden  # weights that tokens are multiplied by
    tokens = batch * sequence
    attention = 12 * layers * batch * sequence**2 * hidden
    assert model_flops(definition.graph).total == 6 * products * tokens + attention


def test_llama_counts_shared_heads_and_the_gate():
    layers, h, kv, inner, b, s, v = 2, 16, 8, 24, 8, 6, 50
    weights = layers * (2 * h * h + 2 * h * kv + 3 * h * inner) + v * h
    expected = 6 * weights * b * s + 12 * layers * b * s * s * h
    assert model_flops(load(SMALL["llama"]).graph).total == expected


def test_experts_count_the_rows_of_the_choices_of_tokens():
    graph = load(f"{SMALL['mixtral']},capacity=1.25").graph
    layers, experts, h, kv, inner, b, s, v = 2, 8, 16, 8, 24, 8, 8, 50
    dense = layers * (2 * h * h + 2 * h * kv + h * experts) + v * h
    others = 6 * dense * b * s + 12 * layers * b * s * s * h
    assert model_flops(graph).total == others + 6 * layers * 3 * h * inner * 2 * b * s


def test_resnet50_has_four_gigaflops_of_multiply_adds():
    # He et al., 2016: 3.8e9 multiply-adds; 4.1e9 with the stride in the second convolution.
    found = model_flops(load("resnet50:batch=1").graph).total
    assert found / 3 / 2 == pytest.approx(4.1e9, rel=0.01)


def test_utilization_is_the_time_at_the_peak_of_each_type_over_the_step():
    device = cluster("h100-pod:figures=datasheet").device
    flops = ModelFlops({"float32": 67e12, "bfloat16": 989e12})
    assert flops.total == 1056e12
    assert flops.utilization(device, 8, 0.5) == pytest.approx(2 / 8 / 0.5)
    assert ModelFlops({}).utilization(device, 8, 0.5) == 0.0


@pytest.mark.parametrize(
    ("model", "samples", "tokens"),
    [
        ("gpt", 8, 48),
        ("bert", 8, 48),
        ("mixtral", 8, 64),
        ("vit", 8, None),
        ("resnet50", 8, None),
        ("dlrm", 8, None),
        ("wide_deep", 8, None),
    ],
)
def test_tokens_are_the_positions_between_which_a_model_attends(model, samples, tokens):
    found = batch_size(load(SMALL[model]).graph)
    assert (found.samples, found.tokens) == (samples, tokens)
