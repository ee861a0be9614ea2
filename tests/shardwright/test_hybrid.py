"""Hand-written parallel programs: one script, traced for all ranks or for one."""

import numpy as np
import pytest

from shardwright import nn, ops
from shardwright.communication import Rank, get_group_size, get_rank, init, world
from shardwright.ir.errors import ModelError, OptionError, PassError
from shardwright.ir.text import to_text
from shardwright.ir.types import TensorType
from shardwright.parameter import Parameter, initializer
from shardwright.passes.mirror_shared_values import MirrorSharedValues
from shardwright.tracing import InputSpec
from tests.shardwright.programs import traced, trained

X = InputSpec("x", TensorType("float64", (8, 4)))
LABELS = InputSpec("label", TensorType("int32", (8,)), 6)


def own(tensor):
    """Return the rank's part of the batch, as MindSpore's tutorial cuts it."""
    size = tensor.shape[0] // get_group_size()
    rank = get_rank()
    return tensor[rank * size : rank * size + size]


class DataParallel(nn.Cell):
    def __init__(self):
        self.layer1 = nn.Dense(4, 6, dtype="float64")
        self.layer2 = nn.Dense(6, 6, dtype="float64")

    def construct(self, x):
        return self.layer2(ops.relu(self.layer1(own(x))))


class ReduceLoss(nn.Cell):
    def __init__(self):
        self.loss = nn.CrossEntropyLoss()
        self.all_reduce = ops.AllReduce()

    def construct(self, data, label):
        return self.all_reduce(self.loss(data, own(label))) / get_group_size()


class TensorParallel(nn.Cell):
    """Megatron's pair of products on weights that are each rank's own."""

    def __init__(self):
        inner = 8 // get_group_size()
        own = {"layerwise_parallel": True}
        self.first = nn.Dense(4, 4, dtype="float64")
        self.up = Parameter(initializer("normal(0.5)", (4, inner), "float64"), **own)
        self.down = Parameter(initializer("normal(0.5)", (inner, 6), "float64"), **own)
        self.bias = Parameter(initializer("normal", (6,), "float64"))

    def construct(self, x):
        h = ops.relu(self.first(x) @ self.up)
        return ops.AllReduce()(h @ self.down) + self.bias


class Gathering(nn.Cell):
    """Work that differs, then the same work on all ranks."""

    def __init__(self):
        self.layer1 = nn.Dense(4, 6, dtype="float64")
        self.layer2 = nn.Dense(6, 6, dtype="float64")

    def construct(self, x):
        h = ops.AllGather()(ops.relu(self.layer1(own(x))))
        return self.layer2(h)


class Moving(nn.Cell):
    """Every other communication operator; what it computes does not depend on the world."""

    def __init__(self):
        self.layer = nn.Dense(4, 4, dtype="float64")

    def construct(self, x):
        size = get_group_size()
        h = self.layer(own(x))
        h = ops.AlltoAll(size, 0, 1)(ops.AlltoAll(size, 1, 0)(h))
        h = ops.NeighborShift(-1)(ops.NeighborShift(1)(h))
        h = ops.AllGather()(ops.ReduceScatter()(ops.AllGather()(h))) / size
        return ops.Broadcast(1 % size)(h)


class Sum(nn.Cell):
    def construct(self, y, label):
        return (y * y).sum()


def parts_of(name, whole, ranks):
    """Cut a parameter as the ranks hold it: those of `TensorParallel` are each rank's own."""
    axis = {"up": 1, "down": 0}.get(name)
    return [whole] * ranks if axis is None else np.split(whole, ranks, axis)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("network", "loss"),
    [
        (DataParallel, ReduceLoss),
        (TensorParallel, nn.CrossEntropyLoss),
        (Gathering, nn.CrossEntropyLoss),
        (Moving, Sum),
    ],
)
def test_a_program_of_many_ranks_trains_as_that_of_one(network, loss, ranks):
    alone = traced(network, X, LABELS, loss_fn=loss())
    with world(ranks):
        together = traced(network, X, LABELS, loss_fn=loss(), ranks=ranks)
    random = np.random.default_rng(3)
    parameters = [(p.name, p.value.type.shape) for p in alone.graph.parameters]
    begin = {name: random.normal(size=shape) for name, shape in parameters}
    expected, after = trained(alone, {name: [whole] for name, whole in begin.items()})
    cut = {name: parts_of(name, whole, ranks) for name, whole in begin.items()}
    losses, state = trained(together, cut)
    for own, (one,) in zip(losses, [tuple(loss.values()) for loss in expected], strict=True):
        np.testing.assert_allclose(list(own.values()), one, rtol=1e-12)
    for name, (whole,) in ((name, tuple(parts.values())) for name, parts in after.items()):
        own = list(state[name].values())
        np.testing.assert_allclose(own, parts_of(name, whole, ranks), rtol=1e-9, err_msg=name)


def test_the_program_of_all_ranks_has_its_own_types():
    graph = traced(DataParallel, X, ranks=4).graph
    assert to_text(graph).splitlines()[6:] == [
        "  local_slice_0: f64[2, 4] = local_slice(x) {axes=('world',), dimension=0, group_size=4}",
        "  matmul_0: f64[2, 6] = matmul(local_slice_0, layer1.weight) "
        "{transpose_b=True} in 'layer1'",
        "  add_0: f64[2, 6] = add(matmul_0, layer1.bias) in 'layer1'",
        "  relu_0: f64[2, 6] = relu(add_0)",
        "  matmul_1: f64[2, 6] = matmul(relu_0, layer2.weight) {transpose_b=True} in 'layer2'",
        "  add_1: f64[2, 6] = add(matmul_1, layer2.bias) in 'layer2'",
        "  return add_1",
        "}",
    ]


