"""Runs of which the programs are compiled alone, and what MindSpore's tests apply in them."""

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.ir.errors import ShardwrightError
from shardwright.mindspore import Parameter, Tensor, nn
from shardwright.mindspore.common.api import _cell_graph_executor
from shardwright.mindspore.common.initializer import TruncatedNormal
from shardwright.mindspore.ops import operations
from shardwright.mindspore.train import Model
from tests.mindspore.cells import Applied, ones


@pytest.fixture(autouse=True)
def sixteen_ranks(monkeypatch):
    monkeypatch.setenv("MS_SIMULATION_LEVEL", "0")
    ms.set_auto_parallel_context(
        device_num=16, global_rank=3, parallel_mode="semi_auto_parallel", full_batch=True
    )


class Product(nn.Cell):
    def __init__(self, strategy=None):
        super().__init__()
        self.matmul = operations.MatMul().shard(strategy)
        self.weight = Parameter(ones(32, 8), name="w")

    def construct(self, x):
        return self.matmul(x, self.weight)


def program(function, *inputs):
    phase, _ = _cell_graph_executor.compile(Applied(function), *inputs)
    return _cell_graph_executor.program(phase)


def trained(network, rows=64):
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = Model(network, loss, nn.Momentum(network.trainable_params(), 0.1, 0.9))
    batch = (ones(rows, 32), ones(rows, dtype="int32"))
    return model, model.train(2, [batch])


def test_a_model_is_compiled_for_ranks_that_are_not_there_and_no_step_runs():
    model, losses = trained(Product(((16, 1), (1, 1))))
    assert losses == []
    found = _cell_graph_executor._get_shard_strategy(model._train_network)
    assert found["Default/MatMul-op0"] == [[16, 1], [1, 1]]


def test_a_batch_is_that_of_a_rank_where_the_data_set_is_split():
    ms.set_auto_parallel_context(full_batch=False, dataset_strategy="data_parallel")
    model, _ = trained(Product(((16, 1), (1, 1))), rows=1)  # of 16 rows in all
    found = _cell_graph_executor._get_shard_strategy(model._train_network)
    assert found["Default/MatMul-op0"] == [[16, 1], [1, 1]]


def test_a_prediction_is_compiled_for_the_ranks_too():
    model = Model(Product(((16, 1), (1, 1))))
    assert model.infer_predict_layout(ones(64, 32))["w"][2] == [32, 8]
    assert model.predict(ones(64, 32)).shape == (64, 8)
    with pytest.raises(RuntimeError) as caught:
        Model(Product(((64, 1), (1, 1)))).predict(ones(64, 32))
    assert str(caught.value).startswith("`matmul` cannot be split by ((64, 1), (1, 1))")


def test_an_illegal_strategy_is_a_runtime_error():
    with pytest.raises(RuntimeError) as caught:
        trained(Product(((16, 1), (2, 1))))
    assert isinstance(caught.value, ShardwrightError)
    assert str(caught.value).startswith("`matmul` cannot be split by ((16, 1), (2, 1))")


def test_another_level_is_refused(monkeypatch):
    monkeypatch.setenv("MS_SIMULATION_LEVEL", "3")
    with pytest.raises(ShardwrightError) as caught:
        trained(Product())
    assert str(caught.value).startswith("`MS_SIMULATION_LEVEL` is `3`, expected 0")


def test_a_strategy_of_other_types_is_a_type_error():
    with pytest.raises(TypeError) as caught:
        operations.MatMul().shard(((1.5, 1), (1, 1)))
    assert str(caught.value) == (
        "`strategy of an operator` is ((1.5, 1), (1, 1)), expected a number of slices for each "
        "dimension of each tensor; write `((2, 4), (4, 1))`"
    )


def test_layouts_of_parameters_are_listed():
    network = Product(((2, 4), (4, 1)))
    _cell_graph_executor.compile(network, ones(64, 32))
    assert network.parameter_layout_dict["w"] == ([2, 4, 2], [1, -1], [8, 8], 0, True, "")


