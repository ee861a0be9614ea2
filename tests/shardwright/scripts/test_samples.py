"""What the sample scripts of MindSpore's documentation need, against formulas."""

import copy
import json
import os
import signal

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.communication import world
from shardwright.dataset.configuration import SETTINGS
from shardwright.ir.errors import ModelError, OptionError, ShardwrightError
from shardwright.mindspore import dataset as ds
from shardwright.mindspore import mint, nn, ops, runtime, train
from shardwright.mindspore.dataset import vision
from shardwright.mindspore.parallel import Layout, shard
from shardwright.mindspore.parallel.nn import GradAccumulation, MicroBatchInterleaved, Pipeline
from tests.shardwright.scripts.launching import needs_mpi, run

RANDOM = np.random.default_rng(0)
X, W, V = (RANDOM.standard_normal(shape) for shape in ((16, 8), (8, 8), (8, 16)))


@pytest.fixture(autouse=True)
def as_it_was():
    yield
    ms.reset_auto_parallel_context()
    runtime.reset_memory()
    SETTINGS.seed = None


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second = (ms.Parameter(ms.Tensor(a)) for a in (W, V))
        self.matmul1, self.matmul2, self.relu = ops.MatMul(), ops.MatMul(), nn.ReLU()

    def construct(self, x):
        return self.matmul2(self.relu(self.matmul1(x, self.first)), self.second)


EXPECTED = np.maximum(X @ W, 0) @ V


def on(ranks, network, *inputs, **options):
    with world(ranks):
        parallel = ms.AutoParallel(network, "semi_auto", devices=ranks, **options)
        return parallel(*inputs), parallel.session.compiled


# Splits


