"""The functions that run operators in PyTorch: on every rank they give what the kernels give."""

from importlib import import_module

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from shardwright.exports.emission.expressions import Expressions  # noqa: E402
from shardwright.exports.emission.vocabulary import MODULES  # noqa: E402
from shardwright.exports.torch.program import VOCABULARY  # noqa: E402
from shardwright.exports.torch.support.mesh import Mesh as TorchMesh  # noqa: E402
from shardwright.ir.errors import StrategyError  # noqa: E402
from shardwright.ir.graph import Graph, Node, Value  # noqa: E402
from shardwright.ir.mesh import Mesh, MeshAxis  # noqa: E402
from shardwright.ir.text import parse_type  # noqa: E402
from shardwright.operators.info import operator_class, operator_info, operator_names  # noqa: E402

MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 2)))
MOST = 8  # strategies of an example
FUNCTIONS = {name: import_module(f"shardwright.exports.torch.support.{name}") for name in MODULES}
OPERATORS = sorted(set(VOCABULARY.signatures) & set(operator_names()))
# An operator cannot be tried where its examples are for hand-written programs alone.
WITHOUT_EXAMPLES = {"to_host", "from_host"}


def mesh_of(rank):
    """Return the mesh of an exported program on a rank, without processes."""
    mesh = TorchMesh.__new__(TorchMesh)
    mesh.sizes = mesh.ranks = dict(MESH.sizes)
    mesh._in_time, mesh.rank = (), rank
    return mesh


def random(kind, bounds, rng):
    low, high = bounds or (-1.0, 1.0)
    if kind.dtype == "bool":
        return rng.random(kind.shape) < 0.6
    if kind.dtype.startswith("int"):
        low, high = bounds or (0, 3)
        return rng.integers(int(low), int(high), kind.shape)
    return rng.uniform(low, high, kind.shape)


def one_node(info, name, attributes, strategy):
    """Return a program of one operator, and its node."""
    taken, left = info.infer_tensor_layouts(strategy, MESH)
    pairs = zip(info.operand_types, taken, strict=True)
    inputs = tuple(Value(f"i{n}", kind, layout) for n, (kind, layout) in enumerate(pairs))
    pairs = zip(info.result_types, left, strict=True)
    results = tuple(Value(f"r{n}", kind, layout) for n, (kind, layout) in enumerate(pairs))
    node = Node(name, tuple(value.name for value in inputs), results, attributes)
    outputs = tuple(value.name for value in results)
    return Graph("one", inputs, (), (node,), outputs, mesh=MESH), node


def difference(found, right):
    found, right = np.asarray(found, np.float64), np.asarray(right, np.float64)
    assert found.shape == right.shape
    return np.abs(found - right).max(initial=0) / max(np.abs(right).max(initial=0), 1)


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_gives_what_its_kernel_gives_on_every_rank(name):
    rng = np.random.default_rng(0)
    examples = operator_class(name).examples
    assert examples or name in WITHOUT_EXAMPLES
    for example in examples:
        types = [parse_type(text)[0] for text in example.operands]
        info = operator_info(name, types, example.attributes)
        ranges = (example.ranges.get(i) for i in range(len(types)))
        wholes = [random(kind, bounds, rng) for kind, bounds in zip(types, ranges, strict=True)]
        strategies = info.generate_strategies(MESH)
        for strategy in strategies[:: -(-len(strategies) // MOST)]:
            graph, node = one_node(info, name, example.attributes, strategy)
            try:
                text = Expressions(graph, MESH, VOCABULARY).of(node)
            except StrategyError:  # of a form, in which ranks send to each other
                continue
            for rank in (1, 3):
                parts = [
                    np.array(whole[value.layout.slices(value.type.shape, MESH, rank)])
                    for whole, value in zip(wholes, graph.inputs, strict=True)
                ]
                right = info.kernel(info.rule.view(strategy, MESH, rank), *parts)
                names = {f"i{n}": torch.from_numpy(np.asarray(p)) for n, p in enumerate(parts)}
                found = eval(text, {**FUNCTIONS, "mesh": mesh_of(rank), **names})
                right = right if isinstance(right, tuple | list) else (right,)
                found = found if isinstance(found, tuple | list) else (found,)
                for ours, theirs in zip(found, right, strict=True):
                    assert difference(ours.numpy(), theirs) < 1e-12, (text, strategy)


@pytest.mark.parametrize("inside", [False, True])
def test_the_gradient_of_a_clip_is_that_of_the_kernel_at_its_bounds(inside):
    x, dy = np.array([-1.0, -0.5, 0.0, 1.0, 2.0]), np.arange(1.0, 6.0)
    attributes = {"low": -0.5, "high": 1.0, "inside": inside}
    kind = parse_type("f64[5]")[0]
    info = operator_info("clip_gradient", [kind, kind], attributes)
    right = info.kernel(info.rule.view(info.generate_strategies(Mesh(()))[0], Mesh(()), 0), dy, x)
    function = FUNCTIONS["pointwise"].clip_gradient
    found = function(torch.from_numpy(dy), torch.from_numpy(x), **attributes)
    assert difference(found.numpy(), right) == 0
