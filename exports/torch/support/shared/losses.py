"""Losses of a plan, by functions that all systems have."""

from . import arrays
from .arrays import Array, at_least, xp
from .elementwise import widened
from .shapes import pick


def row_max(x: Array) -> Array:
    return xp.amax(x, -1)


@widened
def softmax_cross_entropy(logits: Array, labels: Array) -> Array:
    return -(arrays.log_softmax(logits, -1) * labels).sum(-1)


@widened
def softmax_cross_entropy_gradient(dy: Array, logits: Array, labels: Array) -> Array:
    weight = labels.sum(-1, keepdims=True)
    return (arrays.softmax(logits, -1) * weight - labels) * dy[..., None]


@widened
def sparse_softmax_cross_entropy(logits: Array, labels: Array) -> Array:
    return -pick(arrays.log_softmax(logits, -1), labels)


@widened
def sigmoid_cross_entropy(logits: Array, labels: Array) -> Array:
    return xp.logaddexp(logits, xp.zeros_like(logits)) - logits * labels


@widened
def sigmoid_cross_entropy_gradient(dy: Array, logits: Array, labels: Array) -> Array:
    return (arrays.sigmoid(logits) - labels) * dy


@widened
def binary_cross_entropy(x: Array, labels: Array) -> Array:
    first, second = at_least(xp.log(x), -100), at_least(xp.log1p(-x), -100)
    return (labels - 1) * second - labels * first


@widened
def binary_cross_entropy_gradient(dy: Array, x: Array, labels: Array) -> Array:
    return dy * (x - labels) / at_least(x * (1 - x), 1e-12)
