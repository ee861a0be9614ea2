"""Live ranges of buffers: views extend the range of the buffer that they share."""

from shardwright.dataflow.liveness import liveness
from shardwright.ir.text import parse

GRAPH = parse("""
graph views {
  input x: f32[4]
  parameter p: f32[4]* {trainable=False}
  a: f32[4] = relu(x)
  v: f32[2, 2] = reshape(a) {shape=(2, 2)}
  w: f32[4] = reshape(v) {shape=(4,)}
  b: f32[4] = tanh(x)
  c: f32[4] = add(b, w)
  q: f32[4] = add(p, c)
  unread: f32[4] = exp(c)
  return c
  update p = q
}
""")


def test_a_view_uses_the_buffer_of_its_operand() -> None:
    live = liveness(GRAPH)
    assert live.roots == {"v": "a", "w": "a"}
    assert live.uses["a"] == [0, 1, 2, 4]
    assert "w" not in live.uses


def test_parameters_outputs_and_updates_outlive_the_program() -> None:
    assert liveness(GRAPH).lasting == {"p", "c", "q"}


def test_buffers_are_freed_after_their_last_use() -> None:
    assert liveness(GRAPH).freed_after == {3: ["x"], 4: ["a", "b"], 6: ["unread"]}
