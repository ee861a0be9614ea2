"""Steps under MindSpore's names: gradients with values, cells of steps, without and with `jit`."""

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.communication import world
from shardwright.ir.errors import ModelError, ShardwrightError
from shardwright.mindspore import dataset as ds
from shardwright.mindspore import nn, ops

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((8, 6)).astype(np.float32)
LABELS = (X[:, 0] > 0).astype(np.int32)
BATCHES = [(X[:4], LABELS[:4]), (X[4:], LABELS[4:])] * 2


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(6, 5)
        self.relu = nn.ReLU()
        self.second = nn.Dense(5, 3)

    def construct(self, x):
        return self.second(self.relu(self.first(x)))


def as_tensors(batches=BATCHES):
    return [(ms.Tensor(x), ms.Tensor(y)) for x, y in batches]


# Gradients


def test_gradients_by_inputs_are_those_of_calculus():
    x, y = ms.Tensor([1.0, 2.0], "float32"), ms.Tensor([3.0, 5.0], "float32")

    def function(a, b):
        return a * a * b

    np.testing.assert_allclose(ms.grad(function)(x, y).asnumpy(), [6.0, 20.0])
    both = ms.grad(function, (0, 1))(x, y)
    np.testing.assert_allclose([g.asnumpy() for g in both], [[6.0, 20.0], [1.0, 4.0]])
    value, gradient = ms.value_and_grad(function, 1)(x, y)
    np.testing.assert_allclose(value.asnumpy(), [3.0, 20.0])
    np.testing.assert_allclose(gradient.asnumpy(), [1.0, 4.0])
    everything = ops.GradOperation(get_all=True)(function)(x, y)
    np.testing.assert_allclose([g.asnumpy() for g in everything], [[6.0, 20.0], [1.0, 4.0]])


def test_gradients_by_parameters_are_those_of_differences():
    network, loss_fn = Network(), nn.CrossEntropyLoss()
    x, y = as_tensors()[0]
    for parameter in network.trainable_params():
        parameter.set_data(0.5 * RANDOM.standard_normal(parameter.shape))

    def forward(x, y):
        logits = network(x)
        return loss_fn(logits, y), logits

    weights = ms.ParameterTuple(network.trainable_params())
    (loss, logits), gradients = ms.value_and_grad(forward, None, weights, has_aux=True)(x, y)
    np.testing.assert_array_equal(logits.asnumpy(), network(x).asnumpy())
    np.testing.assert_allclose(loss.asnumpy(), loss_fn(network(x), y).asnumpy(), rtol=1e-6)
    found, (aux,) = ms.grad(forward, None, weights, has_aux=True)(x, y)
    np.testing.assert_array_equal(aux.asnumpy(), logits.asnumpy())
    alone = ms.grad(forward, None, weights[0], has_aux=True)(x, y)[0]
    np.testing.assert_array_equal(alone.asnumpy(), found[0].asnumpy())
    by_input, by_list = ms.grad(forward, 0, weights, has_aux=True)(x, y)[0]
    assert by_input.shape == (4, 6)
    for weight, gradient, again, listed in zip(weights, gradients, found, by_list, strict=True):
        np.testing.assert_array_equal(gradient.asnumpy(), again.asnumpy())
        np.testing.assert_array_equal(gradient.asnumpy(), listed.asnumpy())
        whole = weight.asnumpy()
        direction = RANDOM.standard_normal(whole.shape).astype(np.float32)
        losses = []
        for sign in (1, -1):
            weight.set_data(whole + sign * 1e-2 * direction)
            losses.append(float(forward(x, y)[0].asnumpy()))
        weight.set_data(whole)
        slope = (losses[0] - losses[1]) / 2e-2
        assert slope == pytest.approx(np.sum(gradient.asnumpy() * direction), rel=0.05, abs=1e-3)


def test_inputs_without_influence_have_zero_gradients():
    function = ms.grad(lambda x, y: x.sum() + ops.stop_gradient(y).sum(), (0, 1))
    one, other = function(ms.Tensor([1.0, 2.0], "float32"), ms.Tensor([3.0], "float32"))
    assert one.asnumpy().tolist() == [1.0, 1.0]
    assert other.asnumpy().tolist() == [0.0]


# Steps


