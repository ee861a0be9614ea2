"""Arguments of a wrong type: every function of the package refuses them in one sentence."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import shardwright as sw
from shardwright.cost_model.cluster import cluster
from shardwright.ir.errors import OptionError, ShardwrightError
from shardwright.ir.mesh import MeshAxis
from shardwright.ir.values import checked
from tests.extent import ANY_PLAN

MODEL = "mlp:layers=1,hidden=8,batch=8"
KIND = sw.TensorType("float32", (2, 2))
WRONG: dict[str, object] = {
    "none": None,
    "number": 3,
    "fraction": 1.5,
    "list": [1],
    "bytes": b"x",
    "object": object(),
    "mapping": {"a": 1},
    "missing": Path("missing"),
    "folder": Path("folder"),
}


def network(x: sw.Tensor) -> sw.Tensor:
    """Return a loss."""
    return x.sum()


@pytest.fixture(scope="module")
def compilation() -> sw.Compilation:
    return sw.compile(MODEL, 2, cluster="cpu", **ANY_PLAN)


def functions(made: sw.Compilation) -> dict[Callable[..., Any], dict[str, Any]]:
    """Return the functions of the package, with right values for arguments that need one."""
    spread, model = sw.AutoParallel(network, "stand_alone"), sw.Model(network)
    tensor, cards = sw.Tensor(np.zeros((2, 2), "float32")), cluster("cpu")
    return {
        sw.compile: {"model": MODEL, "devices": 2, "cluster": "cpu"},
        sw.read_plan: {},
        sw.prove: {},
        sw.verify: {"plan": made, "steps": 1},
        sw.run: {"plan": made, "steps": 1},
        sw.dump: {"target": made},
        sw.trace: {"network": network, "inputs": [sw.InputSpec("x", KIND)]},
        sw.initializer: {"init": "zeros", "shape": (2, 2)},
        sw.load_plugin: {},
        sw.value_and_grad: {"fn": network},
        sw.check_operator: {"name": "relu"},
        sw.AutoParallel: {"network": network},
        sw.Model: {"network": network},
        sw.Parameter: {},
        sw.Layout: {"device_matrix": (2,), "alias_name": ("a",)},
        sw.InputSpec: {"name": "x", "type": KIND},
        sw.TensorType: {"dtype": "float32", "shape": (2,)},
        sw.Mesh: {},
        sw.Cluster: dict(cards),
        made.write: {},
        made.write_page: {},
        made.timeline_within: {},
        spread.comm_fusion: {},
        spread.dataset_strategy: {},
        spread.hsdp: {},
        spread.pipeline: {},
        spread.load_operator_strategy_file: {},
        spread.save_operator_strategy_file: {},
        sw.Cluster.load: {},
        sw.Cluster.parsed: {"content": {}, "where": ""},
        cards.for_devices: {},
        cards.levels_of: {},
        cards.used_by: {},
        cards.part_text: {},
        cards.check_groups: {"devices": 2, "groups": 2},
        cards.run_by: {},
        made.plan.mesh.axis: {},
        tensor.swapaxes: {"first": 0, "second": 1},
        tensor.sum: {},
        tensor.mean: {},
        tensor.max: {},
        tensor.argmax: {},
        tensor.astype: {},
        model.train: {"epoch": 1},
        model.eval: {},
    }


def refusal(function: Callable[..., Any], given: dict[str, Any]) -> str:
    """Return the sentence by which a call is refused; empty where it is not."""
    try:
        made = function(**given)
        if inspect.isgenerator(made):
            list(made)
    except ShardwrightError as error:
        return str(error)
    return ""


@pytest.mark.long
@pytest.mark.parametrize("kind", WRONG)
def test_no_other_error_is_raised_than_one_of_the_package(
    kind: str, compilation: sw.Compilation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    refused = 0
    for function, right in functions(compilation).items():
        parameters = inspect.signature(function).parameters.values()
        needed = [p.name for p in parameters if p.default is p.empty and p.kind != p.VAR_KEYWORD]
        for name in (p.name for p in parameters if p.kind != p.VAR_KEYWORD):
            given = dict.fromkeys(needed, WRONG[kind]) | right | {name: WRONG[kind]}
            sentence = refusal(function, given)
            assert "\n" not in sentence
            refused += sentence != ""
    assert refused > 30


EXPECTED = [
    (lambda made: made.write(None), "`directory` is None, expected a path"),
    (lambda made: made.write(3), "`directory` is 3, expected a path"),
    (
        lambda made: made.write("plan", ["a"]),
        "`ranks` is ['a'], expected a sequence of which each item is an integer or None",
    ),
    (lambda made: made.write_page(b"x"), "`path` is of type bytes, expected a path"),
    (lambda made: made.timeline_within("4"), "`limit` is the text `4`, expected a number or a"),
    (lambda _: sw.read_plan(3), "`directory` is 3, expected a path"),
    (lambda _: sw.load_plugin(None), "`path` is None, expected a path"),
    (lambda _: sw.trace(network, 3), "`inputs` is 3, expected a sequence of which each item is a"),
    (lambda _: sw.trace(3, []), "`network` is 3, expected a `Cell` or a function"),
    (lambda _: sw.InputSpec("x", 3), "`type` is 3, expected a `TensorType`"),
    (lambda _: sw.initializer(None, 3), "`init` is None, expected a text, a number or a `Init"),
    (lambda _: sw.TensorType("float32", [1]), "a tensor has the shape [1], expected a tuple of"),
    (lambda _: sw.TensorType(["a"], ()), "no element type is called `['a']`"),
    (lambda _: sw.Mesh(3), "`axes` of a mesh is 3, expected a tuple of `MeshAxis`"),
    (lambda _: sw.Mesh((MeshAxis("x", "2"),)), "a mesh has the shape ('2',), every size must be"),
    (lambda made: made.plan.mesh.extent(["t"]), "the mesh has no axis `t`; its axes are ('x',)"),
    (lambda made: made.plan.mesh.coordinate(0, "t"), "the mesh has no axis `t`; its axes are"),
    (lambda _: cluster("cpu").for_devices("4"), "`devices` is the text `4`, expected an integer"),
    (lambda _: sw.Cluster(name=3), "`name` is `3`, but should be a valid string; `device` is mis"),
    (lambda _: sw.Tensor(np.zeros(2)).sum([0]), "`axis` of `reduce_sum` is [0], expected a number"),
    (
        lambda _: sw.Tensor(np.zeros(2)).swapaxes(0, 1),
        "a tensor of 1 dimensions has no dimen",
    ),
    (lambda _: sw.Tensor(np.zeros((2, 2))).transpose(2, 3), "a tensor of 2 dimensions has no"),
]


@pytest.mark.parametrize(("call", "sentence"), EXPECTED, ids=[told for _, told in EXPECTED])
def test_the_sentence_says_what_is_expected(
    call: Callable[[Any], object], sentence: str, compilation: sw.Compilation
) -> None:
    with pytest.raises(ShardwrightError) as caught:
        call(compilation)
    assert str(caught.value).startswith(sentence)


@checked
def annotated(
    a: int | None = None,
    b: Sequence[tuple[int, str]] = (),
    c: Mapping[str, float] | None = None,
    d: Literal["x", "y"] = "x",
    e: Iterable[str] = (),
    f: Callable[[int], int] | bool = True,
) -> int:
    """Return what fits."""
    return a or 0


@pytest.mark.parametrize(
    "right",
    [
        {"a": np.int64(3), "b": [(1, "x")], "c": {"x": 1}, "d": "y", "e": {"x"}, "f": int},
        {"e": (name for name in "xy"), "f": False, "b": ()},
    ],
)
def test_arguments_that_fit_are_taken(right: dict[str, Any]) -> None:
    assert annotated(**right) == right.get("a", 0)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"a": True}, "`a` is True, expected an integer or None"),
        ({"b": [(1, 2)]}, "`b` is [(1, 2)], expected a sequence of which each item is a sequence"),
        ({"b": "ab"}, "`b` is the text `ab`, expected a sequence of which each item is a sequence"),
        ({"c": {"x": "y"}}, "`c` is {'x': 'y'}, expected a mapping or None"),
        ({"c": {1: 1.0}}, "`c` is {1: 1.0}, expected a mapping or None"),
        ({"d": "z"}, "`d` is the text `z`, expected x or y"),
        ({"e": "xy"}, "`e` is the text `xy`, expected a sequence of which each item is a text"),
        ({"f": 3}, "`f` is 3, expected a function or True or False"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError) as caught:
        annotated(**wrong)
    assert str(caught.value).startswith(sentence)
