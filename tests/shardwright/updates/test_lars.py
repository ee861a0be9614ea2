"""LARS, and the loss scale of optimizers, against their formulas."""

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.ir.errors import ModelError, OptionError
from shardwright.ir.types import TensorType
from shardwright.mindspore import nn, train
from shardwright.operators.info import operator_info, whole_kernel

RANDOM = np.random.default_rng(0)
WEIGHT, BIAS = RANDOM.standard_normal((4, 3)), RANDOM.standard_normal(3)
GRADIENTS = [(RANDOM.standard_normal((4, 3)), RANDOM.standard_normal(3)) for _ in range(3)]


class Held(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = ms.Parameter(ms.Tensor(WEIGHT), name="weight")
        self.bias = ms.Parameter(ms.Tensor(BIAS), name="bias")

    def construct(self, x):
        return (x @ self.weight + self.bias).sum()


@pytest.mark.parametrize(("clip", "scale", "nesterov"), [(False, 4.0, False), (True, 1.0, True)])
def test_three_steps_are_those_of_the_formula(clip, scale, nesterov):
    network = Held()
    inner = nn.Momentum(network.trainable_params(), 0.3, 0.9, 0.1, scale, nesterov)
    rule = nn.LARS(inner, epsilon=1e-3, coefficient=0.05, use_clip=clip)
    weight, bias, moments = WEIGHT.copy(), BIAS.copy(), [0.0, 0.0]
    for of_weight, of_bias in GRADIENTS:
        rule((ms.Tensor(of_weight), ms.Tensor(of_bias)))
        g = of_weight / scale
        norms = np.linalg.norm(weight), np.linalg.norm(g)
        ratio = 0.05 * norms[0] / (norms[1] + 0.1 * norms[0] + 1e-3)
        changed = (min(ratio / 0.3, 1.0) if clip else ratio) * (g + 0.1 * weight), of_bias / scale
        moments = [0.9 * m + g for m, g in zip(moments, changed, strict=True)]
        steps = [g + 0.9 * m for g, m in zip(changed, moments, strict=True)]
        step = steps if nesterov else moments
        weight, bias = weight - 0.3 * step[0], bias - 0.3 * step[1]
    np.testing.assert_allclose(network.weight.asnumpy(), weight, rtol=1e-12)
    np.testing.assert_allclose(network.bias.asnumpy(), bias, rtol=1e-12)


def test_a_clipped_factor_at_the_rate_0_is_1():
    """As warm-up begins: nothing moves, and the momentum has the gradient with its decay."""
    types = [TensorType("float64", (2,))] * 3
    own = {"learning_rate": 0.0, "weight_decay": 0.1, "clip": True}
    info = operator_info("lars_update", types, own)
    p, g, m = np.array([3.0, 4.0]), np.array([1.0, 2.0]), np.zeros(2)
    after, moment = whole_kernel(info, p, g, m)
    np.testing.assert_array_equal(after, p)
    np.testing.assert_allclose(moment, g + 0.1 * p, rtol=1e-12)


def test_the_filter_says_which_gradients_are_changed():
    network = Held()
    inner = nn.SGD(network.trainable_params(), 0.5, weight_decay=0.1)
    rule = nn.LARS(inner, lars_filter=lambda p: False)
    rule((ms.Tensor(GRADIENTS[0][0]), ms.Tensor(GRADIENTS[0][1])))
    np.testing.assert_allclose(network.weight.asnumpy(), WEIGHT - 0.5 * GRADIENTS[0][0])


def test_another_optimizer_inside_is_refused():
    with pytest.raises(OptionError) as caught:
        nn.LARS(nn.Adam(Held().trainable_params()))
    assert "expected `SGD` or `Momentum`; LARS has no other optimizer inside" in str(caught.value)


@pytest.mark.parametrize(("sens", "scale", "factor"), [(None, 4.0, 0.25), (8.0, 4.0, 2.0)])
def test_an_optimizer_divides_by_its_loss_scale(sens, scale, factor):
    network, x = Held(), ms.Tensor(RANDOM.standard_normal((2, 4)))
    rule = nn.SGD(network.trainable_params(), 0.1, loss_scale=scale)
    loss = nn.TrainOneStepCell(network, rule, sens)(x)
    np.testing.assert_allclose(loss.asnumpy(), (x.asnumpy() @ WEIGHT + BIAS).sum(), rtol=1e-6)
    gradient = x.asnumpy().sum(0)[:, None] * np.ones((1, 3))
    np.testing.assert_allclose(network.weight.asnumpy(), WEIGHT - 0.1 * factor * gradient)


def trained(scale, manager):
    network = Held()
    rule = nn.SGD(network.trainable_params(), 0.1, loss_scale=scale)
    model = ms.Model(network, optimizer=rule, loss_scale_manager=manager)
    data = ms.dataset.NumpySlicesDataset({"x": RANDOM.standard_normal((2, 4))}, shuffle=False)
    model.train(1, data.batch(2))


def test_a_manager_with_the_same_loss_scale_is_accepted_and_with_another_refused():
    trained(4.0, train.FixedLossScaleManager(4.0, False))
    with pytest.raises(ModelError) as caught:
        trained(4.0, train.FixedLossScaleManager(8.0, False))
    assert str(caught.value) == (
        "the optimizer has the loss scale 4, and the loss scale manager `8.0`; leave out that of "
        "the optimizer: the manager multiplies and divides"
    )
