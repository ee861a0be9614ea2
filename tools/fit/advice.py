"""What to change first: of the changes to a plan, the cheapest way to memory and to speed."""

from collections.abc import Callable, Sequence

from shardwright.compiler.evaluation.evaluated import Evaluated
from shardwright.compiler.fit.questions import Change
from shardwright.ir.units import TOLD_PART, bytes_text

_FASTER = 0.005  # relative: less is below what estimates tell


def advice(
    base: Evaluated,
    changes: Sequence[Change],
    tells: Callable[[Change], bool | None] = lambda _: None,
) -> list[str]:
    """Return sentences on what to change first.

    Parameters
    ----------
    base : Evaluated
        The plan.
    changes : sequence of Change
        Plans that differ from it in one thing.
    tells : callable
        Returns whether a change makes a step that is told from that of the plan, None if unknown.
    """
    same = [one for one in changes if one.then.devices == base.devices]
    if not base.fits:
        return [_to_fit(changes)]
    return [_for_memory(base, same), _for_speed(base, same, tells)]


def _to_fit(changes: Sequence[Change]) -> str:
    fitting = [one for one in changes if one.then.fits]
    if not fitting:
        return "no single change makes it fit"
    first = min(fitting, key=lambda one: (one.then.devices, one.then.seconds))
    return f"to fit: `{first.text}`, {bytes_text(first.then.memory_bytes)}"


def _for_memory(base: Evaluated, changes: Sequence[Change]) -> str:
    """Return the change that frees memory for the least time by each byte."""
    least = TOLD_PART * base.model.limit_bytes
    found = [
        one
        for one in changes
        if one.then.fits and base.memory_bytes - one.then.memory_bytes >= least
    ]
    if not found:
        return "for memory: no single change frees much"
    first = min(found, key=lambda one: _slower(base, one) / _freed(base, one))
    freed = bytes_text(_freed(base, first))
    return f"for memory: `{first.text}` frees {freed} for {_slower(base, first):+.1%} of the step"


def _for_speed(
    base: Evaluated, changes: Sequence[Change], tells: Callable[[Change], bool | None]
) -> str:
    """Return the fastest change, and what it lacks where it does not fit."""
    shorter = [one for one in changes if _slower(base, one) < -_FASTER]
    faster = [one for one in shorter if tells(one) is not False]
    fitting = [one for one in faster if one.then.fits]
    if fitting:
        first = min(fitting, key=lambda one: one.then.seconds)
        return f"for speed: `{first.text}`, {_slower(base, first):+.1%} of the step"
    if not faster:
        told = "told to be " if shorter else ""
        return f"for speed: no single change is {told}faster on as many devices"
    first = min(faster, key=lambda one: one.then.memory_bytes)
    needed = bytes_text(first.then.memory_bytes)
    return (
        f"for speed: none that fits is faster on as many devices; `{first.text}`, "
        f"{_slower(base, first):+.1%}, takes {needed} and does not fit"
    )


def _slower(base: Evaluated, one: Change) -> float:
    return one.then.seconds / base.seconds - 1


def _freed(base: Evaluated, one: Change) -> float:
    return base.memory_bytes - one.then.memory_bytes
