import json

import numpy as np
import pytest

from shardwright import nn, ops
from shardwright.communication import get_group_size, get_rank, world
from shardwright.dataset import ArrayDataset
from shardwright.gradients import jit, value_and_grad
from shardwright.input_layouts import input_layouts
from shardwright.ir.errors import ModelError, OptionError, ShardwrightWarning
from shardwright.ir.layout import Layout as MeshLayout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.parallel import AutoParallel, Layout
from shardwright.tracing import InputSpec
from shardwright.train import Callback, FixedLossScaleManager, LossMonitor, Model

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(64, 8)).astype(np.float32)
LABELS = (X[:, 0] > 0).astype(np.int32) + (X[:, 1] > 0)
DATA = ArrayDataset({"x": X, "label": LABELS.astype(np.int32)}).shuffle(seed=1).batch(16)


class Network(nn.Cell):
    def __init__(self, cut=None):
        self.layer1 = nn.Dense(8, 16)
        self.relu = nn.ReLU()
        self.layer2 = nn.Dense(16, 4)
        if cut:
            self.layer1.matmul.shard(cut)

    def construct(self, x):
        return self.layer2(self.relu(self.layer1(x)))


def trained(parallel_mode=None, epochs=2, prepare=lambda net: None, cut=None, **options):
    network = Network(cut)
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    whole = network
    if parallel_mode:
        devices = 1 if parallel_mode == "stand_alone" else 4
        network = AutoParallel(network, parallel_mode, devices=devices)
        prepare(network)
    model = Model(network, nn.CrossEntropyLoss(), optimizer, **options)
    assert whole.layer1.weight.shape == (16, 8)
    return model.train(epochs, DATA), model.session


ALONE, _ = trained()


def test_a_model_learns():
    losses, _ = trained(epochs=20)
    assert losses[0] == pytest.approx(np.log(4), rel=0.2)
    assert losses[-1] < 0.2
    assert len(losses) == 20 * 4


@pytest.mark.parametrize(
    "mode",
    [
        "stand_alone",
        "data_parallel",
        "semi_auto",
        "auto",
        "sharding_propagation",
        "recursive_programming",
        "dynamic_programming",
    ],
)
def test_every_mode_trains_alike(mode):
    np.testing.assert_allclose(trained(mode)[0], ALONE, rtol=1e-4)


@pytest.mark.parametrize(
    "prepare",
    [
        lambda net: net.hsdp(),
        lambda net: net.dataset_strategy("full_batch"),
        lambda net: net.dataset_strategy("data_parallel"),
        lambda net: net.dataset_strategy(((2, 1), (2,))),
        lambda net: net.comm_fusion({"allreduce": {"mode": "auto"}}),
        lambda net: net.comm_fusion({"allreduce": {"mode": "size", "config": 1}}),
        lambda net: net.comm_fusion({"allreduce": {"mode": "index", "config": [1, 2]}}),
        lambda net: net.comm_fusion({"openstate": False, "allgather": {"mode": "auto"}}),
        lambda net: net.enable_gradients_mean(),
    ],
)
def test_options_do_not_change_what_is_computed(prepare):
    np.testing.assert_allclose(trained("data_parallel", prepare=prepare)[0], ALONE, rtol=1e-4)


def test_data_parallelism_that_repeats_work_says_so():
    network = Network()
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    parallel = AutoParallel(network, "data_parallel", devices=3)
    with pytest.warns(ShardwrightWarning, match="is split over 1 of 3 ranks, and the others repe"):
        losses = Model(parallel, nn.CrossEntropyLoss(), optimizer).train(2, DATA)
    np.testing.assert_allclose(losses, ALONE, rtol=1e-4)


def test_hsdp_splits_what_is_stored():
    _, session = trained("semi_auto", prepare=lambda net: net.hsdp(threshold=0))
    layout = session.compiled.program.parameter("layer1.weight").value.layout
    assert len(layout.split_axes) > 0


def test_strategies_of_the_model_are_kept():
    _, session = trained("semi_auto", cut=((1, 2), (2, 2)))
    counts = session.compiled.decisions.strategies["matmul_0"]
    assert {factor: len(axes) for factor, axes in counts.assignment} == {"n": 1, "k": 1}