def test_a_rank_exchanges_with_neighbors_whose_programs_are_not_known():
    ms.set_auto_parallel_context(parallel_mode="stand_alone")
    exchange = operations.NeighborExchange([0], [1, 2], ([4], [2, 3]), ([5],), "float32")
    found = program(lambda x: exchange((x,)), ones(5))
    assert found.mesh.size == 16
    wrong = operations.NeighborExchange((0,), [1], ([4],), ([5],), "float32")
    with pytest.raises(TypeError) as caught:
        program(lambda x: wrong((x,)), ones(5))
    assert str(caught.value).startswith("`send_rank_ids` is (0,), expected a list of ranks")


def test_a_cell_computes_in_its_element_type_and_its_parameters_keep_theirs():
    network = Product().to_float("float16")
    _cell_graph_executor.compile(network, ones(64, 32))
    assert network.weight.dtype == "float32"
    found = network(ones(64, 32))
    assert found.dtype == "float16"


# Values

X = np.arange(1.0, 13).reshape(4, 3)


def test_rows_are_changed_at_positions():
    rows = np.full((2, 3), 2.0)
    for name, change in (("InplaceAdd", np.add), ("InplaceSub", np.subtract)):
        expected = X.copy()
        expected[[0, 2]] = change(expected[[0, 2]], rows)
        found = Applied(getattr(operations, name)((0, 2)))(Tensor(X), Tensor(rows))
        np.testing.assert_array_equal(found.asnumpy(), expected)
    expected[[0, 2]] = rows
    found = Applied(operations.InplaceUpdate((0, 2)))(Tensor(X), Tensor(rows))
    np.testing.assert_array_equal(found.asnumpy(), expected)


def test_products_of_segments_and_at_positions():
    segments = np.array([1, 0, 1, 1], np.int32)
    found = operations.UnsortedSegmentProd()(Tensor(X), Tensor(segments), 3).asnumpy()
    np.testing.assert_array_equal(found, [X[1], X[[0, 2, 3]].prod(0), np.ones(3)])
    positions = np.array([[0], [2], [0]], np.int32)
    updates = np.array([[2.0] * 3, [3.0] * 3, [5.0] * 3])
    expected = X * np.array([10, 1, 3, 1])[:, None]
    times = operations.TensorScatterMul()(Tensor(X), Tensor(positions), Tensor(updates))
    np.testing.assert_array_equal(times.asnumpy(), expected)
    by = operations.TensorScatterDiv()(Tensor(expected), Tensor(positions), Tensor(updates))
    np.testing.assert_allclose(by.asnumpy(), X, rtol=1e-12)


def test_copies_splits_values_of_one_hot_and_diagonals():
    np.testing.assert_array_equal(
        operations.Tile()(Tensor(X), (2, 1, 3)).asnumpy(), np.tile(X, (2, 1, 3))
    )
    parts = operations.SplitV([1, -1], 0, 2)(Tensor(X))
    assert [part.shape for part in parts] == [(1, 3), (3, 3)]
    classes = Tensor(np.array([0, 2], np.int32))
    found = operations.OneHot(axis=0)(classes, 3, 2.0, 1.0).asnumpy()
    np.testing.assert_array_equal(found, np.eye(3)[:, [0, 2]] + 1)
    np.testing.assert_array_equal(operations.Diag()(Tensor(X[0])).asnumpy(), np.diag(X[0]))


def test_means_of_windows_leave_out_what_is_padded():
    image = ones(1, 1, 5, 5)
    layer = nn.AvgPool2d(3, 2, "same")(image).asnumpy()
    primitive = operations.AvgPool(3, 2, "same")(image).asnumpy()
    np.testing.assert_array_equal(layer, np.ones((1, 1, 3, 3)))
    np.testing.assert_array_equal(primitive, layer)


def test_one_weight_of_a_rectifier_is_that_of_all_channels():
    found = operations.PReLU()(Tensor(-X), Tensor([0.5])).asnumpy()
    np.testing.assert_array_equal(found, -X / 2)


