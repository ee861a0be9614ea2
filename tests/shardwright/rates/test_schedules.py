"""Schedules of learning rates: what they say, in every mode, in plans and checkpoints."""

import math
from dataclasses import replace

import numpy as np
import pytest

import shardwright as sw
from shardwright import nn, ops
from shardwright.batches import samples_for
from shardwright.dataset import ArrayDataset
from shardwright.ir.errors import ModelError
from shardwright.ir.text import parse, to_text
from shardwright.operators.models.optimizer import Optimizer
from shardwright.operators.models.schedule import rate_at
from shardwright.parallel import AutoParallel
from shardwright.runtime import Executor, LocalCommunicator, initialize, losses_of
from shardwright.tensor import Tensor
from shardwright.train import DynamicLossScaleManager, Model
from tests.extent import ANY_PLAN

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((32, 6)).astype(np.float32)
DATA = ArrayDataset({"x": X}).batch(8)
MLP = "mlp:batch=16,inputs=16,hidden=16,classes=4"


class Network(nn.Cell):
    def __init__(self):
        self.first = nn.Dense(6, 4)
        self.second = nn.Dense(4, 2)

    def construct(self, x):
        y = self.second(self.first(x))
        return (y * y).mean()


# What schedules say


def textbook(step, stair=False):
    """Return what the six schedules are at a step, with the numbers of `SCHEDULES`."""
    passed = step // 4 if stair else step / 4
    return [
        0.1 * 0.9**passed,
        0.1 * math.exp(-0.9 * (step // 4 * 4 if stair else step)),
        0.1 / (1 + 0.9 * passed),
        0.01 + 0.5 * 0.09 * (1 + math.cos(math.pi * min(step, 4) / 4)),
        0.09 * (1 - min(step, 4) / 4) ** 2.0 + 0.01,
        0.1 * min(step, 4) / 4,
    ]


def schedules(stair=False):
    return [
        nn.ExponentialDecayLR(0.1, 0.9, 4, stair),
        nn.NaturalExpDecayLR(0.1, 0.9, 4, stair),
        nn.InverseDecayLR(0.1, 0.9, 4, stair),
        nn.CosineDecayLR(0.01, 0.1, 4),
        nn.PolynomialDecayLR(0.1, 0.01, 4, 2.0),
        nn.WarmUpLR(0.1, 4),
    ]


@pytest.mark.parametrize("stair", [False, True])
def test_schedules_are_the_textbooks(stair):
    for step in range(11):
        rates = [rate_at(schedule.formula, step) for schedule in schedules(stair)]
        assert rates == pytest.approx(textbook(step, stair), rel=1e-13)
        values = [schedule(Tensor(step, "int32")) for schedule in schedules(stair)]
        assert [value.dtype for value in values] == ["float32"] * 6
        np.testing.assert_allclose([value.asnumpy() for value in values], rates, rtol=1e-7)


def test_lists_are_the_schedules_by_epoch():
    lists = [
        nn.exponential_decay_lr(0.1, 0.9, 22, 2, 4),
        nn.natural_exp_decay_lr(0.1, 0.9, 22, 2, 4),
        nn.inverse_decay_lr(0.1, 0.9, 22, 2, 4),
        nn.cosine_decay_lr(0.01, 0.1, 22, 2, 4),
        nn.polynomial_decay_lr(0.1, 0.01, 22, 2, 4, 2.0),
        nn.warmup_lr(0.1, 22, 2, 4),
    ]
    for rates, schedule in zip(lists, schedules(), strict=True):
        expected = [rate_at(schedule.formula, step // 2) for step in range(22)]
        assert rates == pytest.approx(expected, rel=1e-13)
    assert nn.polynomial_decay_lr(0.1, 0.0, 9, 1, 4, 1.0, True) == pytest.approx(
        [0.1, 0.075, 0.05, 0.025, 0.0, 0.0375, 0.025, 0.0125, 0.0]
    )
    growing = nn.PolynomialDecayLR(0.1, 0.0, 4, 1.0, update_decay_steps=True)
    assert rate_at(growing.formula, 5) == pytest.approx(0.0375)


class WarmThenDecay(nn.LearningRateSchedule):
    """As training scripts of language models write it."""

    def __init__(self, steps):
        super().__init__()
        self.warm = nn.WarmUpLR(0.1, steps)
        self.decay = nn.PolynomialDecayLR(0.1, 0.0, 10, 1.0)
        self.steps = Tensor(np.array([steps]).astype(np.float32))
        self.one = Tensor(np.array([1.0]).astype(np.float32))
        self.greater, self.cast = ops.Greater(), ops.Cast()

    def construct(self, global_step):
        is_warm = self.cast(self.greater(self.steps, global_step), "float32")
        decayed = self.decay(global_step)
        return (self.one - is_warm) * decayed + is_warm * self.warm(global_step)


class Chosen(nn.LearningRateSchedule):
    def construct(self, global_step):
        half = ops.sqrt(global_step + 4) / 2 - global_step * 0.01
        return ops.select(global_step < 3, half, ops.minimum(half, Tensor(0.5, "float32")) ** 2)


def test_schedules_are_written_as_cells():
    for step in range(12):
        warm, decayed = 0.1 * min(step, 3) / 3, 0.1 * (1 - min(step, 10) / 10)
        expected = warm if step < 3 else decayed
        assert rate_at(WarmThenDecay(3).formula, step) == pytest.approx(expected, rel=1e-7)
        half = math.sqrt(step + 4) / 2 - step * 0.01
        expected = half if step < 3 else min(half, 0.5) ** 2
        assert rate_at(Chosen().formula, step) == pytest.approx(expected, rel=1e-12)


class Halved(nn.CosineDecayLR):
    def construct(self, global_step):
        return super().construct(global_step) * 0.5


def test_a_schedule_is_derived_from_another():
    schedule = Halved(0.0, 0.1, 8)
    assert rate_at(schedule.formula, 8) == 0
    assert rate_at(schedule.formula, 0) == 0.05


class Branching(nn.LearningRateSchedule):
    def construct(self, global_step):
        return 0.1 if global_step < 3 else 0.2


class Random(nn.LearningRateSchedule):
    def construct(self, global_step):
        return ops.tanh(global_step)


class Wide(nn.LearningRateSchedule):
    def construct(self, global_step):
        return Tensor(np.ones(3, np.float32))


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Random(), "the schedule `Random` uses `tanh` with the result f32[], expected arithmetic"),
        (Wide(), "the schedule `Wide` returns f32[3], expected one number"),
        (nn.LearningRateSchedule(), "`LearningRateSchedule` has no method `construct`"),
        (Branching(), "are needed while it is traced"),
    ],
)
def test_cells_that_are_no_formula_are_refused(schedule, expected):
    with pytest.raises(ModelError) as caught:
        nn.SGD(Network().trainable_params(), schedule)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: nn.CosineDecayLR(0.1, 0.1, 4), "`min_lr` is 0.1, expected less than `max_lr`"),
        (lambda: nn.ExponentialDecayLR(0, 0.9, 4), "`learning_rate` is 0, expected a number above"),
        (lambda: nn.InverseDecayLR(0.1, 0.9, 0), "`decay_steps` is 0, expected an integer of at"),
        (lambda: nn.WarmUpLR(0.1, 1.5), "`warmup_steps` is 1.5, expected an integer of at least 1"),
        (lambda: nn.PolynomialDecayLR(0.1, 0.0, 4, 0), "`power` is 0, expected a number above 0"),
        (lambda: nn.warmup_lr(0.1, 0, 1, 1), "`total_step` is 0, expected an integer of at least"),
        (
            lambda: nn.piecewise_constant_lr([1], [0.1, 0.2]),
            "there are 1 milestones and 2",
        ),
        (lambda: nn.piecewise_constant_lr([3, 1], [0.1, 0.2]), "expected rising numbers"),
        (lambda: nn.piecewise_constant_lr(3, 0.1), "`milestone` is 3, expected a list"),
    ],
)
def test_wrong_numbers_are_refused(make, expected):
    with pytest.raises(sw.ShardwrightError) as caught:
        make()
    assert expected in str(caught.value)


