"""Programs that call communication over groups of ranks, lists of ranks, and messages."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from shardwright import nn, ops
from shardwright.communication import (
    create_group,
    destroy_group,
    get_group_rank_from_world_rank,
    get_group_size,
    get_rank,
    get_world_rank_from_group_rank,
    world,
)
from shardwright.gradients import value_and_grad
from shardwright.ir.errors import ModelError, OptionError
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.differentiate import Differentiate
from shardwright.passes.mirror_shared_values import MirrorSharedValues
from shardwright.planner.options import CompileOptions
from shardwright.runtime import Executor, LocalCommunicator
from shardwright.session import ParallelOptions, Session
from shardwright.tracing import InputSpec, trace
from tests.shardwright.programs import traced

X = InputSpec("x", TensorType("float64", (8, 4)))
PARTITIONS = ([[0, 1], [2, 3]], [[0, 2], [1, 3]], [[3, 0], [2, 1]], [[0, 1, 2, 3]])


@contextmanager
def group(name, ranks):
    create_group(name, ranks)
    try:
        yield name
    finally:
        destroy_group(name)


def run(function, ranks=4, inputs=X):
    """Return what each rank gets of a function of its own rows, and the rows."""

    class Network(nn.Cell):
        def construct(self, x):
            size = x.shape[0] // get_group_size()
            return function(x[get_rank() * size : (get_rank() + 1) * size])

    graph = traced(Network, inputs, ranks=ranks).graph
    mesh = Mesh((MeshAxis("world", ranks),))
    x = np.random.default_rng(0).standard_normal(inputs.type.shape)
    zero = dict.fromkeys(range(ranks), np.array(0))
    state = {p.name: dict(zero) for p in graph.parameters}
    executor = Executor(replace(graph, mesh=mesh), LocalCommunicator(mesh))
    outputs = executor.step({"x": x}, state).outputs
    return [list(outputs[name].values()) for name in graph.outputs], np.split(x, ranks)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(("kind", "ufunc"), [("sum", np.add), ("prod", np.multiply)])
def test_reductions(ranks, kind, ufunc):
    inputs = InputSpec("x", TensorType("float64", (ranks * 3, 2)))
    found, x = run(lambda x: (ops.AllReduce(kind)(x), ops.Reduce(1, kind)(x)), ranks, inputs)
    total = ufunc.reduce(x)
    for rank in range(ranks):
        np.testing.assert_allclose(found[0][rank], total, rtol=1e-12)
        np.testing.assert_allclose(found[1][rank], total * (rank == 1), rtol=1e-12)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_gather_and_scatter_at_one_rank(ranks):
    inputs = InputSpec("x", TensorType("float64", (ranks * ranks, 2)))
    found, x = run(
        lambda x: (ops.CollectiveGather(1)(x), ops.CollectiveScatter(1)(x)), ranks, inputs
    )
    for rank in range(ranks):
        np.testing.assert_array_equal(found[0][rank], np.concatenate(x) * (rank == 1))
        np.testing.assert_array_equal(found[1][rank], x[1][rank : rank + 1])


@pytest.mark.parametrize("ranks", [[[0, 2], [3, 1]], None])
def test_groups(ranks):
    def function(x):
        rank = get_rank()
        own = "own"
        return (
            ops.AllGather(own)(x),
            ops.AllReduce(group=own)(x),
            ops.Broadcast(get_world_rank_from_group_rank(own, 1), own)(x),
            ops.AlltoAll(2, 0, 1, own)(x),
            ops.HostAllGather(ranks or [rank % 2, rank % 2 + 2])(x),
            ops.HostReduceScatter(group=ranks or [rank % 2, rank % 2 + 2])(x),
        )

    with world(4):
        made = ranks or [get_rank() % 2, get_rank() % 2 + 2]
    with group("own", made):
        found, x = run(function)
        with world(4):
            assert get_group_size("own") == 2
            assert get_group_rank_from_world_rank(1, "own") == (1 if ranks else 0)
            assert get_rank("own").values == ((0, 1, 1, 0) if ranks else (0, 0, 1, 1))
    for members in ranks or [[0, 2], [1, 3]]:
        parts = [x[m] for m in members]
        for i, rank in enumerate(members):
            np.testing.assert_array_equal(found[0][rank], np.concatenate(parts))
            np.testing.assert_array_equal(found[1][rank], sum(parts))
            np.testing.assert_array_equal(found[2][rank], parts[1])
            np.testing.assert_array_equal(
                found[3][rank], np.concatenate([p[i : i + 1] for p in parts], 1)
            )
            np.testing.assert_array_equal(found[4][rank], np.concatenate(parts))
            np.testing.assert_array_equal(found[5][rank], sum(parts)[i : i + 1])


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_neighbors_in_a_ring(ranks):
    def function(x):
        rank, size = get_rank(), get_group_size()
        after, before = (rank + 1) % size, (rank + size - 1) % size
        shapes = [x.shape, (1, 2)]
        exchange = ops.NeighborExchange([after, before], [before, after], shapes, shapes, "float64")
        return exchange((x, x[:1] * 2.0))

    inputs = InputSpec("x", TensorType("float64", (ranks * 3, 2)))
    found, x = run(function, ranks, inputs)
    for rank in range(ranks):
        np.testing.assert_array_equal(found[0][rank], x[rank - 1])
        np.testing.assert_array_equal(found[1][rank], x[(rank + 1) % ranks][:1] * 2)


def image(columns):
    return InputSpec("x", TensorType("float64", (4, 1, 3, columns)))


def test_edges_of_a_grid_with_margins():
    """Four ranks, two by two: each gets the edges of its neighbors, zeros at the border."""

    def ids(rank):
        """Return the neighbors of all ranks in each direction, as numbers for each rank."""
        places = [(-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1)]
        zero = rank * 0
        found = []
        for down, right in places:
            values = []
            for r in range(4):
                row, column = r // 2 + down, r % 2 + right
                values.append(row * 2 + column if row in (0, 1) and column in (0, 1) else -1)
            found.append(zero % 1 + type(zero % 1)(tuple(values)))
        return found

    def function(x):
        neighbors = ids(get_rank())
        return ops.NeighborExchangeV2(neighbors, [1, 2, 1, 1], neighbors, [2, 1, 1, 1])(x)

    found, x = run(function, 4, image(3))
    whole = np.zeros((1, 1, 3 * 2 + 3, 3 * 2 + 2))
    for r in range(4):
        whole[:, :, 2 + r // 2 * 3 :, 1 + r % 2 * 3 :][:, :, :3, :3] = x[r]
    for r in range(4):
        window = whole[:, :, r // 2 * 3 :, r % 2 * 3 :][:, :, :6, :5]
        np.testing.assert_array_equal(found[0][r], window)


def test_messages_with_tags():
    def function(x):
        rank = get_rank()
        ops.Send(1, dest_rank=rank + 1)(x)
        ops.Send(2, dest_rank=rank + 1)(x * 2.0)
        ops.Send(1, dest_rank=0, src_rank=3)(x[:1])
        kind = x.shape, x.dtype
        second = ops.Receive(2, rank - 1, *kind)()
        first = ops.Receive(1, rank - 1, *kind)()
        return first, second, ops.Receive(1, 3, (1, 4), x.dtype, dest_rank=0)()

    found, x = run(function)
    for rank in range(4):
        before = x[rank - 1] if rank else np.zeros_like(x[0])
        np.testing.assert_array_equal(found[0][rank], before)
        np.testing.assert_array_equal(found[1][rank], before * 2)
        np.testing.assert_array_equal(found[2][rank], x[3][:1] * (rank == 0))


def test_a_barrier_stays_in_the_program():
    def function(x):
        ops.Barrier()()
        return x * 2.0

    found, x = run(function)
    np.testing.assert_array_equal(found[0][1], x[1] * 2)

    class Network(nn.Cell):
        def construct(self, x):
            return function(x)

    graph = traced(Network, X, ranks=2).graph
    assert graph.nodes[0].operator == "barrier"
    assert graph.updates == (("barrier_0", "barrier_0.next"),)


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (
            lambda x: ops.Receive(3, get_rank() - 1, x.shape, x.dtype)(),
            "`Receive` with the tag 3 from rank 0 to rank 1 has no `Send` before it",
        ),
        (
            lambda x: ops.Send(3, dest_rank=get_rank() + 1)(x),
            "`Send` with the tag 3 from rank 0 to rank 1 has no `Receive` behind it",
        ),
        (
            lambda x: (
                ops.Send(0, 1, src_rank=0)(x),
                ops.Receive(0, 0, (1,), "int32", dest_rank=1)(),
            )[1],
            "`Receive` with the tag 0 expects int32[1], `Send` sends float64[4, 4]",
        ),
        (
            lambda x: ops.Send(0, dest_rank=1)(x),
            "the ranks [0, 1] send to rank 1 in one `Send`, expected one of them",
        ),
        (
            lambda x: ops.AllReduce(group="absent")(x),
            "there is no group `absent`, expected world or hccl_world_group",
        ),
        (
            lambda x: ops.HostAllGather([0])(x),
            "rank 1 is not in the group of ranks, which has the ranks [0]",
        ),
        (
            lambda x: ops.HostAllGather([[0, 1], [2]])(x),
            "the group of ranks has rank 2, there are 2 ranks",
        ),
        (
            lambda x: ops.HostAllGather([0, 0])(x),
            "rank 0 is 2 times in the group `of ranks`, expected each rank once",
        ),
        (
            lambda x: ops.HostAllGather("world")(x),
            "the group of `HostAllGather` is 'world', expected a sequence of ranks",
        ),
        (
            lambda x: ops.Broadcast(5)(x),
            "`root_rank` of `broadcast` is rank 5, which is not in the group [0, 1] of rank 0",
        ),
        (
            lambda x: ops.NeighborExchange([1], [1], [(4, 4)], [(4, 4)], "float64")((x,)),
            "`NeighborExchange`: rank 0 sends 1 tensors to rank 1, which receives 0 from it",
        ),
        (
            lambda x: ops.NeighborExchange([1], [1, 2], [(4, 4)], [(4, 4)]),
            "`recv_shapes` has 1 shapes, expected one for each of the 2 ranks in `recv_rank_ids`",
        ),
        (
            lambda x: ops.NeighborExchange(
                [1 - get_rank()], [1 - get_rank()], [(2, 4)], [(4, 4)], "float64"
            )((x,)),
            "result 0 of `NeighborExchange` is to be float64[2, 4], rank 0 sends float64[4, 4]",
        ),
        (
            lambda x: ops.Send("a", dest_rank=1, src_rank=0)(x),
            "`sr_tag` of `Send` is 'a', expected an integer",
        ),
        (
            lambda x: ops.Send(0, 1, group_back="other", src_rank=0)(x),
            "`group_back` is `other`, expected `world`",
        ),
    ],
)
def test_wrong_uses_are_refused(function, what):
    with pytest.raises(ModelError) as caught:
        run(function, ranks=2)
    assert what in caught.value.what


def test_wrong_groups_are_refused():
    with pytest.raises(OptionError, match="`op` is `mean`"):
        ops.AllReduce("mean")
    with group("one", [[0], [1]]):
        with pytest.raises(ModelError, match="the group `one` exists already"):
            create_group("one", [0])
        with pytest.raises(ModelError, match="rank 1 is 2 times in the group `two`"):
            create_group("two", [[0, 1], [1]])
    with pytest.raises(ModelError, match="there is no group `one`"):
        destroy_group("one")
    with pytest.raises(ModelError, match="a group is called 'world', expected a name other"):
        create_group("world", [0])


# Gradients of whole programs, against differences of the program itself


class Random(nn.Cell):
    """A random program over four ranks; its loss is equal on all, or of each rank."""

    def __init__(self, seed, local):
        self.random, self.local = np.random.default_rng(seed), local
        self.layers = nn.CellList([nn.Dense(4, 4, dtype="float64") for _ in range(2)])

    def move(self, h):
        random = self.random
        ranks = PARTITIONS[random.integers(4)]
        size = len(ranks[0])
        kind = int(random.integers(10))
        if kind == 0:
            return ops.AllReduce(group=self.name(ranks))(h)
        if kind == 1:
            whole = ops.AllGather(self.name(ranks))(h)
            return whole[: h.shape[0]] + whole[-h.shape[0] :]
        if kind == 2:
            return ops.Broadcast(self.root(ranks), self.name(ranks))(h)
        if kind == 3:
            return ops.NeighborShift(1, bool(random.integers(2)), self.name(ranks))(h)
        if kind == 4:
            return ops.Reduce(self.root(ranks), group=self.name(ranks))(h) + h
        if kind == 5:
            whole = ops.AllGather()(h)
            return ops.ReduceScatter()(whole)
        if kind == 6:
            ops.Send(0, dest_rank=get_rank() + 1)(h)
            return ops.Receive(0, get_rank() - 1, h.shape, h.dtype)() + h
        if kind == 7 and h.shape[0] % size == 0:
            both = ops.AlltoAll(size, 0, 1, self.name(ranks))(h)
            return ops.AlltoAll(size, 1, 0, self.name(ranks))(both)
        if kind == 8:  # runs of random lengths; one rank sends all of its rows
            counts = random.multinomial(h.shape[0], [1 / size] * size, size)
            counts[1:] = random.integers(0, counts[1:] + 1)
            return ops.AlltoAllVC(self.name(ranks))(h, [int(n) for n in counts.ravel()])
        return self.layers[int(random.integers(2))](h)

    @staticmethod
    def name(ranks):
        return "+".join(map(str, ranks))

    def root(self, ranks):
        place = int(self.random.integers(len(ranks[0])))
        return get_world_rank_from_group_rank(self.name(ranks), place)

    def construct(self, x):
        h = ops.tanh(self.layers[0](x)) if self.random.integers(2) else x
        size = h.shape[0] // get_group_size()
        if self.random.integers(2):
            h = h[get_rank() * size : (get_rank() + 1) * size]
        for _ in range(5):
            h = ops.tanh(self.move(h) + self.layers[0].bias)
        loss = (h * h).sum()
        if self.local:
            return loss
        rows, columns = PARTITIONS[0], PARTITIONS[1]
        if self.random.integers(2):
            return ops.AllReduce(group=self.name(columns))(
                ops.AllReduce(group=self.name(rows))(loss)
            )
        return ops.AllReduce()(loss)


@pytest.mark.long
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_gradients_over_groups_are_those_of_differences(seed, local):
    for ranks in PARTITIONS:
        create_group(Random.name(ranks), ranks)
    try:
        definition = traced(lambda: Random(seed, local), X, ranks=4)
    finally:
        for ranks in PARTITIONS:
            destroy_group(Random.name(ranks))
    mesh, random = Mesh((MeshAxis("world", 4),)), np.random.default_rng(seed)
    forward = replace(definition.graph, mesh=mesh)
    backward = Differentiate().run(MirrorSharedValues(4, mean=local).run(definition.graph))
    backward = replace(backward, mesh=mesh)
    weights = {p.name: random.standard_normal(p.value.type.shape) for p in forward.parameters}
    x = random.standard_normal(X.type.shape)
    communicator = LocalCommunicator(mesh)

    def step(graph, at, fetch=()):
        state = {name: dict.fromkeys(range(4), value) for name, value in at.items()}
        return Executor(graph, communicator).step({"x": x}, state, fetch)

    def loss(at):
        found = list(step(forward, at).outputs[forward.outputs[0]].values())
        return np.mean(found)

    names = [f"{name}.grad" for name in weights if f"{name}.grad" in backward.values]
    gradients = step(backward, weights, names).fetched
    direction = {name: random.standard_normal(value.shape) for name, value in weights.items()}
    moved = [
        {name: value + t * direction[name] for name, value in weights.items()}
        for t in (1e-5, -1e-5)
    ]
    slope = (loss(moved[0]) - loss(moved[1])) / 2e-5
    for rank in range(4):
        along = sum(
            float((gradients[name][rank] * direction[name.removesuffix(".grad")]).sum())
            for name in names
        )
        assert along == pytest.approx(slope, rel=1e-5, abs=1e-7), rank


# Losses of single ranks


class Local(nn.Cell):
    """The mean loss of the own rows."""

    def __init__(self):
        self.dense = nn.Dense(4, 4, dtype="float64")

    def construct(self, x):
        size = x.shape[0] // get_group_size()
        y = self.dense(x[get_rank() * size : (get_rank() + 1) * size])
        return (y * y).mean()


def step_of(network, **reducer):
    def forward(x):
        return network(x)

    optimizer = nn.SGD(network.trainable_params(), 0.1)
    gradient = value_and_grad(forward, None, network.trainable_params())

    def step(x):
        reduce = nn.DistributedGradReducer(network.trainable_params(), **reducer)
        loss, gradients = gradient(x)
        optimizer(reduce(gradients))
        return loss

    return step


@pytest.mark.parametrize(("mean", "factor"), [(None, 1.0), (True, 1.0), (False, 4.0)])
def test_a_reducer_averages_or_adds_the_gradients_of_all_ranks(mean, factor):
    """The mean over equal parts is the mean of the batch; the sum is four times as much."""
    x = np.random.default_rng(0).standard_normal((8, 4))
    alone = Session(
        trace(Local(), [X], optimizer=Optimizer("sgd", {"learning_rate": 0.1})), ParallelOptions()
    )
    network = Local()
    with world(4):
        definition = trace(step_of(network, mean=mean), [X])
    how = CompileOptions(mode="hybrid_parallel")
    together = Session(definition, ParallelOptions(how, 4))
    name, (weight,) = "network.dense.weight", tuple(alone.state["dense.weight"].values())
    name = next(n for n in together.state if n.endswith("dense.weight"))
    together.state[name] = {rank: np.array(weight) for rank in range(4)}
    before = np.array(weight)
    alone.step([x])
    together.step([x])
    expected = before + factor * (alone.state["dense.weight"][0] - before)
    for rank in range(4):
        np.testing.assert_allclose(together.state[name][rank], expected, rtol=1e-12)


def test_wrong_reducers_are_refused():
    network = Local()
    with world(4):
        with pytest.raises(ModelError, match="`degree` is 2, expected the number of ranks, 4"):
            nn.DistributedGradReducer(network.trainable_params(), degree=2)
        with pytest.raises(ModelError, match="`fusion_type` is 2, expected 1"):
            nn.DistributedGradReducer(network.trainable_params(), fusion_type=2)
        with group("rows", [[0, 1], [2, 3]]), pytest.raises(ModelError, match="the group `rows`"):
            nn.DistributedGradReducer(network.trainable_params(), group="rows")
        with pytest.raises(ModelError, match="is given int, it takes what `value_and_grad`"):
            nn.DistributedGradReducer(network.trainable_params())(3)
