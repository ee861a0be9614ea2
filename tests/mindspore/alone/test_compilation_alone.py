"""Cells that are compiled for ranks that nobody started, as MindSpore's own tests do."""

from importlib import import_module

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.ir.errors import ShardwrightError
from shardwright.mindspore import Parameter, Tensor, nn
from shardwright.mindspore.common.api import _cell_graph_executor
from shardwright.mindspore.ops import composite, operations
from tests.mindspore.cells import Applied, ones

SPLIT, WHOLE = ((8, 1), (8, 1)), ((1, 1), (1, 1))


@pytest.fixture(autouse=True)
def eight_ranks():
    ms.set_auto_parallel_context(
        dataset_strategy="full_batch",
        device_num=8,
        global_rank=7,
        parallel_mode="semi_auto_parallel",
    )


class AddRelu(nn.Cell):
    def __init__(self, add=None, relu=None):
        super().__init__()
        self.add, self.relu = operations.Add().shard(add), operations.ReLU().shard(relu)
        self.weight = Parameter(ones(32), name="w")

    def construct(self, x, y):
        return self.relu(self.add(x, y)) * self.weight


class Gradients(nn.Cell):
    def __init__(self, network, **how):
        super().__init__()
        self.network, self.how = network, how
        self.weights = ms.ParameterTuple(network.trainable_params())

    def construct(self, x, y):
        operation = composite.GradOperation(**self.how)
        weights = (self.weights,) if self.how.get("get_by_list") else ()
        return operation(self.network, *weights)(x, y)


def compiled(net, *inputs):
    phase, is_new = _cell_graph_executor.compile(net, *inputs or (ones(128, 32), ones(128, 32)))
    assert is_new
    return _cell_graph_executor.program(phase)


def operators(program):
    return [node.operator for node in program.nodes]


def gradients(program):
    return {name for name in program.values if name.endswith(".grad")} & {
        "x.grad",
        "y.grad",
        "network.weight.grad",
        "w.grad",
        "network.w.grad",
    }


def test_inputs_arrive_whole_by_which_a_network_is_differentiated():
    """Their gradients are whole, too; the weights of results are split as these."""
    split = ((4, 2), (4, 2))
    network = operations.Add().shard(split)
    operation = composite.GradOperation(get_all=True, sens_param=True)
    step = Applied(lambda x, y, sens: operation(network)(x, y, sens))
    program = compiled(step, *[ones(128, 32)] * 3)
    shapes = {
        name: value.layout.slice_shape(value.type.shape, program.mesh)
        for name, value in program.values.items()
        if name.removesuffix(".grad") in ("input0", "input1", "input2")
    }
    assert shapes.pop("input2") == (32, 16)
    assert shapes == dict.fromkeys(["input0", "input1", "input0.grad", "input1.grad"], (128, 32))


def test_whole_inputs_may_be_cast_that_a_network_is_differentiated_by():
    """The search counts the cast of the gradient, which is not the update's here."""
    product = operations.MatMul().shard(((2, 2), (2, 2)))
    operation = composite.GradOperation(get_all=True)

    def network(x, y):
        return product(operations.Cast()(x, ms.float16), operations.Cast()(y, ms.float16))

    program = compiled(Applied(lambda x, y: operation(network)(x, y)), ones(16, 32), ones(32, 8))
    found = [program.values[f"input{i}.grad"] for i in range(2)]
    assert [value.type.dtype for value in found] == ["float32"] * 2


def test_strategies_decide_the_communication():
    gathered = compiled(Gradients(AddRelu(SPLIT, ((1, 1),)), get_all=True))
    assert operators(gathered).count("all_gather") == 3  # of a sum, and of both whole gradients
    assert gradients(gathered) >= {"x.grad", "y.grad"}
    alike = compiled(Gradients(AddRelu(SPLIT, ((8, 1),)), get_all=True))
    assert operators(alike).count("all_gather") == 2


def test_gradients_are_by_what_is_asked_for():
    by_weight = gradients(compiled(Gradients(AddRelu(), get_by_list=True)))
    assert not by_weight & {"x.grad", "y.grad"}
    assert len(by_weight) == 1
    assert gradients(compiled(AddRelu())) == set()
    both = gradients(compiled(Gradients(AddRelu(), get_all=True, get_by_list=True)))
    assert both == by_weight | {"x.grad", "y.grad"}


def test_a_step_whose_loss_is_a_tensor_trains_on_its_sum():
    net = AddRelu(SPLIT)
    step = nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
    assert "all_reduce" in operators(compiled(step))


