"""Splits that MindSpore's rules refuse: refused under its names, and nowhere else."""

from itertools import product

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright import ops as own
from shardwright.ir.errors import ModelError, ShardwrightError
from shardwright.mindspore import Parameter, Tensor, nn
from shardwright.mindspore.common.api import _cell_graph_executor
from shardwright.mindspore.ops import operations
from shardwright.mindspore.ops.refusals import _Window
from shardwright.mindspore.pipelines import check_pipeline
from shardwright.mindspore.servers import can_form, group_of
from shardwright.mindspore.train import Model
from tests.mindspore.cells import Applied, ones


@pytest.fixture(autouse=True)
def eight_ranks():
    ms.set_context(device_target="Ascend")
    ms.set_auto_parallel_context(
        device_num=8, global_rank=0, parallel_mode="semi_auto_parallel", full_batch=True
    )


IMAGES, WEIGHT, BOXES = ones(8, 16, 10, 10), ones(8, 16, 5, 5), ones(16, 4)


def positions(*shape):
    return Tensor(np.zeros(shape, np.int32))


def convolution(kernel, **how):
    return operations.Conv2D(8, kernel, pad_mode=how.pop("pad_mode", "same"), **how)


CASES = [
    # The rule of each operator leaves some dimensions whole.
    (operations.CheckValid(), ((2, 2), (1,)), (BOXES, ones(3)), "dimension 1 of operand 0 is"),
    (operations.IOU(), ((2, 1), (2, 2)), (BOXES, BOXES), "dimension 1 of operand 1 is split"),
    (operations.GatherNd(), ((2, 1), (4, 1)), (BOXES, positions(8, 1)), "operand 0 is split"),
    (operations.GatherNd(), ((1, 1), (2, 2)), (BOXES, positions(8, 2)), "dimension 1 of operand 1"),
    (operations.ResizeBilinear((20, 20)), ((1, 1, 2, 1),), (IMAGES,), "dimension 2 of operand 0"),
    (
        operations.ResizeNearestNeighbor((20, 20), True),
        ((1, 1, 2, 1),),
        (IMAGES,),
        "dimensions 2 or 3 are split, with `align_corners`",
    ),
    (
        operations.TensorScatterUpdate(),
        ((2, 1), (1, 1), (1, 1)),
        (BOXES, positions(8, 1), ones(8, 4)),
        "dimensions of operand 0 before 1 are split",
    ),
    (
        operations.RandomChoiceWithMask(),
        ((2, 1),),
        (Tensor(np.ones((8, 4), bool)),),
        "operand 0 is split",
    ),
    # Windows that overlap, or that a slice does not hold whole.
    (operations.MaxPool(3, 2), ((1, 1, 2, 1),), (IMAGES,), "dimension 2 is split, whose windows"),
    (operations.AvgPool(1, 3), ((1, 1, 1, 2),), (IMAGES,), "slices of dimension 3, 5, are no who"),
    (operations.MaxPool(2, 2), ((1, 1, 2, 1),), (IMAGES,), "dimension 2 of the result, 5, is"),
    (
        convolution(3, pad_mode="valid"),
        ((1, 1, 1, 2), (1, 1, 1, 1)),
        (IMAGES, ones(8, 16, 3, 3)),
        "dimension 3 is split 2 ways: its windows overlap",
    ),
    (
        convolution(5),
        ((1, 1, 1, 10), (1, 1, 1, 1)),
        (IMAGES, WEIGHT),
        "dimension 3 is split 10 ways: a slice reads more than its neighbour",
    ),
    (
        convolution(1, stride=3),
        ((1, 1, 2, 1), (1, 1, 1, 1)),
        (IMAGES, ones(8, 16, 1, 1)),
        "dimension 2 is split 2 ways: a slice does not read all of its own elements",
    ),
    (
        convolution(2, group=2),
        ((1, 2, 1, 1), (1, 2, 1, 1)),
        (IMAGES, ones(8, 8, 2, 2)),
        "channels of its groups are split (1, 2) ways",
    ),
]


@pytest.mark.parametrize(("primitive", "strategy", "operands", "why"), CASES)
def test_a_split_that_its_rule_refuses_is_refused(primitive, strategy, operands, why):
    with pytest.raises(RuntimeError) as caught:
        _cell_graph_executor.compile(Applied(primitive.shard(strategy)), *operands)
    assert isinstance(caught.value, ShardwrightError)
    name = type(primitive).__name__
    begin = f"`{name}` cannot be split by {strategy}: MindSpore's rule of it refuses that {why}"
    assert str(caught.value).startswith(begin)
    assert str(tuple(operand.shape for operand in operands)) in str(caught.value)