def stepping(form, mode=ms.GRAPH_MODE, make=lambda p: nn.Momentum(p, 0.1, 0.9)):
    """Return losses and parameters after the batches, trained in one form."""
    ms.set_context(mode=mode)
    network, loss_fn = Network(), nn.CrossEntropyLoss()
    optimizer = make(network.trainable_params())

    def forward(x, y):
        logits = network(x)
        return loss_fn(logits, y), logits

    grad_fn = ms.value_and_grad(forward, None, optimizer.parameters, has_aux=True)

    def step(x, y):
        (loss, _), gradients = grad_fn(x, y)
        optimizer(gradients)
        return loss

    if form == "jit":
        step = ms.jit(step)
    elif form == "cell":
        step = nn.TrainOneStepCell(nn.WithLossCell(network, loss_fn), optimizer)
        step.set_train()
    if form == "model":
        data = ds.NumpySlicesDataset({"x": X, "y": LABELS}, shuffle=False).batch(4)
        losses = ms.Model(network, loss_fn, optimizer).train(2, data)
    else:
        losses = [float(step(x, y).asnumpy()) for x, y in as_tensors()]
    return losses, [parameter.asnumpy() for parameter in network.trainable_params()]


@pytest.mark.parametrize(
    "make",
    [
        lambda p: nn.Momentum(p, 0.1, 0.9),
        lambda p: nn.Adam(p, nn.ExponentialDecayLR(0.1, 0.5, 2)),
        lambda p: nn.SGD([{"params": p[:2], "lr": 0.3}, {"params": p[2:]}], [0.2, 0.1]),
    ],
)
@pytest.mark.parametrize("form", ["plain", "cell", "model"])
def test_forms_of_a_step_train_alike(form, make):
    expected = stepping("jit", make=make)
    found = stepping(form, mode=ms.PYNATIVE_MODE, make=make)
    ms.set_context(mode=ms.GRAPH_MODE)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    for one, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_updates_outside_of_a_step_count():
    weight = ms.Parameter(ms.Tensor([1.0], "float32"), name="w")
    optimizer = nn.SGD([weight], [0.5, 0.25])
    values = []
    for rate in (0.5, 0.25, 0.25):
        assert optimizer.get_lr().asnumpy() == rate
        optimizer([ms.Tensor([1.0], "float32")])
        values.append(float(weight.asnumpy()[0]))
    assert values == [0.5, 0.25, 0.0]


def test_gradients_are_changed_between_function_and_optimizer():
    network = Network()
    optimizer = nn.SGD(network.trainable_params(), 1.0)
    grad_fn = ms.grad(lambda x: (network(x) ** 2).mean(), None, optimizer.parameters)
    gradients = grad_fn(ms.Tensor(X))
    optimizer([gradient * 0.0 for gradient in gradients])
    before = [parameter.asnumpy() for parameter in network.trainable_params()]
    assert optimizer.get_lr().asnumpy() == 1.0
    optimizer([gradient * 0.5 for gradient in gradients])
    for old, parameter, gradient in zip(before, network.trainable_params(), gradients, strict=True):
        np.testing.assert_allclose(parameter.asnumpy(), old - 0.5 * gradient.asnumpy(), rtol=1e-6)


class Normalized(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3, momentum=0.5)

    def construct(self, x):
        return (self.norm(x) ** 2).mean()


def test_moving_statistics_are_updated_outside_of_a_step():
    network = Normalized()
    network.set_train()
    picture = RANDOM.standard_normal((4, 3, 2, 2)).astype(np.float32) + 2
    ms.grad(network, None, network.trainable_params())(ms.Tensor(picture))
    expected = 0.5 * picture.mean((0, 2, 3))
    np.testing.assert_allclose(network.norm.moving_mean.asnumpy(), expected, rtol=1e-5)


def test_a_cell_of_a_step_in_parallel_and_in_a_model():
    expected, _ = stepping("cell")
    network = Network()
    whole = nn.WithLossCell(network, nn.CrossEntropyLoss())
    step = nn.TrainOneStepCell(whole, nn.Momentum(network.trainable_params(), 0.1, 0.9))
    parallel = ms.AutoParallel(step, "data_parallel", devices=2)
    found = [float(parallel(x, y)) for x, y in BATCHES]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    network = Network()
    whole = nn.WithLossCell(network, nn.CrossEntropyLoss())
    step = nn.TrainOneStepCell(whole, nn.Momentum(network.trainable_params(), 0.1, 0.9))
    data = ds.NumpySlicesDataset({"x": X, "y": LABELS}, shuffle=False).batch(4)
    np.testing.assert_allclose(ms.Model(step).train(2, data), expected, rtol=1e-5)
    assert next(p.name for p in network.trainable_params()) == "first.weight"


