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