def sliced(strategy, begin, end, strides, **masks):
    primitive = operations.StridedSlice(**masks).shard(strategy)
    cell = Applied(lambda x: primitive(x, begin, end, strides))
    _cell_graph_executor.compile(cell, ones(16, 8))


REFUSED_SLICES = [
    ((2, 1), (0, 0), (8, 8), (1, 1), {}),  # a part of a dimension
    ((2, 1), (0, 0), (16, 8), (2, 1), {}),  # by steps
    ((1, 2), (0, 3), (16, 4), (1, 1), {"shrink_axis_mask": 2}),
    ((1, 2), (0, 0), (8, 8), (1, 1), {"ellipsis_mask": 2}),
]


@pytest.mark.parametrize(("counts", "begin", "end", "strides", "masks"), REFUSED_SLICES)
def test_a_dimension_of_which_a_part_is_taken_is_not_split(counts, begin, end, strides, masks):
    with pytest.raises(RuntimeError) as caught:
        sliced((counts,), begin, end, strides, **masks)
    assert str(caught.value).startswith(f"`StridedSlice` cannot be split by {(counts,)}: MindSpore")


def test_a_dimension_that_is_taken_whole_is_split():
    sliced(((1, 2),), (0, 0), (8, 8), (1, 1))
    sliced(((2, 4),), (0, 0), (16, 8), (1, 1))  # all of it
    sliced(((2, 1),), (3, 0), (4, 4), (1, 1), begin_mask=1, end_mask=1)


def test_the_width_of_images_is_split_but_on_a_gpu():
    def compiled():
        resize = operations.ResizeBilinear((20, 20)).shard(((1, 1, 1, 2),))
        _cell_graph_executor.compile(Applied(resize), IMAGES)

    compiled()
    ms.set_context(device_target="GPU")
    with pytest.raises(RuntimeError, match="dimension 3 of operand 0 is split"):
        compiled()


def test_the_same_split_is_made_by_other_names_and_where_nothing_is_split():
    strategy, operands = ((1, 1, 2, 1),), (IMAGES,)
    of_own = own.MaxPool(kernel=(3, 3), stride=(2, 2)).shard(strategy)
    _cell_graph_executor.compile(Applied(of_own), *operands)
    ms.set_auto_parallel_context(parallel_mode="stand_alone")
    pool = operations.MaxPool(3, 2).shard(strategy)
    assert pool(*operands).shape == (8, 16, 4, 4)


class Twice(nn.Cell):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = operations.Mul().shard(first), operations.Mul().shard(second)
        self.weight = Parameter(ones(8, 8), name="w")

    def construct(self, x):
        return self.second(self.first(x, self.weight), self.weight)


class Products(nn.Cell):
    def __init__(self, *strategies):
        super().__init__()
        self.products = [operations.MatMul().shard(one) for one in strategies]
        self.weight = Parameter(ones(16, 16), "w")

    def construct(self, x):
        for product_of in self.products:
            x = product_of(x, self.weight)
        return x


def test_the_slices_of_a_parameter_are_on_the_same_ranks_for_all_operators():
    all_ranks, two, four = ((4, 2), (2, 1)), ((1, 2), (2, 1)), ((2, 2), (2, 1))
    for strategies in ((all_ranks, all_ranks), (two, two)):
        _cell_graph_executor.compile(Products(*strategies), ones(16, 16))
    by_columns = ((1, 2), (2, 2)), ((2, 2), (2, 2))
    cases = ((all_ranks, two), "(4, 0)"), ((four, all_ranks), "(1, 0)"), (by_columns, "(4, 2)")
    for strategies, apart in cases:
        with pytest.raises(ShardwrightError, match="MindSpore refuses two layouts of a par") as got:
            _cell_graph_executor.compile(Products(*strategies), ones(16, 16))
        assert f"{apart} apart" in str(got.value)
    # The factors of a product are rows, inner, columns: these slices are over the same four ranks.
    same = (((1, 4), (4, 2)), ((1, 4), (4, 2)))
    _cell_graph_executor.compile(Products(*same), ones(16, 16))


