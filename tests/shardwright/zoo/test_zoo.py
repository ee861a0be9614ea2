import re

import numpy as np
import pytest

from shardwright import zoo
from shardwright.ir.errors import ModelError, ShardwrightError
from shardwright.operators.verify import verify
from tests.shardwright.programs import outputs_of

SMALL_GPT = "gpt:layers=2,hidden=32,heads=4,batch=2,sequence=8,vocabulary=96"
SMALL_BERT = "bert:layers=2,hidden=32,heads=2,batch=2,sequence=8,vocabulary=64"


def gpt_count(layers, hidden, sequence, vocabulary):
    block = 12 * hidden**2 + 13 * hidden
    return layers * block + (vocabulary + sequence) * hidden + 2 * hidden


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("mlp", 669_706),
        ("mlp:inputs=4,hidden=3,classes=2,layers=2", 15 + 8),
        ("two_matmul", 2 * 128 * 256),
        (SMALL_GPT, gpt_count(2, 32, 8, 96)),
        (SMALL_GPT + ",tied=false", gpt_count(2, 32, 8, 96) + 32 * 96),
        ("gpt", 124_475_904),
        (SMALL_BERT, gpt_count(2, 32, 8, 64) + 2 * 32 + 32**2 + 3 * 32 + 64),
    ],
)
def test_models_have_the_parameters_they_are_known_for(model, parameters):
    definition = zoo.load(model)
    verify(definition.graph)
    assert definition.parameter_count == parameters


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        ("mlp", np.log(10)),
        (SMALL_GPT, np.log(96)),
        (SMALL_GPT + ",dropout=0.1", np.log(96)),
        (SMALL_BERT, np.log(64)),
    ],
)
def test_the_first_loss_is_that_of_a_guess(model, loss):
    assert outputs_of(zoo.load(model))[0] == pytest.approx(loss, rel=0.02)


def test_a_preset_takes_further_sizes():
    definition = zoo.load("gpt2-xl:layers=1,batch=2,vocabulary=64")
    tokens, _ = definition.inputs
    assert (tokens.type.shape, tokens.high) == ((2, 1024), 64)
    assert definition.parameter_count == gpt_count(1, 1600, 1024, 64)


def test_scopes_of_a_transformer_are_paths():
    scopes = [node.scope for node in zoo.load(SMALL_GPT).graph]
    assert "blocks/1/attention/query_key_value" in scopes
    assert "blocks/0/feed_forward/mapping/activation" in scopes
    assert scopes[-1] == "loss"


def test_every_model_has_random_inputs():
    for model in zoo.MODELS:
        specs = zoo.load(model).inputs
        assert all(spec.type.is_float or spec.high for spec in specs)


@pytest.mark.parametrize(
    ("model", "what", "hint"),
    [
        ("gtp", "no model is called `gtp`", "did you mean `gpt`?"),
        ("resnet51", "no model is called `resnet51`", "did you mean `resnet50`?"),
        ("gpt:layer=2", "`gpt` has no size `layer`", "did you mean `layers`?"),
        ("gpt:layers", "`layers` is not a size of `gpt`", "write `size=value`"),
        ("gpt:layers=two", "`layers` of `gpt` is `two`, expected type int", None),
        ("gpt:layers=0", "`layers` of `gpt` is 0, expected at least 1", None),
        ("gpt:tied=perhaps", "`tied` of `gpt` is `perhaps`, expected type bool", None),
        (
            "gpt:hidden=10,heads=3",
            "a hidden size of 10 cannot be divided by 3 heads",
            None,
        ),
        (
            "model.py",
            "`model.py` names no function",
            "write `model.py:function`",
        ),
        ("no.py:make", "there is no file `no.py`", "write `path/to/file.py:function`"),
    ],
)
def test_unknown_models_and_sizes_are_refused(model, what, hint):
    with pytest.raises(ModelError) as caught:
        zoo.load(model)
    assert (caught.value.what, caught.value.hint) == (what, hint)


FILE = """
from dataclasses import dataclass
import neighbour
import shardwright as sw
from shardwright import nn, ops
from shardwright.communication import get_rank, get_group_size

rank = get_rank()

@dataclass
class Sizes:
    hidden: "int" = neighbour.HIDDEN

class Network(nn.Cell):
    def __init__(self, hidden):
        self.layer = nn.Dense(hidden, 2)

    def construct(self, x):
        part = x.shape[0] // get_group_size()
        return self.layer(x[rank * part : (rank + 1) * part])

def specs(batch, hidden):
    types = ((sw.float32, (batch, hidden)), (sw.int32, (batch,)))
    return [sw.InputSpec(n, sw.TensorType(*t)) for n, t in zip(("x", "label"), types)]

def forward(batch: int = 4):
    return Network(Sizes().hidden), specs(batch, Sizes().hidden)[:1]

def definition():
    network, inputs = forward()
    return sw.trace(network, inputs, name="mine")

def wrong():
    return 3

def broken():
    return undefined
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "neighbour.py").write_text("HIDDEN = 6\n")
    path = tmp_path / "train.py"
    path.write_text(FILE)
    return path


def test_a_model_may_come_from_a_file(script):
    definition = zoo.load(f"{script}:forward:batch=8")
    assert definition.graph.inputs[0].type.shape == (8, 6)
    assert [node.operator for node in definition.graph] == ["matmul", "add"]
    assert zoo.load(f"{script}:definition").graph.name == "mine"


def test_a_file_is_loaded_for_all_ranks(script):
    definition = zoo.load(f"{script}:forward", ranks=2)
    assert definition.world == 2
    assert definition.graph.nodes[0].operator == "local_slice"


def test_a_file_is_read_anew(script):
    zoo.load(f"{script}:forward")
    (script.parent / "neighbour.py").write_text("HIDDEN = 16\n")
    assert zoo.load(f"{script}:forward").graph.inputs[0].type.shape == (4, 16)


@pytest.mark.parametrize(
    ("function", "what"),
    [
        ("forwards", "`{script}` has no function `forwards`"),
        (
            "wrong",
            "`wrong` returns int, expected a `Definition`, `(network, inputs)` or "
            "`(network, inputs, loss_fn)`",
        ),
        ("broken", "NameError: name 'undefined' is not defined"),
    ],
)
def test_wrong_files_are_refused(script, function, what):
    with pytest.raises(ModelError) as caught:
        zoo.load(f"{script}:{function}")
    assert caught.value.what == what.format(script=script)


def test_a_file_that_cannot_be_run_is_refused(tmp_path):
    path = tmp_path / "model.py"
    path.write_text("import nowhere_to_be_found\n")
    with pytest.raises(ModelError) as caught:
        zoo.load(f"{path}:make")
    assert caught.value.what == "ModuleNotFoundError: No module named 'nowhere_to_be_found'"
    assert caught.value.where == f"{path}, line 1"


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ("layers=1000000000000", "`layers` of `gpt` is 1,000,000,000,000, expected at most 10,000"),
        (f"heads=1,hidden={10**30}", "bytes, expected at most 2^63 - 1"),
        (f"vocabulary={10**30}", "bytes, expected at most 2^63 - 1"),
    ],
)
def test_sizes_beyond_every_machine_are_refused(sizes, said):
    with pytest.raises(ShardwrightError, match=re.escape(said)):
        zoo.load(f"gpt:{sizes}")
