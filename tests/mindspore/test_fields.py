"""Primitives take the attributes that MindSpore's compiler reads, and mean the same by them."""

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.communication import world
from shardwright.ir.errors import ModelError, OptionError, StrategyError
from shardwright.mindspore import Parameter, Tensor, nn, ops
from shardwright.mindspore.ops import operations as P  # noqa: N812
from shardwright.mindspore.parallel import AutoParallel
from tests.mindspore.cells import Applied

TABLE = np.arange(24, dtype=np.float32).reshape(8, 3)


@pytest.fixture(autouse=True)
def two_ranks():
    with world(2):
        yield


class LookUp(nn.Cell):
    def __init__(self, kind, name, value, strategy=((2, 1), (1, 2))):
        super().__init__()
        self.look_up = kind().shard(strategy)
        self.look_up.add_prim_attr(name, value)
        self.table = Parameter(ms.initializer("zeros", TABLE.shape), name="table")
        self.table.set_data(Tensor(TABLE))

    def construct(self, x):
        return self.look_up(self.table, x, 0)


def looked_up(*arguments, x, **named):
    return AutoParallel(LookUp(*arguments, **named), "semi_auto")(Tensor(x)).asnumpy()


@pytest.mark.parametrize("kind", [P.Gather, P.EmbeddingLookup])
def test_fields_look_up_their_own_rows(kind):
    x = np.array([[0, 5], [4, 7], [5, 4]], np.int32)  # rows 0 to 4, and 5 to 7
    found = looked_up(kind, "manual_split", (5, 3), x=x)
    inside = np.array([[1, 1], [1, 1], [0, 0]], bool)
    np.testing.assert_array_equal(found, np.where(inside[..., None], TABLE[x], 0))


def test_rows_of_fields_begin_where_they_are_said_to():
    x = np.array([[0, 100], [4, 102], [5, 103]], np.int32)
    found = looked_up(P.Gather, "manual_split_with_offset", ((5, 0), (3, 100)), x=x)
    expected = np.stack([TABLE[[0, 5]], TABLE[[4, 7]], np.zeros((2, 3), np.float32)])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("value", "strategy", "message"),
    [
        (
            (5, 4),
            ((2, 1), (1, 2)),
            "`manual_split` is (5, 4), expected numbers of rows that make up the 8 rows of the "
            "table",
        ),
        (
            ((5, 0), (3, 5)),
            ((2, 1), (1, 2)),
            "`manual_split` is ((5, 0), (3, 5)), expected numbers of rows that make up the 8 rows "
            "of the table",
        ),
        (
            (5, 3),
            ((1, 1), (1, 2)),
            "the strategy ((1, 1), (1, 2)) of `Gather` does not fit 2 fields on 1 devices, "
            "expected (2, ...) for a table of 1 slices, and (1, 2) for the positions",
        ),
        (
            (5, 3),
            None,
            "`Gather` by fields has the strategy None, expected numbers of slices for 2 and 2 "
            "dimensions",
        ),
    ],
)
def test_fields_that_do_not_fit_are_refused(value, strategy, message):
    with pytest.raises(ModelError) as error:
        looked_up(P.Gather, "manual_split", value, strategy, x=np.zeros((2, 2), np.int32))
    assert message in str(error.value)


def test_a_table_that_begins_as_data_is_not_split_by_fields():
    network = LookUp(P.Gather, "manual_split", (5, 3))
    network.table = Parameter(Tensor(TABLE), name="other")
    with pytest.raises(ModelError, match="the table `other` by fields begins as data"):
        AutoParallel(network, "semi_auto")(Tensor(np.zeros((2, 2), np.int32)))


def test_sums_of_a_product_are_scattered():
    class Product(nn.Cell):
        def __init__(self, scattered):
            super().__init__()
            self.matmul = P.MatMul().shard(((1, 2), (2, 1)))
            self.matmul.add_prim_attr("forward_reduce_scatter", scattered)
            self.weight = Parameter(Tensor(TABLE), name="weight")

        def construct(self, x):
            return self.matmul(x, self.weight)

    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    for scattered in (True, False):
        found = AutoParallel(Product(scattered), "semi_auto")(Tensor(x)).asnumpy()
        np.testing.assert_allclose(found, x @ TABLE, rtol=1e-6)


