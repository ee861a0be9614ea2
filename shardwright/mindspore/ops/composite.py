"""Functions of functions: `GradOperation`."""

from shardwright.mindspore.gradients import GradOperation

__all__ = ["GradOperation"]
