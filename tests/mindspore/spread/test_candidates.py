"""Classes drawn for a loss over some of them: which, how often each, and on several ranks."""

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.communication import world
from shardwright.ir.errors import ShardwrightError
from shardwright.mindspore import AutoParallel, Tensor
from shardwright.mindspore.ops import operations as ops
from tests.mindspore.cells import Applied

TRUE = np.array([[1, 4], [4, 9], [1, 1], [0, 4]], np.int32)
HIT, RANGE = {0, 1, 4, 9}, 12


def sampler(drawn, unique, removes=True, seed=3):
    return ops.UniformCandidateSampler(2, drawn, unique, RANGE, seed, removes)


@pytest.mark.parametrize("unique", [False, True])
def test_true_classes_are_left_out_and_all_others_drawn(unique):
    seen = []
    for seed in range(1, 12):
        draw = Applied(sampler(6, unique, seed=seed))
        found, of_true, of_found = (x.asnumpy() for x in draw(Tensor(TRUE)))
        assert found.shape == (6,)
        assert (len({*found}) == 6) or not unique
        seen += [*found]
        np.testing.assert_allclose(of_true, np.full((4, 2), 6 / (RANGE - len(HIT))))
        np.testing.assert_allclose(of_found, np.full(6, 6 / (RANGE - len(HIT))))
    assert {*seen} == {*range(RANGE)} - HIT


def test_true_classes_follow_where_too_few_others_are_left():
    found = Applied(sampler(10, True))(Tensor(TRUE))[0].asnumpy()
    assert {*found[:8]} == {*range(RANGE)} - HIT
    assert {*found[8:]} < HIT


@pytest.mark.long
def test_ranks_draw_what_one_draws():
    def drawn(ranks):
        ms.set_seed(5)
        with world(ranks):
            network = Applied(sampler(6, True))
            return AutoParallel(network, "semi_auto", devices=ranks)(Tensor(TRUE))[0].asnumpy()

    np.testing.assert_array_equal(drawn(1), drawn(4))
    assert not HIT & {*drawn(4)}


def test_a_split_is_refused_as_there_where_classes_are_left_out():
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=2)
    for removes in (False, True):
        split = Applied(sampler(6, True, removes).shard(((2, 1),)))
        if not removes:
            ms.common.api._cell_graph_executor.compile(split, Tensor(TRUE))
            continue
        with pytest.raises(ShardwrightError, match="with `remove_accidental_hits`"):
            ms.common.api._cell_graph_executor.compile(split, Tensor(TRUE))