def test_a_parameter_is_split_in_one_way():
    same = ((8, 1), (8, 1))
    _cell_graph_executor.compile(Twice(same, same), ones(8, 8))
    _cell_graph_executor.compile(Twice(same, None), ones(8, 8))
    with pytest.raises(RuntimeError) as caught:
        _cell_graph_executor.compile(Twice(same, ((4, 2), (4, 2))), ones(8, 8))
    sentence = "the parameter `w` is split (4, 2) by `Mul` and (8, 1) by `Mul`: MindSpore refuses"
    assert str(caught.value).startswith(sentence)


def test_numbers_have_slices_of_their_own():
    class Scaled(Twice):
        def construct(self, x):
            return self.second(x, self.first(2.0, self.weight) + self.weight)

    strategies = ((), (8, 1)), ((8, 1), (8, 1))
    _cell_graph_executor.compile(Scaled(*strategies), ones(8, 8))


def test_a_whole_batch_is_that_of_modes_that_split_operators():
    ms.set_auto_parallel_context(parallel_mode="data_parallel")
    with pytest.raises(RuntimeError) as caught:
        _cell_graph_executor.compile(Twice(None, None), ones(8, 8))
    assert str(caught.value).startswith("`full_batch` is True, expected False in `data_parallel`")
    ms.set_auto_parallel_context(full_batch=False)
    _cell_graph_executor.compile(Twice(None, None), ones(1, 8))


