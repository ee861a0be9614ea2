"""Recommendation: click prediction with embedding tables, looked up by hashed features."""

from itertools import pairwise

import numpy as np

from shardwright import nn, ops
from shardwright.ir.types import TensorType
from shardwright.parameter import Parameter, initializer
from shardwright.tensor import Tensor
from shardwright.tracing import Definition, InputSpec, trace

# Rows of the 26 tables that the data of Criteo's challenge of 2014 (Kaggle) has.
CRITEO_KAGGLE = (
    *(1_460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593),
    *(3_194, 27, 14_992, 5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572),
)
_FEATURES = 1 << 31  # exclusive upper bound of hashed features


def _dense_layers(sizes: tuple[int, ...], dtype: str, last: str | None) -> nn.SequentialCell:
    """Return dense layers with rectifiers in between, and an activation at the end."""
    pairs = list(pairwise(sizes))
    return nn.SequentialCell(
        [
            nn.Dense(a, b, activation="relu" if i + 1 < len(pairs) else last, dtype=dtype)
            for i, (a, b) in enumerate(pairs)
        ]
    )


def _click(
    network: nn.Cell, name: str, batch: int, inputs: tuple[InputSpec, ...], dtype: str
) -> Definition:
    """Trace a network whose output is the score of a click, with its cross entropy."""
    label = InputSpec("label", TensorType(dtype, (batch, 1)))
    return trace(network, (*inputs, label), loss_fn=nn.BCEWithLogitsLoss(), name=name)


class Dlrm(nn.Cell):
    """Deep learning recommendation model (Naumov et al., 2019).

    The tables stand one behind the other as one, which may be cut anywhere.
    """

    def __init__(
        self,
        tables: tuple[int, ...],
        dense: int,
        hidden: int,
        bottom: tuple[int, ...],
        top: tuple[int, ...],
        dtype: str,
    ) -> None:
        self.embedding = nn.HashEmbedding(tables, hidden, dtype=dtype)
        self.bottom = _dense_layers((dense, *bottom, hidden), dtype, "relu")
        vectors = len(tables) + 1
        rows, columns = np.tril_indices(vectors, -1)
        self.pairs = Tensor(rows * vectors + columns, "int32")
        self.top = _dense_layers((hidden + len(rows), *top, 1), dtype, None)
        self.matmul = ops.MatMul(transpose_b=True)
        self.concat = ops.Concat(axis=1)

    def construct(self, dense: Tensor, features: Tensor) -> Tensor:
        """Return the score of a click: all pairs of vectors interact."""
        x = self.bottom(dense)
        batch, hidden = x.shape
        vectors = self.concat(x.reshape((batch, 1, hidden)), self.embedding(features))
        products = self.matmul(vectors, vectors).reshape((batch, -1))
        return self.top(self.concat(x, ops.gather(products, self.pairs, axis=1)))


def dlrm(
    batch: int = 2048,
    hidden: int = 16,
    dense: int = 13,
    tables: int = 26,
    rows: int = 0,
    width: int = 512,
    dtype: str = "float32",
) -> Definition:
    """DLRM for Criteo's clicks (Kaggle); with `rows`, every table has as many."""
    sizes = (rows,) * tables if rows else CRITEO_KAGGLE[:tables]
    bottom, top = (width, width // 2, width // 8), (width, width // 2)
    network = Dlrm(sizes, dense, hidden, bottom, top, dtype)
    inputs = (
        InputSpec("dense", TensorType(dtype, (batch, dense))),
        InputSpec("features", TensorType("int32", (batch, len(sizes))), _FEATURES),
    )
    return _click(network, "dlrm", batch, inputs, dtype)


class WideDeep(nn.Cell):
    """Wide & deep (Cheng et al., 2016): a linear model of the features plus a deep one."""

    def __init__(
        self, buckets: int, fields: int, hidden: int, deep: tuple[int, ...], dtype: str
    ) -> None:
        self.wide = nn.HashEmbedding(buckets, 1, "normal(0.01)", dtype)
        self.wide_bias = Parameter(initializer("zeros", 1, dtype))
        self.embedding = nn.HashEmbedding(buckets, hidden, "normal(0.01)", dtype)
        self.deep = _dense_layers((fields * hidden, *deep, 1), dtype, None)

    def construct(self, features: Tensor, weights: Tensor) -> Tensor:
        """Return the score of a click from hashed features, each with a weight."""
        weights = weights.reshape((*weights.shape, 1))
        wide = (self.wide(features) * weights).sum(1) + self.wide_bias
        deep = self.embedding(features) * weights
        return wide + self.deep(deep.reshape((deep.shape[0], -1)))


def wide_deep(
    batch: int = 16_000,
    buckets: int = 200_000,
    fields: int = 39,
    hidden: int = 80,
    width: int = 1024,
    dtype: str = "float32",
) -> Definition:
    """Wide & deep in the sizes that MindSpore's has for Criteo's clicks."""
    deep = (width, width // 2, width // 4, width // 8)
    inputs = (
        InputSpec("features", TensorType("int32", (batch, fields)), _FEATURES),
        InputSpec("weights", TensorType(dtype, (batch, fields))),
    )
    network = WideDeep(buckets, fields, hidden, deep, dtype)
    return _click(network, "wide_deep", batch, inputs, dtype)


class FeatureHash(nn.Cell):
    """A number from categories without a vocabulary: each is hashed to a bucket of its field."""

    def __init__(
        self, buckets: int, fields: int, hidden: int, deep: tuple[int, ...], dtype: str
    ) -> None:
        self.embedding = nn.HashEmbedding((buckets,) * fields, hidden, dtype=dtype)
        self.deep = _dense_layers((fields * hidden, *deep, 1), dtype, None)

    def construct(self, features: Tensor) -> Tensor:
        """Return the number."""
        x = self.embedding(features)
        return self.deep(x.reshape((x.shape[0], -1)))


def feature_hash(
    batch: int = 4096,
    buckets: int = 10_000,
    fields: int = 8,
    hidden: int = 32,
    width: int = 256,
    dtype: str = "float32",
) -> Definition:
    """Hashed categories (airport, airline, ...) to a waiting time, by the square of the error."""
    specs = (
        InputSpec("features", TensorType("int32", (batch, fields)), _FEATURES),
        InputSpec("time", TensorType(dtype, (batch, 1))),
    )
    network = FeatureHash(buckets, fields, hidden, (width, width // 2), dtype)
    return trace(network, specs, loss_fn=nn.MSELoss(), name="feature_hash")
