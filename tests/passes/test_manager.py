"""The pass manager checks what passes require and ensure; passes from outside can be registered."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from shardwright.dataflow.properties import LIVE, PROPERTIES, WHOLE, Property
from shardwright.ir.errors import PassError
from shardwright.ir.graph import Graph
from shardwright.ir.text import parse
from shardwright.passes.base import Pass, register_pass
from shardwright.passes.manager import PassManager
from shardwright.passes.pipeline import parse_pipeline

PRODUCT = """
graph product {
  input x: f32[8, 16]
  parameter w: f32[16, 4]
  h: f32[8, 4] = matmul(x, w)
  loss: f32[] = reduce_sum(h)
  return loss
}
"""
ANNOTATED = """
graph product on x=2 {
  input x: f32[8@x, 16]
  parameter w: f32[16, 4]*
  h: f32[8, 4] = matmul(x, w) split(m=x)
  loss: f32[] = reduce_sum(h) split(i0=x)
  return loss
}
"""


@dataclass(frozen=True)
class Changed(Pass):
    """Do what a test says."""

    name = "changed"
    ensures = (WHOLE, LIVE)

    work: Callable[[Graph], object]

    def run(self, graph: Graph) -> Graph:
        return self.work(graph)  # type: ignore[return-value]


def message(text: str, graph: str = PRODUCT) -> str:
    with pytest.raises(PassError) as caught:
        PassManager().run_all(parse_pipeline(text), parse(graph))
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "graph", "said"),
    [
        (
            "partition",
            PRODUCT,
            "pass `partition` requires `annotated`, but it has no mesh (in graph product); run "
            "`annotate` first",
        ),
        (
            "insert_mirrors",
            ANNOTATED,
            "pass `insert_mirrors` requires `partitioned`, but `h` has no layout (in graph "
            "product); run `partition` first",
        ),
        (
            "canonicalize",
            ANNOTATED,
            "pass `canonicalize` requires `whole`, but `x` has a layout (in graph product)",
        ),
        (
            "differentiate",
            ANNOTATED,
            "pass `differentiate` requires `uniform`, but `x` has a layout and `h` has none (in "
            "graph product)",
        ),
        (
            "differentiate,differentiate",
            PRODUCT,
            "pass `differentiate` requires `forward`, but `w.grad` is a gradient (in graph "
            "product)",
        ),
        (
            "append_optimizer",
            PRODUCT,
            "pass `append_optimizer` requires `differentiated`, but there is no gradient `w.grad` "
            "(in graph product); run `differentiate` first",
        ),
        (
            "differentiate,append_optimizer{overrides={'v': {'learning_rate': 1}}}",
            PRODUCT,
            "`overrides` names `v`, which is no parameter (in graph product)",
        ),
    ],
)
def test_what_a_pass_requires(text: str, graph: str, said: str) -> None:
    assert message(text, graph) == said


def test_a_shared_layout_that_nothing_brings_about() -> None:
    text = """
    graph g on x=2 {
      input x: f32[8, 16]*
      parameter w: f32[16, 4]*
      h: f32[8, 4]* = matmul(x, w)
      loss: f32[]* = reduce_sum(h)
      shared x: f32[8@x, 16] {gradient=('x',)}
      return loss
    }
    """
    assert message("insert_mirrors", text) == (
        "the readers of `x` share the layout [x, *], but no `redistribute` leaves it (in graph g)"
    )


def test_what_a_pass_leaves_is_checked() -> None:
    graph = parse(PRODUCT)
    wrong = {
        "pass `changed` returned NoneType, expected a Graph": lambda g: None,
        "pass `changed` left a wrong graph: `h` is read before it is defined (in loss: f32[] = "
        "reduce_sum(h))": lambda g: replace(g, nodes=g.nodes[1:]),
        "pass `changed` ensures `live`, but nothing depends on `loss` (in graph product)": (
            lambda g: replace(g, outputs=("h",))
        ),
        "pass `changed` ensures `whole`, but `x` has a layout (in graph product)": (
            lambda g: parse(ANNOTATED)
        ),
    }
    for said, work in wrong.items():
        with pytest.raises(PassError) as caught:
            PassManager().run(Changed(work), graph)
        assert str(caught.value) == said
    PassManager(verify_each=False).run(Changed(lambda g: replace(g, outputs=("h",))), graph)


def test_a_pass_that_did_not_run() -> None:
    passes = PassManager()
    passes.run_all(parse_pipeline("canonicalize,differentiate"), parse(PRODUCT))
    assert passes.ran("differentiate")
    assert not passes.ran("clean_up")
    with pytest.raises(PassError) as caught:
        passes.after("clean_up")
    assert str(caught.value) == (
        "pass `clean_up` does not run; expected canonicalize or differentiate"
    )


@pytest.mark.usefixtures("own_operators")
def test_a_pass_from_outside() -> None:
    @register_pass
    @dataclass(frozen=True)
    class KeepLoss(Pass):
        """Return the loss alone."""

        name = "keep_loss"
        ensures = (LIVE,)

        position: int = 0

        def run(self, graph: Graph) -> Graph:
            return replace(graph, outputs=(graph.outputs[self.position],))

    (work,) = parse_pipeline("keep_loss{position=0}")
    assert work == KeepLoss()
    assert PassManager().run(work, parse(PRODUCT)).outputs == ("loss",)


@pytest.mark.usefixtures("own_operators")
def test_what_cannot_be_registered() -> None:
    class NotFrozen(Pass):
        name = "not_frozen"

        def run(self, graph: Graph) -> Graph:
            return graph

    said = []
    unknown = Property("green", "It is green.", lambda graph: None)
    for kind in (
        int,
        NotFrozen,
        dataclass(frozen=True)(type("Named", (NotFrozen,), {"name": "Upper"})),
        dataclass(frozen=True)(type("Taken", (NotFrozen,), {"name": "partition"})),
        dataclass(frozen=True)(type("Odd", (NotFrozen,), {"name": "odd", "ensures": (unknown,)})),
    ):
        with pytest.raises(PassError) as caught:
            register_pass(kind)  # type: ignore[type-var]
        said.append(caught.value.what)
    assert said[:3] == [
        "a pass is a subclass of `shardwright.passes.base.Pass`",
        "a pass is a frozen dataclass",
        "a pass has a name in lower case",
    ]
    assert said[3].startswith("the pass `partition` is registered already")
    assert said[4] == "pass `odd` requires or ensures the unknown property `green`"


def test_the_properties_are_told_apart() -> None:
    annotated = parse(ANNOTATED)
    partitioned = PassManager().run_all(parse_pipeline("partition"), annotated)
    held = {
        name: {item.name for item in PROPERTIES if item.violation(graph) is None}
        for name, graph in (
            ("traced", parse(PRODUCT)),
            ("annotated", annotated),
            ("partitioned", partitioned),
        )
    }
    forward = {"forward", "updated", "unmirrored", "scheduled", "live"}
    assert held == {
        "traced": forward | {"whole", "uniform", "lowered"},
        "annotated": forward | {"annotated", "lowered"},
        "partitioned": forward | {"partitioned", "uniform"},
    }
