import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

import shardwright as sw
import shardwright.batches  # binds the digits before a test makes them few
import shardwright.dataset as ds
from shardwright import zoo
from shardwright.communication import world
from shardwright.tools.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 10


@pytest.fixture(autouse=True)
def few_digits(monkeypatch):
    """Make the data short, and forget the examples afterwards."""
    pytest.importorskip("sklearn", reason="scikit-learn, which has the digits, is not installed")
    digits = ds.digits()

    def shorter(num_shards=None, shard_id=None):
        columns = {name: array[: 32 * STEPS] for name, array in digits.columns.items()}
        return ds.ArrayDataset(columns, num_shards, shard_id)

    monkeypatch.setattr(ds, "digits", shorter)
    monkeypatch.syspath_prepend(EXAMPLES)
    yield
    for example in EXAMPLES.glob("*.py"):
        sys.modules.pop(example.stem, None)


def losses_of(name, ranks=1):
    """Run the main function of an example, read anew, and return its losses."""
    sys.modules.pop(name, None)
    with world(ranks):
        return import_module(name).main(1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "ranks", "drop"),
    [
        ("manual_parallel", 4, 0.005),
        ("optimizer_parallel", 1, 0.005),
        ("semi_auto_parallel", 1, 0.1),
        ("data_parallel", 4, 0.03),
        ("lenet", 1, 0.01),
    ],
)
def test_examples_learn(name, ranks, drop, capsys):
    losses = losses_of(name, ranks)
    assert len(losses) == STEPS
    assert sum(losses[-3:]) / 3 < sum(losses[:3]) / 3 - drop
    if name == "optimizer_parallel":
        assert re.match(r"epoch: 0, step: 0, loss is 2\.\d+\n", capsys.readouterr().out)


def test_the_manual_example_on_one_device_has_the_same_losses():
    assert losses_of("manual_parallel", 4) == pytest.approx(losses_of("manual_parallel"), rel=1e-4)


def test_the_manual_example_is_a_model():
    definition = zoo.load(f"{EXAMPLES / 'manual_parallel.py'}:model", ranks=8)
    assert definition.world == 8
    assert definition.parameter_count == 669_706


@pytest.mark.long
def test_the_quickstart_compiles_trains_and_verifies_both_models(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    quickstart = import_module("quickstart")
    monkeypatch.setattr(quickstart, "PLACE", f"{quickstart.PLACE} --gap 0.3")  # any plan will do
    assert quickstart.quickstart(steps=5) == 0
    out = capsys.readouterr().out
    assert out.count("equal: ") == 2
    assert out.count("lower bound") == 2
    assert {path.name for path in (tmp_path / "plans").iterdir()} == {"mlp", "gpt"}
    assert (tmp_path / "plans" / "gpt" / "rank_00007.ir").is_file()


@pytest.mark.long
@pytest.mark.usefixtures("own_operators")
def test_an_operator_of_ones_own_is_checked_compiled_and_verified(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    file = str(EXAMPLES / "own_operator.py")
    arguments = ["compile", f"{file}:network", "--devices", "4", "--cluster", "cpu"]
    assert main([*arguments, "--out", "plan"]) == 0
    assert main([*arguments, "--out", "plan"]) == 0  # reading the file again changes nothing
    assert main(["verify", "plan", "--plugin", file]) == 0
    assert capsys.readouterr().out.count("equal: ") == 1
    checked = sw.check_operator("outer_product_mean")
    assert checked.strategies > 50
    assert checked.gradient