def test_strategies_are_written_and_read_back(tmp_path):
    path = tmp_path / "strategies.json"
    trained("auto", prepare=lambda net: net.save_operator_strategy_file(path))
    written = json.loads(path.read_text())
    assert "matmul_0" in json.dumps(written)
    losses, session = trained("semi_auto", prepare=lambda n: n.load_operator_strategy_file(path))
    assert session.definition.pins == {}
    np.testing.assert_allclose(losses, ALONE, rtol=1e-4)


def test_a_loss_scale_does_not_change_what_is_computed():
    losses, session = trained(loss_scale_manager=FixedLossScaleManager(1024.0))
    assert session.definition.loss_scale == 1024.0
    np.testing.assert_allclose(losses, ALONE, rtol=1e-4)


def test_the_loss_is_printed_as_mindspore_prints_it(capsys):
    network = Network()
    optimizer = nn.SGD(network.trainable_params(), 1e-2)
    model = Model(network, loss_fn=nn.CrossEntropyLoss(), optimizer=optimizer)
    losses = model.train(2, DATA, callbacks=[LossMonitor(3)])
    assert capsys.readouterr().out.splitlines() == [
        f"epoch: 1 step: 3, loss is {losses[2]}",
        f"epoch: 2 step: 2, loss is {losses[5]}",
    ]


def test_a_callback_follows_the_run():
    seen = []

    class Recorder(Callback):
        def step_end(self, run_context):
            seen.append((run_context.epoch, run_context.step, run_context.total_steps))

    network = Network()
    optimizer = nn.Adam(network.trainable_params())
    Model(network, nn.CrossEntropyLoss(), optimizer).train(2, DATA, Recorder())
    assert seen == [
        (1, 1, 1),
        (1, 2, 2),
        (1, 3, 3),
        (1, 4, 4),
        (2, 1, 5),
        (2, 2, 6),
        (2, 3, 7),
        (2, 4, 8),
    ]


def test_a_training_step_that_is_written_out_is_called_with_batches():
    network = Network()
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    loss_fn = nn.CrossEntropyLoss()

    def forward(data, target):
        logits = network(data)
        return loss_fn(logits, target), logits

    gradients = value_and_grad(forward, None, network.trainable_params(), has_aux=True)

    @jit
    def train_step(inputs, targets):
        (loss_value, _), grads = gradients(inputs, targets)
        optimizer(grads)
        return loss_value

    parallel = AutoParallel(train_step, parallel_mode="semi_auto", devices=4)
    parallel.hsdp()
    losses = [parallel(*batch) for batch in DATA]
    np.testing.assert_allclose(losses, ALONE[:4], rtol=1e-4)


def test_a_script_in_a_world_of_several_ranks_is_hand_written():
    class Own(nn.Cell):
        def __init__(self):
            self.network = Network()

        def construct(self, x):
            return self.network(own(x))

    class ReduceLoss(nn.Cell):
        def __init__(self):
            self.loss = nn.CrossEntropyLoss()

        def construct(self, data, label):
            return ops.AllReduce()(self.loss(data, own(label))) / get_group_size()

    def own(x):
        size = x.shape[0] // get_group_size()
        return x[get_rank() * size : (get_rank() + 1) * size]

    def run():
        network = Own()
        optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
        model = Model(network, ReduceLoss(), optimizer)
        return model.train(2, DATA), model.session

    alone, _ = run()
    with world(4):
        together, session = run()
    assert session.compiled.mesh.size == 4
    np.testing.assert_allclose(together, alone, rtol=1e-4)


# Refusals


def test_unknown_modes_and_settings_are_refused():
    with pytest.raises(OptionError, match="`parallel_mode` is `full_auto`, expected stand_alone, "):
        AutoParallel(Network(), "full_auto")
    parallel = AutoParallel(Network())
    with pytest.raises(OptionError, match="`shard_size` is 0, expected -1, or an integer of at"):
        parallel.hsdp(shard_size=0)
    with pytest.raises(OptionError, match="`threshold` is -1, expected a number of at least 0"):
        parallel.hsdp(threshold=-1)
    with pytest.raises(OptionError, match="`optimizer_level` is `level4`, expected level1, level2"):
        parallel.hsdp(optimizer_level="level4")
    with pytest.raises(ModelError, match=r"fusion is asked for as {'allgather': {}}"):
        parallel.comm_fusion({"allgather": {}})
    with pytest.raises(ModelError, match=r"fusion is asked for as {'allgather': {'mode': 'index'"):
        parallel.comm_fusion({"allgather": {"mode": "index", "config": [1]}})
    with pytest.raises(OptionError, match=r"`config` is \(3, 2\), expected rising numbers of"):
        parallel.comm_fusion({"allreduce": {"mode": "index", "config": [3, 2]}})
    with pytest.raises(OptionError, match="`config` is -1, expected a number above 0"):
        parallel.comm_fusion({"allreduce": {"mode": "size", "config": -1}})
    with pytest.raises(OptionError, match="`drop_overflow_update` is 1, expected"):
        FixedLossScaleManager(drop_overflow_update=1)


