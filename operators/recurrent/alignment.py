"""Connectionist temporal classification: the sum over all alignments of labels with steps.

A path goes through ``2 S + 1`` states: a blank before, between and behind the labels. It stays,
goes on by one, or skips a blank between labels that differ. All sums are of logarithms.
"""

from collections import deque
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    OperatorInfo,
    register,
)
from shardwright.operators.notation import resolve
from shardwright.operators.rule import Rule, ShardView

_TYPES = ("f64[6, 4, 3]", "i64[4, 3]", "i64[4]", "i64[4]")
_RANGES = {0: (-3.0, -0.1), 1: (1, 3), 2: (5, 7), 3: (1, 4)}


class OverAlignments(OperatorInfo):
    """The base of the loss and its gradient: both read the operands of the loss.

    Samples ``b`` may be split; steps ``t``, classes ``c`` and labels ``s`` stay whole.
    """

    defaults: ClassVar = {"blank": 0, "zero_infinity": False}
    of_reals = True
    operations: ClassVar[float]  # of each state at each step
    read = "t^ b c^, b s^, b, b"

    @property
    def flops(self) -> float:
        """Count the sums of each state at each step."""
        sizes = self.rule.sizes
        return self.operations * sizes["t"] * sizes["b"] * (2 * sizes["s"] + 1)

    def paths(self, logs: Array, labels: Array, steps: Array, counts: Array) -> "Paths":
        """Return the paths of samples."""
        return Paths(logs, labels, steps, counts, self.attributes["blank"])


