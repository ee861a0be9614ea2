"""Primitives with MindSpore's arguments compute what numpy does; their strategies hold."""

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.ir.errors import ShardwrightError
from shardwright.mindspore import Parameter, Tensor, nn
from shardwright.mindspore.common.api import _cell_graph_executor
from shardwright.mindspore.ops import operations as ops
from tests.mindspore.cells import Applied


@pytest.fixture
def eight_ranks():
    ms.set_auto_parallel_context(
        dataset_strategy="full_batch", device_num=8, parallel_mode="semi_auto_parallel"
    )


def applied(function, *inputs):
    made = Applied(function)(*map(Tensor, inputs))
    return [x.asnumpy() for x in made] if isinstance(made, tuple) else made.asnumpy()


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def program(cell, *inputs):
    phase, _ = _cell_graph_executor.compile(cell, *inputs)
    return _cell_graph_executor.program(phase)


def read(found, operator):
    """Return how what the operators read first is split."""
    first = [found.values[node.operands[0]] for node in found.nodes if node.operator == operator]
    return {value.layout.counts(found.mesh) for value in first}


def test_one_slope_for_all_channels_has_the_slices_of_the_channels(eight_ranks):
    slopes = ops.PReLU().shard(((1, 4, 2), (1,)))
    x, slope = drawn(2, 4, 4), np.array([0.5])
    found = program(Applied(slopes), Tensor(x), Tensor(slope))
    assert read(found, "prelu") == {(1, 4, 2)}
    np.testing.assert_array_equal(applied(slopes, x, slope), np.where(x < 0, x / 2, x))


@pytest.mark.parametrize("pad_mode", ["valid", "same", "pad"])
def test_a_transposed_convolution_is_the_adjoint_of_the_convolution(pad_mode):
    settings = {"kernel_size": (3, 2), "pad_mode": pad_mode, "stride": 2}
    settings["pad"] = (1, 0, 1, 1) if pad_mode == "pad" else 0
    x, weight = drawn(2, 3, 7, 6), drawn(4, 3, 3, 2, seed=1)
    y = applied(ops.Conv2D(4, **settings), x, weight)
    dy = drawn(*y.shape, seed=2)
    turned = ops.Conv2DTranspose(4, **settings)
    dx = applied(lambda dy, weight: turned(dy, weight, x.shape), dy, weight)
    assert dx.shape == x.shape
    assert np.vdot(y, dy) == pytest.approx(np.vdot(x, dx), rel=1e-12)
    message = r"`input_size` is \(2, 5, 7, 6\), expected \(2, 3\), and a height and a width"
    with pytest.raises(ShardwrightError, match=message):
        applied(lambda dy, weight: turned(dy, weight, (2, 5, 7, 6)), dy, weight)


def test_a_convolution_of_three_dimensions_is_a_sum_over_windows():
    x, weight = drawn(1, 2, 3, 4, 5), drawn(2, 2, 2, 2, 2, seed=1)
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 2, 2), (2, 3, 4))
    expected = np.einsum("ncxyzijk,ocijk->noxyz", windows, weight)
    np.testing.assert_allclose(applied(ops.Conv3D(2, 2), x, weight), expected, rtol=1e-12)


def test_pools_leave_the_padding_out():
    x = 1.0 + drawn(1, 1, 3, 3) ** 2
    corners = [[x[0, 0, :2, :2], x[0, 0, :2, 2:]], [x[0, 0, 2:, :2], x[0, 0, 2:, 2:]]]
    for kind, function in ((ops.MaxPool, np.max), (ops.AvgPool, np.mean)):
        found = applied(kind(kernel_size=2, strides=2, pad_mode="same"), x)
        expected = [[function(part) for part in row] for row in corners]
        np.testing.assert_allclose(found[0, 0], expected, rtol=1e-12)