def test_rows_that_are_split_in_another_way_than_the_tensor_are_refused():
    add = operations.InplaceAdd((0, 1)).shard(((1, 4), (1, 2)))
    with pytest.raises(RuntimeError) as caught:
        program(add, ones(8, 16), ones(2, 16))
    assert str(caught.value).startswith(
        "the strategy ((1, 4), (1, 2)) of `InplaceAdd` splits the tensor and its rows in different "
        "ways, or between rows"
    )


def test_more_slices_of_an_operand_than_it_has_elements_are_refused():
    join = operations.SquareSumAll().shard(((32, 1), (32, 1)))
    with pytest.raises(RuntimeError) as caught:
        program(join, ones(8, 16), ones(8, 16))
    assert str(caught.value).startswith(
        "the strategy ((32, 1), (32, 1)) splits an operand of the shape (8, 16) of `SquareSumAll` "
        "(32, 1) ways"
    )


@pytest.mark.parametrize("batch", [ones(64, 32), np.ones((64, 32), np.float32)])
def test_a_batch_of_one_column_is_one_input(batch):
    network = Product(((16, 1), (1, 1)))
    loss = Applied(lambda x: network(x).sum())
    loss.network = network
    model = Model(loss, optimizer=nn.Momentum(network.trainable_params(), 0.1, 0.9))
    model.train(1, [batch])
    found = _cell_graph_executor._get_shard_strategy(model._train_network)
    assert found["Default/MatMul-op0"] == [[16, 1], [1, 1]]


def test_a_batch_is_an_input_that_a_network_asks_for():
    batch = operations.GetNext(["float32", "int32"], [[32, 8], [32]], 2, "")
    found = program(lambda: batch()[0])
    assert [value.type.shape for value in found.inputs] == [(32, 8), (32,)]


def test_what_a_queue_makes_is_whole_and_the_strategy_is_its_own():
    strategy = ((1, 8), (8, 1))
    ms.set_auto_parallel_context(full_batch=False, dataset_strategy=strategy)
    batch = operations.GetNext(["float32", "float32"], [[32, 64], [64, 8]], 2, "")
    for unread in ((), (ones(32, 8), ones(8, 8))):
        found = program(lambda *_: operations.MatMul()(*batch()), *unread)
        assert [value.type.shape for value in found.inputs] == [(32, 64), (64, 8)]
        splits = [value.layout.splits for value in found.inputs]
        assert [tuple(map(found.mesh.extent, own)) for own in splits] == [*strategy]


def test_a_power_by_a_number_has_no_slices_of_the_number():
    power = operations.Pow().shard(((4, 2), ()))
    cell = Applied(lambda x: power(x, 2.0))
    _cell_graph_executor.compile(cell, ones(8, 6))
    assert [[4, 2]] in _cell_graph_executor._get_shard_strategy(cell).values()
    for strategy in (((4, 2), (2,)), ((4, 2), (), ())):
        power.shard(strategy)
        with pytest.raises(RuntimeError, match="does not fit `Pow`, whose operands have"):
            program(lambda x: power(x, 2.0), ones(8, 6))


@pytest.mark.parametrize(
    ("kind", "reduced"), [("ReduceMax", np.max), ("ReduceMin", np.min), ("ReduceProd", np.prod)]
)
def test_reductions_of_what_is_split_are_done_in_stages(kind, reduced):
    reduce = getattr(operations, kind)().shard(((4, 1),))
    found = reduce._in_stages(Tensor(X), (0,), (4, 1))
    np.testing.assert_array_equal(found.asnumpy(), reduced(X, axis=0))
    made = program(lambda x: reduce(x, 0), ones(8, 6))
    assert made.mesh.size == 16


def test_the_gradient_is_weighed_by_the_last_input():
    function = ms.ops.GradOperation(sens_param=True)(lambda x: x * x)
    found = function(Tensor(X), Tensor(np.full((4, 3), 0.5)))
    np.testing.assert_allclose(found.asnumpy(), X, rtol=1e-6)


@pytest.mark.parametrize(("weights", "shape"), [(np.ones((1, 3)), (1, 3)), (np.ones(3), (3,))])
def test_weights_of_another_shape_than_the_result_are_refused(weights, shape):
    function = ms.ops.GradOperation(sens_param=True)(lambda x: x * x)
    with pytest.raises(ShardwrightError) as caught:
        function(Tensor(X), Tensor(weights))
    assert str(caught.value).startswith(
        f"a function returns tensors of the shapes [(4, 3)], and their weights have the shapes "
        f"[{shape}]"
    )