def test_a_result_without_a_gradient():
    class Compare(nn.Cell):
        def construct(self, x, y):
            return operations.Equal().shard(SPLIT)(x, y)

    assert gradients(compiled(Gradients(Compare(), get_all=True))) == set()


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (
            ((3, 1), (3, 1)),
            r"`add_0` cannot be split by \(\(3, 1\), \(3, 1\)\)|`add` cannot be split",
        ),
        (((16, 1), (16, 1)), "`add` cannot be split"),
        (((8, 1), (4, 1)), "`add` cannot be split"),
        (((8,), (8,)), "the strategy .* does not fit `add_0`"),
    ],
)
def test_illegal_strategies_are_errors_of_both(add, message):
    with pytest.raises(RuntimeError, match=message) as error:
        compiled(Gradients(AddRelu(add), get_all=True))
    assert isinstance(error.value, ShardwrightError)


@pytest.mark.parametrize("devices", [1, 6, 24, 64])
def test_meshes_of_any_number_of_ranks(devices):
    ms.set_auto_parallel_context(device_num=devices)
    split = ((devices, 1), (devices, 1))
    program = compiled(Gradients(AddRelu(split), get_all=True), ones(48 * 8, 32), ones(48 * 8, 32))
    assert program.mesh.size == devices


def test_a_phase_that_was_not_compiled():
    with pytest.raises(ShardwrightError, match="nothing was compiled as"):
        _cell_graph_executor.program("train.1")


def test_inner_paths_are_the_modules_themselves():
    root = "shardwright.mindspore"
    assert import_module(f"{root}.nn.optim.momentum").Momentum is nn.Momentum
    assert import_module(f"{root}.common.parameter").ParameterTuple is ms.ParameterTuple


def test_compositions_are_split_where_an_operator_has_such_operands():
    class Sliced(nn.Cell):
        def __init__(self, strategy):
            super().__init__()
            self.slice = operations.StridedSlice(end_mask=1).shard(strategy)

        def construct(self, x):
            return self.slice(x, (64, 0), (3, 32), (1, 1))

    assert compiled(Sliced(((1, 4),)), ones(128, 32))
    with pytest.raises(RuntimeError, match="cannot be split"):
        compiled(Sliced(((3, 1),)), ones(128, 32))
    with pytest.raises(RuntimeError, match=r"does not fit `StridedSlice`, whose operands have"):
        compiled(Sliced(((1, 1), (1, 1))), ones(128, 32))


def test_primitives_with_arguments_of_mindspore():
    class Many(nn.Cell):
        def __init__(self):
            super().__init__()
            split = ((2, 1, 1, 1), (1, 1, 1, 1))
            self.conv = operations.Conv2D(4, 3, pad_mode="pad", pad=(1, 1, 1, 1), stride=2, group=1)
            self.conv.shard(split).set_device("CPU").add_prim_attr("primitive_target", "CPU")
            self.norm, self.kernel = operations.LayerNorm(-1, -1), Parameter(ones(4, 3, 3, 3), "k")
            self.gamma, self.beta = Parameter(ones(4), "g"), Parameter(ones(4), "b")
            self.sums = [
                getattr(operations, f"UnsortedSegment{name}")() for name in ("Sum", "Max", "Min")
            ]

        def construct(self, x, segments):
            y = self.conv(x, self.kernel)
            assert y.shape == (8, 4, 4, 4)
            result, mean, variance = self.norm(y, self.gamma, self.beta)
            assert mean.shape == variance.shape == (8, 4, 4, 1)
            found = [reduce(result, segments, 3) for reduce in self.sums]
            assert {item.shape for item in found} == {(3, 4, 4, 4)}
            return operations.BroadcastTo((2, 3, 4, 4, 4))(found[0] + found[1] - found[2])

    inputs = ones(8, 3, 8, 8), Tensor(np.array([0, 1, 2, 0, 1, 2, 0, 1], np.int32))
    program = compiled(Gradients(Many(), get_by_list=True), *inputs)
    assert {"convolution", "layer_norm"} <= set(operators(program))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: operations.Conv2D(4, 3, mode=0), "`mode` is 0, expected 1"),
        (lambda: operations.Conv2D(4, 3, pad_mode="full"), "`pad_mode` is `full`"),
        (lambda: operations.Add().set_device("TPU"), "`device_target` is `TPU`"),
        (lambda: operations.Gather().add_prim_attr("fake_split", 1), "`name` is `fake_split`"),
        (
            lambda: operations.StridedSlice(ellipsis_mask=3),
            "`ellipsis_mask` is 3, expected one bit",
        ),
        (lambda: ms.parallel.set_algo_parameters(tensor_slice_align_size=0), "expected an integer"),
    ],
)
def test_arguments_without_a_meaning_here(make, message):
    with pytest.raises(ShardwrightError, match=message):
        make()


def test_strategies_of_a_compiled_cell_are_those_that_were_pinned():
    net = AddRelu(SPLIT, ((1, 8),))
    compiled(net)
    found = _cell_graph_executor._get_shard_strategy(net)
    assert found["Default/Add-op0"] == [[8, 1], [8, 1]]
    assert found["Default/ReLU-op1"] == [[1, 8]]
    with pytest.raises(ShardwrightError, match="no strategies of `AddRelu`"):
        _cell_graph_executor._get_shard_strategy(AddRelu())