@pytest.mark.parametrize(("norm", "scale"), [(1, 1), (2, 1), (1, 2), (-1, -1), (-2, 0)])
def test_layer_normalization_over_several_dimensions(norm, scale):
    x = drawn(2, 3, 4)
    gamma, beta = drawn(*x.shape[scale:], seed=1), drawn(*x.shape[scale:], seed=2)
    axes = tuple(range(norm % 3, 3))
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    expected = (x - mean) / np.sqrt(variance + 1e-5) * gamma + beta
    found = applied(ops.LayerNorm(norm, scale, 1e-5), x, gamma, beta)
    for one, other in zip(found, (expected, mean, variance), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def test_elements_by_index_and_dimensions_of_one():
    x, index = drawn(3, 4), np.array([[0, 1, 2, 0]])
    found = applied(lambda x, index: ops.GatherD()(x, 0, index), x, index)
    np.testing.assert_array_equal(found, np.take_along_axis(x, index, 0))
    assert applied(ops.Squeeze(), drawn(1, 3, 1)).shape == (3,)
    assert applied(ops.Squeeze(2), drawn(1, 3, 1)).shape == (1, 3)


def test_running_sums_and_truths_take_their_dimension_in_the_call():
    x = drawn(3, 4)
    np.testing.assert_allclose(applied(lambda x: ops.CumSum()(x, 0), x), x.cumsum(0))
    turned = applied(lambda x: ops.CumSum(False, True)(x, 1), x)
    np.testing.assert_allclose(turned, x[:, ::-1].cumsum(1)[:, ::-1])
    np.testing.assert_allclose(applied(lambda x: ops.CumProd()(x, 0), x), x.cumprod(0))
    for kind, function in ((ops.ReduceAll, np.all), (ops.ReduceAny, np.any)):
        found = applied(lambda x, kind=kind: kind(True)(x, 1), x > 0)
        np.testing.assert_array_equal(found, function(x > 0, 1, keepdims=True))


def test_dropout_returns_which_elements_are_left():
    x = np.ones((64, 64))
    left, mask = applied(ops.Dropout(keep_prob=0.75), x)
    np.testing.assert_allclose(left, mask / 0.75)
    assert set(np.unique(mask)) == {0.0, 1.0}
    assert 0.7 < mask.mean() < 0.8
    _, other = applied(ops.Dropout(keep_prob=0.75, Seed0=1), x)
    assert (other != mask).any()


@pytest.mark.parametrize("new", range(8))
@pytest.mark.parametrize("shrink", [0, 1, 6])
def test_slices_with_new_dimensions(new, shrink):
    x = drawn(3, 4, 5)
    begin, end = (1, 0, 1), (3, 2, 4)
    items = [
        None if new >> d & 1 else begin[d] if shrink >> d & 1 else slice(begin[d], end[d])
        for d in range(3)
    ]
    sliced = ops.StridedSlice(new_axis_mask=new, shrink_axis_mask=shrink)
    np.testing.assert_array_equal(
        applied(lambda x: sliced(x, begin, end, (1, 1, 1)), x), x[tuple(items)]
    )


class Normalized(nn.Cell):
    def __init__(self, strategy, result=0):
        super().__init__()
        self.norm, self.result = ops.LayerNorm(1, 1).shard(strategy), result
        self.gamma = Parameter(Tensor(np.ones((16, 8)), ms.float32), name="gamma")
        self.beta = Parameter(Tensor(np.ones((16, 8)), ms.float32), name="beta")

    def construct(self, x):
        return self.norm(x, self.gamma, self.beta)[self.result]


def test_strategies_of_results_that_nothing_reads_are_left_out(eight_ranks):
    strategy = ((8, 1, 1), (1, 1), (1, 1))
    x = Tensor(np.ones((32, 16, 8)), ms.float32)
    for result in range(3):
        assert read(program(Normalized(strategy, result), x), "reduce_mean") == {(8, 1, 1)}
    with pytest.raises(RuntimeError, match=r"`in_strategy` is .*the last 2 of them 1"):
        program(Normalized(((4, 2, 1), (2, 1), (2, 1))), x)
    with pytest.raises(RuntimeError, match=r"`in_strategy` is"):
        program(Normalized(((8, 1, 1), (2, 1), (1, 1))), x)


def test_a_strategy_of_a_composition_is_that_of_each_operand(eight_ranks):
    x, y = Tensor(np.ones((16, 8)), ms.float32), Tensor(np.ones((16, 8)), ms.float32)
    squares = ops.SquareSumAll().shard(((4, 1), (1, 8)))
    found = program(Applied(lambda x, y: sum(squares(x, y))), x, y)
    assert read(found, "square") == {(4, 1), (1, 8)}
    with pytest.raises(RuntimeError, match=r"the strategy .* does not fit `SquareSumAll`"):
        program(Applied(ops.SquareSumAll().shard(((4, 1), (8,)))), x, y)


def test_a_strategy_of_a_pointwise_composition_is_that_of_all_its_operators(eight_ranks):
    x, y = Tensor(np.ones((16, 8)), ms.float32), Tensor(np.ones((8,)), ms.float32)
    found = program(Applied(ops.Lerp().shard(((4, 2), (2,), (4, 2)))), x, y, x)
    assert read(found, "mul") == read(found, "add") == {(4, 2)}
    for strategy in (((4, 2), (1,), (4, 2)), ((4, 2), (2,), (2, 2))):
        with pytest.raises(RuntimeError, match=r"splits the operands of `Lerp`.*different ways"):
            program(Applied(ops.Lerp().shard(strategy)), x, y, x)
    row = Tensor(np.ones((1, 8)), ms.float32)
    with pytest.raises(RuntimeError, match=r"splits the operands of `MulNoNan`"):
        program(Applied(ops.MulNoNan().shard(((4, 2), (4, 2)))), x, row)


def test_the_operator_of_a_normalization_over_the_batch_takes_a_strategy(eight_ranks):
    class Net(nn.Cell):
        def __init__(self, strategy):
            super().__init__()
            self.norm = nn.BatchNorm2d(8)
            self.norm.bn_train.shard(strategy)

        def construct(self, x):
            return self.norm(x)

    def step(*strategy):
        net = Net((*strategy, *[(strategy[0][1],)] * 4))
        return nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))

    x = Tensor(np.ones((16, 8, 2, 2)), ms.float32)
    by_channel = program(step((1, 8, 1, 1)), x)
    assert read(by_channel, "batch_normalize") == {(1, 8, 1, 1)}
    with pytest.raises(RuntimeError, match=r"`channel_mean` cannot be split"):
        program(step((16, 1, 1, 1)), x)


