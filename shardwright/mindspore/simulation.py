"""Runs of which the programs are compiled alone: ``MS_SIMULATION_LEVEL=0`` in the environment.

A script then runs in one process, whatever `device_num` it names: models are compiled for all these
ranks, and no step is computed.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwright.ir.errors import ModelError
from shardwright.ir.values import check_choice, wrong_value
from shardwright.mindspore.context import (
    PYNATIVE_MODE,
    ParallelMode,
    get_auto_parallel_context,
    get_context,
)
from shardwright.operators.info import Array
from shardwright.tensor import Tensor

_LEVEL = "MS_SIMULATION_LEVEL"


def is_simulated() -> bool:
    """Return whether models are compiled alone.

    Raises
    ------
    OptionError
        If the variable has another value than 0.
    """
    level = os.environ.get(_LEVEL, "")
    if level:
        check_choice(_LEVEL, level, ("0",))
    return bool(level)


def whole_batch(dataset: Any) -> list[Tensor]:
    """Return tensors of the shapes of a whole batch of a data set, which is that of one rank.

    A rank has its part of a batch, by the strategy of the data set, or all of it.

    Raises
    ------
    ModelError
        If the data set is empty, or the strategy does not fit it.
    """
    return whole_inputs([Tensor(array) for array in _first(dataset)])


def whole_inputs(own: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors of the shapes of whole inputs, of which those of one rank are given."""
    counts = _parts([tensor.shape for tensor in own])
    shapes = [
        tuple(n * c for n, c in zip(tensor.shape, parts, strict=True))
        for tensor, parts in zip(own, counts, strict=True)
    ]
    return [
        tensor if shape == tensor.shape else Tensor(np.zeros(shape), tensor.dtype)
        for tensor, shape in zip(own, shapes, strict=True)
    ]


def _first(dataset: Any) -> list[Array]:
    """Return the first batch of a data set, or of any iterator over tuples or mappings."""
    samples = getattr(dataset, "samples", None)
    if not callable(samples) and not hasattr(dataset, "__iter__"):
        raise wrong_value("train_dataset", dataset, "a data set, or an iterable of batches")
    batch = next(iter(samples(0) if callable(samples) else dataset), None)
    if batch is None:
        raise ModelError("the data set is empty, a model is compiled for its first batch")
    if isinstance(batch, Tensor | np.ndarray):
        batch = (batch,)  # a data set of one column
    items = batch.values() if hasattr(batch, "values") else batch
    return [item.asnumpy() if isinstance(item, Tensor) else np.asarray(item) for item in items]


def _parts(shapes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return of how many parts like that of a rank each dimension of each input is."""
    get = get_auto_parallel_context
    strategy, stages = get("dataset_strategy"), get("pipeline_stages")
    divided = (
        ParallelMode.DATA_PARALLEL,
        ParallelMode.SEMI_AUTO_PARALLEL,
        ParallelMode.AUTO_PARALLEL,
    )
    eager = get_context("mode") == PYNATIVE_MODE  # in which a cell is given what it computes with
    if (
        eager
        or get("full_batch")
        or strategy == "full_batch"
        or get("parallel_mode") not in divided
    ):
        return [(1,) * len(shape) for shape in shapes]
    if strategy == "data_parallel":
        ranks = get("device_num") // stages
        return [((ranks,) + (1,) * len(shape))[: len(shape)] for shape in shapes]
    if shapes and [*map(len, strategy)] != [*map(len, shapes)]:
        raise ModelError(
            f"`dataset_strategy` is {strategy}, and the batch has the shapes {shapes}",
            hint="give the slices of each dimension of each input",
        )
    return [tuple(parts) for parts in strategy[: len(shapes)]]