# Training


def test_a_schedule_is_a_rate_of_its_own_in_every_step():
    """Training with a schedule is training with its rates, one after the other."""
    rates = nn.piecewise_constant_lr([1, 3, 4], [0.5, 0.25, 0.0])
    network = Network()
    losses = Model(network, optimizer=nn.SGD(network.trainable_params(), rates)).train(2, DATA)
    batches = [batch for epoch in range(2) for batch in DATA.samples(epoch)]
    again = Network()
    found = []
    for batch, rate in zip(batches, [*rates, *[rates[-1]] * 4], strict=True):
        optimizer = nn.SGD(again.trainable_params(), rate)
        model = Model(again, optimizer=optimizer)
        found += model.train(1, ArrayDataset(dict(batch)).batch(8))
        for parameter in again.trainable_params():
            parameter.set_data(parameter.asnumpy())
    assert found == losses
    for one, other in zip(network.trainable_params(), again.trainable_params(), strict=True):
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())


RATE = "0.2 * 0.5 ** floor(step / 2)"


@pytest.mark.parametrize(
    "rate",
    [
        RATE,
        nn.ExponentialDecayLR(0.2, 0.5, 2, is_stair=True),
        Tensor(np.array([0.2, 0.2, 0.1, 0.1, 0.05, 0.05, 0.025, 0.025], np.float32)),
        (0.2 * 0.5 ** (step // 2) for step in range(8)),
    ],
)
def test_forms_of_one_schedule_train_alike(rate):
    network = Network()
    model = Model(network, optimizer=nn.Adam(network.trainable_params(), rate))
    losses = model.train(2, DATA)
    network = Network()
    expected = Model(network, optimizer=nn.Adam(network.trainable_params(), RATE)).train(2, DATA)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


@pytest.mark.parametrize("make", [nn.SGD, nn.Adam])
def test_an_optimizer_tells_the_rate_of_the_next_step(make):
    network = Network()
    optimizer = make(network.trainable_params(), RATE)
    rates = [float(optimizer.get_lr().asnumpy())]
    model = Model(network, optimizer=optimizer)
    for _ in range(2):
        model.train(1, DATA.take(2))
        rates.append(float(optimizer.get_lr().asnumpy()))
    assert rates == pytest.approx([0.2, 0.1, 0.05])
    assert float(nn.SGD(network.trainable_params(), 0.3).get_lr().asnumpy()) == pytest.approx(0.3)
    groups = optimizer_with_groups(Network(), 0.5, 0.25)
    assert [float(rate.asnumpy()) for rate in groups.get_lr()] == [0.5, 0.5, 0.25, 0.25]


def optimizer_with_groups(network, first, second):
    groups = [
        {"params": network.first.trainable_params(), "lr": first, "weight_decay": 0.1},
        {"params": network.second.trainable_params()},
        {"order_params": network.trainable_params()},
    ]
    return nn.Momentum(groups, second, 0.9)


def test_groups_have_schedules_of_their_own():
    def after(first, second):
        network = Network()
        model = Model(network, optimizer=optimizer_with_groups(network, first, second))
        model.train(1, DATA.take(1))
        return [parameter.asnumpy() for parameter in network.trainable_params()]

    own = after(nn.WarmUpLR(0.3, 1), [0.1, 0.2])  # the first rates are 0 and 0.1
    for one, other in zip(own, after(0.0, 0.1), strict=True):
        np.testing.assert_array_equal(one, other)
    mixed = after(0.25, nn.WarmUpLR(0.3, 1))
    for one, other in zip(mixed, after(0.25, 0.0), strict=True):
        np.testing.assert_array_equal(one, other)


def trained_losses(mode=None, **options):
    network = Network()
    optimizer = optimizer_with_groups(network, RATE, nn.CosineDecayLR(0.01, 0.2, 6))
    how = {**options, **ANY_PLAN} if mode == "auto" else options
    whole = network if mode is None else AutoParallel(network, mode, cluster="cpu", **how)
    return Model(whole, optimizer=optimizer).train(2, DATA)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "data_parallel"},
        {"mode": "semi_auto"},
        {"mode": "auto"},
        {"mode": "auto", "optimizer_parallel": True},
        {"mode": "auto", "micro_batches": 2},
        {"mode": "auto", "stages": 2, "micro_batches": 2},
        {"mode": "recursive_programming"},
    ],
)
def test_schedules_in_every_mode(options):
    np.testing.assert_allclose(trained_losses(devices=4, **options), trained_losses(), rtol=1e-5)


