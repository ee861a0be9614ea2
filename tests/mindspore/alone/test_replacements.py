"""What a rank computes of an operator that is split, listed by MindSpore's operators."""

import re

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.mindspore import Parameter, Tensor, nn
from shardwright.mindspore.calls import Part
from shardwright.mindspore.common.api import _cell_graph_executor
from shardwright.mindspore.common.replacements import REPLACEMENTS, spaced
from shardwright.mindspore.ops import operations
from tests.mindspore.cells import Applied, ones

pytestmark = pytest.mark.usefixtures("eight_ranks")


def listed(network, *inputs):
    phase, _ = _cell_graph_executor.compile(network, *inputs)
    return _cell_graph_executor.get_parallel_graph_info(phase)["@graph_0"]


def slices(shape, counts):
    """Yield the parts of a tensor that is split, as ranks have them."""
    sizes = [n // c for n, c in zip(shape, counts, strict=True)]
    for place in np.ndindex(*counts):
        yield [slice(p * n, (p + 1) * n) for p, n in zip(place, sizes, strict=True)]


@pytest.mark.parametrize("name", [name for name in REPLACEMENTS if "Scatter" in name])
def test_slices_of_what_is_changed_are_those_of_the_whole(name):
    """Positions of other slices change nothing, and equal ones add or multiply up."""
    rows, kind = name == f"Scatter{name[-3:]}", name[-3:]
    random = np.random.default_rng(0)
    x = random.uniform(1, 2, (4, 6, 3)).astype(np.float32)
    depth = 1 if rows else 2
    places = np.stack([random.integers(0, n, 9) for n in x.shape[:depth]], -1).astype(np.int32)
    updates = random.uniform(1, 2, (9, *x.shape[depth:])).astype(np.float32)
    change = getattr(operations, f"TensorScatter{kind}")()
    whole = change(Tensor(x), Tensor(places), Tensor(updates)).asnumpy()
    read = places[:, 0] if rows else places
    for own in slices(x.shape, (2, 3, 1)[:depth] + (1,) * (3 - depth)):
        rest = [[slice(0, n) for n in array.shape] for array in (read, updates)]
        part = Part((own, *rest), own, [x.shape, read.shape, updates.shape, x.shape])
        found = REPLACEMENTS[name](part, Tensor(x[tuple(own)]), Tensor(read), Tensor(updates))
        np.testing.assert_allclose(found.asnumpy(), whole[tuple(own)], rtol=1e-6)


def test_slices_of_spaced_numbers_are_those_of_the_whole():
    whole = np.linspace(1, 10, 8, dtype=np.float32)
    for (own,) in slices((8,), (4,)):
        part = Part([[], []], [own], [(), (), (8,)])
        found = spaced(part, Tensor(1.0, "float32"), Tensor(10.0, "float32"), 8)
        np.testing.assert_allclose(found.asnumpy(), whole[own], rtol=1e-6)


class Changed(nn.Cell):
    def __init__(self, kind, counts, positions):
        super().__init__()
        self.change = getattr(operations, kind)().shard(counts)
        self.table = Parameter(ones(8, 4), name="table", requires_grad=False)
        self.positions = Tensor(np.zeros(positions), ms.int32)
        self.updates = ones(3, *(4,) * (len(counts[2]) - 1))

    def construct(self, x):
        return x + self.change(self.table, self.positions, self.updates)


def test_rows_that_are_split_are_listed_with_the_shift_and_the_mask():
    """Of eight ranks in pairs number 5 has the rows from 4 on."""
    nodes = listed(Changed("ScatterMul", ((4, 2), (1,), (1, 2)), (3,)), ones(8, 4))
    assert nodes["Sub-0"]["inputs"] == [
        "_GetTensorSlice-0",
        "Tensor(shape=[], dtype=Int32, value=4)",
    ]
    assert nodes["Minimum-0"]["inputs"] == ["ReLU-0", "Tensor(shape=[], dtype=Int32, value=1)"]
    assert nodes["Mul-0"]["inputs"] == ["_GetTensorSlice-1", "Reshape-0"]
    assert nodes["Add-0"]["inputs"] == ["Mul-0", "Sub-1"]
    assert nodes["ScatterMul-0"]["inputs"] == ["table", "Minimum-0", "Add-0"]


def test_whole_rows_are_listed_as_the_operator_alone():
    nodes = listed(Changed("ScatterMul", ((1, 4), (1,), (1, 4)), (3,)), ones(8, 4))
    assert "Minimum-0" not in nodes
    assert "_GetTensorSlice-0" in nodes["ScatterMul-0"]["inputs"]


def test_tuples_of_positions_are_listed_with_the_slice_that_each_is_in():
    nodes = listed(Changed("ScatterNdSub", ((4, 2), (1, 1), (1,)), (3, 2)), ones(8, 4))
    assert nodes["FloorDiv-0"]["inputs"] == ["_GetTensorSlice-0", "Reshape-0"]
    assert nodes["ScatterNdSub-0"]["inputs"] == ["table", "Sub-0", "Mul-2"]
    assert nodes["Sub-1"]["inputs"][0] == "Tensor(shape=[], dtype=Int32, value=5)"
    before = set()
    for name, node in nodes.items():
        assert before >= {*re.findall(r"\w+-\d+", str(node["inputs"]))}, name
        before.add(name)


@pytest.mark.parametrize(("strategy", "count", "begin"), [(((2,),), 4, 4.0), (((8,),), 1, 5.0)])
def test_spaced_numbers_have_ends_of_their_own(strategy, count, begin):
    network = Applied(lambda start, stop: operations.LinSpace().shard(strategy)(start, stop, 8))
    nodes = listed(network, Tensor(1.0, "float32"), Tensor(10.0, "float32"))
    assert nodes["LinSpace-0"]["inputs"] == ["Add-0", "Add-1", count]
    assert nodes["Mul-0"]["inputs"] == ["Div-0", begin]


@pytest.mark.parametrize("kind", ["ScatterMul", "ScatterMax"])
def test_the_strategy_of_what_is_changed_is_that_of_the_operator_that_changes(kind):
    network = Changed(kind, ((4, 2), (1,), (1, 2)), (3,))
    _cell_graph_executor.compile(network, ones(8, 4))
    found = _cell_graph_executor._get_shard_strategy(network)
    assert [[4, 2], [1], [1, 2]] in found.values()
