"""Lookups in a table whose rows, columns or positions are split over all ranks."""

from typing import ClassVar

import numpy as np

from shardwright import ops as own
from shardwright.ir.errors import ModelError
from shardwright.ir.values import POSITIVE_INTEGER, check_choice, check_flag, wrong_value
from shardwright.mindspore.context import get_auto_parallel_context, splits_operators
from shardwright.mindspore.ops.primitives import UnsortedSegmentMax, UnsortedSegmentSum
from shardwright.nn.layers import Embedding
from shardwright.operators.info import SplitCounts
from shardwright.parameter import Start
from shardwright.tensor import Tensor


class EmbeddingLookup(Embedding):
    """Rows of a table, looked up by number.

    Parameters
    ----------
    vocab_size, embedding_size : int
        Shape of the table.
    param_init : str, float or Tensor
        Initializer of the table.
    target : str
        ``CPU`` or ``DEVICE``, which are the same: the device of the program.
    slice_mode : str
        What ranks have parts of, in ``semi_auto_parallel`` and ``auto_parallel``: `BATCH_SLICE`,
        `TABLE_ROW_SLICE` or `TABLE_COLUMN_SLICE`. Parts of unequal sizes (`FIELD_SLICE`) are
        refused.
    manual_shapes, max_norm : None
        Must be None.
    sparse : bool
        Has no effect: a table whose gradient is sparse is updated so.
    vocab_cache_size : int
        Must be 0.

    Raises
    ------
    OptionError
        If an argument is another.
    """

    BATCH_SLICE: ClassVar[str] = "batch_slice"
    FIELD_SLICE: ClassVar[str] = "field_slice"
    TABLE_ROW_SLICE: ClassVar[str] = "table_row_slice"
    TABLE_COLUMN_SLICE: ClassVar[str] = "table_column_slice"

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        param_init: Start = "normal",
        target: str = "CPU",
        slice_mode: str = "batch_slice",
        manual_shapes: None = None,
        max_norm: None = None,
        sparse: bool = True,
        vocab_cache_size: int = 0,
    ) -> None:
        super().__init__(vocab_size, embedding_size, param_init)
        check_choice("target", target, ("CPU", "DEVICE"))
        check_flag("sparse", sparse)
        modes = (self.BATCH_SLICE, self.TABLE_ROW_SLICE, self.TABLE_COLUMN_SLICE)
        check_choice("slice_mode", slice_mode, modes)
        for name, value in (("manual_shapes", manual_shapes), ("max_norm", max_norm)):
            if value is not None:
                raise wrong_value(name, value, "None")
        if vocab_cache_size != 0:
            raise wrong_value("vocab_cache_size", vocab_cache_size, "0")
        self.slice_mode = slice_mode
        self.embeddinglookup = own.Gather()  # whose `shard` says more than `slice_mode`
        self._splits = splits_operators()
        self._ranks = get_auto_parallel_context("device_num")

    def construct(self, indices: Tensor) -> Tensor:
        """Look up."""
        if self.embeddinglookup.in_strategy is not None:
            found: Tensor = self.embeddinglookup(self.embedding_table, indices, 0)
            return found
        ranks, places = self._ranks, (1,) * (indices.ndim - 1)
        counts = {
            self.BATCH_SLICE: ((1, 1), (ranks, *places)),
            self.TABLE_ROW_SLICE: ((ranks, 1), (1, *places)),
            self.TABLE_COLUMN_SLICE: ((1, ranks), (1, *places)),
        }
        return self._split(own.Gather(), counts[self.slice_mode])(self.embedding_table, indices, 0)

    def _split(self, operator: own.Primitive, counts: SplitCounts) -> own.Primitive:
        """Return an operator, split so where the context splits operators."""
        return operator.shard(counts) if self._splits else operator


class MultiFieldEmbeddingLookup(EmbeddingLookup):
    """Of each sample a vector for each field: its rows of the table, weighted, as one.

    Parameters
    ----------
    vocab_size, embedding_size : int
        Shape of the table.
    field_size : int
        Number of fields.
    param_init, target, slice_mode, max_norm, sparse
        As for `EmbeddingLookup`.
    feature_num_list : None
        Must be None.
    operator : str
        What a field has of its weighted rows: their ``SUM``; their ``MEAN``, the sum divided by
        that of the absolute weights; or of each column the ``MAX``. A field without a weight that
        is not 0 has zeros.
    """

    OPERATOR_SUM: ClassVar[str] = "SUM"
    OPERATOR_MEAN: ClassVar[str] = "MEAN"
    OPERATOR_MAX: ClassVar[str] = "MAX"

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        field_size: int,
        param_init: Start = "normal",
        target: str = "CPU",
        slice_mode: str = "batch_slice",
        feature_num_list: None = None,
        max_norm: None = None,
        sparse: bool = True,
        operator: str = "SUM",
    ) -> None:
        super().__init__(
            vocab_size,
            embedding_size,
            param_init,
            target,
            slice_mode,
            feature_num_list,
            max_norm,
            sparse,
        )
        POSITIVE_INTEGER.check("field_size", field_size)
        check_choice("operator", operator, ("SUM", "MEAN", "MAX"))
        self.field_size, self.operator = field_size, operator

    def construct(  # type: ignore[override]  # weights and fields come with the rows
        self, input_indices: Tensor, input_values: Tensor, field_ids: Tensor
    ) -> Tensor:
        """Return the vectors ``[sample, field, embedding_size]``.

        Raises
        ------
        ModelError
            If the inputs are not of one shape, ``[sample, row]``.
        """
        shapes = [x.shape for x in (input_indices, input_values, field_ids)]
        if len(set(shapes)) != 1 or len(shapes[0]) != 2:
            raise ModelError(f"a lookup in fields has inputs of the shapes {shapes}, expected one")
        samples, rows = shapes[0]
        count = samples * self.field_size
        first_of = np.arange(0, count, self.field_size)[:, None]
        fields = field_ids + Tensor(first_of, field_ids.dtype)
        vectors = super().construct(input_indices) * input_values.reshape((samples, rows, 1))
        columns = self.slice_mode == self.TABLE_COLUMN_SLICE
        first, last = (1, self._ranks) if columns else (self._ranks, 1)
        known = (input_values != 0.0).reshape((samples, rows, 1))
        kind = UnsortedSegmentSum
        if self.operator == "MAX":
            least = own.ones_like(vectors) * -3.4028234e38  # of float32: rows without a weight
            vectors, kind = own.where(known, vectors, least), UnsortedSegmentMax
        merged = self._split(kind(), ((first, 1, last), (first, 1)))(vectors, fields, count)
        weights = UnsortedSegmentSum()(own.abs(input_values), fields, count).reshape((count, 1))
        if self.operator == "MEAN":
            merged = own.DivNoNan()(merged, weights)
        if self.operator == "MAX":
            merged = own.where(weights != 0.0, merged, own.zeros_like(merged))
        return merged.reshape((samples, self.field_size, -1))
