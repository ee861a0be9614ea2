"""Which rule updates which parameter: embeddings, heads, vectors, stacks of experts, patterns."""

import pytest

from shardwright.dataflow.update_rules import hidden_matrices, mean_state_bytes, with_rules
from shardwright.ir.errors import OptionError
from shardwright.operators.models.optimizer import Optimizer
from shardwright.operators.models.optimizer_text import optimizer_of
from shardwright.zoo.loading import load
from tests.zoo_sizes import SMALL

GPT = load("gpt:layers=1,hidden=64,heads=4,vocabulary=100,sequence=8,batch=4").graph
HIDDEN = [
    "blocks.0.attention.query_key_value.weight",
    "blocks.0.attention.projection.weight",
    "blocks.0.feed_forward.mapping.weight",
    "blocks.0.feed_forward.projection.weight",
]


def rules(text: str) -> Optimizer:
    return with_rules(optimizer_of(text), GPT)


def test_the_matrices_of_blocks_are_hidden_and_tables_heads_and_vectors_are_not():
    assert hidden_matrices(GPT) == HIDDEN


def test_the_stacks_of_experts_and_their_router_are_hidden_and_the_head_is_not():
    graph = load(SMALL["mixtral"]).graph
    inner = "decoder.blocks.0.feed_forward"
    hidden = hidden_matrices(graph)
    assert {f"{inner}.{name}.weight" for name in ("router", "gate", "up", "down")} <= set(hidden)
    assert not {"decoder.head", "decoder.embedding.embedding_table"} & set(hidden)


def test_windows_of_a_convolution_are_no_matrices():
    assert hidden_matrices(load(SMALL["lenet5"]).graph) == ["fc1.weight", "fc2.weight"]


def test_adamw_updates_what_muon_does_not_and_the_user_may_say_otherwise():
    muon = rules("muon")
    trained = [p.name for p in GPT.parameters if p.trainable]
    assert [name for name in trained if muon.kind_of(name) == "muon"] == HIDDEN
    other = rules("muon:*projection*/optimizer=adamw,embedding*/optimizer=muon")
    assert other.kind_of("blocks.0.attention.projection.weight") == "adam"
    assert other.kind_of("embedding.embedding_table") == "muon"
    assert with_rules(muon, GPT) == muon


def test_small_tensors_have_states_of_32_bits():
    adam = rules("adamw8bit")
    assert adam.kind_of(HIDDEN[0]) == "adam8bit"
    assert adam.kind_of("embedding.embedding_table") == "adam8bit"  # 100 x 64: 25 x 4 blocks
    assert adam.kind_of("position_table") == "adam"
    assert adam.settings_of("position_table") == {"weight_decay": 0.01}


def test_vectors_may_be_left_without_decay():
    adam = rules("adamw:weight_decay=0.1,vectors/weight_decay=0")
    assert adam.settings_of(HIDDEN[0]) == {"weight_decay": 0.1}
    assert adam.settings_of("blocks.0.layernorm1.gamma") == {"weight_decay": 0}


def test_the_bytes_of_states():
    assert mean_state_bytes(Optimizer("sgd", {}), GPT) == 0
    assert mean_state_bytes(Optimizer("adam", {}), GPT) == 8
    eight = mean_state_bytes(Optimizer("adam8bit", {}), GPT)
    assert 2 * (1 + 4 / 256) < eight < 2.4
    assert 4 < mean_state_bytes(Optimizer("muon", {}), GPT) < 8


def test_a_pattern_that_matches_nothing_is_refused():
    with pytest.raises(OptionError) as caught:
        rules("muon:*.heads/optimizer=adamw")
    assert str(caught.value) == (
        "`*.heads` of the optimizer matches no parameter that is trained; the first is "
        "`embedding.embedding_table`"
    )
