"""Which parameters an optimizer updates, with which settings, and what it says of the others."""

import numpy as np
import pytest

import shardwright as sw
from shardwright import nn
from shardwright.dataset import ArrayDataset
from shardwright.ir.errors import ModelError, OptionError, PassError, ShardwrightWarning
from shardwright.ir.types import TensorType
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor
from shardwright.tracing import InputSpec, trace
from shardwright.train import Model
from tests.extent import ANY_PLAN, first

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((8, 6)).astype(np.float32)
BATCH = ArrayDataset({"x": X}).batch(8)
SPEC = InputSpec("x", TensorType("float32", (8, 6)))


class Network(nn.Cell):
    def __init__(self):
        self.first = nn.Dense(6, 4)
        self.second = nn.Dense(4, 2)

    def construct(self, x):
        y = self.second(self.first(x))
        return (y * y).mean()


class Unreached(Network):
    """Uses a layer that the loss does not depend on."""

    def __init__(self):
        super().__init__()
        self.third = nn.Dense(6, 2)

    def construct(self, x):
        return super().construct(x), self.third(x)


class Stopped(Network):
    def construct(self, x):
        return sw.ops.stop_gradient(self.first(x)).mean()


def state_after_a_step(network, optimizer):
    model = Model(network, optimizer=optimizer)
    model.train(1, BATCH)
    return {name: parts[0] for name, parts in model.session.state.items()}


GROUPED = {
    "sgd": lambda groups: nn.SGD(groups, 0.1, weight_decay=0.5),
    "momentum": lambda groups: nn.Momentum(groups, 0.1, 0.9, weight_decay=0.5),
    "adam": lambda groups: nn.AdamWeightDecay(groups, 0.1, weight_decay=0.5),
}


@pytest.mark.parametrize("kind", GROUPED)
def test_groups_have_settings_of_their_own(kind):
    """A group is updated as by an optimizer that has its settings for all."""

    def after(rate, decay):
        network = Network()
        make = {
            "sgd": lambda p: nn.SGD(p, rate, weight_decay=decay),
            "momentum": lambda p: nn.Momentum(p, rate, 0.9, weight_decay=decay),
            "adam": lambda p: nn.AdamWeightDecay(p, rate, weight_decay=decay),
        }[kind]
        return state_after_a_step(network, make(network.trainable_params()))

    network = Network()
    groups = [
        {"params": network.first.trainable_params(), "lr": 0.01, "weight_decay": 0.0},
        {"params": network.second.trainable_params()},
        {"order_params": network.trainable_params()},
    ]
    found = state_after_a_step(network, GROUPED[kind](groups))
    own, common = after(0.01, 0.0), after(0.1, 0.5)
    for name in ("first.weight", "first.bias"):
        np.testing.assert_array_equal(found[name], own[name])
    for name in ("second.weight", "second.bias"):
        np.testing.assert_array_equal(found[name], common[name])
    assert not np.array_equal(own["first.weight"], common["first.weight"])


def test_what_stands_in_order_params_only_has_the_common_settings():
    network = Network()
    groups = [
        {"params": [network.first.weight], "lr": 0.0},
        {"order_params": network.trainable_params()},
    ]
    updates = nn.SGD(groups, 0.1).updates
    assert [own for _, own in updates] == [{"learning_rate": 0.0}, {}, {}, {}]


def test_a_plan_keeps_the_settings_of_groups(tmp_path):
    network = Network()
    groups = [
        {"params": network.first.trainable_params(), "lr": 0.5},
        {"params": network.second.trainable_params()},
    ]
    definition = trace(network, [SPEC], optimizer=nn.SGD(groups, 0.1))
    sw.compile(definition, 2, cluster="cpu").write(tmp_path / "plan")
    plan = sw.api.as_plan(tmp_path / "plan")
    assert plan.document.optimizer.optimizer.settings_of("first.bias")["learning_rate"] == 0.5
    rates = {
        node.operands[0].split(".to")[0]: node.attributes["learning_rate"]
        for node in plan.program.nodes
        if node.operator == "sgd_update"
    }
    assert rates == {
        "first.weight": 0.5,
        "first.bias": 0.5,
        "second.weight": 0.1,
        "second.bias": 0.1,
    }
    assert sw.verify(tmp_path / "plan").equal


