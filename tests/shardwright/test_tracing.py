import pytest

from shardwright import nn, ops
from shardwright.gradients import jit, value_and_grad
from shardwright.ir.errors import ModelError
from shardwright.ir.text import parse, to_text
from shardwright.ir.types import TensorType
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor
from shardwright.tracing import InputSpec, trace

X = InputSpec("x", TensorType("float32", (8, 4)))
LABELS = InputSpec("label", TensorType("int32", (8,)), 3)

GOLDEN = """\
graph network {
  input x: f32[8, 4]
  input label: f32[8, 3]
  parameter layer1.weight: f32[6, 4] {initializer='uniform(0.5)', trainable=True}
  parameter layer1.bias: f32[6] {initializer='uniform(0.5)', trainable=True}
  parameter layer2.weight: f32[3, 6] {initializer='normal', trainable=True}
  matmul_0: f32[8, 6] = matmul(x, layer1.weight) {transpose_b=True} in 'layer1'
  add_0: f32[8, 6] = add(matmul_0, layer1.bias) in 'layer1'
  relu_0: f32[8, 6] = relu(add_0) in 'relu'
  matmul_1: f32[8, 3] = matmul(relu_0, layer2.weight) {transpose_b=True} in 'layer2'
  squared_difference_0: f32[8, 3] = squared_difference(matmul_1, label) in 'loss'
  reduce_sum_0: f32[] = reduce_sum(squared_difference_0) {axis=None, keep_dims=False} in 'loss'
  scale_0: f32[] = scale(reduce_sum_0) {factor=0.041666666666666664} in 'loss'
  return scale_0
}
"""


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Dense(4, 6)
        self.relu = nn.ReLU()
        self.layer2 = nn.Dense(6, 3, weight_init="normal", has_bias=False)

    def construct(self, x):
        return self.layer2(self.relu(self.layer1(x)))


def test_a_network_and_its_loss_become_a_graph():
    target = InputSpec("label", TensorType("float32", (8, 3)))
    definition = trace(Network(), [X, target], loss_fn=nn.MSELoss())
    assert to_text(definition.graph) == GOLDEN
    assert parse(GOLDEN) == definition.graph
    assert definition.loss == "scale_0"
    assert definition.parameter_count == 6 * 4 + 6 + 3 * 6


def test_without_a_loss_there_is_none():
    definition = trace(Network(), [X])
    assert definition.graph.outputs == ("matmul_1",)
    assert definition.loss is None


def test_tracing_twice_gives_the_same_graph():
    network = Network()
    assert trace(network, [X]).graph == trace(network, [X]).graph


def test_strategies_become_pins_of_their_nodes():
    network = Network()
    network.layer2.matmul.shard(((4, 2), (1, 2)), ((4, 1),))
    definition = trace(network, [X])
    assert definition.pins == {"matmul_1": ((4, 2), (1, 2))}
    assert definition.result_pins == {"matmul_1": ((4, 1),)}


def test_a_strategy_must_name_every_dimension():
    network = Network()
    network.layer1.matmul.shard(((4, 2),))
    with pytest.raises(ModelError) as caught:
        trace(network, [X])
    assert caught.value.what == (
        "the strategy ((4, 2),) does not fit `matmul_0`, whose operands have the shapes "
        "((8, 4), (6, 4))"
    )


def test_fusion_ids_are_kept_at_the_parameters():
    network = Network()
    network.layer1.set_comm_fusion(2)
    parameters = trace(network, [X]).graph.parameters
    assert [p.attributes.get("fusion") for p in parameters] == [2, 2, None]


def test_cells_in_lists_are_named_by_number():
    network = nn.SequentialCell(nn.Dense(4, 5), nn.ReLU(), nn.Dense(5, 2, has_bias=False))
    graph = trace(network, [X]).graph
    assert [p.name for p in graph.parameters] == ["0.weight", "0.bias", "2.weight"]
    assert [node.scope for node in graph] == ["0", "0", "1", "2"]


def test_a_shared_parameter_is_one_parameter():
    class Tied(nn.Cell):
        def __init__(self):
            self.inner = nn.Dense(4, 4, has_bias=False)
            self.again = self.inner.weight

        def construct(self, x):
            return self.inner(x) @ self.again

    graph = trace(Tied(), [X]).graph
    assert [p.name for p in graph.parameters] == ["again"]


def test_parameters_have_names_from_attributes_unless_they_have_their_own():
    class Named(nn.Cell):
        def __init__(self):
            self.a = Parameter("zeros", shape=(4,))
            self.b = Parameter("ones", name="scale", shape=(4,), requires_grad=False)

        def construct(self, x):
            return x * self.b + self.a

    graph = trace(Named(), [X]).graph
    assert [(p.name, p.trainable) for p in graph.parameters] == [("scale", False), ("a", True)]


def test_data_is_kept_beside_the_graph():
    class Constant(nn.Cell):
        def __init__(self):
            self.weight = Parameter(Tensor([[1.0], [2.0], [3.0], [4.0]], "float32"))
            self.offset = Tensor([5.0], "float32")

        def construct(self, x):
            return x @ self.weight + self.offset

    definition = trace(Constant(), [X])
    assert {name: data.tolist() for name, data in definition.initial.items()} == {
        "weight": [[1.0], [2.0], [3.0], [4.0]],
        "constant_0": [5.0],
    }
    assert definition.parameter_count == 4


