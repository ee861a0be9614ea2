"""What MindSpore's cells and parameters have beside what ours do."""

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.ir.errors import ShardwrightError
from shardwright.mindspore import Parameter, Tensor, nn, ops
from shardwright.mindspore.common.api import _cell_graph_executor
from shardwright.mindspore.common.initializer import Normal


class Inner(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = Parameter("normal", shape=(4, 4), name="w")

    def construct(self, x):
        return ms.ops.matmul(x, self.weight)


class Outer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second = Inner(), Inner()
        self.shift = Parameter(ms.ops.ones((4,), "float32"), name="shift")

    def construct(self, x):
        return self.second(self.first(x)) + self.shift


def test_parameters_by_name():
    network = Outer()
    assert {*network.parameters_dict()} == {"shift", "first.w", "second.w"}
    assert [*network.parameters_dict(recurse=False)] == ["shift"]
    assert network.parameters_dict()["shift"].data.asnumpy().tolist() == [1, 1, 1, 1]


def test_initial_values_are_those_that_the_network_begins_with():
    x = Tensor(np.eye(4, dtype=np.float32))
    found = []
    for seed in (3, 3, 4):
        ms.set_seed(seed)
        lazy, drawn = Outer(), Outer()
        own = drawn.init_parameters_data()
        assert {*own} == {*own.values()} == {*drawn.get_parameters()}
        np.testing.assert_array_equal(lazy(x).asnumpy(), drawn(x).asnumpy())
        found.append(drawn.first.weight.data.asnumpy())
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.allclose(found[0], found[2])


def test_values_that_are_known_stay():
    network = Outer()
    network.first.weight.set_data(np.ones((4, 4), np.float32))
    network.init_parameters_data()
    assert network.first.weight.asnumpy().tolist() == [[1] * 4] * 4


@pytest.mark.parametrize(("rank", "stage"), [(0, 0), (3, 0), (4, 1), (7, 1)])
def test_parameters_of_the_stage_of_a_rank(monkeypatch, rank, stage):
    monkeypatch.setenv("MS_SIMULATION_LEVEL", "0")
    network = Outer()
    network.first.pipeline_stage, network.second.pipeline_stage = 0, 1
    ms.set_auto_parallel_context(
        device_num=8, global_rank=rank, pipeline_stages=2, parallel_mode="semi_auto_parallel"
    )
    with pytest.raises(RuntimeError, match="the parameter `shift` is in no cell with") as found:
        network.infer_param_pipeline_stage()
    assert isinstance(found.value, ShardwrightError)
    for each in (0, 1):
        network.shift.add_pipeline_stage(each)
    names = {parameter.name for parameter in network.infer_param_pipeline_stage()}
    assert names == {"shift", ("first.w", "second.w")[stage]}
    monkeypatch.delenv("MS_SIMULATION_LEVEL")
    assert len(network.infer_param_pipeline_stage()) == 3


@pytest.mark.parametrize("stage", [-1, 1.5, True, None])
def test_a_stage_is_a_number(stage):
    with pytest.raises((TypeError, ValueError), match="`stage` is"):
        Outer().shift.add_pipeline_stage(stage)


class Products(nn.Cell):
    def __init__(self, strategy=None):
        super().__init__()
        self.first, self.second = ops.MatMul().shard(strategy), nn.Dense(16, 32)

    def construct(self, x, y):
        return self.second(self.first(x, y)).sum()


@pytest.mark.parametrize(
    ("strategy", "rows", "expected"),
    [
        (None, 64, [[[8, 1], [1, 1]], [[8, 1], [1, 1]], [[8, 1], [1]], [[8, 1]]]),
        (None, 12, [[[4, 1], [1, 1]], [[4, 1], [1, 1]], [[4, 1], [1]], [[4, 1]]]),
        (None, 7, [[[1, 1], [1, 1]], [[1, 1], [1, 1]], [[1, 1], [1]], [[1, 1]]]),
        (((1, 8), (8, 1)), 64, [[[1, 8], [8, 1]], [[8, 1], [1, 1]], [[8, 1], [1]], [[8, 1]]]),
    ],
)
def test_operators_are_split_by_the_batch_unless_they_have_a_strategy(strategy, rows, expected):
    inputs = [Tensor(np.ones(shape, np.float32)) for shape in ((rows, 8), (8, 16))]
    ms.set_auto_parallel_context(
        device_num=8, global_rank=0, parallel_mode="auto_parallel", full_batch=True
    )
    network = Products(strategy)
    network.set_data_parallel()
    network.set_train()
    _cell_graph_executor.compile(network, *inputs)
    found = _cell_graph_executor._get_shard_strategy(network)
    assert [*found.values()] == expected
    ms.reset_auto_parallel_context()
    plain = Products(strategy)
    plain.second.weight, plain.second.bias = network.second.weight, network.second.bias
    np.testing.assert_array_equal(network(*inputs).asnumpy(), plain(*inputs).asnumpy())


def test_an_optimizer_of_rows_and_columns_is_refused():
    with pytest.raises(ShardwrightError, match="`AdaFactor` is not supported: states of"):
        nn.AdaFactor(Outer().trainable_params(), learning_rate=None)


class OfTuples(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weights = ms.ParameterTuple([Parameter(np.eye(4, dtype=np.float32)) for _ in "ab"])
        self.dense = nn.Dense(4, 4)
        self.again = [self.dense.weight, Parameter(np.ones(4, np.float32), name="own")]

    def construct(self, x):
        return self.dense(x @ self.weights[0] @ self.weights[1]) + self.again[1]


def test_parameters_of_tuples_and_lists_are_those_of_the_cell():
    network = OfTuples()
    names = [name for name, _ in network.parameters_and_names()]
    assert names == ["dense.weight", "dense.bias", "weights.0", "weights.1", "own"]
    x = Tensor(np.eye(4, dtype=np.float32))
    optimizer = nn.SGD(network.trainable_params(), 0.5)
    step = nn.TrainOneStepCell(nn.WithLossCell(network, nn.MSELoss()), optimizer)
    before = float(step(x, x).asnumpy())
    begin = {name: item.asnumpy().copy() for name, item in network.parameters_and_names()}
    assert float(step(x, x).asnumpy()) < before
    assert all((item.asnumpy() != begin[n]).any() for n, item in network.parameters_and_names())


def test_tuples_have_their_sizes_and_ranges():
    assert ops.functional.tuple_len(Tensor(np.ones((2, 3, 4), np.float32)).shape) == 3
    assert ops.functional.make_range(0, 3) == (0, 1, 2) == ops.functional.make_range(3)


def test_operators_of_cells_have_their_names():
    average, greatest = nn.AvgPool2d(2, 2), nn.MaxPool2d(2, 2)
    average.avg_pool.shard(((2, 1, 1, 1),))
    assert average.pool.in_strategy == ((2, 1, 1, 1),)
    assert greatest.max_pool is greatest.pool
    made = [ops.functional.tuple_to_array(numbers) for numbers in ((1, 2), (1.0, 2))]
    assert [tensor.dtype for tensor in made] == ["int64", "float32"]
    assert [tensor.asnumpy().tolist() for tensor in made] == [[1, 2], [1, 2]]


def test_a_tensor_is_an_initial_value_of_its_shape():
    data = Tensor(np.arange(6).reshape(2, 3))
    for shape in ((2, 3), [2, 3], None):
        parameter = Parameter(ms.initializer(data, shape, "float16"))
        assert parameter.dtype == "float16"
        np.testing.assert_array_equal(parameter.asnumpy(), data.asnumpy())
    for init, shape in ((data, (3, 2)), (data, 6), ("normal", None)):
        with pytest.raises(ShardwrightError, match="`shape` is"):
            ms.initializer(init, shape)


# Parameters that are made of others, or of a tensor that says how they begin.


def test_a_clone_begins_as_its_parameter_does_or_as_it_is_told():
    begun = Tensor(shape=(3, 4), dtype="float32", init=Normal())
    drawn = Parameter(begun, name="w", requires_grad=False)
    same = drawn.clone()
    np.testing.assert_array_equal(same.asnumpy(), drawn.asnumpy())
    assert len({*same.asnumpy().ravel()}) > 1
    assert repr(same) == repr(drawn)
    assert repr(same).endswith("(name=w, shape=(3, 4), dtype=float32, requires_grad=False)")
    same.set_data(np.ones((3, 4)))
    assert not (drawn.asnumpy() == 1).any()
    np.testing.assert_array_equal(drawn.clone("ones").asnumpy(), np.ones((3, 4)))
    given = drawn.clone(Tensor(np.full((3, 4), 2.0)))
    np.testing.assert_array_equal(given.asnumpy(), np.full((3, 4), 2.0))


def test_a_tensor_with_an_initializer_has_no_data():
    with pytest.raises(ShardwrightError, match="a tensor has data; or a shape and an element type"):
        Tensor(np.ones(3), init="ones")
    with pytest.raises(ShardwrightError, match="a tensor has data; or a shape and an element type"):
        Tensor(init="ones", dtype="float32")
