"""The weights of MindSpore's objective, and its fusion algorithms, from every entrance."""

import json

import numpy as np
import pytest

import shardwright as sw
from shardwright import nn
from shardwright.parallel import AutoParallel
from shardwright.tools.main import main
from shardwright.train import Model
from tests.shardwright.test_train import DATA, Network, trained

MLP = "mlp:batch=32,inputs=64,hidden=64,classes=8,layers=3"


def compiled(*options, capsys):
    assert main(["compile", MLP, "--devices", "4", "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_weights_scale_the_objective(capsys):
    """Without communication the cost is that of computation, and alpha scales it."""
    plain = ["--cost-model", "mindspore"]
    costs = {
        weights: compiled(*plain, "--cost-weights", weights, capsys=capsys)["objective"]
        for weights in ("alpha=1,beta=0", "alpha=3,beta=0", "alpha=0,beta=400")
    }
    assert costs["alpha=3,beta=0"] == pytest.approx(3 * costs["alpha=1,beta=0"], rel=1e-12)
    default = compiled(*plain, capsys=capsys)
    given = compiled(*plain, "--cost-weights", "alpha=1,beta=400,gamma=0.001", capsys=capsys)
    assert default["objective"] == given["objective"]


def test_weights_decide(capsys):
    """Where communication is dear nothing is sent; where it is free work is divided."""
    dear, free = (
        compiled(
            "--cost-model", "mindspore", "--cost-weights", f"alpha=1,beta={beta}", capsys=capsys
        )["strategies"]
        for beta in (1e9, 0)
    )
    assert dear != free


@pytest.mark.parametrize("fusion", ["algorithm=1,times=2,tail_percent=0.5", "1"])
def test_fusion_from_the_command_line(fusion, capsys, tmp_path):
    out = ["--mode", "data_parallel", "--out", str(tmp_path / "plan")]
    alone = compiled("--mode", "data_parallel", "--fusion", "algorithm=0", capsys=capsys)
    fused = compiled(*out, "--fusion", fusion, capsys=capsys)
    count = [found["communication"]["all_reduce"]["count"] for found in (alone, fused)]
    assert count[1] < count[0]
    assert main(["verify", str(tmp_path / "plan")]) == 0


def test_fusion_algorithms_of_auto_parallel():
    text = "algorithm=2,tail_time=0.5,inherent_time=0.1,bandwidth=0.001,computation_parameter=0.1"
    network = Network(None)
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    spread = AutoParallel(network, "data_parallel", devices=4, fusion=text)
    model = Model(spread, nn.CrossEntropyLoss(), optimizer)
    np.testing.assert_allclose(model.train(2, DATA), trained("data_parallel")[0], rtol=1e-6)
    assert any(node.operator == "pack" for node in model.session.compiled.program)


def test_a_plan_does_not_depend_on_the_way_weights_are_written():
    options = {"cost_model": "mindspore", "cluster": "cpu"}
    written = sw.compile(MLP, 4, cost_weights="beta=50", **options)
    default = sw.compile(MLP, 4, **options)
    assert written.compiled.result is not None
    assert default.compiled.result is not None
    assert written.compiled.result.cost <= default.compiled.result.cost