def test_products_along_two_axes_of_devices():
    network, layout = Network(), Layout((2, 4), ("x", "y"))
    for matmul, axes in ((network.matmul1, ("x", "y")), (network.matmul2, ("y", "x"))):
        matmul.add_prim_attr("enable_nd_tp", True)
        matmul.shard((layout("None", axes), layout(*axes)))
    found, compiled = on(8, network, X)
    np.testing.assert_allclose(found.asnumpy(), EXPECTED)
    collectives = {node.operator for node in compiled.program.nodes}
    assert "reduce_scatter" in collectives
    largest = max(p.value.type.elements // 8 for p in compiled.program.parameters)
    assert largest == 16  # each weight is split over all ranks


def test_a_strategy_that_is_not_along_two_axes_is_refused():
    network = Network()
    network.matmul1.add_prim_attr("enable_nd_tp", True)
    network.matmul1.shard(((1, 2), (2, 2)))
    with pytest.raises(ModelError, match="is not one along two axes: `enable_nd_tp` splits"):
        on(4, network, X)


def test_cells_and_functions_are_split_as_they_are_told():
    network = Network()
    network.relu_of_rows = shard(mint.nn.functional.relu, ((2, 1),))
    inner = Network()
    inner_split = inner.shard(((1, 2),), ((2, 1),), {"self.inner.second": (2, 1)})

    def whole(x):
        return inner_split(network.relu_of_rows(x))

    found, compiled = on(2, whole, X)
    np.testing.assert_allclose(found.asnumpy(), np.maximum(np.maximum(X, 0) @ W, 0) @ V)
    relu = next(node for node in compiled.program.nodes if node.operator == "relu")
    assert compiled.program.values[relu.results[0].name].layout.splits[0] != ()
    with pytest.raises(
        ModelError, match=r"`parameter_plan` names `self\.third`, the cell has first"
    ):
        inner.shard(((1, 2),), parameter_plan={"self.third": (2, 1)})
    with pytest.raises(ModelError, match="a strategy has 2 inputs, and the function 1"):
        on(2, shard(Network(), ((1, 2), (1, 1))), X)


def test_a_cell_stays_split_whoever_calls_it():
    network = Network()
    network.relu.shard((None,), ((1, 2),))
    found, compiled = on(2, network, X)
    np.testing.assert_allclose(found.asnumpy(), EXPECTED)
    (relu,) = (node for node in compiled.source.nodes if node.operator == "relu")
    read = [n for n in compiled.source.nodes if relu.results[0].name in n.operands]
    assert [node.operator for node in read] == ["identity"]
    free, _ = on(2, Network(), X)
    np.testing.assert_allclose(found.asnumpy(), free.asnumpy())


def test_a_copy_of_a_cell_that_is_split_has_its_own_parameters():
    network = Network().shard(((2, 1),))
    other = copy.deepcopy(network)
    other.first.set_data(-W)
    found, compiled = on(2, other, X)
    np.testing.assert_allclose(found.asnumpy(), np.maximum(-X @ W, 0) @ V)
    assert "identity" in {node.operator for node in compiled.source.nodes}


@pytest.mark.parametrize(
    ("strategy", "plan", "sentence"),
    [
        (((1, 2), None), None, "Input numbers: 1 is not equal to in_strategy numbers: 2"),
        (((1, 2, 1),), None, "Input dimension: 2 is not equal to in_strategy dimension: 3 at"),
        ((None,), {"second": (1, 1, 1)}, "the length of param_strategy: 3, is not equal to"),
        ((None,), {"second": (5, 1)}, "cannot be divisible by param_strategy"),
        ((None,), {"second": None}, "the type of each key and value in 'parameter_plan' must be"),
        ((None,), {"second": (0, 1)}, "cannot be divisible by param_strategy"),
    ],
)
def test_strategies_of_cells_that_do_not_fit_are_refused(strategy, plan, sentence):
    network = Network()
    with pytest.raises(ShardwrightError, match=sentence):
        on(2, network.shard(strategy, parameter_plan=plan), X)


def test_a_plan_of_parameters_means_the_one_whose_path_is_longest():
    class Outer(nn.Cell):
        def __init__(self):
            super().__init__()
            self.second, self.inner = ms.Parameter(ms.Tensor(V)), Network()

    outer = Outer()
    outer.shard(((1, 2),), parameter_plan={"self.outer.inner.second": (2, 1)})
    assert (outer.second._strategy, outer.inner.second._strategy) == (None, (2, 1))


def test_stages_that_come_again_run_in_the_order_of_stages():
    class InParts(nn.Cell):
        def __init__(self, network):
            super().__init__()
            self.network, self.concat = network, ops.Concat()

        def construct(self, x):
            return self.concat(tuple(self.network(x[4 * i : 4 * i + 4]) for i in range(4)))

    network = Network()
    network.matmul1.set_stage(0)
    network.matmul2.set_stage(1)
    network.relu.pipeline_stage = 0
    ms.set_auto_parallel_context(
        parallel_mode="semi_auto_parallel", pipeline_stages=2, pipeline_result_broadcast=True
    )
    with world(2):
        parts = InParts(network)
        parts.compile(ms.Tensor(X))
        found = parts(ms.Tensor(X))
    np.testing.assert_allclose(found.asnumpy(), EXPECTED)


# Micro-batches


class Column(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = ms.Parameter(ms.Tensor(W[:, :1]))

    def construct(self, x):
        return x @ self.weight


@pytest.mark.parametrize("loss", [nn.MAELoss, nn.MSELoss])
def test_labels_meet_the_scores_of_their_micro_batch(loss):
    network, labels = Column(), np.arange(16, dtype=np.int32)
    whole = GradAccumulation(nn.WithLossCell(network, loss()), 4)
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    found = ms.Model(ms.AutoParallel(whole, "stand_alone"), optimizer=optimizer).train(
        1, ds.NumpySlicesDataset((X, labels), ["x", "y"], shuffle=False).batch(16)
    )
    made = (X @ W[:, :1]).reshape(4, 4, 1) - labels.reshape(4, 1, 4)
    expected = np.abs(made) if loss is nn.MAELoss else made**2
    np.testing.assert_allclose(found, [expected.mean()], rtol=1e-6)


def test_parts_of_micro_batches_are_interleaved():
    """The sum of the means of both parts is twice the mean, whatever the parts are."""
    network = Column()
    inner = MicroBatchInterleaved(nn.WithLossCell(network, nn.MSELoss()), 2)
    optimizer = nn.SGD(network.trainable_params(), 0.01)
    data = ds.NumpySlicesDataset((X, X[:, :1]), ["x", "y"], shuffle=False).batch(16)
    model = ms.Model(GradAccumulation(inner, 4), optimizer=optimizer)
    found = model.train(1, data)
    apart = X @ W[:, :1] - X[:, :1]
    np.testing.assert_allclose(found, [2 * (apart**2).mean()], rtol=1e-6)
    np.testing.assert_allclose(network.weight.asnumpy(), W[:, :1] - 0.01 * 4 / 16 * X.T @ apart)
    odd = ds.NumpySlicesDataset((X[:12], X[:12, :1]), ["x", "y"], shuffle=False).batch(12)
    with pytest.raises(ModelError, match="is divided into 8 parts, expected a multiple of it"):
        ms.Model(GradAccumulation(inner, 4), optimizer=optimizer).train(1, odd)


def test_stages_by_name():
    network = nn.WithLossCell(nn.SequentialCell(nn.Dense(2, 2), nn.ReLU()), nn.MSELoss())
    Pipeline(network, 2, {"_backbone.0": 0, "_backbone.1": 1})
    assert [cell.pipeline_stage for cell in network.backbone] == [0, 1]
    with pytest.raises(ModelError, match=r"`stage_config` names the cell `_backbone\.7`"):
        Pipeline(network, 2, {"_backbone.7": 0})


def test_a_loss_of_samples_is_told_as_mean_and_trained_as_sum():
    network = Column()
    loss = nn.MSELoss(reduction="none")
    data = ds.NumpySlicesDataset((X, X[:, :1]), ["x", "y"], shuffle=False).batch(16)
    optimizer = nn.SGD(network.trainable_params(), 0.01)
    found = ms.Model(network, loss, optimizer).train(1, data)
    apart = X @ W[:, :1] - X[:, :1]
    np.testing.assert_allclose(found, [(apart**2).mean()], rtol=1e-6)
    np.testing.assert_allclose(network.weight.asnumpy(), W[:, :1] - 0.02 * X.T @ apart)


def test_inputs_of_many_sizes_are_checked():
    network, rows = Network(), ms.Symbol(divisor=8, max=16)
    network.set_inputs(ms.Tensor(shape=[rows, 8], dtype=ms.float64))
    assert network(ms.Tensor(X)).shape == (16, 16)
    for wrong in (np.ones((12, 8)), np.ones((24, 8)), np.ones((8, 8), np.float32)):
        with pytest.raises(ModelError, match="`set_inputs` said float64 of the shape"):
            network(ms.Tensor(wrong))
    with pytest.raises(OptionError, match="expected a remainder below the divisor"):
        ms.Symbol(divisor=2, remainder=2)


# What a program prints, and takes


class Printing(nn.Cell):
    def __init__(self):
        super().__init__()
        self.print = ops.Print()

    def construct(self, x):
        self.print("x is", x)
        return x + 1


def test_tensors_are_printed_when_the_program_runs(capsys):
    network = Printing()
    step = ms.jit(network)
    for i in range(2):
        step(ms.Tensor([float(i)]))
    assert capsys.readouterr().out == "x is [0.]\nx is [1.]\n"
    on(2, Printing(), np.arange(4.0), pins={"print_value_0": ((2,),)})
    ops.Print()("alone", ms.Tensor([3]))
    assert capsys.readouterr().out == "x is [0. 1.]\nx is [2. 3.]\nalone [3]\n"
    with pytest.raises(ModelError, match="`Print` is given None, expected texts"):
        ops.Print()(None)


def test_a_program_beyond_the_memory_of_the_script_is_refused():
    runtime.set_memory(max_size="0.0000001GB")
    with pytest.raises(ModelError, match=r"the program takes .* on a rank, .* allows 107 B"):
        on(2, Network(), X)
    ms.set_context(memory_offload="ON")
    ms.set_offload_context({"offload_param": "cpu", "offload_cpu_size": "1GB"})
    try:
        on(2, Network(), X)
    finally:
        ms.set_context(memory_offload="OFF")
    with pytest.raises(OptionError, match="`offload_param` is `disk`"):
        ms.set_offload_context({"offload_param": "disk"})
    with pytest.raises(OptionError, match="`max_size` is the text `28`, expected a number of"):
        runtime.set_memory(max_size="28")


# Training that is asked to end


@pytest.mark.parametrize("how", ["file", "signal"])
def test_training_ends_after_the_step_in_which_it_is_asked_to(how, tmp_path):
    network, config = Column(), tmp_path / "exit.json"

    class Ask(train.Callback):
        def on_train_step_end(self, run_context):
            if run_context.total_steps == 2:
                config.write_text(json.dumps({"GracefulExit": 1}))
                if how == "signal":
                    config.unlink()
                    os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    exit_ = train.OnRequestExit(
        file_name="column", directory=str(tmp_path), config_file=str(config)
    )
    data = ds.NumpySlicesDataset((X, X[:, :1]), ["x", "y"], shuffle=False).batch(4)
    optimizer = nn.SGD(network.trainable_params(), 0.01)
    losses = ms.Model(network, nn.MSELoss(), optimizer).train(3, data, [Ask(), exit_])
    assert len(losses) == 2
    assert signal.getsignal(signal.SIGTERM) is before
    kept = ms.load_checkpoint(str(tmp_path / "column_train.ckpt"))
    np.testing.assert_array_equal(kept["weight"].asnumpy(), network.weight.asnumpy())
    config.write_text("[]")
    with pytest.raises(ModelError, match="is no JSON file of an object"):
        ms.Model(network, nn.MSELoss(), optimizer).train(1, data, exit_)


# Operators, layers, pictures


def test_functions_with_the_arguments_of_pytorch():
    x = ms.Tensor(X.reshape(2, 8, 8))
    a = x.asnumpy()
    softmax = np.exp(a - a.max(1, keepdims=True))
    for found, expected in (
        (mint.flatten(x, start_dim=1), a.reshape(2, 64)),
        (mint.flatten(x, 0, 1), a.reshape(16, 8)),
        (mint.sum(x), a.sum()),
        (mint.sum(x, 1, True), a.sum(1, keepdims=True)),
        (mint.mean(x, (0, 2)), a.mean((0, 2))),
        (mint.matmul(x, x), a @ a),
        (mint.transpose(x, 0, 2), a.swapaxes(0, 2)),
        (mint.permute(x, (2, -3, 1)), a.transpose(2, 0, 1)),
        (mint.nn.functional.softmax(x, 1), softmax / softmax.sum(1, keepdims=True)),
        (mint.nn.functional.relu(x), np.maximum(a, 0)),
        (x[:1].squeeze(), a[0]),
        (x[:1].squeeze(0), a[0]),
    ):
        np.testing.assert_allclose(found.asnumpy(), expected)


@pytest.mark.parametrize(("size", "made"), [(1, (1, 1)), ((3, None), (3, 7)), (4, (4, 4))])
def test_pools_of_a_given_size(size, made):
    x = RANDOM.standard_normal((2, 3, 5, 7))
    found = nn.AdaptiveAvgPool2d(size)(ms.Tensor(x)).asnumpy()
    assert found.shape == (2, 3, *made)
    for i in range(made[0]):
        for j in range(made[1]):
            rows = slice(i * 5 // made[0], -(-(i + 1) * 5 // made[0]))
            columns = slice(j * 7 // made[1], -(-(j + 1) * 7 // made[1]))
            np.testing.assert_allclose(found[..., i, j], x[..., rows, columns].mean((2, 3)))


def test_pictures_in_patches():
    picture = np.arange(30).reshape(5, 6, 1)
    patches = vision.SlicePatches(2, 2, fill_value=9)(picture)
    assert [p.shape for p in patches] == [(3, 3, 1)] * 4
    np.testing.assert_array_equal(patches[3][-1], np.full((3, 1), 9))
    np.testing.assert_array_equal(patches[1][:2], picture[:2, 3:])
    dropped = vision.SlicePatches(2, 4, vision.SliceMode.DROP)(picture)
    assert [p.shape for p in dropped] == [(2, 1, 1)] * 8


def test_the_seed_of_datasets_alone():
    def order(seed):
        ds.config.set_seed(seed)
        data = ds.NumpySlicesDataset(np.arange(8), ["x"])
        return [int(x.asnumpy()) for (x,) in data]

    assert order(1) == order(1) != order(2)
    assert ds.config.get_seed() == 2


PARTS = """
import numpy as np
import shardwright.mindspore as ms
from shardwright.mindspore import dataset as ds, nn, ops, train
from shardwright.mindspore.communication import get_rank, init

init()
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = ms.Parameter(ms.Tensor(np.arange(16.0).reshape(8, 2)), name="weight")
        self.matmul = ops.MatMul().shard(((1, 2), (2, 1)))

    def construct(self, x):
        return self.matmul(x, self.weight)


def model():
    network = Network()
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    return network, ms.Model(network, nn.MSELoss(), optimizer)


data = ds.NumpySlicesDataset((np.ones((4, 8)), np.ones((4, 2))), ["x", "y"]).batch(4)
config = train.CheckpointConfig(1, integrated_save=False)
folder = f"rank_{get_rank()}"
network, first = model()
first.train(1, data, train.ModelCheckpoint("own", folder, config))
trained = network.weight.asnumpy()
found = ms.load_checkpoint(f"{folder}/own-1_1.ckpt")
assert found["weight"].shape == (4, 2)
again, second = model()
layouts = second.infer_train_layout(data)
ms.load_param_into_net(again, found)
assert np.array_equal(again.weight.asnumpy(), trained)
print("equal", "weight" in layouts) if get_rank() == 0 else None
"""


@needs_mpi
def test_processes_save_and_load_what_they_have(tmp_path):
    assert run(PARTS, 2, tmp_path) == "equal True\n"