def test_steps_that_overflow_do_not_count():
    network = Network()
    optimizer = nn.SGD(network.trainable_params(), (1e-5, 2e-5, 3e-5))
    manager = DynamicLossScaleManager(2.0**127, 2.0**64)
    model = Model(network, optimizer=optimizer, loss_scale_manager=manager)
    data = ArrayDataset({"x": 100 * X}).batch(8)
    before = network.first.weight
    model.train(1, data.take(1))
    first = before.asnumpy()
    assert model.session.read("optimizer.step") == 0
    model.train(1, data)
    assert model.session.read("optimizer.step") == 4
    assert not np.array_equal(before.asnumpy(), first)


# Plans


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plan"
    own = {"layer1.weight": {"learning_rate": (0.1, 0.3)}}
    rule = Optimizer("adam", {"learning_rate": RATE}, own)
    how = {"stages": 2, "micro_batches": 2, **ANY_PLAN}
    sw.compile(MLP, 4, cluster="cpu", optimizer=rule, **how).write(path)
    return path


@pytest.mark.long
def test_a_plan_keeps_its_schedules(plan):
    read = sw.api.as_plan(plan)
    rule = read.document.optimizer.optimizer
    assert rule.settings == {"learning_rate": RATE}
    assert rule.overrides == {"layer1.weight": {"learning_rate": (0.1, 0.3)}}
    assert parse(to_text(read.program)) == read.program
    assert sw.prove(plan).proven
    assert sw.verify(plan).equal


