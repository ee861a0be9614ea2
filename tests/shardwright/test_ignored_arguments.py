"""Arguments of MindSpore's that are accepted have their effect, all others are refused."""

import numpy as np
import pytest

from shardwright import nn, ops
from shardwright.communication import get_group_size, init, world
from shardwright.cost_model.mindspore.allreduce_fusion import FusionSettings
from shardwright.dataset import ArrayDataset
from shardwright.gradients import value_and_grad
from shardwright.ir.errors import ModelError, OptionError
from shardwright.ir.types import TensorType
from shardwright.parallel import AutoParallel
from shardwright.parameter import Parameter
from shardwright.tracing import InputSpec, trace
from shardwright.train import FixedLossScaleManager, LossMonitor, Model

DATA = ArrayDataset({"x": np.ones((8, 4), np.float32)})
SPEC = InputSpec("x", TensorType("float32", (8, 4)))


def fusion(**entry):
    return AutoParallel(nn.Dense(4, 4)).comm_fusion({"allreduce": entry})


REFUSED = [
    (lambda: nn.Cell(flags={"a": 1}), "`flags` is {'a': 1}, expected none"),
    (lambda: nn.Cell("no"), "`auto_prefix` is the text `no`, expected True or False"),
    (lambda: nn.Dense(2, 2).set_train(1), "`mode` is 1, expected True or False"),
    (lambda: init("mpi"), "`backend_name` is `mpi`, expected hccl, nccl or mccl"),
    (lambda: world(0).__enter__(), "`size` is 0, expected an integer of at least 1"),
    (lambda: DATA.shuffle(0), "`buffer_size` is 0, expected an integer of at least 1"),
    (lambda: DATA.shuffle(seed=-1), "`seed` is -1, expected an integer of at least 0"),
    (lambda: DATA.repeat(-1), "`count` is -1, expected an integer of at least 1"),
    (lambda: DATA.batch("4"), "`batch_size` is the text `4`, expected an integer of at least 1"),
    (lambda: DATA.batch(4, drop_remainder=1), "`drop_remainder` is 1, expected True or False"),
    (lambda: ArrayDataset(DATA.columns, 2), "is given `num_shards` without `shard_id`"),
    (lambda: ArrayDataset(DATA.columns, None, 0), "is given `shard_id` without `num_shards`"),
    (lambda: ArrayDataset(DATA.columns, 0, 0), "`num_shards` is 0, expected an integer"),
    (lambda: LossMonitor(0), "`per_print_times` is 0, expected an integer of at least 1"),
    (lambda: FixedLossScaleManager(-1), "`loss_scale` is -1, expected a number above 0"),
    (lambda: Model(nn.Dense(4, 4), seed=-1), "`seed` is -1, expected an integer of at least 0"),
    (lambda: Model(nn.Dense(4, 4)).train(-1, DATA), "`epoch` is -1, expected an integer"),
    (lambda: fusion(mode="auto", config=5), "fusion is asked for as"),
    (lambda: fusion(mode="size", config=5, more=1), "fusion is asked for as"),
    (lambda: fusion(mode="size", config="5"), "`config` is the text `5`, expected a number above"),
    (lambda: AutoParallel(nn.Dense(4, 4)).comm_fusion({"allreduce": 3}), "fusion is asked for as"),
    (lambda: Model(nn.Dense(4, 4), optimizer="adam"), "is the text `adam`, expected an optimizer"),
    (lambda: Model(nn.Dense(4, 4), loss_fn=3), "`loss_fn` is 3, expected a cell or a function"),
    (lambda: Model(nn.Dense(4, 4), loss_scale_manager=3), "`loss_scale_manager` is 3, expected a"),
    (lambda: AutoParallel(3), "`network` is 3, expected a cell or a function"),
    (lambda: AutoParallel(nn.ReLU(), cluster=3), "`cluster` is 3, expected the name of a cluster"),
    (
        lambda: AutoParallel(nn.ReLU()).dataset_strategy("all"),
        "`config` is `all`, expected data_",
    ),
    (
        lambda: AutoParallel(nn.ReLU()).dataset_strategy(3),
        "`config` is 3, expected `data_",
    ),
    (lambda: FusionSettings(1, times="2"), "`times` is the text `2`, expected an integer"),
    (lambda: nn.Dense(0, 3), "`in_channels` is 0, expected an integer of at least 1"),
    (lambda: nn.Dense("4", 3), "`in_channels` is the text `4`, expected an integer of at least 1"),
    (lambda: nn.Conv2d(3, 4, 3, stride=0), "`stride` is 0, expected an integer of at least 1"),
    (lambda: nn.Conv2d(3, 4, (3, 3, 3)), "`kernel_size` is (3, 3, 3), expected an integer, or 2"),
    (lambda: nn.Conv2d(3, 4, 3, group=2), "3 and 4 channels do not make 2 equal groups"),
    (lambda: nn.Conv2d(4, 4, 3, padding=1), "a convolution has the padding 1, which the mode"),
    (lambda: nn.MaxPool2d(2, padding=1), "a pooling has the padding 1, which the mode `valid`"),
    (lambda: nn.MaxPool2d(2, pad_mode="full"), "a pooling has the padding mode `full`, expected"),
    (lambda: nn.BatchNorm2d(3, momentum=2), "`momentum` is 2, expected a number from 0 to 1"),
    (lambda: nn.BatchNorm2d(3, eps=-1), "`eps` is -1, expected a number of at least 0"),
    (lambda: value_and_grad(abs, has_aux=1), "`has_aux` is 1, expected True or False"),
    (lambda: value_and_grad(abs, 0), "the gradient by the inputs 0 is wanted"),
]


