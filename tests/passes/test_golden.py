"""What every pass makes of small programs, as files that a person can read.

``tests/golden/PASS/CASE.txt`` holds a program before and after the pass. The files are written by
``pytest tests/passes/test_golden.py --update-golden``; what changed is then to be reviewed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path

import pytest

from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.ir.decisions import Decisions, SharedLayout
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.text import parse, to_text
from shardwright.operators.verify import verify
from shardwright.passes.allreduce_fusion import fuse_all_reduces
from shardwright.passes.canonicalize import canonicalize
from shardwright.passes.cleanup import drop_dead_nodes, drop_mirrors
from shardwright.passes.gradient import differentiate
from shardwright.passes.lowering import lower_redistributions
from shardwright.passes.manual import mirror_shared_values
from shardwright.passes.optimizer import Optimizer, append_optimizer
from shardwright.passes.partition import insert_mirrors, partition

GOLDEN = Path(__file__).parents[1] / "golden"
CLUSTER = cluster("a100-pod")
PAIR = Mesh((MeshAxis("x", 2),))
WORLD = Mesh((MeshAxis("world", 4),))
Pass = Callable[[Graph], Graph]
Case = Callable[[], tuple[Graph, Graph]]  # gives the program before and after a pass


# Programs that the compiler partitions


@dataclass(frozen=True)
class Plan:
    """A program, what is decided of it, and the passes whose work on it is worth a look.

    `passes` are those from partition to clean-up; all of them run.
    """

    program: str
    decisions: Decisions
    passes: tuple[str, ...] = ("partition", "mirror", "gradient", "lowering")
    loss_scale: float = 1.0
    optimizer: Optimizer = field(default_factory=Optimizer)

    def pipeline(self) -> dict[str, Pass]:
        planner = RedistributionPlanner(self.decisions.mesh, CLUSTER)
        return {
            "partition": lambda g: partition(g, self.decisions),
            "mirror": lambda g: insert_mirrors(g, self.decisions),
            "gradient": lambda g: differentiate(g, self.loss_scale),
            "lowering": lambda g: lower_redistributions(g, planner),
            "optimizer": lambda g: append_optimizer(g, self.optimizer, self.loss_scale),
            "cleanup": drop_mirrors,
        }

    def around(self, wanted: str) -> tuple[Graph, Graph]:
        """Return the program before and after one of the passes."""
        before = parse(self.program)
        for name, work in self.pipeline().items():
            after = work(before)
            if name == wanted:
                break
            before = after
        return before, after


def split(**axes: str) -> Strategy:
    return Strategy(tuple((factor, tuple(axis.split("@"))) for factor, axis in axes.items()))


def lies(*dimensions: str) -> Layout:
    """Return a layout by the axes of each dimension: ``lies("x@y", "")``."""
    return Layout(tuple(tuple(axes.split("@")) if axes else () for axes in dimensions))


def decided(
    strategies: Mapping[str, Strategy],
    stored: Mapping[str, Layout],
    shared_layouts: Mapping[str, SharedLayout] | None = None,
    regathered: frozenset[str] = frozenset(),
) -> Decisions:
    return Decisions(PAIR, strategies, stored, shared_layouts or {}, regathered)


ONE_LAYER = """
graph one_layer {
  input x: f32[8, 16]
  parameter w: f32[16, 4]
  h: f32[8, 4] = matmul(x, w) in 'dense'
  loss: f32[] = reduce_sum(h)
  return loss
}
"""
TWO_LAYERS = """
graph two_layers {
  input x: f32[8, 16]
  parameter v: f32[16, 16]
  parameter w: f32[16, 4]
  a: f32[8, 16] = matmul(x, v) in 'first'
  h: f32[8, 16] = tanh(a)
  y: f32[8, 4] = matmul(h, w) in 'second'
  loss: f32[] = reduce_sum(y)
  return loss
}
"""
THREE_PRODUCTS = """
graph three_products {
  input x: f32[8, 16]
  parameter u: f32[16, 16]
  parameter v: f32[16, 16]
  parameter w: f32[16, 16]
  a: f32[8, 16] = matmul(x, u)
  b: f32[8, 16] = matmul(a, v)
  c: f32[8, 16] = matmul(a, w)
  d: f32[8, 16] = mul(b, c)
  loss: f32[] = reduce_sum(d)
  return loss
}
"""
TIED = """
graph tied {
  input x: f32[8, 16]
  parameter w: f32[16, 16]
  a: f32[8, 16] = matmul(x, w)
  b: f32[8, 16] = matmul(a, w)
  loss: f32[] = reduce_sum(b)
  return loss
}
"""
# Statistics that the model itself updates, an operator with two results, and a partial maximum.
STATISTICS = """
graph statistics {
  input x: f32[8, 16]
  parameter w: f32[16, 4]
  parameter kept: f32[4] {trainable=False}
  h: f32[8, 4] = matmul(x, w)
  sums: f32[4] = reduce_sum(h) {axis=0}
  following: f32[4] = add(kept, sums)
  values: f32[8, 2], places: i64[8, 2] = top_k(h) {k=2}
  chosen: f32[8, 2] = cast(places) {dtype='float32'}
  scores: f32[8, 2] = sub(values, chosen)
  turned: f32[2, 8] = transpose(scores) {permutation=(1, 0)}
  most: f32[2] = row_max(turned)
  loss: f32[] = reduce_sum(most)
  update kept = following
  return loss, sums
}
"""
THREE_LAYERS = """
graph three_layers {
  input x: f32[8, 16]
  parameter u: f32[16, 16]
  parameter v: f32[16, 16]
  parameter w: f32[16, 16]
  a: f32[8, 16] = matmul(x, u)
  b: f32[8, 16] = matmul(a, v)
  c: f32[8, 16] = matmul(b, w)
  loss: f32[] = reduce_sum(c)
  return loss
}
"""

ROWS = {"h": split(m="x"), "loss": split(i0="x")}
TWO_LAYERS_BY_ROWS = {
    "a": split(m="x"),
    "h": split(d0="x"),
    "y": split(m="x"),
    "loss": split(i0="x"),
}
WHOLE = lies("", "")

PLANS = {
    "data_parallel": Plan(
        ONE_LAYER,
        decided(ROWS, {"x": lies("x", ""), "w": WHOLE}),
        ("partition", "mirror", "gradient", "lowering", "optimizer", "cleanup"),
    ),
    # Megatron: f is the mirror before the first product, g the sum after the second.
    "column_then_row": Plan(
        TWO_LAYERS.replace("input x: f32[8, 16]", "parameter x: f32[8, 16]"),
        decided(
            {"a": split(n="x"), "h": split(d1="x"), "y": split(k="x"), "loss": Strategy()},
            {"x": WHOLE, "v": lies("", "x"), "w": lies("x", "")},
        ),
        ("partition", "mirror", "gradient", "lowering", "cleanup"),
    ),
    "fully_sharded": Plan(
        ONE_LAYER,
        decided(ROWS, {"x": lies("x", ""), "w": lies("x", "")}),
        ("partition", "mirror", "gradient", "lowering", "optimizer", "cleanup"),
    ),
    "gathered_again": Plan(
        TWO_LAYERS,
        decided(
            TWO_LAYERS_BY_ROWS,
            {"x": lies("x", ""), "v": lies("x", ""), "w": lies("x", "")},
            regathered=frozenset({"v", "w"}),
        ),
        ("partition", "gradient", "lowering"),
    ),
    # `a`, split by rows, is gathered once for two products by columns; its gradients meet too.
    "readers_meet": Plan(
        THREE_PRODUCTS,
        decided(
            {
                "a": split(m="x"),
                "b": split(n="x"),
                "c": split(n="x"),
                "d": split(d1="x"),
                "loss": split(i1="x"),
            },
            {"x": lies("x", ""), "u": WHOLE, "v": lies("", "x"), "w": lies("", "x")},
            {"a": SharedLayout(WHOLE, ("x",))},
        ),
    ),
    "readers_do_not_meet": Plan(
        THREE_PRODUCTS,
        decided(
            {
                "a": split(m="x"),
                "b": split(n="x"),
                "c": split(m="x"),
                "d": split(d0="x"),
                "loss": split(i0="x"),
            },
            {"x": lies("x", ""), "u": WHOLE, "v": lies("", "x"), "w": WHOLE},
            {"a": SharedLayout(lies("x", ""))},
        ),
    ),
    "used_twice": Plan(
        TIED,
        decided(
            {"a": split(m="x"), "b": split(m="x"), "loss": split(i0="x")},
            {"x": lies("x", ""), "w": lies("x", "")},
            {"w": SharedLayout(WHOLE, ("x",))},
        ),
    ),
    # All weights have one type: what the gradient reads again must be the right one.
    "gathered_again_alike": Plan(
        THREE_LAYERS,
        decided(
            {name: split(m="x") for name in "abc"} | {"loss": split(i0="x")},
            {"x": lies("x", ""), **{name: lies("x", "") for name in "uvw"}},
            regathered=frozenset("uvw"),
        ),
        ("gradient", "lowering"),
    ),
    "rows_to_columns": Plan(
        TWO_LAYERS,
        decided(
            {"a": split(m="x"), "h": split(d1="x"), "y": split(k="x"), "loss": Strategy()},
            {"x": lies("x", ""), "v": WHOLE, "w": lies("x", "")},
        ),
        ("lowering",),
    ),
    "statistics": Plan(
        STATISTICS,
        decided(
            {
                "h": split(m="x"),
                "sums": split(i0="x"),
                "following": Strategy(),
                "values": split(d0="x"),
                "chosen": split(d0="x"),
                "scores": split(d0="x"),
                "turned": split(d0="x"),
                "most": split(v="x"),
                "loss": Strategy(),
            },
            {"x": lies("x", ""), "w": WHOLE, "kept": lies("")},
        ),
        ("partition", "mirror", "lowering"),
    ),
    "settings": Plan(
        ONE_LAYER,
        decided(ROWS, {"x": lies("x", ""), "w": WHOLE}),
        ("optimizer",),
        optimizer=Optimizer("adam", {"learning_rate": 0.1, "beta1": 0.5}),
    ),
    "loss_scale": Plan(
        ONE_LAYER,
        decided(ROWS, {"x": lies("x", ""), "w": WHOLE}),
        ("gradient", "optimizer"),
        loss_scale=1024.0,
    ),
    "momentum": Plan(
        ONE_LAYER,
        decided(ROWS, {"x": lies("x", ""), "w": lies("x", "")}),
        ("optimizer",),
        optimizer=Optimizer("momentum"),
    ),
    "adam": Plan(
        ONE_LAYER,
        decided(ROWS, {"x": lies("x", ""), "w": lies("x", "")}),
        ("optimizer",),
        optimizer=Optimizer("adam"),
    ),
}


# Programs for single passes


def alone(text: str, *passes: Pass) -> Case:
    """Return the case of the last of `passes`, run after the others."""

    def around() -> tuple[Graph, Graph]:
        graphs = list(accumulate(passes, lambda graph, work: work(graph), initial=parse(text)))
        return graphs[-2], graphs[-1]

    return around


EQUAL_NODES = """
graph equal_nodes {
  input x: f32[8, 16]
  a: f32[8, 16] = relu(x)
  b: f32[8, 16] = relu(x)
  c: f32[8, 16] = identity(b)
  y: f32[8, 16] = add(a, c)
  unread: f32[8, 16] = tanh(y)
  return y, c
}
"""
NEARLY_EQUAL = """
graph nearly_equal {
  input x: f32[8, 16]
  input y: f32[8, 16]
  a: f32[8, 16] = scale(x) {factor=2.0}
  b: f32[8, 16] = scale(x) {factor=5.0}
  c: f32[8, 16] = sub(a, y)
  d: f32[8, 16] = sub(y, a)
  e: f32[8, 16] = stop_gradient(b)
  p: f32[8, 2], q: i64[8, 2] = top_k(x) {k=2}
  r: f32[8, 2], s: i64[8, 2] = top_k(x) {k=2}
  return c, d, e, p, q, r, s
}
"""
ONLY_UPDATES = """
graph only_updates on x=2 {
  input x: f32[8, 4]*
  parameter u: f32[8, 4]*
  parameter v: f32[8, 4]*
  parameter kept: f32[8, 4]*
  u.mirror: f32[8, 4]* = mirror(u) {axes=('x',)}
  v.mirror: f32[8, 4]* = mirror(v) {axes=('x',)}
  a: f32[8, 4]* = mul(x, u.mirror)
  b: f32[8, 4]* = sub(a, v.mirror)
  half: f32[8, 4]* = scale(b) {factor=0.5}
  following: f32[8, 4]* = add(kept, half)
  update kept = following
  return b
}
"""
GRADIENTS_OF_ONE_TYPE = """
graph gradients_of_one_type on x=2 y=2 {
  input g.copy: f32[8]*
  input h.copy: f32[8]*
  input i.copy: f32[8]*
  parameter u: f32[8]*
  parameter v: f32[8]*
  parameter w: f32[8]*
  g: f32[8] +x = to_partial(g.copy) {axes=('x',)}
  h: f32[8] +x = to_partial(h.copy) {axes=('x',)}
  i: f32[8] +y = to_partial(i.copy) {axes=('y',)}
  u.grad: f32[8]* = all_reduce(g) {axes=('x',)}
  v.grad: f32[8]* = all_reduce(h) {axes=('x',)}
  w.grad: f32[8]* = all_reduce(i) {axes=('y',)}
  return u.grad, v.grad, w.grad
}
"""
TWO_GRADIENTS = """
graph two_gradients on x=2 {
  input g.copy: f32[4, 8]*
  input h.copy: f32[8]*
  parameter w: f32[4, 8]*
  parameter b: f32[8]*
  g: f32[4, 8] +x = to_partial(g.copy) {axes=('x',)}
  h: f32[8] +x = to_partial(h.copy) {axes=('x',)}
  w.grad: f32[4, 8]* = all_reduce(g) {axes=('x',)}
  w.next: f32[4, 8]* = sgd_update(w, w.grad) {learning_rate=0.1}
  b.grad: f32[8]* = all_reduce(h) {axes=('x',)}
  b.next: f32[8]* = sgd_update(b, b.grad) {learning_rate=0.1}
  update w = w.next
  update b = b.next
  return
}
"""
BY_HAND = """
graph by_hand {
  input x: f32[16, 16]
  parameter w: f32[16, 4]
  parameter own: f32[4] {layerwise_parallel=True}
  part: f32[4, 16] = local_slice(x) {axes=('world',), dimension=0, group_size=4}
  h: f32[4, 4] = matmul(part, w)
  y: f32[4, 4] = mul(h, own)
  sum: f32[] = reduce_sum(y)
  loss: f32[] = all_reduce(sum) {axes=('world',), group_size=4}
  return loss
}
"""
OWN_PARTS = """
graph own_parts {
  input x: f32[16, 8]
  parameter w: f32[8, 8]
  parameter up: f32[8, 2] {layerwise_parallel=True}
  parameter down: f32[2, 4] {layerwise_parallel=True}
  a: f32[16, 8] = matmul(x, w)
  h: f32[16, 2] = matmul(a, up)
  part: f32[16, 4] = matmul(h, down)
  y: f32[16, 4] = all_reduce(part) {axes=('world',), group_size=4}
  loss: f32[] = reduce_sum(y)
  return loss
}
"""


def mirrored(graph: Graph) -> Graph:
    return mirror_shared_values(graph, WORLD)


def mirrored_mean(graph: Graph) -> Graph:
    return mirror_shared_values(graph, WORLD, mean=True)


CASES: dict[str, Case] = {
    "canonicalize/equal_nodes": alone(EQUAL_NODES, canonicalize),
    "canonicalize/kept": alone(
        EQUAL_NODES, partial(canonicalize, pins=({"a": 1, "b": 2, "c": 3},))
    ),
    "canonicalize/nearly_equal": alone(NEARLY_EQUAL, canonicalize),
    "cleanup/only_updates": alone(ONLY_UPDATES, drop_dead_nodes, drop_mirrors),
    "cleanup/updates_live": alone(ONLY_UPDATES, drop_dead_nodes),
    "manual/own_parts": alone(OWN_PARTS, mirrored),
    "allreduce_fusion/one_type": alone(
        GRADIENTS_OF_ONE_TYPE, partial(fuse_all_reduces, ids={"u": 1, "v": 1, "w": 1})
    ),
    "cleanup/dead_nodes": alone(EQUAL_NODES, drop_dead_nodes),
    "gradient/one_device": alone(TIED, differentiate),
    "manual/sum": alone(BY_HAND, mirrored),
    "manual/mean": alone(BY_HAND, mirrored_mean),
    "gradient/by_hand": alone(BY_HAND, mirrored_mean, differentiate),
    "allreduce_fusion/one_group": alone(
        TWO_GRADIENTS, partial(fuse_all_reduces, ids={"w": 1, "b": 1})
    ),
    "allreduce_fusion/two_groups": alone(
        TWO_GRADIENTS, partial(fuse_all_reduces, ids={"w": 2, "b": 1})
    ),
}
CASES |= {
    f"{wanted}/{name}": partial(plan.around, wanted)
    for name, plan in PLANS.items()
    for wanted in plan.passes
}


def text_of(before: Graph, after: Graph) -> str:
    return f"{to_text(before)}---\n{to_text(after)}"


@pytest.mark.parametrize("name", sorted(CASES))
def test_golden(name: str, request: pytest.FixtureRequest) -> None:
    before, after = CASES[name]()
    verify(before)
    verify(after)
    assert parse(to_text(after)) == after
    file, found = GOLDEN / f"{name}.txt", text_of(before, after)
    if request.config.getoption("--update-golden"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(found)
    if not file.exists():
        pytest.fail(f"there is no golden file for `{name}`: run with --update-golden to write it")
    assert found == file.read_text(), "if this is wanted, run with --update-golden and review"


def test_every_golden_file_has_a_case() -> None:
    files = {str(file.relative_to(GOLDEN).with_suffix("")) for file in GOLDEN.rglob("*.txt")}
    assert files == set(CASES)
