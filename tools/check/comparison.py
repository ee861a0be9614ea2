"""Compare what the ranks hold with one device's values, and say how a value differs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import isfinite, prod
from pathlib import Path
from typing import Any

import torch

from shardwright.ir.errors import ModelError
from shardwright.tools.check.alone import Reference, Whole, same
from shardwright.tools.check.contract import place
from shardwright.tools.check.rank import Answer, Part


@dataclass(frozen=True)
class Fault:
    """A value that is not what one device computes; `line` is 0 where it is not known.

    `what` is `loss`, `gradient`, `update` for a parameter after the step, or `wait` for a
    collective; `value` is the name of the parameter or of the collective, or `loss`.
    """

    what: str
    value: str
    rank: int
    found: str
    axes: tuple[str, ...] = ()
    line: int = 0
    mend: str = ""


def faults(
    path: Path, reference: Reference, whole: Whole, answers: Sequence[Answer]
) -> list[Fault]:
    """Return the first fault of each value.

    Raises
    ------
    ModelError
        If a part of a parameter is on no rank, or ranks do not agree on what they hold.
    """
    comparison = _Comparison(path, reference, answers)
    comparison.check_held(whole)
    found = comparison.loss(whole)
    for what, expected in (("gradient", whole.gradients), ("update", whole.after or {})):
        parts = [a.gradients if what == "gradient" else a.after for a in answers]
        found += comparison.parameters(what, expected, parts)
    return found


def not_waited_for(answers: Sequence[Answer]) -> list[Fault]:
    """Return the collectives that a rank does not wait for: what they give depends on the time."""
    found: dict[str, Fault] = {}
    for rank, answer in enumerate(answers):
        for line, name in answer.pending:
            fault = Fault("wait", name, rank, "not waited for", line=line, mend="call `wait()`")
            found.setdefault(name, fault)
    return list(found.values())


class _Comparison:
    def __init__(self, path: Path, reference: Reference, answers: Sequence[Answer]) -> None:
        self.path, self.reference, self.answers = path, reference, answers
        self.mesh = reference.mesh
        self.places = [place(self.mesh, rank) for rank in range(len(answers))]

    def known(self, name: str) -> str:
        return self.reference.names.get(name, name)

    def check_held(self, whole: Whole) -> None:
        """Refuse a program in which a part of a parameter is on no rank."""
        for known, gradient in whole.gradients.items():
            parts = [
                part.positions.flatten()
                for answer in self.answers
                for name, part in answer.gradients.items()
                if self.known(name) == known
            ]
            if not parts or torch.cat(parts).unique().numel() < gradient.numel():
                text = f"no rank has {'a part of ' if parts else ''}the parameter `{known}`"
                raise ModelError(text, str(self.path), "mend `LAYOUTS`, `NAMES` or `parallel`")

    def total(self, parts: Sequence[Part | None], rank: int, name: str) -> Any:
        """Return the elements of a rank, with the terms of others where it says they are sums."""
        own = parts[rank]
        assert own is not None
        terms = [parts[other] for other in own.terms]
        if any(
            term is None
            or term.value.shape != own.value.shape
            or not torch.equal(term.positions, own.positions)
            for term in terms
        ):
            text = f"ranks {list(own.terms)} do not hold terms of the same elements of `{name}`"
            raise ModelError(text, str(self.path), "give it the same placements on all ranks")
        return sum(term.value for term in terms if term is not None) / own.divisor

    def parameters(
        self, what: str, expected: Mapping[str, Any], parts: Sequence[Mapping[str, Part]]
    ) -> list[Fault]:
        """Return the first fault of each parameter."""
        found: list[Fault] = []
        largest = max((float(value.abs().max()) for value in expected.values()), default=1.0)
        for rank, names in enumerate(parts):
            for name, part in names.items():
                if any(fault.value == name for fault in found):
                    continue
                each = [others.get(name) for others in parts]
                line = self.answers[rank].lines[name]
                if part.value.shape != part.positions.shape:
                    text = f"a local tensor of shape {tuple(part.value.shape)}, its placements "
                    text += f"give {tuple(part.positions.shape)}"
                    found.append(Fault(what, name, rank, text, line=line))
                    continue
                value = self.total(each, rank, name)
                if self.known(name) not in expected:
                    if value.any():
                        text = "not zero, and one device does not train it"
                        found.append(Fault(what, name, rank, text, line=line, mend="freeze it"))
                    continue
                whole = expected[self.known(name)].flatten()[part.positions]
                if same(value, whole, largest):
                    continue
                copies = {
                    other: self.total(each, other, name)
                    for other, held in enumerate(each)
                    if held is not None and torch.equal(held.positions, part.positions)
                }
                fault = self.explained(value, whole, copies, rank)
                found.append(replace(fault, what=what, value=name, line=line))
        return found

    def loss(self, whole: Whole) -> list[Fault]:
        """Return the fault of the first rank whose loss, summed as it says, is another."""
        losses = [
            self.total([answer.loss for answer in self.answers], rank, "loss").reshape(())
            for rank in range(len(self.answers))
        ]
        for rank, own in enumerate(self.places):
            total = sum(
                loss
                for loss, other in zip(losses, self.places, strict=True)
                if all(other[a] == own[a] or a in self.reference.loss for a in own)
            )
            for axis, how in self.reference.loss.items():
                total = total / self.mesh[axis] if how == "mean" else total
            if not same(total, whole.loss):
                return [self.explained(total, whole.loss, dict(enumerate(losses)), rank)]
        return []

    def explained(self, found: Any, expected: Any, copies: Mapping[int, Any], rank: int) -> Fault:
        """Say how a value differs: partial over axes, multiplied, or another value."""
        axes = [axis for axis, size in self.mesh.items() if size > 1]
        own = self.places[rank]
        for count in range(1, len(axes) + 1):
            sums, doubled, divided = _Ways(), _Ways(), _Ways()
            for some in combinations(axes, count):
                group = [
                    value
                    for other, value in copies.items()
                    if all(self.places[other][a] == own[a] for a in axes if a not in some)
                ]
                size = prod(self.mesh[a] for a in some)
                if len(group) > 1 and same(sum(group), expected):
                    sums.append(some)
                if same(found, size * expected):
                    doubled.append(some)
                if same(found * size, expected):
                    divided.append(some)
            size = prod(self.mesh[a] for a in (doubled or divided or [()])[0])
            if sums:
                text = f"a partial sum {sums}, used as if it were whole"
                return _loss_fault(rank, text, sums.axes, f"sum it {sums}")
            if doubled:
                text = f"{size} times what it must be, as if summed once too often {doubled}"
                return _loss_fault(rank, text, doubled.axes, f"leave out one sum {doubled}")
            if divided:
                text = f"1/{size} of what it must be"
                return _loss_fault(rank, text, divided.axes, f"do not divide by {size}")
        ratio = _ratio(found, expected)
        if ratio:
            text = f"{ratio:.6g} times what it must be, in each of its elements here"
            return _loss_fault(rank, text, mend="mend the count, mean or norm that it is scaled by")
        apart = float((found - expected).abs().max())
        return _loss_fault(rank, f"another value, {apart:.3g} apart")


def _ratio(found: Any, expected: Any) -> float:
    """By what a value is multiplied throughout; 0 where there is no one number."""
    at = expected.abs().argmax()
    largest = float(expected.flatten()[at])
    ratio = float(found.flatten()[at]) / largest if largest else 0.0
    plain = expected.numel() > 1 and isfinite(ratio) and ratio != 0.0
    return ratio if plain and same(found / ratio, expected) else 0.0


class _Ways(list[tuple[str, ...]]):
    """Groups of axes that explain a value equally well."""

    def __str__(self) -> str:
        return " or ".join("over " + " and ".join(f"`{a}`" for a in axes) for axes in self)

    @property
    def axes(self) -> tuple[str, ...]:
        return self[0] if len(self) == 1 else ()


def _loss_fault(rank: int, found: str, axes: tuple[str, ...] = (), mend: str = "") -> Fault:
    return Fault("loss", "loss", rank, found, axes, mend=mend)
