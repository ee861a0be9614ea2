"""Observers of a training run."""

from shardwright.train import Callback, LossMonitor, RunContext

__all__ = ["Callback", "LossMonitor", "RunContext"]