class Stages(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dense(8, 8), nn.Dense(8, 8)
        self.first.pipeline_stage, self.second.pipeline_stage = 0, 1

    def construct(self, x):
        return self.second(self.first(x)).sum()


def test_stages_are_trained_in_micro_batches(monkeypatch):
    monkeypatch.setenv("MS_SIMULATION_LEVEL", "0")
    ms.set_auto_parallel_context(pipeline_stages=2)

    def trained(network, weights):
        Model(network, optimizer=nn.Momentum(weights, 0.1, 0.9)).train(1, [(ones(8, 8),)])

    network = nn.PipelineCell(Stages(), 2)
    trained(network, network.trainable_params())
    trained(network, network.infer_param_pipeline_stage())
    with pytest.raises(RuntimeError) as caught:
        trained(Stages(), Stages().trainable_params())
    assert str(caught.value).startswith("`Stages` is trained in pipeline stages, and none of its")


def test_the_optimizer_of_a_run_has_parameters_of_all_stages():
    network = nn.PipelineCell(Stages(), 2)
    check_pipeline(network, network.trainable_params(), all_stages=True)
    check_pipeline(network, network.trainable_params()[:1], all_stages=False)
    with pytest.raises(ModelError) as caught:
        check_pipeline(network, network.trainable_params()[:2], all_stages=True)
    sentence = "the optimizer has parameters of the pipeline stages [0], and none of [1]: the pro"
    assert str(caught.value).startswith(sentence)
    for frozen in network.trainable_params()[2:]:
        frozen.requires_grad = False
    check_pipeline(network, network.trainable_params(), all_stages=True)


def reads(window, i, count):
    """Return how many elements outside of it slice `i` reads: before it, and behind it."""
    rows = window.made // count
    begin = i * rows * window.stride - window.pads[0]
    end = ((i + 1) * rows - 1) * window.stride - window.pads[0] + window.kernel
    size = window.size // count
    return i * size - begin, end - (i + 1) * size


def test_what_slices_read_of_their_neighbours_is_what_their_windows_cover():
    compared = 0
    for size, kernel, stride, before, count in product(
        (8, 12, 16), (2, 3, 5), (1, 2), (0, 1), (2, 4)
    ):
        pads = (before, kernel - stride - before)
        if pads[1] < 0 or size % (stride * count):
            continue
        window = _Window(size, size // stride, kernel, stride, pads)
        for i in range(count):
            assert (window.before(i, count), window.behind(i, count)) == reads(window, i, count)
            compared += 1
    assert compared > 100


# Groups of ranks on servers of Ascend devices.


@pytest.mark.parametrize("sizes", [(2, 2, 2, 2), (3, 2, 2, 2), (4, 4), (8, 2), (5, 8)])
def test_arrangements_within_and_between_servers_have_groups(sizes):
    dimensions = range(len(sizes))
    for rank, chosen in product(range(int(np.prod(sizes))), product((0, 1), repeat=len(sizes))):
        along = [d for d in dimensions if chosen[d]]
        group = group_of(rank, sizes, along)
        assert rank in group
        assert len(group) == np.prod([sizes[d] for d in along])
        assert can_form(group)


@pytest.mark.parametrize(
    "ranks", [(0, 1, 2), (3, 4), (1, 6), (0, 1, 2, 4), (0, 1, 4, 6), (0, 9), (0, 1, 8), range(6)]
)
def test_ranks_that_form_no_group(ranks):
    assert not can_form(ranks)


@pytest.mark.parametrize(
    ("strategy", "group"),
    [
        (((8, 3), (3, 1)), r"\[0, 1, 2\] would reduce a product"),
        (((8, 1), (1, 3)), r"\[0, 1, 2\] would reduce the gradient of operand 0"),
        (((24, 1), (1, 1)), None),
        (((3, 8), (8, 1)), None),
        (((3, 1), (1, 8)), None),
    ],
)
def test_a_product_whose_ranks_form_no_group_is_refused_on_ascend(strategy, group):
    ms.set_auto_parallel_context(device_num=24)

    def compile_product():
        cell = Applied(operations.MatMul().shard(strategy))
        _cell_graph_executor.compile(cell, ones(48, 24), ones(24, 24))

    if group is None:
        compile_product()
        return
    with pytest.raises(RuntimeError, match=f"cannot be split by .*: the ranks {group}, and Mind"):
        compile_product()
    ms.set_context(device_target="GPU")
    compile_product()


# What MindSpore refuses of whole networks.


def step_of(network):
    return nn.TrainOneStepCell(network, nn.Momentum(network.trainable_params(), 0.1, 0.9))


@pytest.mark.parametrize("reduced", [False, True])
def test_a_sampler_of_classes_makes_no_loss(reduced):
    sampler = operations.UniformCandidateSampler(16, 16, False, 20, 1, False).shard(((1, 8),))
    scale = Parameter(Tensor(np.ones((48, 16)), "float32"), name="scale")

    class Sampled(nn.Cell):
        def __init__(self):
            super().__init__()
            self.scale = scale

        def construct(self, x):
            _, expected, _ = sampler((x * self.scale).astype("int32"))
            return expected.sum() if reduced else expected

    def compile_step():
        _cell_graph_executor.compile(step_of(Sampled()), ones(48, 16))

    if reduced:
        compile_step()
        return
    with pytest.raises(RuntimeError, match="`UniformCandidateSampler` makes what is different"):
        compile_step()


@pytest.mark.parametrize("mode", ["semi_auto_parallel", "auto_parallel"])
def test_parameters_are_made_in_a_mode_that_splits_operators_if_they_are_split(mode):
    ms.set_auto_parallel_context(parallel_mode="data_parallel")
    network, data = nn.Dense(8, 8), nn.Dense(8, 8, ones(8, 8), has_bias=False)
    drawn = nn.Dense(8, 8)
    drawn.init_parameters_data()
    ms.set_auto_parallel_context(parallel_mode=mode)
    for other in (data, drawn, nn.Dense(8, 8)):
        _cell_graph_executor.compile(step_of(other), ones(8, 8))
    with pytest.raises(RuntimeError, match=r"`weight` begins by an initializer and was made in `d"):
        _cell_graph_executor.compile(step_of(network), ones(8, 8))


@pytest.mark.parametrize(
    ("search", "between", "refused"),
    [
        ("sharding_propagation", operations.Depend(), True),
        ("sharding_propagation", lambda value, _: value, False),
        ("sharding_propagation", lambda value, other: operations.Depend()(-value, other), False),
        ("dynamic_programming", operations.Depend(), False),
    ],
)
def test_strategies_propagate_no_way_between_two_reshapes(search, between, refused):
    ms.set_auto_parallel_context(parallel_mode="auto_parallel", search_mode=search)
    relu, reshape = operations.ReLU().shard(((2, 4),)), operations.Reshape()

    def twice(x):
        return reshape(between(reshape(relu(x), (4, 16)), x), (8, 8))

    if not refused:
        _cell_graph_executor.compile(Applied(twice), ones(8, 8))
        return
    with pytest.raises(RuntimeError, match="`Reshape` reads `reshape_0`, which another `Reshape`"):
        _cell_graph_executor.compile(Applied(twice), ones(8, 8))