@pytest.mark.parametrize(("act", "expected"), REFUSED)
def test_what_would_have_no_effect_is_refused(act, expected):
    with pytest.raises((ModelError, OptionError)) as caught:
        act()
    assert expected in str(caught.value)


def test_the_world_of_the_environment_is_checked(monkeypatch):
    monkeypatch.setenv("SHARDWRIGHT_WORLD", "two")
    with pytest.raises(ModelError, match="the variable `SHARDWRIGHT_WORLD` is `two`, expected an"):
        get_group_size()


@pytest.mark.parametrize(("auto_prefix", "expected"), [(True, "inner.weight"), (False, "weight")])
def test_names_have_no_prefix_where_none_is_asked_for(auto_prefix, expected):
    class Outer(nn.Cell):
        def __init__(self):
            super().__init__(auto_prefix=auto_prefix)
            self.inner = nn.Dense(4, 2, has_bias=False)

        def construct(self, x):
            return self.inner(x).mean()

    assert [name for name, _ in Outer().parameters_and_names()] == [expected]
    assert [p.name for p in trace(Outer(), [SPEC]).graph.parameters] == [expected]


# Training steps


class Step:
    """A training step; a test sets what differs."""

    def __init__(self):
        self.network = nn.Dense(4, 2)
        self.optimizer = nn.SGD(self.network.trainable_params())

    def traced(self, forward, finish=lambda value, gradients: value, **options):
        network, optimizer = self.network, self.optimizer
        gradients_of = value_and_grad(lambda x: forward(network(x)), None, **options)

        def step(x):
            value, gradients = gradients_of(x)
            optimizer(gradients)
            return finish(value, gradients)

        return trace(step, [SPEC])


def complaint(**options):
    with pytest.raises(ModelError) as caught:
        Step().traced(**options)
    return caught.value.what


def test_a_step_that_returns_another_value_than_its_loss_is_refused():
    said = complaint(forward=ops.reduce_mean, finish=lambda loss, _: loss / 10)
    assert said == (
        "the training step returns `scale_0` first, and asks for the gradients of `reduce_mean_0`"
    )


def test_a_loss_among_other_values_needs_has_aux():
    pair = lambda y: (y.mean(), y)  # noqa: E731
    assert "with has_aux=False, and its function returns 2 values" in complaint(forward=pair)
    said = complaint(forward=ops.reduce_mean, has_aux=True)
    assert "with has_aux=True, and its function returns one value" in said
    definition = Step().traced(forward=pair, has_aux=True)
    assert definition.loss == "reduce_mean_0"


def test_weights_must_be_those_of_the_optimizer():
    step = Step()
    said = complaint(forward=ops.reduce_mean, weights=[Parameter("ones", shape=2)])
    assert said.startswith(
        "an optimizer updates 2 parameters that are not among the `weights` of `value_and_grad`"
    )
    weights = step.network.trainable_params()
    assert step.traced(forward=ops.reduce_mean, weights=weights).loss == "reduce_mean_0"


def test_a_step_has_one_loss():
    network = nn.Dense(4, 2)

    def step(x):
        first, _ = value_and_grad(lambda x: network(x).mean())(x)
        value_and_grad(lambda x: network(x).sum())(x)
        return first

    with pytest.raises(ModelError) as caught:
        trace(step, [SPEC])
    assert caught.value.hint == "add the losses, and differentiate the sum"
