"""What a loss in chunks is refused for; `tests/golden/chunk_loss` has what it becomes."""

import pytest

from shardwright.ir.errors import ModelError
from shardwright.ir.graph import Graph
from shardwright.ir.text import parse
from shardwright.passes.chunk_loss import ChunkLoss, pieces_of

HEAD = """graph head {{
  input x: f32[4, 8, 16]
  input labels: i32[4, 8]
  parameter w: f32[96, 16]
  {}
  return {}
}}
"""
LOSS = """
  s: f32[4, 8, 96] = stop_gradient({0})
  m: f32[4, 8] = row_max(s)
  t: f32[4, 8], p: f32[4, 8] = exp_sum_and_pick({0}, m, labels)
  loss: f32[] = reduce_sum(t)"""
PRODUCT = "z: f32[4, 8, 96] = matmul(x, w) {transpose_b=True}"
ASKED = "the loss is to be made in chunks, and "
END = " (in graph head); leave `loss_chunks` out"


def model(lines: str, outputs: str = "loss") -> Graph:
    return parse(HEAD.format(lines.strip(), outputs))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            model("loss: f32[] = reduce_sum(x)"),
            ASKED + "the model has no cross entropy of logits with labels" + END,
        ),
        (
            model(f"{PRODUCT}\n  z2: f32[4, 8, 96] = exp(z){LOSS.format('z2')}"),
            ASKED
            + "the logits of `t` come from `exp` `z2`, expected a product with a matrix"
            + END,
        ),
        (
            model(
                f"{PRODUCT}{LOSS.format('z')}\n  a: f32[4, 8] = reduce_max(z) {{axis=-1}}",
                "loss, a",
            ),
            ASKED + "its logits `z` are read by `reduce_max` `a`, too" + END,
        ),
        (
            model(f"{PRODUCT}{LOSS.format('z')}", "loss, z"),
            ASKED + "its logits `z` are returned, too (in graph head); return the loss alone, or "
            "leave `loss_chunks` out",
        ),
    ],
    ids=["no loss", "no product", "read", "returned"],
)
def test_what_has_no_loss_in_chunks(graph: Graph, message: str) -> None:
    with pytest.raises(ModelError) as error:
        ChunkLoss(2).run(graph)
    assert str(error.value) == message


def test_there_are_at_least_as_many_tokens_as_chunks() -> None:
    graph = model(PRODUCT + LOSS.format("z"))
    (head,) = [n for n in ChunkLoss(32).run(graph).nodes if n.operator.startswith("head")]
    assert head.attributes["chunks"] == 32
    with pytest.raises(ModelError) as error:
        ChunkLoss(33).run(graph)
    assert str(error.value) == (
        ASKED + "the 32 tokens of the batch cannot be 33 chunks (in graph head); use at most 32"
    )


def test_pieces_divide_a_vocabulary_and_are_no_larger_than_they_are_many() -> None:
    for vocabulary in range(1, 300):
        pieces = pieces_of(vocabulary)
        assert vocabulary % pieces == 0
        assert pieces * pieces <= vocabulary
    assert [pieces_of(n) for n in (128256, 129280, 151936, 50304)] == [64] * 4


@pytest.mark.parametrize(
    "lines",
    [
        "z: f32[4, 8, 96] = einsum(x, w) {equation='btk,vk->btv'}",
        "z: f32[4, 8, 96] = einsum(w, x) {equation='vk,btk->btv'}",
        "u: f32[16, 96] = transpose(w) {permutation=(1, 0)}\n  z: f32[4, 8, 96] = matmul(x, u)",
        f"{PRODUCT.replace('z:', 'y:')}\n  z: f32[4, 8, 96] = identity(y)",
    ],
)
def test_products_by_other_operators(lines: str) -> None:
    operators = [n.operator for n in ChunkLoss(2).run(model(lines + LOSS.format("z"))).nodes]
    assert "head_log_sum_and_pick" in operators
    assert not {"einsum", "matmul", "exp_sum_and_pick"} & set(operators)


def test_a_soft_cap_is_an_attribute() -> None:
    lines = f"""{PRODUCT}
  a: f32[4, 8, 96] = scale(z) {{factor=0.1}}
  b: f32[4, 8, 96] = tanh(a)
  c: f32[4, 8, 96] = scale(b) {{factor=10.0}}"""
    nodes = ChunkLoss(2).run(model(lines + LOSS.format("c"))).nodes
    (head,) = [node for node in nodes if node.operator == "head_log_sum_and_pick"]
    assert head.attributes["cap"] == 10.0
    assert [n.attributes["factor"] for n in nodes if n.operator == "scale"] == [0.1]


def test_two_losses_of_one_product_share_a_head() -> None:
    second = (
        LOSS.format("z").replace("loss:", "other:").replace(" m:", " m2:").replace("m, l", "m2, l")
    )
    second = second.replace(" s:", " s2:").replace("(s)", "(s2)").replace("t:", "t2:")
    second = second.replace("p:", "p2:").replace("(t)", "(t2)")
    chunked = ChunkLoss(2).run(model(PRODUCT + LOSS.format("z") + second, "loss, other"))
    heads = [n.name for n in chunked.nodes if n.operator == "head_log_sum_and_pick"]
    assert heads == ["z"]


Z_LOSS = """
  f: f32[32, 96] = reshape(z) {shape=(32, 96)}
  r: f32[32] = row_max(f)
  e: f32[32] = exp_sum(f, r)
  g: f32[32] = log(e)
  other: f32[] = reduce_sum(g)"""


def test_a_sum_of_exponentials_shares_the_head_of_a_loss_before_or_after_it() -> None:
    for lines in (LOSS.format("z") + Z_LOSS, Z_LOSS + LOSS.format("z")):
        chunked = ChunkLoss(2).run(model(PRODUCT + lines, "loss, other"))
        operators = [n.operator for n in chunked.nodes]
        assert operators.count("head_log_sum_and_pick") == 1
        assert operators.count("exp_sum") == 2
