"""Metrics: numbers that an evaluation returns, gathered batch by batch."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardwright.ir.errors import ModelError
from shardwright.ir.values import POSITIVE_INTEGER, check_choice, wrong_value
from shardwright.operators.info import Array
from shardwright.tensor import Tensor


class Metric:
    """A number of all batches; a subclass overrides `clear`, `update` and `eval`."""

    def clear(self) -> None:
        """Forget all batches."""
        raise NotImplementedError

    def update(self, *inputs: Any) -> None:
        """Take in a batch: what the network returns, and the labels."""
        raise NotImplementedError

    def eval(self) -> Any:
        """Return the number of all batches."""
        raise NotImplementedError


class MeanMetric(Metric):
    """The mean of a number of every sample, or every batch."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all batches."""
        self.total, self.count = 0.0, 0

    def add(self, numbers: Array) -> None:
        """Take in the numbers of some samples."""
        self.total += float(np.sum(numbers))
        self.count += int(np.size(numbers))

    def eval(self) -> float:
        """Return the mean.

        Raises
        ------
        ModelError
            If there was no batch.
        """
        if not self.count:
            raise ModelError(f"the metric `{type(self).__name__}` has seen no batch")
        return self.total / self.count


class Loss(MeanMetric):
    """The mean of the loss over the batches."""

    def update(self, *inputs: Any) -> None:
        """Take in the loss of a batch."""
        self.add(np.atleast_1d(np.mean(array_of(inputs[0]))))


class Accuracy(MeanMetric):
    """The share of samples whose greatest score is that of their label.

    Parameters
    ----------
    eval_type : str
        ``classification``.
    """

    def __init__(self, eval_type: str = "classification") -> None:
        check_choice("eval_type", eval_type, ("classification",))
        super().__init__()

    def update(self, *inputs: Any) -> None:
        """Take in scores, and labels or weights of classes."""
        scores, labels = map(array_of, inputs)
        self.add(scores.argmax(-1) == classes_of(scores, labels))


class TopKCategoricalAccuracy(MeanMetric):
    """The share of samples whose label is among the k greatest scores.

    Parameters
    ----------
    k : int
        How many scores count.
    """

    def __init__(self, k: int) -> None:
        POSITIVE_INTEGER.check("k", k)
        super().__init__()
        self.k = k

    def update(self, *inputs: Any) -> None:
        """Take in scores, and labels or weights of classes."""
        scores, labels = map(array_of, inputs)
        greatest = np.argsort(-scores, -1, kind="stable")[..., : self.k]
        self.add((greatest == classes_of(scores, labels)[..., None]).any(-1))


class Top1CategoricalAccuracy(TopKCategoricalAccuracy):
    """The share of samples whose label has the greatest score."""

    def __init__(self) -> None:
        super().__init__(1)


class Top5CategoricalAccuracy(TopKCategoricalAccuracy):
    """The share of samples whose label is among the five greatest scores."""

    def __init__(self) -> None:
        super().__init__(5)


class MAE(MeanMetric):
    """The mean absolute error."""

    def update(self, *inputs: Any) -> None:
        """Take in predictions and labels."""
        found, right = map(array_of, inputs)
        self.add(np.abs(found - right.reshape(found.shape)))


class MSE(MeanMetric):
    """The mean squared error."""

    def update(self, *inputs: Any) -> None:
        """Take in predictions and labels."""
        found, right = map(array_of, inputs)
        self.add(np.square(found - right.reshape(found.shape)))


def array_of(item: Any) -> Array:
    """Return a tensor, an array or a number as an array."""
    return np.asarray(item.asnumpy() if isinstance(item, Tensor) else item)


def classes_of(scores: Array, labels: Array) -> Array:
    """Return the classes that labels, or weights of classes, stand for."""
    return labels.argmax(-1) if labels.shape == scores.shape else labels


METRICS: dict[str, type[Metric]] = {
    "acc": Accuracy,
    "accuracy": Accuracy,
    "loss": Loss,
    "mae": MAE,
    "mse": MSE,
    "top_1_accuracy": Top1CategoricalAccuracy,
    "top_5_accuracy": Top5CategoricalAccuracy,
}


def metrics_of(metrics: object) -> dict[str, Metric]:
    """Return metrics by name, from names or from a mapping of metrics.

    Raises
    ------
    OptionError
        If a name is unknown, or something is no metric.
    """
    if metrics is None:
        return {}
    if isinstance(metrics, Mapping):
        for metric in metrics.values():
            if not isinstance(metric, Metric):
                raise wrong_value("metrics", metric, "a `Metric`")
        return dict(metrics)
    if not isinstance(metrics, Sequence | set | frozenset) or isinstance(metrics, str):
        raise wrong_value("metrics", metrics, "names of metrics, or a mapping of metrics")
    for name in metrics:
        check_choice("metrics", name, METRICS)
    return {name: METRICS[name]() for name in metrics}