def test_a_cell_of_an_evaluation():
    network, (x, y) = Network(), as_tensors()[0]
    loss, outputs, labels = nn.WithEvalCell(network, nn.CrossEntropyLoss(), True)(x, y)
    np.testing.assert_array_equal(outputs.asnumpy(), network(x).asnumpy())
    np.testing.assert_array_equal(labels.asnumpy(), y.asnumpy())
    expected = nn.WithLossCell(network, nn.CrossEntropyLoss())(x, y)
    np.testing.assert_array_equal(loss.asnumpy(), expected.asnumpy())


def test_tensors_of_constants():
    made = [ops.zeros((2, 3)), ops.ones(2, "int32"), ops.full((2,), 0.5), ops.eye(2)]
    expected = [np.zeros((2, 3)), np.ones(2), np.full(2, 0.5), np.eye(2)]
    made += [ops.arange(2, 8, 2), ops.arange(3.0), ops.linspace(0, 1, 3)]
    expected += [np.arange(2, 8, 2), np.arange(3.0), np.linspace(0, 1, 3)]
    for tensor, array in zip(made, expected, strict=True):
        np.testing.assert_array_equal(tensor.asnumpy(), array)
    kinds = ["float32", "int32", "float32", "float32", "int64", "float32", "float32"]
    assert [tensor.dtype for tensor in made] == kinds


# Refused

WEIGHT = ms.Parameter(ms.Tensor([1.0], "float32"), name="w")
VECTOR = ms.Tensor([1.0, 2.0], "float32")


def several_ranks():
    with world(2):
        ms.grad(lambda x: x)(VECTOR)


REFUSED = [
    (lambda: ms.grad(3), "`fn` is 3, expected a function or a cell"),
    (lambda: ms.grad(abs, None), "`weights` is None, expected parameters, since `grad_position`"),
    (lambda: ms.grad(abs, -1), "`grad_position` is -1, expected an integer of at least 0"),
    (lambda: ms.grad(abs, (0, None)), "`grad_position` is None, expected an integer"),
    (lambda: ms.grad(abs, weights=[3]), "`weights` is 3, expected parameters"),
    (lambda: ms.grad(abs, return_ids=True), "`return_ids` is True, expected False"),
    (lambda: ms.value_and_grad(abs, has_aux=1), "`has_aux` is 1, expected True or False"),
    (lambda: ops.GradOperation(get_by_list=True)(abs), "expected parameters, since `get_by_list`"),
    (lambda: ms.ParameterTuple([WEIGHT, WEIGHT]), "is given Parameter(name=w, shape=(1,)"),
    (lambda: ms.ParameterTuple([VECTOR]), "expected parameters"),
    (lambda: ms.grad(lambda x: x, 1)(VECTOR), "by the input 1 is wanted, which is not there"),
    (
        lambda: ms.grad(lambda x: x.astype("float32"))(ms.Tensor([1])),
        "wanted, which is i64[1]",
    ),
    (lambda: ms.grad(lambda x: (x, x))(VECTOR), "`has_aux` is False, and the function returns 2"),
    (lambda: ms.grad(lambda x: 3.0)(VECTOR), "the function returns 3.0 first, expected a real"),
    (several_ranks, "outside of a training step, on 2 ranks in one process; start a process for"),
    (lambda: nn.SGD([WEIGHT])([VECTOR]), "an optimizer of 1 parameters is given 1 gradients"),
    (lambda: nn.LazyAdam([WEIGHT])([WEIGHT]), "updates touched rows alone is applied outside of"),
    (lambda: nn.TrainOneStepCell(abs, 3), "`optimizer` is 3, expected an optimizer of `nn`"),
    (lambda: nn.TrainOneStepCell(abs, None, 0.0), "`sens` is 0.0, expected a number above 0"),
    (lambda: ms.set_context(mode=2), "`mode` is 2, expected GRAPH_MODE or PYNATIVE_MODE"),
]


@pytest.mark.parametrize(("make", "expected"), REFUSED)
def test_wrong_uses_are_refused(make, expected):
    with pytest.raises(ShardwrightError) as caught:
        make()
    assert expected in str(caught.value)


def test_gradients_by_inputs_within_a_step_are_refused():
    network = Network()
    optimizer = nn.SGD(network.trainable_params())

    @ms.jit
    def step(x):
        loss, gradients = ms.value_and_grad(lambda x: (network(x) ** 2).mean())(x)
        optimizer(gradients)
        return loss

    with pytest.raises(ModelError, match="an optimizer is given InputGradient, it takes what"):
        step(ms.Tensor(X))
