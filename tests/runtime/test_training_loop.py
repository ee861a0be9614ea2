from pathlib import Path

import numpy as np
import pytest

from shardwright.ir.errors import ExecutionError
from shardwright.ir.text import parse
from shardwright.runtime import Executor, LocalCommunicator, StepRecord, initialize, train

# One step of gradient descent on half the sum of squares of a w.
PROGRAM = """graph regression on data=2 {
  input a: f64[8@data, 4]
  parameter w: f64[4, 1]* {initializer='ones'}
  y: f64[8@data, 1] = matmul(a, w)
  square: f64[8@data, 1] = mul(y, y)
  part: f64[] +data = reduce_sum(square)
  loss: f64[]* = all_reduce(part) {axes=('data',)}
  g: f64[4, 1] +data = contract_leading(a, y)
  whole: f64[4, 1]* = all_reduce(g) {axes=('data',)}
  move: f64[4, 1]* = scale(whole) {factor=-0.02}
  w.next: f64[4, 1]* = add(w, move)
  update w = w.next
  return loss
}"""


def test_a_training_run_with_logs(tmp_path: Path):
    graph = parse(PROGRAM)
    communicator = LocalCommunicator(graph.mesh)
    state = initialize(graph, 0, communicator)
    a = np.random.default_rng(1).normal(size=(8, 4))
    seen: list[StepRecord] = []
    records = list(
        train(
            Executor(graph, communicator),
            state,
            [{"a": a}] * 7,
            log_directory=tmp_path,
            steps_per_epoch=3,
            log_every=2,
            callbacks=[seen.append],
        )
    )
    assert records == seen
    assert [record.step for record in records] == [1, 2, 3, 4, 5, 6, 7]

    w, losses = np.ones((4, 1)), []
    for _ in range(7):
        y = a @ w
        losses.append((y * y).sum())
        w = w - 0.02 * (a.T @ y)
    np.testing.assert_allclose([record.loss for record in records], losses, rtol=1e-12)
    assert losses[-1] < losses[0]

    for rank in range(2):
        lines = (tmp_path / f"rank.{rank}" / "stdout").read_text().splitlines()
        assert lines == [
            f"epoch: 1 step: 2, loss is {records[1].loss}",
            f"epoch: 2 step: 1, loss is {records[3].loss}",
            f"epoch: 2 step: 3, loss is {records[5].loss}",
        ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graph g {\nreturn\n}", "graph `g` has no outputs, expected the loss as the first"),
        (
            "graph g {\ninput a: f32[3]\nreturn a\n}",
            "the loss `a` is f32[3], expected a scalar",
        ),
        (
            "graph g on x=2 {\ninput a: f32[4@x]\nb: f32[] +x = reduce_sum(a)\nreturn b\n}",
            "the loss `b` has the layout [] +x, expected a replicated one",
        ),
    ],
)
def test_programs_without_a_loss_are_refused(text: str, message: str):
    graph = parse(text)
    with pytest.raises(ExecutionError) as error:
        next(train(Executor(graph, LocalCommunicator(graph.mesh)), {}, [{}]))
    assert str(error.value) == message
