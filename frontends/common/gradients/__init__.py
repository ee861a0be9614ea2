"""Gradients that a model computes in its own forward pass, as operators with gradients."""

from shardwright.frontends.common.gradients.inner import emit_gradients

__all__ = ["emit_gradients"]