def test_a_position_outside_of_a_tensor_multiplies_nothing():
    times = operations.TensorScatterMul()
    outside = np.array([[0, 3], [-1, 0], [4, 0]], np.int32)
    found = times(Tensor(X), Tensor(outside), Tensor(np.full(3, 2.0)))
    np.testing.assert_array_equal(found.asnumpy(), X)
    with pytest.raises(ShardwrightError, match="do not index a tensor of shape"):
        times(Tensor(X), Tensor(np.zeros((1, 3), np.int32)), Tensor(np.ones(1)))


def test_a_diagonal_may_have_infinities():
    found = operations.Diag()(Tensor(np.array([1.0, np.inf])))
    np.testing.assert_array_equal(found.asnumpy(), np.diag([1.0, np.inf]))


def test_masks_without_seeds_are_their_own_and_with_one_seed_the_same():
    def masks(seed):
        draw = [operations.DropoutGenMask(seed, 0) for _ in range(2)]
        return Applied(lambda x: tuple(one((64,), 0.5) for one in draw))(Tensor(X))

    one, other = masks(0)
    assert (one.asnumpy() != other.asnumpy()).any()
    one, other = masks(7)
    np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())


def test_the_mask_of_dropout_is_split_as_its_tensor():
    with pytest.raises(ShardwrightError) as caught:
        operations.DropoutDoMask().shard(((4, 1), (1, 4), ()))
    assert str(caught.value).startswith(
        "`in_strategy` is ((4, 1), (1, 4), ()), expected ((4, 1), (4, 1), ())"
    )