WEIGHT = Parameter("ones", shape=2)
REFUSED = [
    (lambda: nn.SGD([]), "the optimizer `sgd` has no parameters"),
    (lambda: nn.SGD([3]), "given int among its parameters; give it `network.trainable_params()`"),
    (lambda: nn.SGD([Tensor([1.0])]), "an optimizer is given Tensor among its parameters"),
    (lambda: nn.SGD([WEIGHT, WEIGHT]), "an optimizer is given Parameter(name=, shape=(2,)"),
    (lambda: nn.SGD([{"params": [WEIGHT]}, {"params": [WEIGHT]}]), "requires_grad=True) twice"),
    (lambda: nn.SGD([WEIGHT, {"params": []}]), "parameters and groups of parameters are given"),
    (lambda: nn.SGD([{"parms": []}]), "has no `parms`; did you mean `params`?"),
    (lambda: nn.SGD([{"lr": 0.1}]), "a group of parameters has ('lr',), but no `params`"),
    (lambda: nn.SGD([{"params": [WEIGHT], "lr": -1}]), "`learning_rate` is -1, expected a number"),
    (lambda: nn.SGD([{"params": [WEIGHT], "grad_centralization": True}]), "cannot be centralized"),
    (lambda: nn.Adam([WEIGHT], weight_decay=-1), "`weight_decay` is -1, expected a number of at"),
    (lambda: nn.FTRL([WEIGHT], lr_power=0.5), "`lr_power` is 0.5, expected a number of at most 0"),
    (lambda: nn.FTRL([WEIGHT], learning_rate=0), "`learning_rate` is 0, expected a number above 0"),
    (lambda: nn.FTRL([WEIGHT], l1=-1), "`l1` is -1, expected a number of at least 0"),
    (
        lambda: nn.RMSProp([WEIGHT], decay=1.0),
        "`decay` is 1.0, expected a number of at least 0 and",
    ),
    (lambda: nn.SGD([WEIGHT], [0.1, -1]), "`learning_rate` at step 1 is -1.0, expected a number"),
    (lambda: nn.SGD([WEIGHT], np.ones((2, 2))), "`learning_rate` is of type ndarray, expected a"),
    (lambda: nn.SGD([WEIGHT], nn.ReLU()), "`learning_rate` is of type ReLU, expected a number"),
    (lambda: nn.SGD([WEIGHT], []), "`learning_rate` is (), expected a number of at least 0"),
    (lambda: nn.SGD([{"params": [WEIGHT], "lr": "no"}]), "the learning rate `no` names `no`"),
    (lambda: nn.SGD([WEIGHT], learning_rate=-0.1), "`learning_rate` is -0.1, expected a number"),
    (lambda: nn.SGD([WEIGHT], weight_decay="no"), "`weight_decay` is the text `no`, expected"),
    (lambda: nn.Adam([WEIGHT], beta1=1.0), "`beta1` is 1.0, expected a number of at least 0 and"),
    (lambda: nn.Adam([WEIGHT], eps=0), "`epsilon` is 0, expected a number above 0"),
    (lambda: nn.Momentum([WEIGHT], 0.1, -1), "`momentum` is -1, expected a number of at least 0"),
    (lambda: nn.Momentum([WEIGHT], 0.1, 0.9, use_nesterov=2), "`nesterov` is 2, expected True"),
]


@pytest.mark.parametrize(("make", "expected"), REFUSED)
def test_wrong_parameters_and_settings_are_refused(make, expected):
    with pytest.raises((ModelError, OptionError)) as caught:
        make()
    assert expected in str(caught.value)


