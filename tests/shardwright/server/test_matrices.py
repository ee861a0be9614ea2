"""Rules that need whole matrices, blocks or gradients are refused on servers, which have rows."""

import pytest

import shardwright as sw
from shardwright.ir.errors import ModelError
from shardwright.server.programs import worker_program

MLP = "mlp:batch=8,inputs=64,hidden=64,classes=8"


@pytest.mark.parametrize(
    ("rule", "operator"), [("muon", "muon_update"), ("adam8bit", "adam8bit_update")]
)
def test_a_server_has_rows_alone(rule, operator):
    program = sw.compile(MLP, 1, cluster="cpu", mode="stand_alone", optimizer=rule).plan.program
    with pytest.raises(ModelError) as caught:
        worker_program(program, ["layer2.weight"])
    assert str(caught.value) == (
        f"the parameter `layer2.weight` is on the servers, and `{operator}` needs whole matrices "
        "or blocks, of which a server has rows; use `nn.AdamW`"
    )


def test_a_server_has_no_norm_of_all_gradients():
    options = {"cluster": "cpu", "mode": "stand_alone", "optimizer": "sgd:clip_norm=1"}
    program = sw.compile(MLP, 1, **options).plan.program
    with pytest.raises(ModelError, match="and each worker would clip its own"):
        worker_program(program, ["layer2.weight"])