def test_a_network_alone_is_not_called_with_batches():
    class Loss(nn.Cell):
        def __init__(self):
            self.network = Network()

        def construct(self, x):
            return self.network(x).sum()

    with pytest.raises(ModelError, match="the network applies no optimizer"):
        AutoParallel(Loss(), "stand_alone")(X)


def test_a_model_without_a_loss_is_not_trained():
    with pytest.raises(ModelError, match="`network` returns no real scalar first"):
        Model(Network()).train(1, ArrayDataset({"x": X}).batch(4))


def test_elements_must_have_a_type_of_ours():
    data = ArrayDataset({"x": X.astype(np.complex64), "label": LABELS}).batch(4)
    with pytest.raises(ModelError, match="the input `x` has the element type `complex64`"):
        Model(Network(), nn.CrossEntropyLoss()).train(1, data)


# Layouts


def test_a_layout_gives_slices_and_a_tensor_map():
    layout = Layout((2, 2, 4), ("dp", "sp", "mp"))
    tensor = layout(("dp", "sp"), "None", "mp")
    assert tensor.split_counts == (4, 1, 4)
    assert tensor.tensor_map == ((2, 1), -1, 0)


def test_layouts_are_strategies():
    layout = Layout((2, 2), ("dp", "mp"))
    primitive = ops.MatMul(transpose_b=True).shard((layout("dp", "None"), layout("mp", "None")))
    assert primitive.in_strategy == ((2, 1), (2, 1))


def test_wrong_layouts_are_refused():
    with pytest.raises(ModelError, match="a layout uses the axis `x` 1 times"):
        Layout((2,), ("dp",))("x")
    with pytest.raises(ModelError, match="a layout uses the axis `dp` 2 times"):
        Layout((2,), ("dp",))("dp", "dp")
    with pytest.raises(ModelError, match="expected a different name for each axis"):
        Layout((2, 2), ("dp", "dp"))


MESH = Mesh((MeshAxis("a", 2), MeshAxis("b", 2), MeshAxis("c", 2)))
INPUT = [InputSpec("x", TensorType("float32", (8, 4)))]


@pytest.mark.parametrize(
    ("strategy", "splits"),
    [
        ("full_batch", ((), ())),
        ("data_parallel", (("a", "b", "c"), ())),
        (((4, 2),), (("a", "b"), ("c",))),
        (((1, 4),), ((), ("b", "c"))),
    ],
)
def test_inputs_arrive_as_they_are_said_to(strategy, splits):
    assert input_layouts(INPUT, strategy, MESH) == {"x": MeshLayout(splits)}


@pytest.mark.parametrize(
    ("in_turn", "parts"), [(True, [0, 1, 2, 3] * 2), (False, [0, 0, 1, 1, 2, 2, 3, 3])]
)
def test_ranks_have_parts_in_turn_or_as_their_neighbours(in_turn, parts):
    layout = input_layouts(INPUT, ((4, 1),), MESH, in_turn)["x"]
    assert [MESH.index(rank, layout.splits[0]) for rank in range(8)] == parts


@pytest.mark.parametrize(
    ("strategy", "what"),
    [
        ("half_batch", "the data set strategy 'half_batch' does not fit inputs"),
        (((2,),), r"the data set strategy \(\(2,\),\) does not fit inputs"),
        (((3, 1),), r"`x` of type f32\[8, 4\] cannot be split into \(3, 1\) slices on the mesh"),
        (((1, 8),), r"`x` of type f32\[8, 4\] cannot be split into \(1, 8\) slices on the mesh"),
    ],
)
def test_inputs_cannot_arrive_otherwise(strategy, what):
    with pytest.raises(ModelError, match=what):
        input_layouts(INPUT, strategy, MESH)
