"""A context that several tests of cells that are compiled for one rank have."""

import pytest

import shardwright.mindspore as ms


@pytest.fixture
def eight_ranks():
    """Compile for the sixth of eight ranks, as MindSpore does where strategies are given."""
    ms.set_auto_parallel_context(
        device_num=8, global_rank=5, parallel_mode="semi_auto_parallel", full_batch=True
    )