def test_what_the_optimizer_does_not_have_is_not_trained():
    network = Network()
    optimizer = nn.Momentum(network.layer2.trainable_params(), 0.1, 0.9)
    definition = trace(network, [X, LABELS], loss_fn=nn.CrossEntropyLoss(), optimizer=optimizer)
    assert definition.optimizer == optimizer.rule
    assert definition.optimizer.settings == {
        "learning_rate": 0.1,
        "momentum": 0.9,
        "nesterov": False,
        "weight_decay": 0.0,
    }
    assert [p.name for p in definition.graph.parameters if p.trainable] == ["layer2.weight"]


def test_a_training_step_that_is_written_out():
    network = Network()
    optimizer = nn.SGD(network.trainable_params(), 1e-2)
    loss_fn = nn.CrossEntropyLoss()

    def forward(data, target):
        logits = network(data)
        return loss_fn(logits, target), logits

    gradients = value_and_grad(forward, None, network.trainable_params(), has_aux=True)

    @jit
    def train_step(inputs, targets):
        (loss, _), grads = gradients(inputs, targets)
        optimizer(grads)
        return loss

    definition = trace(train_step, [X, LABELS], name="network")
    assert definition.optimizer.kind == "sgd"
    assert [p.name for p in definition.graph.parameters] == [
        "layer1.weight",
        "layer1.bias",
        "layer2.weight",
    ]
    assert definition.loss is not None


def test_a_loss_scale_is_kept():
    assert trace(Network(), [X], loss_scale=128.0).loss_scale == 128.0


# Errors


def refusal(construct, *inputs):
    class Wrong(nn.Cell):
        def __init__(self):
            self.part = nn.Dense(4, 3)

    Wrong.construct = construct
    with pytest.raises(ModelError) as caught:
        trace(Wrong(), inputs or [X])
    return caught.value


def test_an_error_names_the_line_of_the_model():
    def construct(self, x):
        return self.part(self.part(x))

    error = refusal(construct)
    assert error.what == "matmul: factor `k` is 3 elsewhere but 4 here"
    assert "`part`" in error.where
    assert error.where.endswith("return self.part(self.part(x))")
    assert "test_tracing.py" in error.where


def test_an_error_of_the_model_itself_is_told_as_ours():
    error = refusal(lambda self, x: self.missing(x))
    assert error.what == "AttributeError: 'Wrong' object has no attribute 'missing'"


def test_a_parameter_must_be_an_attribute():
    loose = Parameter("zeros", shape=(4,))
    error = refusal(lambda self, x: x + loose)
    assert error.what == ("a parameter of type f32[4] is used, but no cell has it as an attribute")


def test_names_of_parameters_must_be_unique():
    class Twins(nn.Cell):
        def __init__(self):
            self.a = Parameter("zeros", name="same", shape=(4,))
            self.b = Parameter("zeros", name="same", shape=(4,))

        def construct(self, x):
            return x + self.a + self.b

    with pytest.raises(ModelError, match="two parameters are called `same`"):
        trace(Twins(), [X])


def test_a_network_must_return_tensors():
    assert refusal(lambda self, x: None).what == "the network returns None, expected tensors"


def test_a_network_may_not_depend_on_values():
    error = refusal(lambda self, x: x if x > 0 else -x)
    assert error.what == (
        "the elements of a tensor of type bool[8, 4] are needed while it is traced"
    )


def test_two_optimizers_are_one_too_many():
    optimizer = nn.SGD([Parameter("zeros", shape=(1,))])

    def construct(self, x):
        for _ in range(2):
            optimizer(value_and_grad(lambda: x)()[1])
        return x

    assert refusal(construct).what == "two optimizers are applied, a training step has one"


def test_an_optimizer_takes_only_the_gradients_of_value_and_grad():
    optimizer = nn.SGD([Parameter("zeros", shape=(1,))])
    error = refusal(lambda self, x: optimizer(x))
    assert error.what == (
        "an optimizer is given TracedTensor, it takes what `value_and_grad` returns as gradients"
    )


def test_labels_must_have_the_shape_of_the_scores():
    error = refusal(lambda self, x: nn.CrossEntropyLoss()(x, x[:, 0]))
    assert error.what == (
        "labels of type f32[8] stand for weights of classes of scores of shape (8, 4), they must "
        "have the shape (8, 4)"
    )


def test_operators_and_cells_outside_a_trace_give_values():
    x = Tensor([[1.0, -2.0]], "float32")
    assert (ops.ReLU()(x) * 2 + 1).asnumpy().tolist() == [[3.0, 1.0]]
    net = nn.SequentialCell(nn.Dense(2, 2, has_bias=False, weight_init="ones"), nn.Dropout(0.5))
    assert net(x).asnumpy().tolist() == [[-1.0, -1.0]]
    assert net.set_train()(x).asnumpy().tolist() != [[-1.0, -1.0]]


def test_a_cell_without_construct_says_so():
    with pytest.raises(ModelError, match="the cell `Cell` has no method `construct`"):
        trace(nn.Cell(), [X])


def test_a_list_of_cells_is_not_applied():
    with pytest.raises(ModelError, match="a `CellList` is applied, but it is a list"):
        trace(nn.CellList([nn.ReLU()]), [X])
