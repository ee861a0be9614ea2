"""Metrics of an evaluation."""

from typing import Any

import numpy as np

from shardwright.train import metrics as own
from shardwright.train.metrics import (
    Accuracy,
    Loss,
    Metric,
    Top1CategoricalAccuracy,
    Top5CategoricalAccuracy,
    TopKCategoricalAccuracy,
)


class MAE(own.MAE):
    """The sum of the absolute errors over the number of samples, as MindSpore has it."""

    def update(self, *inputs: Any) -> None:
        """Take in predictions and labels."""
        super().update(*inputs)
        _count_samples(self, inputs[1])


class MSE(own.MSE):
    """The sum of the squared errors over the number of samples, as MindSpore has it."""

    def update(self, *inputs: Any) -> None:
        """Take in predictions and labels."""
        super().update(*inputs)
        _count_samples(self, inputs[1])


def _count_samples(metric: own.MeanMetric, labels: Any) -> None:
    """Count the samples of a batch in the place of its elements."""
    array = own.array_of(labels)
    metric.count += len(np.atleast_1d(array)) - array.size


def metrics_of(metrics: Any) -> dict[str, Metric]:
    """Return metrics by name, from names or from a mapping of metrics."""
    found = own.metrics_of(metrics)
    kinds: dict[type[Metric], type[Metric]] = {own.MAE: MAE, own.MSE: MSE}
    return {n: kinds[type(m)]() if type(m) in kinds else m for n, m in found.items()}


__all__ = [
    "MAE",
    "MSE",
    "Accuracy",
    "Loss",
    "Metric",
    "Top1CategoricalAccuracy",
    "Top5CategoricalAccuracy",
    "TopKCategoricalAccuracy",
]
