"""Rules that need whole matrices or blocks are refused on servers, which have rows."""

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
