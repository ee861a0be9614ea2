"""Optimizers whose `construct` a script overrides."""

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.communication import world
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


def gradient_at_first():
    net = network()
    loss = nn.WithLossCell(net, nn.MSELoss())
    data = Tensor(ROWS), Tensor(np.zeros((2, 3), np.float32))
    (gradient,) = ms.grad(loss, None, net.trainable_params())(*data)
    return gradient.asnumpy()


def test_a_model_clips_the_gradients_of_its_steps():
    gradient = gradient_at_first()
    factor = 0.25 / np.linalg.norm(gradient)
    assert factor < 0.5
    after = trained(overridden(nn.SGD, clipped))
    np.testing.assert_allclose(after, 0.5 - 0.1 * gradient * factor, rtol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_a_step_clips_gradients_that_carry_the_scale_of_the_loss(scale):
    net = network()
    loss = nn.WithLossCell(net, nn.MSELoss())
    own = overridden(nn.Momentum, clipped)(net.trainable_params(), 0.1, 0.9, loss_scale=scale)
    step = nn.TrainOneStepCell(loss, own, sens=scale)
    step(Tensor(ROWS), Tensor(np.zeros((2, 3), np.float32)))
    gradient = gradient_at_first() * scale
    expected = 0.5 - 0.1 * gradient * 0.25 / np.linalg.norm(gradient) / scale
    np.testing.assert_allclose(net.weight.asnumpy(), expected, rtol=1e-6)


def test_gradients_are_clipped_once_and_last():
    net = network()
    loss, optimizer = nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1)
    reducers = {
        "to the norms 0.25 and 1": ops.clip_by_global_norm,
        "before `DistributedGradReducer`": nn.DistributedGradReducer(optimizer.parameters),
        "before `PipelineGradReducer`": nn.PipelineGradReducer(optimizer.parameters),
    }
    for message, reduce in reducers.items():

        @ms.jit
        def step(x, y, reduce=reduce):
            value, gradients = ms.value_and_grad(loss, None, optimizer.parameters)(x, y)
            optimizer(reduce(ops.clip_by_global_norm(gradients, 0.25)))
            return value

        with pytest.raises(ModelError, match=message):
            step(Tensor(ROWS), Tensor(np.zeros((2, 3), np.float32)))


def test_gradients_that_a_function_on_ranks_returns_are_not_clipped_unsaid():
    net = network()

    def clip(x):
        _, gradients = ms.value_and_grad(net, None, net.trainable_params())(x)
        return ops.clip_by_global_norm(gradients, 0.25)

    with world(2):
        ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
        with pytest.raises(ModelError, match="returns gradients that it clips"):
            ms.parallel.AutoParallel(clip)(Tensor(ROWS))


def test_a_norm_below_the_bound_changes_nothing():
    x = (Tensor([[2.0, 3.0], [1.0, 2.0]]), Tensor([[1.0, 4.0], [3.0, 1.0]]))
    for bound, factor in ((1.0, 1 / 45**0.5), (6.0, 6 / 45**0.5), (7.0, 1.0)):
        for own, found in zip(x, ops.clip_by_global_norm(x, bound), strict=True):
            np.testing.assert_allclose(found.asnumpy(), own.asnumpy() * factor, rtol=1e-6)
    halves = ops.clip_by_global_norm([Tensor([300.0, 400.0], "float16")], 5)
    assert halves[0].dtype == "float16"
    np.testing.assert_allclose(halves[0].asnumpy(), [3, 4], rtol=1e-3)


@pytest.mark.parametrize("bound", [1.0, 7.0])
def test_a_tensor_or_several_are_clipped_by_the_norm_of_all(bound):
    x = Tensor([[2.0, 3.0], [1.0, 2.0]]), Tensor([[1.0, 4.0], [3.0, 1.0]])
    for given, norm in ((x, 45**0.5), (x[:1], 18**0.5)):
        for own, found in zip(given, ops.clip_by_norm(given, bound), strict=True):
            np.testing.assert_allclose(
                found.asnumpy(), own.asnumpy() * min(1, bound / norm), rtol=1e-5
            )
    alone = ops.clip_by_norm(x[0], bound).asnumpy()
    np.testing.assert_allclose(alone, x[0].asnumpy() * min(1, bound / 18**0.5), rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ops.clip_by_norm(Tensor(1.0), 0), "`max_norm` is 0"),
        (lambda: ops.clip_by_norm(Tensor(1.0), 1, 1), "`norm_type` is 1"),
        (lambda: ops.clip_by_norm(Tensor(1.0), 1, 2, True), "`error_if_nonfinite` is True"),
        (lambda: ops.clip_by_norm((1.0,), 1), "expected tensors"),
        (lambda: ops.clip_by_norm(1.0, 1), "`clip_by_global_norm` clips gradients of a step"),
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
