"""Lookups in tables that are split over all ranks."""

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.ir.errors import ShardwrightError
from shardwright.mindspore import Tensor, nn
from shardwright.mindspore.common.api import _cell_graph_executor

MODES = {"BATCH_SLICE": (1, 1), "TABLE_ROW_SLICE": (8, 1), "TABLE_COLUMN_SLICE": (1, 8)}
ROWS = np.array([[1, 3, 3, 0], [2, 1, 0, 4]])
WEIGHTS = np.array([[1.0, 2.0, -3.0, 0.0], [0.5, 0.0, 0.0, -1.0]], np.float32)
FIELDS = np.array([[0, 0, 2, 1], [2, 2, 1, 2]], np.int32)


@pytest.mark.parametrize("mode", MODES)
def test_the_context_says_over_how_many_ranks_a_table_is_split(mode):
    ms.set_auto_parallel_context(
        device_num=8, parallel_mode="semi_auto_parallel", dataset_strategy="full_batch"
    )
    cell = nn.EmbeddingLookup(16, 24, slice_mode=getattr(nn.EmbeddingLookup, mode))
    _cell_graph_executor.compile(cell, Tensor(np.zeros((8, 2), np.int32)))
    assert cell.parameter_layout_dict["embedding_table"][2] == [
        16 // MODES[mode][0],
        24 // MODES[mode][1],
    ]


def test_the_strategy_of_the_operator_says_more_than_the_mode():
    ms.set_auto_parallel_context(
        device_num=8, parallel_mode="semi_auto_parallel", dataset_strategy="full_batch"
    )
    cell = nn.EmbeddingLookup(16, 24)
    cell.embeddinglookup.shard(((2, 4), (1, 1)))
    _cell_graph_executor.compile(cell, Tensor(np.zeros((8, 2), np.int32)))
    assert cell.parameter_layout_dict["embedding_table"][2] == [8, 6]


@pytest.mark.parametrize("operator", ["SUM", "MEAN", "MAX"])
def test_a_field_has_its_weighted_rows_as_one(operator):
    table = np.random.default_rng(0).standard_normal((5, 2)).astype(np.float32)
    cell = nn.MultiFieldEmbeddingLookup(5, 2, 3, param_init=Tensor(table), operator=operator)
    found = cell(Tensor(ROWS), Tensor(WEIGHTS), Tensor(FIELDS)).asnumpy()
    for sample, field in np.ndindex(2, 3):
        own = (FIELDS[sample] == field) & (WEIGHTS[sample] != 0)
        weights = WEIGHTS[sample][own, None]
        parts = weights * table[ROWS[sample][own]]
        expected = np.zeros(2)
        if own.any():
            means = parts.sum(0) / np.abs(weights).sum()
            expected = {"SUM": parts.sum(0), "MEAN": means, "MAX": parts.max(0)}[operator]
        np.testing.assert_allclose(found[sample, field], expected, rtol=1e-6)


def test_parts_of_unequal_sizes_are_refused():
    with pytest.raises(ShardwrightError, match="`slice_mode` is `field_slice`, expected batch_sli"):
        nn.EmbeddingLookup(16, 8, slice_mode=nn.EmbeddingLookup.FIELD_SLICE)
    cell = nn.MultiFieldEmbeddingLookup(5, 2, 3)
    with pytest.raises(ShardwrightError, match=r"has inputs of the shapes \[\(2, 4\), \(2,\)"):
        cell(Tensor(ROWS), Tensor(WEIGHTS[:, 0]), Tensor(FIELDS))
