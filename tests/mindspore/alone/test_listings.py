"""What is listed of a program that was compiled alone, and the settings that decide it."""

import pytest

import shardwright.mindspore as ms
from shardwright.ir.errors import ShardwrightError, ShardwrightWarning
from shardwright.mindspore import Parameter, nn, ops
from shardwright.mindspore.common.api import _cell_graph_executor
from shardwright.mindspore.context import get_auto_parallel_context, set_auto_parallel_context
from shardwright.mindspore.nn import TrainOneStepCell
from shardwright.mindspore.ops import operations
from shardwright.mindspore.parallel._auto_parallel_context import auto_parallel_context
from shardwright.mindspore.parallel._cost_model_context import (
    _get_algo_single_loop,
    _set_algo_single_loop,
    cost_options,
    get_cost_model_context,
    reset_cost_model_context,
    set_cost_model_context,
)
from tests.mindspore.cells import Applied, ones


@pytest.fixture(autouse=True)
def eight_ranks(monkeypatch):
    monkeypatch.setenv("MS_SIMULATION_LEVEL", "0")
    set_auto_parallel_context(
        device_num=8, global_rank=0, parallel_mode="semi_auto_parallel", full_batch=True
    )


class Products(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = ops.MatMul().shard(((2, 4), (4, 1)))
        self.second = ops.MatMul().shard(((2, 1), (1, 4)))
        self.a, self.b = Parameter(ones(32, 64), name="a"), Parameter(ones(64, 16), name="b")

    def construct(self, x):
        return self.second(self.first(x, self.a), self.b).sum()


def step():
    network = Products()
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    made = TrainOneStepCell(network, optimizer)
    _cell_graph_executor.compile(made, ones(16, 32))
    return made


def test_the_group_that_divides_a_parameter_further_is_in_its_layout():
    """The whole parameter is compared with the threshold: `a` is 8 KiB, a slice of it 2 KiB."""
    set_auto_parallel_context(enable_parallel_optimizer=True, optimizer_weight_shard_size=2)
    set_auto_parallel_context(parallel_optimizer_config={"parallel_optimizer_threshold": 5})
    found = step().parameter_layout_dict
    assert found["a"][1:5] == ([0, -1], [8, 64], 0, True)
    assert found["a"][5].startswith("2-")
    assert found["b"][5] == ""


def test_inputs_have_the_names_of_the_arguments():
    network = Products()
    _cell_graph_executor.compile(network, ones(16, 32))
    assert network.parameter_layout_dict["x"] == ([8], [-1, -1], [16, 32], 0, True, "")


def test_inputs_arrive_split_by_the_batch_where_nothing_is_said():
    ms.reset_auto_parallel_context()
    set_auto_parallel_context(device_num=8, parallel_mode="semi_auto_parallel")
    network = Products()
    network.set_train()
    _cell_graph_executor.compile(network, ones(4, 32))
    assert network.parameter_layout_dict["x"] == ([8], [0, -1], [4, 32], 0, True, "")


@pytest.mark.parametrize(
    ("strategy", "arrangement", "axes"),
    [
        ((1, 2, 4), [2, 4], [-1, 1, 0]),
        ((2, 1, 2), [2, 2, 2], [2, -1, 1]),
        ((1, 1, 1), [8], [-1] * 3),
    ],
)
def test_the_arrangement_says_which_ranks_have_the_same_slice(strategy, arrangement, axes):
    """Slices that are not split on, as by (2, 1, 2) on eight ranks, are on neighbours."""

    class Negative(nn.Cell):
        def __init__(self):
            super().__init__()
            self.weight = Parameter(ones(8, 8, 8), name="weight")
            self.negative = operations.Neg().shard((strategy,))

        def construct(self, x):
            return self.negative(self.weight).sum() + x.sum()

    network = Negative()
    _cell_graph_executor.compile(network, ones(8))
    sizes = [8 // count for count in strategy]
    assert network.parameter_layout_dict["weight"] == (arrangement, axes, sizes, 0, True, "")


@pytest.mark.parametrize(
    ("direct", "arrangement", "axis"), [("left", [4, 2], 0), ("right", [2, 4], 1)]
)
def test_ranks_have_the_parts_of_a_batch_in_turn_or_as_their_neighbours(direct, arrangement, axis):
    ms.reset_auto_parallel_context()
    set_auto_parallel_context(
        device_num=8, parallel_mode="semi_auto_parallel", dataset_strategy=((2, 1),)
    )
    network = Products()
    network.dataset = operations._VirtualDataset().add_prim_attr("repeat_dim_direct", direct)
    _cell_graph_executor.compile(network, ones(8, 32))
    found = network.parameter_layout_dict["x"]
    assert found == (arrangement, [axis, -1], [8, 32], 0, True, "")


def test_gradients_that_are_reduced_together_have_one_number():
    ms.reset_auto_parallel_context()
    set_auto_parallel_context(
        device_num=8, parallel_mode="data_parallel", all_reduce_fusion_config=[1]
    )
    assert _cell_graph_executor._get_allreduce_fusion(step()) == {"a": 1, "b": 2}
    set_auto_parallel_context(comm_fusion={"allreduce": {"mode": "auto", "config": None}})
    assert _cell_graph_executor._get_allreduce_fusion(step()) == {"a": 1, "b": 1}
    auto_parallel_context().set_enable_all_reduce_fusion(enable_all_reduce_fusion=False)
    assert _cell_graph_executor._get_allreduce_fusion(step()) == {}


def test_strategies_are_not_read_in_data_parallel():
    ms.reset_auto_parallel_context()
    set_auto_parallel_context(device_num=8, parallel_mode="data_parallel")
    found = step().parameter_layout_dict
    assert [found[name][2] for name in ("a", "b")] == [[32, 64], [64, 16]]


class Changed(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = Parameter(ones(32, 64, 128), name="table", requires_grad=False)
        self.add = ops.ScatterNdAdd().shard(((1, 2, 4), (1, 1), (1, 4)))

    def construct(self, rows, updates):
        return self.add(self.table, rows, updates)


def test_a_parameter_that_is_changed_at_positions_is_split_as_its_strategy_says():
    network = Changed()
    phase, _ = _cell_graph_executor.compile(network, ones(4, 2, dtype="int32"), ones(4, 128))
    table = _cell_graph_executor.program(phase).parameter("table").value
    assert table.layout.slice_shape(table.type.shape, _cell_graph_executor.program(phase).mesh) == (
        32,
        32,
        32,
    )


@pytest.mark.parametrize(
    ("fusion", "kind"),
    [
        ([1, 2], TypeError),
        ({"allgather": [1, 2]}, TypeError),
        ({"allreduce": {"mode": "size", "config": "30.12"}}, TypeError),
        ({"all": {"mode": "size", "config": 30}}, KeyError),
        ({"allgather": {"modes": "size", "config": 30}}, KeyError),
        ({"allgather": {"mode": "sizes", "config": 30}}, KeyError),
        ({"allgather": {"mode": "size"}}, KeyError),
    ],
)
def test_fusions_are_refused_as_by_mindspore(fusion, kind):
    with pytest.raises(kind) as caught:
        set_auto_parallel_context(comm_fusion=fusion)
    assert isinstance(caught.value, ShardwrightError)


def test_the_megabytes_that_are_fused_are_those_that_were_set():
    sizes = {"allgather": {"mode": "size", "config": 8}, "reducescatter": {"mode": "auto"}}
    sizes["reducescatter"]["config"] = None
    set_auto_parallel_context(comm_fusion=sizes)
    own = auto_parallel_context()
    assert own.allgather_fusion_threshold_mb() == 8
    assert own.reducescatter_fusion_threshold_mb() == own.fusion_threshold_mb() == 64


def test_settings_of_the_optimizer_add_up():
    set_auto_parallel_context(optimizer_weight_shard_size=2)
    set_auto_parallel_context(parallel_optimizer_config={"parallel_optimizer_threshold": 1})
    assert get_auto_parallel_context("parallel_optimizer_config") == {
        "optimizer_weight_shard_size": 2,
        "parallel_optimizer_threshold": 1,
    }


def test_groups_of_one_host_compile_on_one_host_alone():
    set_auto_parallel_context(communi_parallel_mode="same_server_group_parallel")
    step()
    set_auto_parallel_context(device_num=16)
    with pytest.raises(ShardwrightError, match="expected all_group_parallel"):
        step()


def test_the_memory_of_a_device_limits_programs():
    try:
        assert get_cost_model_context("run_phase") == 0
        set_cost_model_context(run_phase=1)
        assert get_cost_model_context("run_phase") == 1
        with pytest.raises(ValueError, match="`run_phase` is 2, expected 0 or 1"):
            set_cost_model_context(run_phase=2)
        assert get_cost_model_context("device_memory_capacity") == 16 * 2**30
        assert "memory_limit" not in cost_options("auto_parallel")
        set_cost_model_context(device_memory_capacity=2.0**20)
        assert cost_options("auto_parallel")["memory_limit"] == 2**20
    finally:
        reset_cost_model_context()


class Two(nn.Cell):
    def __init__(self):
        super().__init__()
        self.mul, self.neg = ops.Mul().shard(((2, 4), (2, 4))), ops.Neg().shard(((2, 4),))
        self.weight = Parameter(ones(32, 16), name="weight")

    def construct(self, x):
        product = self.mul(x, self.weight)
        return product, self.neg(product), self.neg(product).sum()


@pytest.mark.parametrize(
    ("strategy", "rows", "slices"), [("full_batch", 32, 1), ("data_parallel", 4, 8)]
)
def test_results_of_a_network_that_is_not_trained_are_split_by_the_batch(strategy, rows, slices):
    ms.reset_auto_parallel_context()
    set_auto_parallel_context(
        device_num=8, parallel_mode="semi_auto_parallel", dataset_strategy=strategy
    )
    network = Two()
    phase, _ = _cell_graph_executor.compile(network, ones(rows, 16))
    listed = _cell_graph_executor._get_shard_strategy(network)
    assert [counts for name, counts in listed.items() if "VirtualOutput" in name] == [
        [[slices, 1]],
        [[slices, 1]],
    ]
    program = _cell_graph_executor.program(phase)
    results = [node.results[0] for node in program.nodes if node.operator == "identity"]
    assert [value.layout.slice_shape(value.type.shape, program.mesh) for value in results] == [
        (32 // slices, 16)
    ] * 2
    network.set_train()
    _cell_graph_executor.compile(network, ones(rows, 16))
    assert "VirtualOutput" not in str(_cell_graph_executor._get_shard_strategy(network))


def test_results_that_ranks_cannot_have_equal_parts_of_are_whole():
    set_auto_parallel_context(full_batch=False, dataset_strategy="data_parallel")

    class Few(nn.Cell):
        def construct(self, x):
            return x[:4]

    network = Few()
    _cell_graph_executor.compile(network, ones(8, 16))
    listed = _cell_graph_executor._get_shard_strategy(network)
    assert next(counts for name, counts in listed.items() if "VirtualOutput" in name) == [[1, 1]]


def listed(network, *inputs):
    network.set_train()
    phase, _ = _cell_graph_executor.compile(network, *inputs)
    strategies = _cell_graph_executor._get_shard_strategy(network)
    return _cell_graph_executor.get_parallel_graph_info(phase)["@graph_0"], strategies


def test_what_one_of_mindspores_operators_is_made_of_is_listed_as_it():
    loss = operations.KLDivLoss("mean").shard(((4, 2), (4, 2)))
    nodes, strategies = listed(Applied(loss), ones(8, 4), ones(8, 4))
    assert nodes["AllReduce-0"]["inputs"] == ["KLDivLoss-0"]
    assert nodes["AllReduce-0"]["attrs"]["op"] == "sum"
    assert nodes["KLDivLoss-0"]["attrs"]["reduction"] == "mean"
    assert strategies == {"Default/KLDivLoss-op0": [[4, 2], [4, 2]]}


@pytest.mark.long
def test_every_operand_that_is_listed_is_an_operator_or_a_parameter():
    """The regions are sent in the middle of a pooling: it is listed by what it is made of."""
    align = operations.ROIAlign(2, 2, 0.5).shard(((4, 1, 1, 1), (2, 1)))
    nodes, strategies = listed(Applied(align), ones(32, 3, 8, 8), ones(16, 5))
    assert "ROIAlign-0" not in nodes
    assert strategies["Default/ROIAlign-op0"] == [[4, 1, 1, 1], [2, 1]]
    before = {"input0", "input1", "constant_0", "constant_1", "constant_2"}
    for name, node in nodes.items():
        assert before >= {*node["inputs"]}, name
        before.add(name)


def test_a_normalization_has_the_strategies_of_its_five_operands():
    _, strategies = listed(nn.BatchNorm1d(64), ones(64, 64))
    assert [*strategies] == ["Default/BatchNorm-op0"]
    assert strategies["Default/BatchNorm-op0"][1:] == [[1]] * 4


class Convolved(nn.Cell):
    def __init__(self, counts):
        super().__init__()
        windows = {"kernel_size": 5, "pad_mode": "pad", "pad": (2, 2, 1, 3)}
        self.convolution = operations.Conv2D(4, **windows).shard((counts, (1, 1, 1, 1)))
        self.negative = operations.Neg().shard((counts,))
        self.weight = Parameter(ones(4, 4, 5, 5), name="w")

    def construct(self, x):
        return self.negative(self.convolution(x, self.weight))


@pytest.mark.parametrize("rank", range(8))
def test_rows_and_columns_that_slices_exchange_are_listed_as_one_exchange(rank):
    """A rank reads two rows above and below its own, a column to the left, and three right."""
    set_auto_parallel_context(global_rank=rank)
    network = Convolved((1, 1, 2, 4))
    phase, _ = _cell_graph_executor.compile(network, ones(2, 4, 16, 16))
    found = _cell_graph_executor.get_parallel_graph_info(phase)["@graph_0"]
    row, column = divmod(rank, 4)
    above, below, left, right = row > 0, row < 1, column > 0, column < 3
    assert found["NeighborExchangeV2-0"]["attrs"] == {
        "send_lens": str([2 * above, 2 * below, 3 * left, 1 * right]),
        "recv_lens": str([2 * above, 2 * below, 1 * left, 3 * right]),
    }
    assert found["Conv2D-0"]["inputs"] == ["NeighborExchangeV2-0", "w"]
    assert "NeighborExchangeV2-1" not in found


def test_a_loss_is_summed_where_it_is_split():
    loss = Applied(operations.L2Loss().shard(((2, 2, 2),)))
    phase, _ = _cell_graph_executor.compile(loss, ones(8, 8, 8))
    found = _cell_graph_executor.get_parallel_graph_info(phase)["@graph_0"]
    assert found["AllReduce-0"]["inputs"] == ["L2Loss-0"]


@pytest.mark.parametrize(("strategy", "number"), [(None, 5), (((2, 2),), 2), (((1, 2),), 1)])
def test_seeds_are_listed_that_the_rank_draws_with(strategy, number):
    """Those of slice 0 are the ones that are given; ranks of one slice follow each other."""
    set_auto_parallel_context(global_rank=5)
    draw = operations.UniformReal(4, 6).shard(strategy)
    phase, _ = _cell_graph_executor.compile(Applied(lambda: draw((8, 8))))
    found = _cell_graph_executor.get_parallel_graph_info(phase)["@graph_0"]["UniformReal-0"]
    assert [found["attrs"][name] for name in ("seed", "seed2")] == [4 + number, 6 + number]


def test_a_strategy_of_another_number_of_dimensions_has_no_effect_on_a_cast():
    """MindSpore does not read it in `semi_auto_parallel`."""
    cast = operations.Cast().shard(((8, 1),))
    with pytest.warns(ShardwrightWarning, match="has no effect: the tensor has the shape"):
        _cell_graph_executor.compile(Applied(lambda x: cast(x, ms.int32)), ones(16))
    set_auto_parallel_context(parallel_mode="auto_parallel")
    with pytest.raises(ShardwrightError, match="does not fit `cast_0`"):
        _cell_graph_executor.compile(Applied(lambda x: cast(x, ms.int32)), ones(16))


class Layer(nn.Cell):
    """Six operators, of which the first two make the same, and two reshapes are one."""

    def __init__(self):
        super().__init__()
        self.relu, self.add, self.reshape = ops.ReLU(), ops.Add(), ops.Reshape()
        self.neg = ops.Neg()

    def construct(self, x):
        both = self.add(self.relu(x), self.relu(x))
        return self.neg(self.reshape(self.reshape(both, (-1,)), x.shape))


class Layers(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers, self.exp = nn.CellList([Layer(), Layer(), Layer()]), ops.Exp()

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.exp(x)


@pytest.mark.parametrize(("once", "expected"), [(False, 3 * 5 + 2), (True, 5 + 2)])
def test_operators_of_equal_cells_in_a_list_are_counted_once_where_asked(once, expected):
    _set_algo_single_loop(once)
    try:
        network = Layers().set_train()
        _cell_graph_executor.compile(network, ones(16, 32))
        assert _cell_graph_executor._get_num_parallel_ops(network) == expected
    finally:
        reset_cost_model_context()
    assert not _get_algo_single_loop()