def test_statistics_of_groups_of_ranks():
    class Net(nn.Cell):
        def __init__(self, size, strategy):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)
            self.norm.bn_train.shard((strategy, *[(strategy[1],)] * 4))
            self.norm.bn_train.add_prim_attr("group_size", size)
            self.set_train()

        def construct(self, x):
            return self.norm(x)

    found = AutoParallel(Net(1, (2, 1)), "semi_auto")(Tensor(TABLE)).asnumpy()
    halves = np.split(TABLE, 2)
    expected = np.concatenate([(x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) for x in halves])
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for size in (3, 4):
        with pytest.raises(ModelError, match=f"`group_size` is {size}, expected a power of two"):
            AutoParallel(Net(size, (2, 1)), "semi_auto")(Tensor(TABLE))


def test_slices_of_a_result_need_those_of_operands():
    with pytest.raises(ValueError, match=r"`out_strategy` is .*, expected None without"):
        P.MatMul().shard(None, ((2, 2),))


def test_numbers_that_are_made_are_divided():
    with pytest.raises(ModelError, match="does not divide the 5 numbers that it makes"):
        AutoParallel(lambda x: x + P.LinSpace().shard(((2,),))(0, 1, 5), "semi_auto")(
            Tensor(np.ones(5, np.float32))
        )


def drawn(kind, seeds, strategy, shape, *parameters):
    draw = kind(*seeds).shard(strategy)
    network = AutoParallel(Applied(lambda x: x + draw(shape, *parameters)), "semi_auto")
    return network(Tensor(np.zeros(shape, np.float32))).asnumpy()


@pytest.mark.parametrize("kind", ["UniformReal", "Gamma"])
def test_each_slice_of_random_numbers_is_drawn_with_seeds_of_its_own(kind):
    """A slice has the numbers of the operator with the seeds plus its number, of its shape."""
    own = (Tensor([2.0]), Tensor([3.0])) if kind == "Gamma" else ()
    whole = ((1,),) * len(own)
    found = drawn(getattr(P, kind), (3, 5), ((2, 1), *whole), (4, 3), *own)
    parts = [drawn(getattr(P, kind), (3 + i, 5 + i), None, (2, 3), *own) for i in range(2)]
    np.testing.assert_array_equal(found, np.concatenate(parts))
    assert len({*found.ravel()}) == 12
    with pytest.raises(ModelError, match="does not divide the 12 numbers that it makes"):
        drawn(getattr(P, kind), (3, 5), ((1, 2), *whole), (4, 3), *own)


def test_gamma_numbers_have_the_mean_of_their_parameters():
    alpha, beta = np.array([[0.5], [4.0]], np.float32), np.array([2.0, 3.0], np.float32)

    def draw(*parameters):
        return AutoParallel(Applied(lambda *own: P.Gamma(7)((4000, 1, 1), *own)), "semi_auto")(
            *map(Tensor, parameters)
        )

    numbers = draw(alpha, beta).asnumpy()
    assert numbers.shape == (4000, 2, 2)
    np.testing.assert_allclose(numbers.mean(0), alpha * beta, rtol=0.1)
    with pytest.raises(StrategyError, match="splits `alpha` or `beta`"):
        P.Gamma().shard(((1, 1, 1), (2, 1), (1,)))
    with pytest.raises(ModelError, match="`alpha` has the element type float64, expected float32"):
        draw(alpha.astype(np.float64), beta)


def test_strides_of_batch_and_channels_are_one():
    x, weight = Tensor(np.ones((2, 3, 4, 4), np.float32)), Tensor(np.ones((5, 3, 2, 2), np.float32))
    with pytest.raises(OptionError, match="`stride` is \\(2, 2, 1, 1\\), expected 1 for all but"):
        P.Conv2D(5, 2, stride=(2, 2, 1, 1))(x, weight)
    assert P.Conv2D(5, 2, stride=(1, 1, 2, 2))(x, weight).shape == (2, 5, 2, 2)


def test_functions_of_several_tensors():
    scaled = ops.MultitypeFuncGraph("scaled")

    @scaled.register("Number", "Tensor")
    def scale(factor, x):
        return x * factor

    parts = (Tensor([1.0]), (Tensor([2.0]),))
    found = ops.HyperMap()(ops.partial(scaled, 3), parts)
    assert [found[0].item(), found[1][0].item()] == [3, 6]
    assert ops.Map(ops.add)(parts[:1], parts[:1])[0].item() == 2
    with pytest.raises(ModelError, match="`scaled` has no body"):
        scaled(Tensor([1.0]), 3)


def test_devices_of_sparse_updates_are_checked():
    optimizer = nn.LazyAdam([Parameter(Tensor(TABLE), name="table")])
    optimizer.sparse_opt.set_device("CPU")
    optimizer.target = "CPU"
    assert optimizer.target == "CPU"
    with pytest.raises(OptionError):
        optimizer.target = "TPU"
