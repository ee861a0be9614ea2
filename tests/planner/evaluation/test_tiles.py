"""Programs made of a model with few layers are those that passes make of all layers."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from math import inf

import pytest

import shardwright
from shardwright import nn
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.timeline import simulate
from shardwright.dataflow.placement import stages_of
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.models import training_definition
from shardwright.passes.annotate import Annotate
from shardwright.passes.append_optimizer import AppendOptimizer
from shardwright.passes.base import Pass
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.manager import PassManager
from shardwright.planner.evaluation.lengthening import NotRepeatedError
from shardwright.planner.evaluation.repeats import KEPT
from shardwright.planner.evaluation.tiles import Shortened, shortened
from shardwright.tensor import Tensor
from shardwright.tracing import Definition, InputSpec, trace
from tests.extent import first

POD = cluster("h100-pod:figures=datasheet")
SMALL = "hidden=32,heads=4,sequence=16,vocabulary=64"
Emission = tuple[Graph, Decisions, Sequence[Pass], Graph]
CASES = first(
    6,
    [
        (
            f"command-r:layers=8,kv_heads=4,inner=64,{SMALL}",
            "data=8,zero=3,micro_batch=1,recompute=full",
        ),
        (f"gpt:layers=8,{SMALL}", "data=8,zero=3,micro_batch=1,recompute=full"),
        (f"bert:layers=8,{SMALL}", "tensor=2,data=4,zero=2,recompute=operators,sequence_parallel"),
        (f"llama:layers=8,kv_heads=2,inner=64,{SMALL}", "context=2,data=4,zero=1,micro_batch=1"),
        (f"mixtral:layers=8,kv_heads=2,inner=64,experts=4,{SMALL}", "data=8,expert=4,zero=3"),
        ("vit:layers=8,hidden=32,heads=4,side=32,patch=8,classes=10", "data=8,zero=1"),
        (f"gpt:layers=8,dropout=0.1,{SMALL}", "data=8,zero=1"),
        (f"llama:layers=8,kv_heads=2,inner=64,{SMALL}", "tensor=2,data=4,sequence_parallel"),
    ],
)


def emission(model: str | Definition, plan: str) -> Emission:
    """Return a model, its plan, the passes up to the clean-up, and the program that they leave."""
    compilation = shardwright.compile(
        model,
        8,
        batch=16 if isinstance(model, str) else None,
        plan=plan,
        cluster="h100-pod:figures=datasheet",
        memory_limit=inf,
        objective="serial",
    )
    records = compilation.compiled.passes.records
    names = [record.name for record in records]
    at, end = names.index("annotate"), names.index("clean_up")
    annotate = records[at].work
    assert isinstance(annotate, Annotate)
    works = [record.work for record in records[at + 1 : end + 1]]
    return records[at].before, annotate.decisions, works, records[end].graph


def made_of(few: Shortened, works: Sequence[Pass]) -> Graph:
    passes = (Annotate(few.decisions), *works)
    return few.lengthened(PassManager().run_all(passes, few.graph))


def but_for_names(graph: Graph) -> list[Hashable]:
    """Return all that a program says, with numbers for the names of values."""
    number: dict[str, int] = {}

    def of(name: str) -> int:
        return number.setdefault(name, len(number))

    return [
        *((of(value.name), value.type, value.layout) for value in graph.inputs),
        *((of(p.name), replace(p, value=replace(p.value, name=""))) for p in graph.parameters),
        *(
            (
                node.operator,
                tuple(map(of, node.operands)),
                tuple((of(r.name), r.type, r.layout) for r in node.results),
                *(repr(sorted(node.attributes.items())), node.scope, node.strategy),
                replace(node.provenance, target=""),
            )
            for node in graph.nodes
        ),
        tuple(map(of, graph.outputs)),
        tuple((of(p), of(new)) for p, new in graph.updates),
    ]


@pytest.mark.long
@pytest.mark.parametrize(("model", "plan"), CASES)
def test_few_layers_make_the_program_of_all(model: str, plan: str) -> None:
    source, decisions, works, whole = emission(model, plan)
    for kept in ((1, 1), (2, 1), KEPT):
        few = shortened(source, decisions, kept=kept)
        assert few is not None
        try:
            made = made_of(few, works)
        except NotRepeatedError:  # the first layer alone divides what the embedding makes
            assert kept == (1, 1)
            assert "sequence_parallel" in plan
            continue
        assert but_for_names(made) == but_for_names(whole)
        assert len(made.values) == len(whole.values)
    assert peak_memory(made).by_kind == peak_memory(whole).by_kind
    step = simulate(made, POD).step_seconds
    assert step == pytest.approx(simulate(whole, POD).step_seconds, rel=1e-12)


class Periods(nn.Cell):
    """Periods of five equal layers and another one."""

    def __init__(self, periods: int) -> None:
        period = [*["relu"] * 5, "tanh"]
        self.first = nn.Dense(4, 8)
        self.layers = nn.CellList([nn.Dense(8, 8, activation=a) for a in period * periods])

    def construct(self, x: Tensor) -> Tensor:
        """Return the last activation."""
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("plan", ["data=8,zero=1", "data=8,zero=3,micro_batch=1"])
def test_layers_inside_of_a_period_are_left_out_too(plan: str) -> None:
    samples = (
        InputSpec("x", TensorType("float32", (16, 4))),
        InputSpec("label", TensorType("float32", (16, 8))),
    )
    model = trace(Periods(6), samples, loss_fn=nn.MSELoss())
    source, decisions, works, whole = emission(model, plan)
    few = shortened(source, decisions, kept=(2, 1))
    assert few is not None
    inner, (outer,) = few.levels
    assert len(outer) >= 3
    assert len(inner) >= 2
    made = made_of(few, works)
    assert but_for_names(made) == but_for_names(whole)
    few.check_repeats(emitted(few.graph, few.decisions, works))


@pytest.fixture(scope="module")
def gpt() -> Emission:
    """A model of 20 layers with its plan, the passes, and the program."""
    return emission(f"gpt:layers=20,{SMALL}", "data=8,zero=1,micro_batch=1")


def emitted(source: Graph, decisions: Decisions, works: Sequence[Pass]) -> Graph:
    return PassManager().run_all((Annotate(decisions), *works), source)


@pytest.mark.long
def test_layers_of_other_plans_are_stretches_of_their_own(gpt: Emission) -> None:
    source, decisions, works, _ = gpt
    first = tuple(f"blocks/{number}/" for number in range(10))
    again = [node.name for node in source.nodes if node.scope.startswith(first)]
    decisions = replace(decisions, recomputed=frozenset(again))
    few = shortened(source, decisions)
    assert few is not None
    assert len(few.levels[0]) == 2
    made = made_of(few, works)
    assert but_for_names(made) == but_for_names(emitted(source, decisions, works))


def test_layer_that_the_optimizer_treats_otherwise_stays(gpt: Emission) -> None:
    source, decisions, works, _ = gpt
    own = next(name for name in decisions.stored if name.startswith("blocks.9."))
    overrides = {own: {"learning_rate": 0.5}}
    few = shortened(source, decisions, overrides)
    assert few is not None
    assert own in few.graph.values
    works = [
        replace(one, overrides=overrides) if isinstance(one, AppendOptimizer) else one
        for one in works
    ]
    whole = emitted(source, decisions, works)
    assert but_for_names(made_of(few, works)) == but_for_names(whole)


def test_program_that_does_not_repeat_is_refused(gpt: Emission) -> None:
    source, decisions, works, _ = gpt
    few = shortened(source, decisions)
    assert few is not None
    short = emitted(few.graph, few.decisions, works)
    ((layers,),) = few.levels
    for at, node in enumerate(short.nodes):
        if node.provenance.operator in layers[0] and node.provenance.role == "forward":
            other = replace(node, attributes={**node.attributes, "other": 1})
            nodes = (*short.nodes[:at], other, *short.nodes[at + 1 :])
            with pytest.raises(NotRepeatedError):
                few.lengthened(replace(short, nodes=nodes))


class Skipping(nn.Cell):
    """Layers, some of which are read once more at the end."""

    def __init__(self, layers: int, read: Sequence[int]) -> None:
        self.layers = nn.CellList([nn.Dense(8, 8, activation="relu") for _ in range(layers)])
        self.read = read

    def construct(self, x: Tensor) -> Tensor:
        """Return the last activation, and the sum of those that are read."""
        found = []
        for layer in self.layers:
            x = layer(x)
            found.append(x)
        for place in self.read:
            x = x + found[place]
        return x


@pytest.mark.parametrize("read", [(), (0, 19), (9,), (3, 4, 12), tuple(range(20))])
def test_layers_that_others_read_stay(read: Sequence[int]) -> None:
    tensor = TensorType("float32", (16, 8))
    samples = InputSpec("x", tensor), InputSpec("label", tensor)
    model = trace(Skipping(20, read), samples, loss_fn=nn.MSELoss())
    source, decisions, works, whole = emission(model, "data=8,zero=1")
    few = shortened(source, decisions)
    assert (few is None) == (read == (3, 4, 12))
    if few is not None:
        kept = {f"layers.{place}.weight" for place in (*read, 0, 19)}
        assert len(read) == 20 or kept <= few.graph.values.keys()
        assert but_for_names(made_of(few, works)) == but_for_names(whole)


@pytest.mark.parametrize(
    ("name", "periods"),
    [("gemma3-12b", 8), ("llama3.2-3b", 28), ("moonlight-16b-a3b", 26), ("command-r", 40)],
)
def test_of_all_periods_those_stay_that_leave_out_most(name, periods):
    """Of six layers of Gemma 3 five are alike, and its 48 layers are eight periods of six.

    The first layer of Moonlight has no experts, but the end of it is as of the others; that of
    Command R makes zeros that all layers add.
    """
    whole = Canonicalize().run(training_definition(f"{name}:sequence=64", 8, 1)[0].graph)
    few = shortened(whole, Decisions(Mesh(()), {}, {}, stages=stages_of(whole)))
    assert few is not None
    (layers,) = few.levels[-1]
    assert len(layers) == periods - 2  # the first and the last stay beside these