def test_numbers_and_tuples_are_inputs_of_a_compilation(eight_ranks):
    x = Tensor(np.ones((16, 8)), ms.float32)
    mixed = program(Applied(ops.Lerp()), x, x, 0.5)
    assert len(mixed.inputs) == 2
    added = program(Applied(ops.AddN()), (x, x))
    assert len(added.inputs) == 2


@pytest.mark.parametrize(("kind", "function"), [("Max", np.max), ("Min", np.min)])
def test_rows_of_segments_may_be_split(kind, function, eight_ranks):
    """Also where they are differentiated: rows of all ranks share the gradient of an extremum."""
    x = drawn(16, 3).round(1)
    segments, sides = np.repeat([2, 0, 2, 3], 4), np.stack([x, x]).reshape(-1, 3)
    operator = getattr(ops, f"UnsortedSegment{kind}")

    def total(rows, pinned):
        chosen = operator().shard(pinned)(rows, Tensor(np.tile(segments, 2)), 4)
        return (chosen[0] + chosen[2:].sum(0) * 3.0).sum()

    split, whole = (
        ms.grad(lambda rows, how=how: total(rows, how))(Tensor(sides)).asnumpy()
        for how in (((8, 1), (8,)), None)
    )
    np.testing.assert_allclose(split, whole, rtol=1e-12)
    assert np.count_nonzero(split) >= 18  # each extremum is there twice
    found = applied(lambda rows: operator().shard(((8, 1), (8,)))(rows, Tensor(segments), 4), x)
    for number in (0, 2, 3):
        np.testing.assert_array_equal(found[number], function(x[segments == number], axis=0))
    made = program(
        Applied(lambda rows, ids: operator().shard(((8, 1), (8,)))(rows, ids, 4)),
        Tensor(x),
        Tensor(segments),
    )
    assert read(made, f"unsorted_segment_{kind.lower()}") == {(8, 1)}


@pytest.mark.parametrize(
    ("operator", "strategy", "shapes"),
    [
        (ops.Cdist(), ((2, 2), (2, 1)), [(8, 4), (8, 4)]),
        (ops.BoundingBoxEncode(), ((8, 1), (4, 1)), [(8, 4), (8, 4)]),
        (ops.BoundingBoxEncode(), ((1, 4), (1, 4)), [(8, 4), (8, 4)]),
        (ops.TensorScatterAdd(), ((1, 2, 4), (1, 1), (1, 2)), [(4, 4, 8), (3, 2), (3, 8)]),
        (ops.TensorScatterMul(), ((1, 2), (2, 1), (1, 2)), [(4, 4), (6, 1), (6, 4)]),
    ],
)
def test_a_composition_is_split_alike(operator, strategy, shapes, eight_ranks):
    message = f"`{type(operator).__name__}` cannot be split by {strategy}: its operands are"
    inputs = [Tensor(drawn(*shape)) for shape in shapes]
    if len(inputs) == 3:
        inputs[1] = Tensor(np.zeros(shapes[1], np.int32))
    with pytest.raises(ShardwrightError) as caught:
        program(Applied(operator.shard(strategy)), *inputs)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("count", [3, 40, 60])
def test_true_elements_are_drawn_without_repetition(count):
    mask = np.random.default_rng(0).random((6, 7)) < 0.3
    draw = ops.RandomChoiceWithMask(count, seed=1)
    places, found = (each.asnumpy() for each in draw(Tensor(mask)))
    assert (places.shape, places.dtype) == ((count, 2), np.int32)
    assert found.tolist() == [True] * min(count, mask.sum()) + [False] * max(count - mask.sum(), 0)
    assert mask[tuple(places[found].T)].all()
    assert len({*map(tuple, places[found])}) == found.sum()
    assert not places[~found].any()
    with pytest.raises(
        ShardwrightError, match="`input_x` has the element type float32, expected bool"
    ):
        draw(Tensor(np.ones(4, np.float32)))


def test_half_the_sum_of_squares():
    x = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    np.testing.assert_allclose(ops.L2Loss()(Tensor(x)).item(), (x**2).sum() / 2, rtol=1e-6)