def test_another_schedule_is_refuted(plan):
    read = sw.api.as_plan(plan)
    node = next(n for n in read.program if n.attributes.get("rate") == RATE)
    other = replace(node, attributes={"rate": "0.2 * 0.5 ** floor((step + 1) / 2)"})
    nodes = tuple(other if n is node else n for n in read.program)
    wrong = replace(read, program=read.program.with_nodes(nodes))
    proof = sw.prove(wrong)
    assert (proof.proven, proof.first_failure) == (False, node.name)
    late = replace(node, operands=("optimizer.step.next",))
    nodes = tuple(n for n in read.program if n is not node)
    place = next(i for i, n in enumerate(nodes) if n.name == "optimizer.step.next") + 1
    wrong = replace(read, program=read.program.with_nodes((*nodes[:place], late, *nodes[place:])))
    assert sw.prove(wrong).proven is False


def test_training_goes_on_at_its_step(plan, tmp_path):
    """A run that resumes has the rates of the steps behind the checkpoint."""
    read = sw.api.as_plan(plan)
    list(sw.run(plan, 3, save=tmp_path / "half"))
    rest = [record.loss for record in sw.run(plan, 3, resume=tmp_path / "half")]
    communicator = LocalCommunicator(read.mesh)
    executor = Executor(read.program, communicator)
    state = initialize(read.program, read.document.seed, communicator)
    samples = samples_for(read.document.inputs, None, read.document.seed)
    batches = list(samples.batches(3, read.document.seed))
    whole = [
        executor.step(batch, state).outputs[read.program.outputs[0]]
        for batch in (*batches, *batches)
    ]
    assert rest == [losses_of(executor, loss)[0] for loss in whole[3:]]
