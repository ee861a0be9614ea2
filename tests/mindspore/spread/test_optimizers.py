"""Optimizers whose `construct` a script overrides."""

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.ir.errors import ModelError, OptionError, ShardwrightError
from shardwright.mindspore import Tensor, nn, ops

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)
ALL = [nn.SGD, nn.Adam, nn.AdamWeightDecay, nn.FTRL, nn.Adagrad, nn.RMSProp, nn.LARS]


def network():
    return nn.Dense(4, 3, Tensor(np.full((3, 4), 0.5, np.float32)), has_bias=False)


def overridden(kind, construct):
    return type("Own", (kind,), {"construct": construct})


def stepped(optimizer, net):
    """Return the weight after a step outside of a trace, and its gradient."""
    step = ms.value_and_grad(lambda x: (net(x) ** 2).sum(), None, optimizer.parameters)
    _, gradients = step(Tensor(ROWS))
    optimizer(gradients)
    return net.weight.asnumpy(), gradients[0].asnumpy()


def clipped(self, gradients):
    super(type(self), self).construct(ops.clip_by_global_norm(gradients, 0.25))


def test_gradients_are_clipped_before_the_update():
    net = network()
    optimizer = overridden(nn.SGD, clipped)(net.trainable_params(), 0.1)
    after, gradient = stepped(optimizer, net)
    expected = 0.5 - 0.1 * gradient * 0.25 / np.linalg.norm(gradient)
    np.testing.assert_allclose(after, expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ALL)
def test_an_override_that_only_hands_on_changes_nothing(kind):
    class Own(kind):
        def __init__(self, optimized):
            super().__init__(optimized)
            self.optimizer = super().construct

        def construct(self, gradients):
            return self.optimizer(gradients)

    weights = []
    for one in (kind, Own):
        net = network()
        parameters = net.trainable_params()
        optimizer = one(nn.SGD(parameters) if kind is nn.LARS else parameters)
        weights.append([stepped(optimizer, net)[0] for _ in range(3)])
    np.testing.assert_array_equal(*weights)
    assert (weights[0][0] != weights[0][1]).any()


def trained(kind):
    net = network()
    loss = nn.MSELoss()
    model = ms.Model(net, loss, kind(net.trainable_params(), 0.1))
    data = ms.dataset.NumpySlicesDataset({"x": ROWS, "y": np.zeros((2, 3), np.float32)})
    model.train(1, data.batch(2))
    return net.weight.asnumpy()


def test_a_model_applies_what_a_script_overrides():
    def handed_on(self, gradients):
        super(type(self), self).construct(gradients)

    def nothing(self, gradients):
        pass

    np.testing.assert_array_equal(trained(overridden(nn.SGD, handed_on)), trained(nn.SGD))
    with pytest.raises(ModelError, match="the optimizer `Own` updates nothing when it is applied"):
        trained(overridden(nn.SGD, nothing))
    with pytest.raises(ModelError, match="`clip_by_global_norm` is given the gradients of a train"):
        trained(overridden(nn.SGD, clipped))


def test_a_norm_below_the_bound_changes_nothing():
    x = (Tensor([[2.0, 3.0], [1.0, 2.0]]), Tensor([[1.0, 4.0], [3.0, 1.0]]))
    for bound, factor in ((1.0, 1 / 45**0.5), (6.0, 6 / 45**0.5), (7.0, 1.0)):
        for own, found in zip(x, ops.clip_by_global_norm(x, bound), strict=True):
            np.testing.assert_allclose(found.asnumpy(), own.asnumpy() * factor, rtol=1e-6)
    halves = ops.clip_by_global_norm([Tensor([300.0, 400.0], "float16")], 5)
    assert halves[0].dtype == "float16"
    np.testing.assert_allclose(halves[0].asnumpy(), [3, 4], rtol=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ops.clip_by_global_norm((Tensor(1.0),), 0), "`clip_norm` is 0"),
        (lambda: ops.clip_by_global_norm((Tensor(1.0),), 1.0, 2.0), "`use_norm` is 2.0"),
        (lambda: ops.clip_by_global_norm((1.0,)), "expected a tuple or a list of tensors"),
        (lambda: ops.clip_by_global_norm(()), "expected a tuple or a list of tensors"),
        (
            lambda: nn.LARS(overridden(nn.SGD, clipped)(network().trainable_params())),
            "expected one without a `construct` of its own",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(make, message):
    with pytest.raises(OptionError, match=message) as caught:
        make()
    assert isinstance(caught.value, ShardwrightError)
