"""Metrics of an evaluation."""

from typing import Any

import numpy as np

from shardwright.ir.errors import ModelError
from shardwright.ir.values import POSITIVE, check_choice
from shardwright.train import metrics as own
from shardwright.train.metrics import (
    Accuracy,
    Loss,
    Metric,
    Top1CategoricalAccuracy,
    Top5CategoricalAccuracy,
    TopKCategoricalAccuracy,
)


class _OverSamples(own.MeanMetric):
    """A mean over the number of samples, where the base has one over that of elements."""

    def update(self, *inputs: Any) -> None:
        """Take in predictions and labels."""
        super().update(*inputs)
        labels = own.array_of(inputs[1])
        self.count += len(np.atleast_1d(labels)) - labels.size


class MAE(_OverSamples, own.MAE):
    """The sum of the absolute errors over the number of samples, as MindSpore has it."""


class MSE(_OverSamples, own.MSE):
    """The sum of the squared errors over the number of samples, as MindSpore has it."""


class Fbeta(own.Metric):
    """The mean of precision and recall of each class, weighted by a number.

    Parameters
    ----------
    beta : float
        How much a recall counts as a precision does, squared.
    """

    def __init__(self, beta: float) -> None:
        POSITIVE.check("beta", beta)
        self.beta = beta
        self.clear()

    def clear(self) -> None:
        """Forget all batches."""
        self.hits: Any = 0
        self.found: Any = 0
        self.right: Any = 0

    def update(self, *inputs: Any) -> None:
        """Take in scores, and labels or weights of classes."""
        scores, labels = map(own.array_of, inputs)
        every = np.eye(scores.shape[1])
        labels = own.classes_of(scores, labels).reshape(-1)
        found, right = every[scores.argmax(1).reshape(-1)], every[labels]
        self.hits += (found * right).sum(0)
        self.found += found.sum(0)
        self.right += right.sum(0)

    def eval(self, average: bool = False) -> Any:
        """Return the number of each class, or its mean over the classes."""
        if np.ndim(self.hits) == 0:
            raise ModelError(f"the metric `{type(self).__name__}` has seen no batch")
        each = self._each()
        return each.mean() if average else each

    def _each(self) -> Any:
        weight = self.beta**2
        return _share((1 + weight) * self.hits, weight * self.right + self.found)


class F1(Fbeta):
    """The harmonic mean of precision and recall of each class."""

    def __init__(self) -> None:
        super().__init__(1.0)


class Precision(F1):
    """The share of each class of what was taken for it that is of it."""

    def __init__(self, eval_type: str = "classification") -> None:
        check_choice("eval_type", eval_type, ("classification",))
        super().__init__()

    def _each(self) -> Any:
        return _share(self.hits, self.found)


class Recall(Precision):
    """The share of each class that was taken for it."""

    def _each(self) -> Any:
        return _share(self.hits, self.right)


def _share(part: Any, whole: Any) -> Any:
    return part / (whole + np.finfo(float).tiny)


def metrics_of(metrics: Any) -> dict[str, Metric]:
    """Return metrics by name, from names or from a mapping of metrics."""
    found = own.metrics_of(metrics)
    kinds: dict[type[Metric], type[Metric]] = {own.MAE: MAE, own.MSE: MSE}
    return {n: kinds[type(m)]() if type(m) in kinds else m for n, m in found.items()}


__all__ = [
    "F1",
    "MAE",
    "MSE",
    "Accuracy",
    "Fbeta",
    "Loss",
    "Metric",
    "Precision",
    "Recall",
    "Top1CategoricalAccuracy",
    "Top5CategoricalAccuracy",
    "TopKCategoricalAccuracy",
]