class Counting(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.steps = Parameter(ones(1), name="steps", requires_grad=False)
        self.add = operations.AssignAdd()

    def construct(self, x):
        self.add(self.steps, x.sum() * 0 + 1)
        return self.norm(x)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_parameters_that_are_assigned_to_keep_their_type_in_a_cell_of_another(dtype):
    network = Counting().to_float(dtype)
    network.set_train()
    assert network(ones(2, 3, 4, 4)).dtype == dtype
    assert network.norm.moving_mean.dtype == network.steps.dtype == "float32"
    phase, _ = _cell_graph_executor.compile(network, ones(16, 3, 4, 4))
    assert len(_cell_graph_executor.program(phase).updates) == 3


def test_a_flag_that_is_false_undoes_the_type():
    network = Product().add_flags(fp16=True)
    assert network(ones(64, 32)).dtype == "float16"
    assert network.add_flags(bf16=False)(ones(64, 32)).dtype == "float16"
    assert network.add_flags(fp16=False)(ones(64, 32)).dtype == "float32"


class TwoProducts(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second = (operations.MatMul().shard(((16, 1), (1, 1))) for _ in range(2))
        self.divided = Parameter(ones(32, 32), name="divided")
        self.whole = Parameter(ones(32, 32), name="whole", parallel_optimizer=False)

    def construct(self, x):
        return self.second(self.first(x, self.divided), self.whole)


def test_a_parameter_that_is_not_for_the_parallelism_of_optimizers_stays_whole():
    config = {"parallel_optimizer_threshold": 0}
    ms.set_auto_parallel_context(enable_parallel_optimizer=True, parallel_optimizer_config=config)
    network = TwoProducts()
    model, _ = trained(network)
    found = model._train_network.parameter_layout_dict
    groups = {
        name.rpartition(".")[2]: layout[5].partition("-")[0] for name, layout in found.items()
    }
    assert (groups["whole"], groups["divided"]) == ("", "16")
    network.divided.parallel_optimizer = False
    model, _ = trained(network)
    found = model._train_network.parameter_layout_dict
    assert {layout[5] for layout in found.values()} == {""}
    network.divided.parallel_optimizer = "no"
    with pytest.raises(ShardwrightError) as caught:
        trained(network)
    assert "`parallel_optimizer` is the text `no`, expected True or False" in str(caught.value)


def test_a_cell_that_is_called_is_compiled_for_the_ranks_and_computed_alone():
    assert Product(((16, 1), (1, 1)))(ones(64, 32)).shape == (64, 8)
    with pytest.raises(RuntimeError, match=r"`matmul` cannot be split by \(\(32, 1\)"):
        Product(((32, 1), (1, 1)))(ones(64, 32))


def test_inputs_are_those_of_a_rank_where_a_data_set_is_split():
    ms.set_auto_parallel_context(full_batch=False, dataset_strategy=((4, 2),))
    network = Product(((4, 2), (2, 1)))
    phase, _ = _cell_graph_executor.compile(network, ones(16, 16))
    (given,) = _cell_graph_executor.program(phase).inputs
    assert given.type.shape == (64, 32)


@pytest.mark.parametrize(("columns", "fits"), [(2, True), (4, False)])
def test_a_network_that_changes_a_parameter_predicts(columns, fits):
    class Changed(nn.Cell):
        def __init__(self):
            super().__init__()
            self.table = Parameter(ones(4, 8), name="table")
            self.update = operations.ScatterAdd().shard(((1, 2), (1,), (1, columns)))

        def construct(self, x):
            return x + self.update(self.table, Tensor(np.array([1], np.int32)), ones(1, 8))

    if fits:
        expected = 2 + (np.arange(4) == 1)[:, None] * np.ones(8)
        found = Model(Changed()).predict(ones(4, 8)).asnumpy()
        np.testing.assert_array_equal(found, expected)
        return
    with pytest.raises(
        RuntimeError, match=r"`ScatterAdd` cannot be split by \(\(1, 2\), \(1,\), \("
    ):
        Model(Changed()).predict(ones(4, 8))


# Steps that are called.


def test_a_step_is_compiled_for_the_ranks_and_returns_zeros():
    network = Product(((16, 1), (1, 1)))
    parameters = network.trainable_params()
    step = nn.TrainOneStepCell(network, nn.Momentum(parameters, 0.1, 0.9))
    loss = step(ones(64, 32))
    assert (loss.shape, loss.dtype, loss.asnumpy().any()) == ((64, 8), "float32", False)
    found = _cell_graph_executor._get_shard_strategy(step)
    assert found["Default/MatMul-op0"] == [[16, 1], [1, 1]]
    np.testing.assert_array_equal(network.weight.asnumpy(), np.ones((32, 8)))
    assert step(ones(64, 32)) is loss


def test_a_function_is_compiled_for_the_ranks_too():
    relu, illegal = (operations.ReLU().shard(((n, 1),)) for n in (16, 64))
    doubled, shifted = ms.jit(lambda x: (relu(x) * 2, x[:8] + 1))(ones(64, 32))
    assert (doubled.shape, shifted.shape) == ((64, 32), (8, 32))
    with pytest.raises(RuntimeError, match="`relu` cannot be split by"):
        ms.jit(lambda x: illegal(x))(ones(64, 32))


# What networks make of values while they are made.


def test_dropout_is_split_as_its_operator_says():
    layer = nn.Dropout(0.5)
    layer.dropout.shard(((4, 2),))
    layer.set_train()
    _cell_graph_executor.compile(layer, ones(64, 32))
    found = _cell_graph_executor._get_shard_strategy(layer)
    assert [counts[0] for name, counts in found.items() if "Dropout" in name] == [[4, 2]]
    layer.dropout.shard(((4, 2, 1),))
    with pytest.raises(ShardwrightError, match="does not fit `dropout_0`"):
        _cell_graph_executor.compile(layer, ones(64, 32))


def test_a_whole_number_is_a_place_and_an_initializer_fills_an_array():
    rows, array = np.zeros((3, 4)), np.zeros((64, 64), np.float32)
    rows[Tensor(np.array([0, 2], np.int32))[1]] = 1
    np.testing.assert_array_equal(rows.sum(1), [0, 0, 4])
    with pytest.raises(IndexError):
        rows[Tensor(1.0)] = 2
    TruncatedNormal(0.5)(array)
    assert 0.3 < array.std() < 0.6
    assert array.dtype == np.float32