@register
class CtcLoss(OverAlignments):
    """The negative logarithms of the probabilities ``[sample]`` of sequences of labels.

    Operands are logarithms of probabilities ``[step, sample, class]``, labels ``[sample, place]``,
    and of each sample the number of steps and of labels. The loss of labels that cannot be aligned
    is infinite, and has the gradient NaN; with ``zero_infinity`` both are zero.

    References
    ----------
    Graves et al., "Connectionist temporal classification", 2006.
    """

    name = "ctc_loss"
    operations = 12.0
    examples = (
        Example(_TYPES, ranges=_RANGES),
        Example(_TYPES, {"blank": 2, "zero_infinity": True}, {**_RANGES, 1: (0, 2), 3: (3, 4)}),
    )

    def make_rule(self) -> Rule:
        """Split the samples alone."""
        shapes = [operand.shape for operand in self.operand_types]
        return resolve(f"{self.read} -> b", shapes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Take the steps one by one."""
        losses = self.paths(*operands).losses()
        if self.attributes["zero_infinity"]:
            losses = np.where(np.isinf(losses), 0, losses)
        return losses.astype(operands[0].dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Save the operands; the sums over paths are made again."""
        operands = (at.cotangents[0], *at.operands)
        return [build.emit("ctc_loss_gradient", *operands, **self.attributes), None, None, None]


@register
class CtcLossGradient(OverAlignments):
    """The gradients of the loss by the logarithms of probabilities.

    Operands are the cotangents of the losses, and the operands of the loss. The gradient is minus
    the probability that a path has the class at the step.
    """

    name = "ctc_loss_gradient"
    operations = 30.0
    linear = ((0,),)
    examples = (
        Example(("f64[4]", *_TYPES), ranges={k + 1: v for k, v in _RANGES.items()}),
        Example(
            ("f64[4]", *_TYPES),
            {"blank": 2, "zero_infinity": True},
            {1: (-3.0, -0.1), 2: (0, 2), 3: (2, 7), 4: (3, 4)},
        ),
    )

    def make_rule(self) -> Rule:
        """Split the samples alone."""
        shapes = [operand.shape for operand in self.operand_types]
        return resolve(f"b, {self.read} -> t^ b c^", shapes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Take the steps forward and backward."""
        shares = self.paths(*operands[1:]).shares(self.attributes["zero_infinity"])
        return (-operands[0].astype(shares.dtype)[:, None] * shares).astype(operands[0].dtype)


@register
class CtcPrefixes(OverAlignments):
    """The logarithms ``[sample, step, state]`` of the sums over the begins of all alignments.

    Operands are those of `ctc_loss`. A state stands for a label or for a blank beside one; those of
    labels or steps that a sample does not have are minus infinity. There is no gradient.
    """

    name = "ctc_prefixes"
    operations = 12.0
    defaults: ClassVar = {"blank": 0}
    stops_gradient = True
    examples = (
        Example(_TYPES, {}, _RANGES, (0,)),
        Example(_TYPES, {"blank": 2}, {**_RANGES, 1: (0, 2), 2: (2, 7)}, (0,)),
    )

    def make_rule(self) -> Rule:
        """Split the samples alone."""
        shapes = [operand.shape for operand in self.operand_types]
        return resolve(f"{self.read} -> b t^ z^", shapes, {"z": 2 * shapes[1][1] + 1})

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Take the steps one by one."""
        logs, labels, steps, _ = operands
        paths = self.paths(*operands)
        found = np.full((len(labels), len(logs), 2 * labels.shape[1] + 1), -np.inf, logs.dtype)
        for step, sums in enumerate(paths.forward()):
            known = (step < steps[:, None]) & (paths.states <= paths.ends)
            found[:, step, : sums.shape[1]] = np.where(known, sums, -np.inf)
        return found


class Paths:
    """The paths of samples through their states.

    Parameters
    ----------
    logs : array
        Logarithms of probabilities ``[step, sample, class]``.
    labels : array
        Labels ``[sample, place]``.
    steps, counts : array
        The number of steps and of labels of each sample.
    blank : int
        The class that stands for no label.
    """

    def __init__(self, logs: Array, labels: Array, steps: Array, counts: Array, blank: int) -> None:
        kind = np.float64 if logs.dtype == np.float64 else np.float32
        self.logs, self.steps = logs.astype(kind, copy=False), np.minimum(steps, len(logs))
        longest = int(counts.max(initial=0))
        self.ends = 2 * counts[:, None]  # the last state of each sample
        classes = np.full((len(labels), 2 * longest + 1), blank, np.int64)
        own = np.arange(longest) < counts[:, None]
        classes[:, 1::2] = np.where(own, labels[:, :longest], blank)
        self.classes, self.states = classes, np.arange(classes.shape[1])
        differs = np.zeros(classes.shape, bool)
        differs[:, 2:] = classes[:, 2:] != classes[:, :-2]
        self.skips = differs & (self.states % 2 == 1)

    def _at(self, step: int) -> Array:
        """Return the logarithms ``[sample, state]`` at a step."""
        return np.take_along_axis(self.logs[step], self.classes, axis=1)

    def forward(self) -> Iterator[Array]:
        """Yield the sums ``[sample, state]`` of all ways to a state, from the first step on."""
        none = self.logs.dtype.type(-np.inf)
        found = np.where((self.states < 2) & (self.states <= self.ends), self._at(0), none)
        for step in range(len(self.logs)):
            if step:
                ways = np.logaddexp(found, _moved(found, 1))
                ways = np.logaddexp(ways, np.where(self.skips, _moved(found, 2), none))
                found = np.where(step < self.steps[:, None], ways + self._at(step), found)
            yield found

    def backward(self) -> Iterator[Array]:
        """Yield the sums of all ways on from a state, from the last step to the first."""
        none = self.logs.dtype.type(-np.inf)
        is_end = (self.states >= self.ends - 1) & (self.states <= self.ends)
        found = np.full(self.classes.shape, none)
        skips = np.zeros_like(self.skips)
        skips[:, :-2] = self.skips[:, 2:]
        for step in reversed(range(len(self.logs))):
            ways = np.logaddexp(found, _moved(found, -1))
            ways = np.logaddexp(ways, np.where(skips, _moved(found, -2), none))
            left = self.steps[:, None] - 1 - step
            ways = np.where(left > 0, ways, np.where((left == 0) & is_end, 0, none))
            found = ways + self._at(step)
            yield found

    def losses(self) -> Array:
        """Return the loss of each sample."""
        last = deque(self.forward(), maxlen=1)[0]
        ends = [
            np.take_along_axis(last, np.maximum(self.ends - n, 0), axis=1)[:, 0] for n in (0, 1)
        ]
        has_labels = self.ends[:, 0] > 0
        losses = -np.logaddexp(ends[0], np.where(has_labels, ends[1], -np.inf))
        return np.where(self.steps > 0, losses, np.where(has_labels, np.inf, 0))

    def shares(self, zero_infinity: bool) -> Array:
        """Return the share of paths that have each class at each step."""
        losses = self.losses()
        found = np.zeros_like(self.logs)
        sample = np.arange(len(losses))[:, None]
        with np.errstate(invalid="ignore"):  # NaN where no path is possible
            both = zip(reversed(list(self.forward())), self.backward(), strict=True)
            for step, (before, after) in zip(reversed(range(len(found))), both, strict=True):
                share = np.exp(before + after + losses[:, None] - self._at(step))
                share = np.where(step < self.steps[:, None], share, 0)
                np.add.at(found[step], (sample, self.classes), share)
        places = np.arange(len(found))[:, None, None]
        lost = np.isinf(losses)[:, None] & (places < self.steps[:, None])
        found[np.broadcast_to(lost, found.shape)] = 0 if zero_infinity else np.nan
        return found


def _moved(x: Array, by: int) -> Array:
    """Return sums of states moved to later ones, or to earlier ones."""
    found = np.full_like(x, -np.inf)
    if by > 0:
        found[:, by:] = x[:, :-by]
    else:
        found[:, :by] = x[:, -by:]
    return found