def test_in_a_world_of_one_nothing_communicates():
    graph = traced(DataParallel, X, LABELS, loss_fn=ReduceLoss()).graph
    assert {node.operator for node in graph} & {"local_slice", "all_reduce"} == set()


def mirrored(network, loss=None):
    definition = traced(network, X, LABELS, loss_fn=loss, ranks=2)
    graph = MirrorSharedValues(2).run(definition.graph)
    return [node.operands[0] for node in graph if node.operator == "mirror"]


def test_mirrors_stand_only_where_gradients_are_made_in_parts():
    assert mirrored(Gathering, nn.CrossEntropyLoss()) == ["layer1.weight", "layer1.bias"]
    assert mirrored(TensorParallel, nn.CrossEntropyLoss()) == ["add_0"]


def test_a_loss_that_differs_between_ranks_is_refused():
    class Local(nn.Cell):
        def construct(self, y, label):
            return nn.CrossEntropyLoss()(y, own(label))

    with pytest.raises(PassError) as caught:
        mirrored(DataParallel, Local())
    assert caught.value.what == "the loss `scale_0` differs between ranks, it must be equal"


def test_a_trained_value_that_differs_is_not_cut_again():
    class Twice(nn.Cell):
        def __init__(self):
            self.layer = nn.Dense(4, 4, dtype="float64")

        def construct(self, x, label):
            h = self.layer(own(x))
            return ops.AllReduce()(own(h).sum())

    definition = traced(Twice, X, LABELS, ranks=2)
    with pytest.raises(PassError, match="`add_0` is cut by the rank, but differs between ranks"):
        MirrorSharedValues(2).run(definition.graph)


# The rank


def cut(function, ranks=4):
    class Cut(nn.Cell):
        def construct(self, x):
            return function(x, get_rank())

    return traced(Cut, X, ranks=ranks).graph


@pytest.mark.parametrize(
    "function",
    [
        lambda x, rank: x[rank * 2 : rank * 2 + 2],
        lambda x, rank: x[2 * rank : (rank + 1) * 2],
        lambda x, rank: x[rank * 2 : (rank + 1) * 2, :],
        lambda x, rank: x[2 * (rank + 1) - 2 : 2 - -rank * 2],
    ],
)
def test_every_way_to_write_the_own_part(function):
    assert [node.operator for node in cut(function)] == ["local_slice"]


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (
            lambda x, rank: x[rank * 2 : rank * 2 + 1],
            "a dimension of size 8 is cut from 2*rank to 2*rank + 1 on 4 ranks, "
            "each must keep its own of 4 equal parts in turn",
        ),
        (
            lambda x, rank: x[rank:],
            "a dimension of size 8 is cut from rank to None on 4 ranks, "
            "each must keep its own of 4 equal parts in turn",
        ),
        (
            lambda x, rank: x if rank == 0 else -x,
            "the number `rank` is needed while the program of all 4 ranks is traced",
        ),
        (
            lambda x, rank: x * int(rank + 1),
            "the number `rank + 1` is needed while the program of all 4 ranks is traced",
        ),
    ],
)
def test_other_uses_of_the_rank_are_refused(function, what):
    with pytest.raises(ModelError) as caught:
        cut(function)
    assert caught.value.what == what


def test_in_a_world_of_one_the_rank_is_zero():
    init()
    rank = get_rank()
    assert (int(rank), rank == 0, rank < 1, bool(rank), str(rank + 3)) == (
        0,
        True,
        True,
        False,
        "3",
    )
    assert [node.operator for node in cut(lambda x, rank: x[rank : rank + 2], ranks=1)] == ["slice"]


def test_ranks_compare_as_expressions():
    assert Rank(4) * 2 + 2 == (Rank(4) + 1) * 2
    assert Rank(4) != Rank(4) + 1
    assert 1 - Rank(4) == Rank(4, -1, 1)


def test_the_world_is_what_is_said_last():
    with world(4):
        assert get_group_size() == 4
        with world(2):
            assert get_group_size() == 2
        assert get_group_size() == 4
    assert get_group_size() == 1


def test_the_world_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("SHARDWRIGHT_WORLD", "8")
    assert get_group_size() == 8
    monkeypatch.setenv("SHARDWRIGHT_WORLD", "many")
    with pytest.raises(ModelError, match="`SHARDWRIGHT_WORLD` is `many`"):
        get_group_size()


def test_a_world_has_a_rank():
    with pytest.raises(OptionError, match="`size` is 0, expected an integer"), world(0):
        pass


def test_a_group_is_made_first():
    class Grouped(nn.Cell):
        def construct(self, x):
            return ops.AllReduce(group="pairs")(x)

    with pytest.raises(ModelError, match="there is no group `pairs`, expected world or hccl_world"):
        traced(Grouped, X, ranks=2)


def test_a_pair_of_send_and_receive():
    class Pair(nn.Cell):
        def construct(self, x):
            sent = ops.Send(7, dest_rank=1, src_rank=0)(x)
            return ops.Receive(7, 0, x.shape, x.dtype, dest_rank=1)(sent)

    (node,) = traced(Pair, X, ranks=2).graph
    assert (node.operator, node.attributes["pairs"]) == ("send_receive", ((0, 1),))
    assert traced(Pair, X).graph.outputs == ("x",)
