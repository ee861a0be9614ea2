"""Documents in one row: what they cost, which labels count, and what is refused."""

import numpy as np
import pytest

from shardwright import nn
from shardwright.ir.errors import ModelError
from shardwright.ir.mesh import Mesh
from shardwright.ir.text import to_text
from shardwright.ir.types import TensorType
from shardwright.operators.info import info_of
from shardwright.runtime.communicator import LocalCommunicator
from shardwright.runtime.executor import Executor
from shardwright.tracing import InputSpec, trace
from shardwright.zoo.loading import load

SIZES = "layers=1,hidden=16,heads=4,kv_heads=2,inner=24,batch=2,sequence=64,vocabulary=48"


def attention_flops(sizes: str) -> float:
    graph = load(f"llama:{sizes}").graph
    infos = [info_of(graph, n) for n in graph.nodes if n.operator.startswith("scaled_dot")]
    return sum(info.flops for info in infos)


def test_attention_costs_as_in_rows_of_the_documents_length() -> None:
    rows = SIZES.replace("batch=2,sequence=64", "batch=8,sequence=16")
    packed = f"{SIZES},documents=16,document_spread=0"
    assert attention_flops(packed) == attention_flops(rows) < attention_flops(SIZES)


@pytest.mark.parametrize(("spread", "length"), [(0, 16), (0.5, 20), (1, 32), (5, 64)])
def test_longer_documents_have_more_of_the_tokens(spread: float, length: int) -> None:
    text = to_text(load(f"llama:{SIZES},documents=16,document_spread={spread}").graph)
    assert f"documents={length}" in text


def test_the_model_takes_positions_as_well() -> None:
    assert [x.name for x in load(f"llama:{SIZES},documents=16").inputs] == [
        "tokens",
        "positions",
        "labels",
    ]


def test_ignored_labels_have_no_loss_and_do_not_count() -> None:
    logits, labels = np.random.default_rng(0).normal(size=(4, 5)), np.array([1, -1, 4, -1])
    specs = (
        InputSpec("x", TensorType("float64", (4, 5))),
        InputSpec("y", TensorType("int64", (4,))),
    )
    graph = trace(lambda x: x, specs, loss_fn=nn.CrossEntropyLoss(ignore_index=-1)).graph
    from_kept = np.log(np.exp(logits).sum(1)) - logits[np.arange(4), labels.clip(0)]
    executor = Executor(graph, LocalCommunicator(Mesh(())))
    (loss,) = executor.step({"x": logits, "y": labels}, {}).outputs.values()
    assert abs(loss[0] - from_kept[[0, 2]].mean()) < 1e-12


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            "documents=65",
            "`documents` have 65 tokens in the mean, and a row has 64; give at most 64, or a "
            "longer `sequence`",
        ),
        ("documents=0", "`documents` of `llama` is 0, expected at least 1"),
        (
            "documents=4,document_spread=-1",
            "`document_spread` is -1.0, expected 0 or more: the standard deviation of lengths over "
            "their mean",
        ),
        (
            "documents=4,document_spread=nan",
            "`document_spread` of `llama` is nan, expected a finite number",
        ),
        (
            "document_spread=0.5",
            "`document_spread` is given without a length; write `documents=512`",
        ),
    ],
)
def test_wrong_sizes_are_refused(sizes: str, message: str) -> None:
    with pytest.raises(ModelError) as error:
        load(f"llama:{SIZES},{sizes}")
    assert str(error.value) == message


def test_linear_attention_knows_no_documents() -> None:
    with pytest.raises(ModelError) as error:
        load("qwen3-next-80b-a3b:num_hidden_layers=1,sequence=64,documents=16")
    assert str(error.value) == (
        "`documents` are not known in layers of linear attention: their states go from one "
        "document of a row to the next; give each document a row of its own"
    )
