"""The list of what is trained."""

from shardwright.ir.text import parse
from shardwright.tools.answers.trained import print_trained, trained_rows

MODEL = parse("""graph model {
  input x: f32[8, 4]
  parameter w: f32[4, 4] {initializer='data', trainable=True}
  parameter unread: f32[4, 4] {initializer='data', trainable=True}
  buffer table: f32[4, 4] {initializer='data', trainable=False}
  buffer count: f32[] {initializer='zeros', trainable=False}
  h: f32[8, 4] = matmul(x, w)
  k: f32[8, 4] = matmul(h, table)
  u: f32[4, 4] = stop_gradient(unread)
  m: f32[8, 4] = matmul(k, u)
  loss: f32[] = reduce_mean(m)
  count.next: f32[] = add_scalar(count) {value=1.0}
  update count = count.next
  return loss
}
""")


def test_what_is_not_trained_has_a_reason() -> None:
    assert list(trained_rows(MODEL)) == [
        ("w", "f32[4, 4]", "yes"),
        ("unread", "f32[4, 4]", "no: no gradient reaches it"),
        ("table", "f32[4, 4]", "no: frozen, or a constant"),
        ("count", "f32[]", "no: the forward pass writes it"),
    ]


def test_the_title_counts_what_is_trained(capsys) -> None:
    print_trained(MODEL)
    assert "1 of 4 tensors of the model are trained" in capsys.readouterr().out