# Training that would not train


def test_an_optimizer_of_another_network_is_refused():
    optimizer = nn.SGD(Network().trainable_params())
    with pytest.raises(ModelError) as caught:
        trace(Network(), [SPEC], optimizer=optimizer)
    assert str(caught.value) == (
        "the optimizer updates none of the model's 4 trainable parameters; give it "
        "`network.trainable_params()` of the network that is trained"
    )


def test_parameters_that_the_model_does_not_use_are_told():
    network = Network()
    network.spare = nn.Dense(3, 3)
    optimizer = nn.SGD(network.trainable_params())
    with pytest.warns(ShardwrightWarning) as caught:
        trace(network, [SPEC], optimizer=optimizer)
    assert [str(warning.message) for warning in caught] == [
        "trainable parameters get no update, the loss does not use them: `spare.weight`, "
        "`spare.bias`"
    ]


@pytest.mark.parametrize("devices", [1, 2])
def test_parameters_that_the_loss_does_not_depend_on_are_told(devices):
    network = Unreached()
    definition = trace(network, [SPEC], optimizer=nn.SGD(network.trainable_params()))
    with pytest.warns(ShardwrightWarning) as caught:
        sw.compile(definition, devices, cluster="cpu")
    assert [str(warning.message) for warning in caught] == [
        "trainable parameters get no update, no gradient reaches them: `third.weight`, `third.bias`"
    ]


def test_a_model_of_which_nothing_is_trained_is_refused():
    network = Stopped()
    definition = trace(network, [SPEC])
    with pytest.raises(PassError) as caught:
        sw.compile(definition, 1, cluster="cpu", mode="stand_alone")
    assert str(caught.value) == (
        "none of the 2 trainable parameters would be updated: the loss depends on `first.weight` "
        "and the others by no operators that have a gradient; declare parameters that are not "
        "trained with `requires_grad=False`"
    )


def test_parameters_that_are_left_out_on_purpose_are_not_told():
    network = Network()
    optimizer = nn.SGD(network.second.trainable_params())
    definition = trace(network, [SPEC], optimizer=optimizer)
    sw.compile(definition, 1, cluster="cpu")  # a warning would be an error


@pytest.mark.parametrize("kind", first(1, ["adam", "momentum"]))
def test_states_of_float16_are_float32(kind):
    """In float16, the epsilon of Adam is zero, and so are squares of small gradients."""
    text = "gpt:layers=1,hidden=16,heads=2,batch=8,sequence=4,vocabulary=32,dtype=float16"
    how = {"cluster": "cpu", "optimizer": kind, **ANY_PLAN}
    compilation = sw.compile(text, 4, **how)
    kinds = compilation.plan.document.memory.by_kind
    states = {"momentum": 1, "adam": 2}[kind]
    assert kinds["optimizer states"] == pytest.approx(2 * states * kinds["parameters"], abs=8)
    losses = [record.loss for record in sw.run(compilation, 5)]
    exact = sw.compile(text.replace("float16", "float32"), 4, **how)
    np.testing.assert_allclose(losses, [r.loss for r in sw.run(exact, 5)], rtol=0.01)
    assert sw.verify(compilation).equal


def test_integers_are_not_trained():
    assert not Parameter(Tensor([1, 2])).requires_grad
    assert Parameter(Tensor([1.0, 2.0])).requires_grad


def test_weight_decay_of_adam_is_added_to_the_gradient():
    network = Network()
    groups = [
        {"params": network.first.trainable_params(), "weight_decay": 0.2},
        {"params": network.second.trainable_params()},
    ]
    rule = trace(network, [SPEC], optimizer=nn.Adam(groups, weight_decay=0.1)).optimizer
    assert rule.settings_of("first.weight")["l2"] == 0.2
    assert rule.settings_of("second.weight")["l2"] == 0.1
    assert "weight_decay" not in rule.settings_of("second.weight")
